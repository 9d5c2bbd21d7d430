"""Leases of streams that the application does not have, or that do not exist any more.

A stream that was taken out of the application keeps its leases, and with them its checkpoints: it may come back.
Their owners are told to stop. Leases of a stream that was deleted, or deleted and created anew, are deleted, if
this application wrote down when it began with the stream: the creation epoch in the key of other leases is whatever
a Java application or a configuration chose.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kcl_dagster.errors import KclError, StreamNotFound
from kcl_dagster.leader.streams import Streams
from kcl_dagster.model.lease import Lease
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.starts import StartTable

# How often the service must have said that a stream is gone before its leases are deleted, and how far apart.
CONFIRMATIONS: Final = 2
ASK_SECONDS: Final = 60.0


class FormerStreams:
    """Takes leases of former streams out of use. Multi-stream applications only."""

    def __init__(self, leases: LeaseTable, starts: StartTable, streams: Streams, clock: Clock) -> None:
        self._leases = leases
        self._starts = starts
        self._streams = streams
        self._clock = clock
        self._gone: dict[StreamIdentifier, int] = {}
        self._asked: dict[StreamIdentifier, float] = {}

    def run(self, former: Sequence[Lease], deadline: float) -> tuple[list[str], list[str]]:
        """What was done, and what went wrong. Until `deadline` (monotonic); the rest is seen again."""
        by_stream: dict[StreamIdentifier, list[Lease]] = {}
        for lease in former:
            if lease.stream is not None:
                by_stream.setdefault(lease.stream, []).append(lease)
        self._gone = {stream: seen for stream, seen in self._gone.items() if stream in by_stream}
        notes: list[str] = []
        problems: list[str] = []
        for stream, leases in by_stream.items():
            if self._clock.monotonic() >= deadline:
                break
            try:
                notes += self._retire(stream, leases, deadline)
            except KclError as error:
                problems.append(f"former stream {stream}: {error}")
        return notes, problems

    def _retire(self, stream: StreamIdentifier, leases: Sequence[Lease], deadline: float) -> list[str]:
        if self._is_gone(stream):
            deleted = self._each(lambda lease: self._leases.delete(lease, forced=True), leases, deadline)
            return [f"stream {stream} is gone: {deleted} of its leases were deleted"]
        owned = [lease for lease in leases if lease.owner is not None]
        released = self._each(lambda lease: self._leases.release(lease) is not None, owned, deadline)
        return [f"stream {stream} is not read any more: {released} leases were released"] if released else []

    def _each(self, write: Callable[[Lease], bool], leases: Sequence[Lease], deadline: float) -> int:
        """How many writes were applied until `deadline`; the rest is seen again."""
        applied = 0
        for lease in leases:
            if self._clock.monotonic() >= deadline:
                break
            applied += write(lease)
        return applied

    def _is_gone(self, stream: StreamIdentifier) -> bool:
        now = self._clock.monotonic()
        if now - self._asked.get(stream, -ASK_SECONDS) >= ASK_SECONDS:
            self._asked[stream] = now
            self._gone[stream] = self._gone.get(stream, 0) + 1 if self._is_missing(stream) else 0
        return self._gone.get(stream, 0) >= CONFIRMATIONS

    def _is_missing(self, stream: StreamIdentifier) -> bool:
        """Whether the stream that this application began with is gone; also where another one has its name now."""
        start = self._starts.get(str(stream))
        if start is None:
            return False
        try:
            return int(self._streams.describe(stream.name).created) != start.stream_created
        except StreamNotFound:
            return True
