"""Leases of streams that the application does not read (any more): they are released and keep their checkpoints.

Either the stream was taken out of the application, or another stream has its name now. Neither proves that the
checkpoints are of no use. The first may come back. The second is also what a leader sees that asks the wrong
region, account or endpoint. So the leader deletes no such lease, however often the service gives the same answer.
An operator may.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import Lease
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.leases import LeaseTable

# How often a report repeats that leases of another stream of the same name are kept.
NOTICE_SECONDS: Final = 3600.0


class FormerStreams:
    """Takes leases of former streams out of use. Multi-stream applications only."""

    def __init__(self, leases: LeaseTable, clock: Clock) -> None:
        self._leases = leases
        self._clock = clock
        self._noticed: dict[StreamIdentifier, float] = {}

    def run(
        self, former: Sequence[Lease], current: Mapping[str, StreamIdentifier], deadline: float
    ) -> tuple[list[str], list[str]]:
        """What was done, and what went wrong. Until `deadline` (monotonic); the rest is seen again. `current`: the
        streams that are read, by name."""
        by_stream: dict[StreamIdentifier, list[Lease]] = {}
        for lease in former:
            if lease.stream is not None:
                by_stream.setdefault(lease.stream, []).append(lease)
        self._noticed = {stream: at for stream, at in self._noticed.items() if stream in by_stream}
        notes: list[str] = []
        problems: list[str] = []
        for stream, leases in by_stream.items():
            if self._clock.monotonic() >= deadline:
                break
            try:
                notes += self._retire(stream, leases, current.get(stream.name), deadline)
            except KclError as error:
                problems.append(f"former stream {stream}: {error}")
        return notes, problems

    def _retire(
        self, stream: StreamIdentifier, leases: Sequence[Lease], other: StreamIdentifier | None, deadline: float
    ) -> list[str]:
        owned = [lease for lease in leases if lease.owner is not None]
        released = self._each(lambda lease: self._leases.release(lease) is not None, owned, deadline)
        if other is not None and self._is_to_be_noticed(stream):
            return [
                f"another stream has the name of {stream} now: {other}. {released} leases of the former one were "
                f"released, and all {len(leases)} keep their checkpoints. If {stream} still exists, the leader "
                "asks the wrong region, account or endpoint"
            ]
        return [f"stream {stream} is not read any more: {released} leases were released"] if released else []

    def _is_to_be_noticed(self, stream: StreamIdentifier) -> bool:
        now = self._clock.monotonic()
        if now - self._noticed.get(stream, now - NOTICE_SECONDS) < NOTICE_SECONDS:
            return False
        self._noticed[stream] = now
        return True

    def _each(self, write: Callable[[Lease], bool], leases: Sequence[Lease], deadline: float) -> int:
        """How many writes were applied until `deadline`; the rest is seen again."""
        applied = 0
        for lease in leases:
            if self._clock.monotonic() >= deadline:
                break
            applied += write(lease)
        return applied
