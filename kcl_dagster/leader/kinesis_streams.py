"""The leader's access to streams."""

from collections.abc import Sequence
from typing import Protocol

from kcl_dagster.application import Position, StartAt
from kcl_dagster.aws import Client
from kcl_dagster.model.lease import Lease
from kcl_dagster.model.shard import Shard
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.arrivals import Arrivals
from kcl_dagster.streams.listing import LISTING_SECONDS, StreamDescription, describe, list_shards


class Streams(Protocol):
    """Reads streams. Several threads can call it at the same time. Raises ServiceError and StreamError."""

    def describe(self, stream: str) -> StreamDescription: ...

    def shards(self, stream: str, opened: StartAt | None = None) -> Sequence[Shard]:
        """Return all shards that the stream still has. If `opened` is given, return only the shards that were open
        at that position. A reader that starts at the position begins with these shards, and all later shards are
        their descendants."""

    def first_unread(self, stream: str, lease: Lease, timestamp_ms: int | None) -> float | None:
        """Return when the first record after a lease's checkpoint arrived, in epoch milliseconds. Infinite if there
        is no such record; None if only a worker can find out whether there is one. Does not raise errors of AWS.
        See `streams.arrivals`."""


class KinesisStreams:
    """Streams of one account and region. A method retries throttled requests for `seconds` at most, so that time
    remains for other streams. The next tick tries again."""

    def __init__(self, client: Client, runtime: Runtime, seconds: float = LISTING_SECONDS) -> None:
        self._client = client
        self._runtime = runtime
        self._seconds = seconds

    def describe(self, stream: str) -> StreamDescription:
        return describe(self._client, stream, runtime=self._runtime, seconds=self._seconds)

    def shards(self, stream: str, opened: StartAt | None = None) -> Sequence[Shard]:
        wanted = None if opened is None else _filter(opened)
        return list_shards(self._client, stream, shard_filter=wanted, runtime=self._runtime, seconds=self._seconds)

    def first_unread(self, stream: str, lease: Lease, timestamp_ms: int | None) -> float | None:
        arrivals = Arrivals(self._client, self._runtime, self._seconds)
        stored_through = lease.stored_through or 0
        return arrivals.first_unread(stream, lease.shard_id, lease.checkpoint, timestamp_ms, stored_through)


def _filter(opened: StartAt) -> dict[str, object]:
    if opened.position is Position.AT_TIMESTAMP:
        return {"Type": "AT_TIMESTAMP", "Timestamp": opened.timestamp}
    return {"Type": f"AT_{opened.position.value}"}
