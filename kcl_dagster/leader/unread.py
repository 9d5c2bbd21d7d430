"""For how long records have waited in shards that no worker reads: whether a fleet that is at rest has work."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from kcl_dagster.application import Application
from kcl_dagster.errors import KclError
from kcl_dagster.leader.kinesis_streams import Streams
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.scanning import Map
from kcl_dagster.tables.starts import StartTable

LOOKS_PER_LAG: Final = 4  # in the time that a record may wait; each costs two requests a shard
LONGEST_PAUSE: Final = 60.0
CLOCKS_APART: Final = 300.0  # seconds; AWS refuses requests whose clock is further from its own


class UnreadWatch:
    """Looks at the streams now and then, and remembers when the first unread record of each lease arrived."""

    def __init__(
        self, application: Application, starts: StartTable, streams: Streams, clock: Clock, parallel: Map = map
    ) -> None:
        self._application = application
        self._starts = starts
        self._streams = streams
        self._clock = clock
        self._parallel = parallel
        self._pause = min(application.fleet.scale_up_lag / LOOKS_PER_LAG, LONGEST_PAUSE)
        self._due = float("-inf")
        self._arrivals: dict[LeaseKey, float] = {}
        self._seen_at: dict[LeaseKey, float] = {}
        self._looked: dict[LeaseKey, tuple[Checkpoint | None, float]] = {}
        """The checkpoint of each lease when it was looked at last, and when that was, in epoch seconds."""

    def waited(self, leases: Sequence[Lease]) -> Mapping[LeaseKey, float]:
        """Seconds for which the first unread record of each lease has waited; 0 if there is none, infinite where a
        worker has to look. Blocks for two requests a lease, if it is time to look or a lease is new."""
        now = self._clock.monotonic()
        if now >= self._due or any(lease.key not in self._arrivals for lease in leases):
            self._due = now + self._pause
            began = self._clock.now()
            self._looked = {lease.key: (lease.checkpoint, began) for lease in leases}
            found = self._parallel(self._arrival, leases)
            before, self._arrivals = self._arrivals, dict(zip((one.key for one in leases), found, strict=True))
            self._seen_at = {
                key: self._seen_at.get(key, now) if before.get(key) == arrival else now
                for key, arrival in self._arrivals.items()
            }
        return {lease.key: self._waited(lease.key) for lease in leases}

    def read_through(self, leases: Sequence[Lease]) -> Mapping[LeaseKey, float]:
        """Epoch seconds before which no record arrived that lies behind the checkpoint, of leases that had no
        unread record at the last look. Asks nothing. A lease whose checkpoint is another one now is left out."""
        found = {}
        for lease in leases:
            checkpoint, began = self._looked.get(lease.key, (None, 0.0))
            is_empty = self._arrivals.get(lease.key) == math.inf
            if is_empty and checkpoint is not None and checkpoint == lease.checkpoint:
                found[lease.key] = began - CLOCKS_APART
        return found

    def _waited(self, key: LeaseKey) -> float:
        """By the arrival, and by this leader's own clock where that runs behind the service's."""
        arrival = self._arrivals[key]
        if arrival == math.inf:
            return 0.0
        return max(self._clock.now() - arrival, self._clock.monotonic() - self._seen_at[key])

    def _arrival(self, lease: Lease) -> float:
        """Epoch seconds; minus infinity where a worker has to look."""
        stream = lease.stream or StreamIdentifier.single(self._application.streams[0].name)
        try:
            meant = self._starts.resolved(stream)
        except KclError:
            return -math.inf
        arrival = self._streams.first_unread(stream.name, lease, meant)
        return -math.inf if arrival is None else arrival / 1000
