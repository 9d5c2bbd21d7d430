"""Detects shards that are about to lose records, or have lost some.

A stream drops records after its retention. A later read causes no error, because the stream simply begins with its
oldest record. This module finds the range of the lost records, so that it can be reported. It also finds out when a
shard is about to lose records.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from kcl_dagster.errors import KclError
from kcl_dagster.model.checkpoint import LATEST
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.batch import Progress, Range

ASK_AGAIN_SECONDS = 600.0  # a change of the retention is detected after this time, by one request
# The shortest retention of any stream at any time: records that arrived more recently cannot have left their
# stream.
SHORTEST_RETENTION = 24 * 3600.0
# The largest difference between the clocks of two workers. AWS rejects signed requests if a clock is off by more.
CLOCK_SKEW = 600.0
# Parts of the retention after which a warning is reported. After the last warning, a tenth of the retention is left
# to react: 2.4 hours of a day.
WARNING_STEPS = (0.5, 0.75, 0.9)

RetentionOf = Callable[[StreamIdentifier], float | None]
"""Returns the seconds for which a stream keeps its records; None if not known."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of a shard that may have left the stream unread: after `since`, before `until`. `until` is None if no
    record of the shard is left."""

    since: str
    until: str | None
    seconds: float | None = None
    """The age of the oldest record that is still in the stream."""

    @property
    def place(self) -> tuple[str, str | None]:
        return self.since, self.until

    def __str__(self) -> str:
        return (
            f"records after {self.since} and before {self.until or 'the end of the shard'} left the stream unread"
        )


def unknown() -> float | None:
    """The default for `ask_retention`: the retention is not known."""
    return None


def loss_in(
    progress: Progress,
    stored_through: float | None,
    now: float,
    ask_retention: Callable[[], float | None] = unknown,
) -> Loss | None:
    """The records that left the stream before the range could be read; None if no record did. Times in epoch
    seconds.

    - The record at the checkpoint should still be in the stream. If it is not, later records may have left, too.
      But if the shard was stored through a recent moment (`stored_through`), no record has left unread. This is
      the case for a shard that gets no records for days: the record at its checkpoint has left, and was read.
    - At an initial position, there is no such record. Instead, the function uses the last time at which no record
      was waiting beyond the position. If this time is longer ago than the retention, records may have left unread.
      The stream's retention is requested only if the time is longer ago than the shortest possible retention.
    - A closed shard that left the stream counts as lost, because nothing shows that it was read to its end.
    - An open shard that is empty, and whose `stored_through` is not known, does not count as lost. After a Java
      KCL, every quiet shard is in this state.
    """
    after = progress.range.after
    if progress.gone:
        return Loss(str(after), None)
    if after.is_initial_position:
        empty_at = _empty_at(progress.range, stored_through)
        if progress.range.is_pinned or empty_at is None or now - empty_at < SHORTEST_RETENTION - CLOCK_SKEW:
            return None
        retention = ask_retention()
        if retention is None or now - empty_at < retention - CLOCK_SKEW:
            return None
    else:
        was_empty = stored_through is not None and now - stored_through < SHORTEST_RETENTION - CLOCK_SKEW
        is_unknown = stored_through is None and progress.first is None and not progress.ended
        if not progress.start_trimmed or was_empty or is_unknown:
            return None
    oldest = None if progress.first_arrival_ms is None else now - progress.first_arrival_ms / 1000
    return Loss(str(after), progress.first, oldest)


def _empty_at(begun: Range, stored_through: float | None) -> float | None:
    """The last known time at which no record was waiting to be read beyond an initial position. None if the
    application starts with all records of the stream, and this is one of its first shards."""
    if begun.after == LATEST and begun.timestamp_ms is not None:
        return max(begun.timestamp_ms / 1000, stored_through or 0.0)
    return stored_through


class RetentionWatch:
    """Warns when the lag of a shard approaches the retention: once for each step of `WARNING_STEPS`. If the lag has
    fallen below a step, and reaches the step again, the warning is repeated."""

    def __init__(self, retention_of: RetentionOf, clock: Clock) -> None:
        self._retention_of = retention_of
        self._clock = clock
        self._known: dict[StreamIdentifier, tuple[float | None, float]] = {}
        self._said: dict[LeaseKey, float] = {}

    def warning(self, progress: Progress) -> float | None:
        """The step that this range has passed: 0.5, 0.75 or 0.9 of the retention. None if it has passed no new
        step."""
        if progress.millis_behind is None:
            return None
        retention = self.retention(progress.range.stream)
        if not retention:
            return None
        used = progress.millis_behind / 1000 / retention
        passed = max((step for step in WARNING_STEPS if used >= step), default=0.0)
        before = self._said.get(progress.range.lease, 0.0)
        self._said[progress.range.lease] = passed
        return passed if passed > before else None

    def retention(self, stream: StreamIdentifier) -> float | None:
        """The retention in seconds, as looked up recently; None if it cannot be looked up."""
        known, ask_again = self._known.get(stream, (None, 0.0))
        if stream not in self._known or self._clock.monotonic() >= ask_again:
            return self.ask_retention(stream)
        return known

    def ask_retention(self, stream: StreamIdentifier) -> float | None:
        """Request the retention now. If the request fails, returns the last known value."""
        known, _ = self._known.get(stream, (None, 0.0))
        with suppress(KclError):
            known = self._retention_of(stream)
        self._known[stream] = known, self._clock.monotonic() + ASK_AGAIN_SECONDS
        return known

    def keep(self, keys: set[LeaseKey]) -> None:
        self._said = {key: step for key, step in self._said.items() if key in keys}
