"""The lag of shards that no worker reads. The lag is the age of the first record after the shard's checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcl_dagster import aws
from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.arrivals import Arrivals
from kcl_dagster.tables.starts import StartTable

MOST_SECONDS: Final = 5.0  # for all shards; the operator waits for the result
REFRESH_SECONDS: Final = 30.0  # with --watch; every look-up uses one of a shard's five reads per second


@dataclass
class Unread:
    """Finds when the first unread record of each lease arrived, and keeps the results for `REFRESH_SECONDS`. Only
    reads, and raises no error of AWS."""

    kinesis: aws.Client
    runtime: Runtime
    _found: dict[LeaseKey, float] = field(default_factory=dict)
    _due: float = float("-inf")

    def arrivals(self, leases: Sequence[Lease], stream: str, starts: StartTable) -> Mapping[LeaseKey, float]:
        """Return when the first unread record of each lease arrived, in epoch milliseconds. Infinite if every
        record was read. Leases for which this cannot be determined are missing. `stream`: the stream of leases that
        do not name a stream."""
        now = self.runtime.clock.monotonic()
        if now >= self._due:
            self._due = now + REFRESH_SECONDS
            self._found = {}
            arrivals = Arrivals(self.kinesis, self.runtime, MOST_SECONDS)
            for lease in leases:
                identifier = lease.stream or StreamIdentifier.single(stream)
                meant = _meant(starts, identifier)
                arrival = arrivals.first_after(identifier.name, lease.shard_id, lease.checkpoint, meant)
                if arrival is not None:
                    self._found[lease.key] = arrival
        return self._found


def _meant(starts: StartTable, identifier: StreamIdentifier) -> int | None:
    try:
        return starts.resolved(identifier)
    except KclError:
        return None
