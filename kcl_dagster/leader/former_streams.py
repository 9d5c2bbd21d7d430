"""Releases the leases of streams that the application no longer reads. The leases keep their checkpoints.

Either the stream was removed from the application, or another stream now has its name. In both cases, the
checkpoints may still be needed. A removed stream can be added again. If a leader uses the wrong region, account or
endpoint, it also finds another stream of the same name. The leader therefore never deletes such leases. An operator
can delete them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import Lease
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.leases import LeaseTable

# The interval at which the leader reports again that it keeps the leases of another stream with the same name.
NOTICE_SECONDS: Final = 3600.0


class FormerStreams:
    """Releases leases of former streams. For multi-stream applications only."""

    def __init__(self, leases: LeaseTable, clock: Clock) -> None:
        self._leases = leases
        self._clock = clock
        self._noticed: dict[StreamIdentifier, float] = {}

    def run(
        self, former: Sequence[Lease], current: Mapping[str, StreamIdentifier], deadline: float
    ) -> tuple[list[str], list[str]]:
        """Release the leases in `former`: the leases of streams that are no longer read. Returns notes and errors.
        Stops at `deadline` (monotonic); the next tick continues. `current`: the streams that are read, by name."""
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
        """Call `write` for the leases until `deadline`. Returns how many writes were applied."""
        applied = 0
        for lease in leases:
            if self._clock.monotonic() >= deadline:
                break
            applied += write(lease)
        return applied
