"""Streams as the leader reads them."""

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
    """Reads streams. May be called from several threads. Raises ServiceError and StreamError."""

    def describe(self, stream: str) -> StreamDescription: ...

    def shards(self, stream: str, opened: StartAt | None = None) -> Sequence[Shard]:
        """All shards the stream still has, or those that were open at a position: what a reader that starts there
        begins with. All others are descendants of these."""

    def first_unread(self, stream: str, lease: Lease, timestamp_ms: int | None) -> float | None:
        """When the first record after a lease's checkpoint arrived, epoch milliseconds; infinite if there is none.
        None where a worker has to look. Raises nothing that AWS can cause. See `streams.arrivals`."""


class KinesisStreams:
    """Streams of one account and region. One question is asked for `seconds` at most: a stream that throttles for
    longer is asked again at the next tick, and does not cost the others their turn."""

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
