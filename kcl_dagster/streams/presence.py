"""Checks whether a record is still in its shard.

If records leave a stream before they are read, the reader is not informed: iterators and subscriptions skip these
records. A shard loses its oldest records first. A reader that is far behind the tip therefore makes a check after
each page: it looks up the last record that it had read before the page. If the shard still has that record, it also
has all later records, so no record was skipped.
"""

from typing import Any, Final

from kcl_dagster.aws import Client, ResourceMissing, Unanswered, call, stream_arn
from kcl_dagster.errors import EndpointUnreachable, ServiceError, Throttled
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.cutting import Gap

# Far less than the time for which a reader waits for its shard, because a failing check must not prevent reading.
CHECK_SECONDS: Final = 2.0
# The most requests. All consumers of a shard share five requests per second.
MOST_REQUESTS: Final = 4
PAUSE_SECONDS: Final = 0.4


class Presence:
    """Looks up records of one shard. Used on the thread of its reader."""

    def __init__(self, client: Client, stream: str, shard_id: str, runtime: Runtime) -> None:
        self._client = client
        self._stream = stream
        self._shard_id = shard_id
        self._runtime = runtime

    def has(self, sequence: str) -> bool | None:
        """Whether the record with this sequence number can be read. None if this is not known after a few requests
        within two seconds."""
        clock = self._runtime.clock
        give_up = clock.monotonic() + CHECK_SECONDS
        iterator: str | None = None
        arn = stream_arn(self._client, self._stream)
        for request in range(MOST_REQUESTS):
            if request:
                if clock.monotonic() + PAUSE_SECONDS > give_up:
                    return None
                clock.sleep(PAUSE_SECONDS * self._runtime.random.uniform(0.5, 1.0))
            try:
                if iterator is None:
                    iterator = self._iterator_at(sequence)
                answer = call(self._client, "get_records", ShardIterator=iterator, Limit=1, **arn)
            except ResourceMissing:
                return False
            except (Throttled, EndpointUnreachable, Unanswered):
                continue
            except ServiceError:
                return None  # for example a missing permission; the reader may still be able to read
            if answer["Records"]:
                return bool(answer["Records"][0]["SequenceNumber"] == sequence)
            iterator = answer.get("NextShardIterator")
            if iterator is None or not answer.get("MillisBehindLatest"):
                return False
        return None

    def _iterator_at(self, sequence: str) -> str:
        place: dict[str, Any] = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": sequence}
        answer = call(self._client, "get_shard_iterator", StreamName=self._stream, ShardId=self._shard_id, **place)
        iterator: str = answer["ShardIterator"]
        return iterator


class Gaps:
    """Detects whether records left the stream between two responses. Checks this only if the first response was far
    behind the tip, because records leave the stream only when they are old."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._far_after: str | None = None
        self._is_unknown = False

    def before(self, *, is_far: bool, has_records: bool) -> Gap | None:
        """Return the gap before this response: a place where records may have left the stream unread. None if there
        is no gap, or if the next response will be checked instead.

        `is_far`: whether this response is far behind the tip, so that records may leave the stream before they are
        read.
        """
        if self._far_after is None or (is_far and not has_records):
            return None  # the same record is looked up when the next response has arrived
        is_there = self._presence.has(self._far_after)
        self._is_unknown = is_there is None
        return None if is_there else Gap(self._far_after, is_certain=not self._is_unknown)

    def went_on(self, last: str | None, *, is_far: bool, has_records: bool) -> None:
        """Record a response whose records are used. `last`: the last record of the range so far. If the response is
        far behind, `before` will look up this record when the next response has arrived. If the last lookup had no
        result, `before` will repeat that lookup instead."""
        if not self._is_unknown and (has_records or not is_far):
            self._far_after = last if is_far else None
