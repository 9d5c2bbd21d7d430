"""Finds out how long records have waited in shards that no worker reads. A fleet at rest needs workers if records
have waited for too long."""

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

LOOKS_PER_LAG: Final = 4  # look-ups within `scale_up_lag` seconds; each look-up costs two requests per shard
LONGEST_PAUSE: Final = 60.0
CLOCKS_APART: Final = 300.0  # seconds; AWS refuses requests if the clocks differ by more


class UnreadWatch:
    """Looks up the first unread record of each lease from time to time, and remembers when it arrived."""

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
        """The checkpoint of each lease at its last look-up, and the time of that look-up in epoch seconds."""

    def waited(self, leases: Sequence[Lease]) -> Mapping[LeaseKey, float]:
        """Return for each lease the seconds for which its first unread record has waited: 0 if there is no unread
        record, infinite if only a worker can find out whether there is one. If the next
        look-up is due, or at least one lease is new, two requests are sent for each of the given leases."""
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
        """Return a time (epoch seconds) for each lease that had no unread record at the last look-up. All records
        that are unread now arrived at this time or later. Leases whose checkpoint has changed since the look-up are
        left out. Sends no request."""
        found = {}
        for lease in leases:
            checkpoint, began = self._looked.get(lease.key, (None, 0.0))
            is_empty = self._arrivals.get(lease.key) == math.inf
            if is_empty and checkpoint is not None and checkpoint == lease.checkpoint:
                found[lease.key] = began - CLOCKS_APART
        return found

    def _waited(self, key: LeaseKey) -> float:
        """Return for how long the first unread record of a lease has waited: the seconds since it arrived, or since
        this leader first found it, whichever is more. The second number is larger if this leader's clock is behind
        the clock of the service."""
        arrival = self._arrivals[key]
        if arrival == math.inf:
            return 0.0
        return max(self._clock.now() - arrival, self._clock.monotonic() - self._seen_at[key])

    def _arrival(self, lease: Lease) -> float:
        """Return when the first unread record of a lease arrived, in epoch seconds. Infinity if there is no such
        record; minus infinity if only a worker can find out whether there is one."""
        stream = lease.stream or StreamIdentifier.single(self._application.streams[0].name)
        try:
            meant = self._starts.resolved(stream)
        except KclError:
            return -math.inf
        arrival = self._streams.first_unread(stream.name, lease, meant)
        return -math.inf if arrival is None else arrival / 1000
