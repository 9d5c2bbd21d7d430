"""Whether a record is still in its shard.

Of records that leave a stream while it is read, a reader gets no notice: an iterator and a subscription skip them.
A shard loses its oldest records first. So if the last record before a page is still there after the page has
arrived, nothing between the two was skipped.
"""

from typing import Any, Final

from kcl_dagster.aws import Client, ResourceMissing, Unanswered, call, stream_arn
from kcl_dagster.errors import EndpointUnreachable, Throttled
from kcl_dagster.runtime import Runtime

PATIENCE_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.5  # others may read the shard, too


class Presence:
    """Looks for records of one shard. Used on the thread of its reader."""

    def __init__(self, client: Client, stream: str, shard_id: str, runtime: Runtime) -> None:
        self._client = client
        self._stream = stream
        self._shard_id = shard_id
        self._runtime = runtime

    def has(self, sequence: str) -> bool:
        """Whether the record with this number can be read. Raises Throttled, EndpointUnreachable or OutcomeUnknown
        if the shard does not answer for ten seconds."""
        give_up = self._runtime.clock.monotonic() + PATIENCE_SECONDS
        iterator: str | None = None
        arn = stream_arn(self._client, self._stream)
        while True:
            try:
                if iterator is None:
                    iterator = self._iterator_at(sequence)
                answer = call(self._client, "get_records", ShardIterator=iterator, Limit=1, **arn)
            except ResourceMissing:
                return False
            except (Throttled, EndpointUnreachable, Unanswered):
                if self._runtime.clock.monotonic() + PAUSE_SECONDS > give_up:
                    raise
                self._runtime.clock.sleep(PAUSE_SECONDS * self._runtime.random.uniform(0.5, 1.0))
                continue
            if answer["Records"]:
                return bool(answer["Records"][0]["SequenceNumber"] == sequence)
            iterator = answer.get("NextShardIterator")
            if iterator is None or not answer.get("MillisBehindLatest"):
                return False

    def _iterator_at(self, sequence: str) -> str:
        place: dict[str, Any] = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": sequence}
        answer = call(self._client, "get_shard_iterator", StreamName=self._stream, ShardId=self._shard_id, **place)
        iterator: str = answer["ShardIterator"]
        return iterator


class Gaps:
    """Finds where records left the stream between two answers of which the first one was far behind."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._far_after: str | None = None

    def before(self, *, is_far: bool, has_records: bool) -> str | None:
        """The record after which others may be missing before this answer, or None. `is_far`: whether the answer is
        far behind. Raises as `Presence.has`: then the answer must not be used, because it is not known."""
        if self._far_after is None or (is_far and not has_records):
            return None  # whatever comes next is compared with the same record
        return None if self._presence.has(self._far_after) else self._far_after

    def went_on(self, last: str | None, *, is_far: bool, has_records: bool) -> None:
        """Called with each answer that is used; `last` is the last record of the range so far."""
        if has_records or not is_far:
            self._far_after = last if is_far else None
