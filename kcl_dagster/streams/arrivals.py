"""Converts positions in a shard to times: the arrival times of the records at these positions."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from kcl_dagster import aws
from kcl_dagster.errors import KclError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.records import arrival_millis

MOST_SECONDS: Final = 30.0  # for the look-ups of all shards together; an operator waits for the result
MOST_PAGES: Final = 3  # Kinesis returns empty pages if a shard has few records


@dataclass(frozen=True, slots=True)
class Span:
    """How far a reset moves a checkpoint, as the arrival times of two records in epoch milliseconds. `before`: when
    the record at the present checkpoint arrived. `after`: when the record at the target checkpoint arrived. A time
    is None if it is not known, for example because the record has left the stream."""

    before: int | None
    after: int | None

    @property
    def seconds(self) -> float | None:
        """The seconds between the two times. Negative if records are read again, positive if they are skipped. None
        if a time is not known."""
        return None if self.before is None or self.after is None else (self.after - self.before) / 1000

    def __str__(self) -> str:
        seconds = self.seconds
        if seconds is None:
            what = "how much time lies between is unknown"
        elif seconds < 0:
            what = f"re-reads {_duration(-seconds)}"
        else:
            what = f"skips {_duration(seconds)}" if seconds else "re-reads and skips nothing"
        return f"{what} (from {_moment(self.before)} to {_moment(self.after)})"

    def to_document(self) -> dict[str, Any]:
        return {
            "from": None if self.before is None else _moment(self.before),
            "to": None if self.after is None else _moment(self.after),
            "seconds": self.seconds,
        }


class Arrivals:
    """Looks up the arrival times of records, for at most `seconds` after this object was made. After that, or if a
    look-up fails, a call returns None. No call raises an error of AWS."""

    def __init__(self, kinesis: aws.Client, runtime: Runtime, seconds: float = MOST_SECONDS) -> None:
        self._kinesis, self._runtime = kinesis, runtime
        self._deadline = runtime.clock.monotonic() + seconds

    def at(self, stream: str, shard: str, checkpoint: Checkpoint | None, timestamp_ms: int | None) -> int | None:
        """When the record at `checkpoint` arrived, in epoch milliseconds. `timestamp_ms`: the time for which LATEST
        and AT_TIMESTAMP stand.

        If `checkpoint` is an initial position, such as TRIM_HORIZON, no record is at it. The result is then the
        time at which the first record after the position arrived, or the present time if there is no such record
        yet.
        """
        if checkpoint is None:
            return None
        place = _place(checkpoint, timestamp_ms, "AT_SEQUENCE_NUMBER")
        sequence = None if checkpoint.is_sentinel else checkpoint.sequence
        found = None if place is None else self._looked_up(stream, shard, place, sequence)
        if found != float("inf"):
            return None if found is None else int(found)
        return None if sequence is not None else int(self._runtime.clock.now() * 1000)

    def first_after(
        self, stream: str, shard: str, checkpoint: Checkpoint | None, timestamp_ms: int | None
    ) -> float | None:
        """When the first record after `checkpoint` arrived, in epoch milliseconds; infinite if there is none. If
        the checkpoint is inside an aggregate, this is the arrival time of the aggregate."""
        if checkpoint is None:
            return None
        kind = "AT_SEQUENCE_NUMBER" if checkpoint.sub_sequence else "AFTER_SEQUENCE_NUMBER"
        place = _place(checkpoint, timestamp_ms, kind)
        return None if place is None else self._looked_up(stream, shard, place, None)

    def first_unread(
        self,
        stream: str,
        shard: str,
        checkpoint: Checkpoint | None,
        timestamp_ms: int | None,
        stored_through: float,
    ) -> float | None:
        """When the first unread record arrived, in epoch milliseconds. Infinite if all records are read, so that no
        worker is needed. None if a worker is needed to find out: the look-up failed, or the shard is closed and its
        children wait for its end.

        If the checkpoint has a sub-sequence number, it is not known whether the aggregate has further records after
        the checkpoint. The aggregate then counts as read if it arrived before `stored_through` (epoch seconds).
        """
        if checkpoint is None:
            return None
        kind = "AT_SEQUENCE_NUMBER" if checkpoint.sub_sequence else "AFTER_SEQUENCE_NUMBER"
        place = _place(checkpoint, timestamp_ms, kind)
        if place is None:
            return None
        try:
            iterator = self._ask("get_shard_iterator", StreamName=stream, ShardId=shard, **place)["ShardIterator"]
            named = aws.stream_arn(self._kinesis, stream)
            for _ in range(MOST_PAGES):
                answer = self._ask("get_records", ShardIterator=iterator, Limit=1, **named)
                for record in answer["Records"]:
                    arrived = arrival_millis(record)
                    is_at = int(record["SequenceNumber"]) == _number(checkpoint)
                    if arrived is None or not is_at or arrived / 1000 >= stored_through:
                        return arrived
                iterator = answer.get("NextShardIterator")
                if iterator is None:
                    return None
                if not answer.get("MillisBehindLatest"):
                    return float("inf")
        except KclError:
            return None
        return None

    def _looked_up(self, stream: str, shard: str, place: dict[str, Any], sequence: str | None) -> float | None:
        try:
            return self._first(stream, shard, place, sequence)
        except KclError:
            return None

    def _first(self, stream: str, shard: str, place: dict[str, Any], sequence: str | None) -> float | None:
        """When the first record at or after `place` arrived; infinite if there is none. None if `sequence` is given
        and this record has another sequence number."""
        answer = self._ask("get_shard_iterator", StreamName=stream, ShardId=shard, **place)
        iterator, named = answer["ShardIterator"], aws.stream_arn(self._kinesis, stream)
        for _ in range(MOST_PAGES):
            answer = self._ask("get_records", ShardIterator=iterator, Limit=1, **named)
            if answer["Records"]:
                record = answer["Records"][0]
                is_other = sequence is not None and int(record["SequenceNumber"]) != int(sequence)
                return None if is_other else arrival_millis(record)
            iterator = answer.get("NextShardIterator")
            if iterator is None or not answer.get("MillisBehindLatest"):
                return float("inf")
        return None

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        if self._runtime.clock.monotonic() >= self._deadline:
            raise KclError("the time for looking up arrivals is over")
        return aws.retried(lambda: aws.call(self._kinesis, method, **parameters), self._runtime, self._deadline)


def _place(checkpoint: Checkpoint, timestamp_ms: int | None, kind: str) -> dict[str, Any] | None:
    """The position as parameters of a request. None if the shard has ended, or if the time of LATEST is not
    known."""
    if checkpoint.is_shard_end:
        return None
    if not checkpoint.is_sentinel:
        return {"ShardIteratorType": kind, "StartingSequenceNumber": checkpoint.sequence}
    if checkpoint.sequence == "TRIM_HORIZON":
        return {"ShardIteratorType": "TRIM_HORIZON"}
    return None if timestamp_ms is None else {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": timestamp_ms / 1000}


def _number(checkpoint: Checkpoint) -> int | None:
    return None if checkpoint.is_sentinel else int(checkpoint.sequence)


def _moment(millis: int | None) -> str:
    return "unknown" if millis is None else datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="seconds")


def _duration(seconds: float) -> str:
    """The duration in its two largest units, such as `3 h 12 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
