"""Which windows to declare. To declare a window is to report to Dagster, by a materialization, that it is complete.

- A window is declared when the application is complete through the window's end plus the allowed lateness.
- It is declared again when late rows were stored for it, and when a reset or an import went back to a time before
  its end plus the allowed lateness.
- A window before the first window of the application is declared when late rows were stored for it. It is then
  *alone*: windows between it and the first window are not declared.

Pure. The module `complete_windows` reads from Dagster's storage which windows are declared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from kcl_dagster.leader.application_completeness import Completeness
from kcl_dagster.tables.completeness_row import SetBack


class KeyedWindows(Protocol):
    """Windows of time. Some windows have no partition."""

    def start_of(self, moment: int) -> int: ...

    def end_of(self, start: int) -> int: ...

    def key_of(self, start: int) -> str | None: ...


class Reason(StrEnum):
    COMPLETE = "complete"
    LATE = "late rows came"
    AGAIN = "declared again after a reset or an import"
    ASKED = "asked for by hand"


@dataclass(frozen=True, slots=True)
class Declared:
    """The content of the newest declaration of a window. `late`: see `WindowCounts.late_batches`."""

    epoch: int = 0
    late: Mapping[str, int] = field(default_factory=dict)
    is_alone: bool = False

    def has_late(self, batches: Mapping[str, int]) -> bool:
        """Whether the window was declared with the late rows of these batches, or of later batches."""
        return all(self.late.get(lease, -1) >= number for lease, number in batches.items())


NOT_LOOKED_UP: Final = Declared(-1)
"""The entry for a window whose declaration is in Dagster's storage and was not read yet. The entry has the lowest
epoch and no late rows. So `due` returns the window if late rows were stored for it, or if any reset went back to a
time before its deadline. The caller then reads the declaration before it declares the window."""


@dataclass(frozen=True, slots=True)
class Due:
    """A window to declare, unless it is already declared in Dagster's storage."""

    start: int
    reason: Reason
    is_alone: bool = False


Span = tuple[int, int]
"""The starts of the first and the last of several consecutive windows."""


@dataclass(frozen=True, slots=True)
class DeclaringProgress:
    """How far windows are declared. All windows from `first` until `frontier` are declared in `epoch`. The search
    for windows to declare begins at `frontier`, so its cost does not grow with the age of the application. For
    windows before `first`, it is not known whether every record was stored. Only a reset of all leases changes
    `first`."""

    frontier: int
    epoch: int = 0
    first: int = 0


def due(
    windows: KeyedWindows,
    completeness: Completeness,
    lateness: float,
    declared: Mapping[int, Declared],
    late: Mapping[int, Mapping[str, int]],
    progress: DeclaringProgress,
    limit: int,
    resets: Sequence[SetBack] = (),
    held: Sequence[Span] = (),
) -> tuple[list[Due], DeclaringProgress]:
    """At most `limit` windows to declare, oldest first, and the progress to pass to the next call.

    - `late`: by the start of a window, see `WindowCounts.late_batches`.
    - `resets`: if empty, only the reset that began the present epoch is known.
    - `held`: windows that are not returned although they are due, because a run materializes them.

    A window without a partition is never due. A window before the frontier at which the search begins is due only
    when late rows were stored for it.
    """
    resets = resets or (SetBack(completeness.epoch, completeness.back_to),)
    progress = _gone_back(windows, completeness.epoch, resets, lateness, progress)
    if completeness.through is None:
        return [], progress
    through = completeness.through - lateness
    found: list[Due] = []
    frontier, is_gapless = progress.frontier, True
    start = windows.start_of(frontier)
    start = start if start == frontier else windows.end_of(start)
    while len(found) < limit and windows.end_of(start) <= through:
        if windows.key_of(start) is not None:
            reason = _reason(resets, windows.end_of(start) + lateness, declared.get(start))
            if reason is not None:
                is_gapless = False
                if not _is_held(start, held):
                    found.append(Due(start, reason))
        start = windows.end_of(start)
        if is_gapless:
            frontier = start
    for one in _late(windows, declared, late, through, progress.frontier):
        if len(found) >= limit:
            break
        if all(other.start != one.start for other in found) and not _is_held(one.start, held):
            found.append(one)
    return sorted(found, key=lambda one: one.start), replace(progress, frontier=frontier)


def reason_to_declare(
    deadline: float, known: Declared | None, late: Mapping[str, int], resets: Sequence[SetBack] = ()
) -> Reason | None:
    """The reason to declare a complete window that has late rows of these batches. None if it was declared and
    nothing has changed since. `deadline`: the window's end plus the allowed lateness."""
    reason = _reason(resets, deadline, known)
    return Reason.LATE if reason is None and known is not None and not known.has_late(late) else reason


def _is_held(start: int, held: Sequence[Span]) -> bool:
    return any(first <= start <= last for first, last in held)


def _gone_back(
    windows: KeyedWindows, epoch: int, resets: Sequence[SetBack], lateness: float, progress: DeclaringProgress
) -> DeclaringProgress:
    """The progress after a reset. The search begins again at the first window whose end plus the allowed lateness
    is after the time to which the reset went back, but not before `first`."""
    if epoch == progress.epoch:
        return progress
    backs = [windows.start_of(int(one.back_to - lateness)) for one in resets if one.back_to is not None]
    frontier = max(progress.first, min(backs, default=progress.frontier))
    return replace(progress, frontier=min(progress.frontier, frontier), epoch=epoch)


def _reason(resets: Sequence[SetBack], deadline: float, known: Declared | None) -> Reason | None:
    if known is None:
        return Reason.COMPLETE
    was_read_again = any(
        one.back_to is not None and deadline > one.back_to and known.epoch < one.epoch for one in resets
    )
    return Reason.AGAIN if was_read_again else None


def _late(
    windows: KeyedWindows,
    declared: Mapping[int, Declared],
    late: Mapping[int, Mapping[str, int]],
    through: float,
    frontier: int,
) -> Iterator[Due]:
    """Yield the windows to declare because of late rows: windows that got late rows after their last declaration,
    and windows before `frontier` that were never declared. `frontier`: see `DeclaringProgress`."""
    for start, batches in sorted(late.items()):
        known = declared.get(start)
        is_due = start < frontier if known is None else not known.has_late(batches)
        if is_due and windows.end_of(start) <= through and windows.key_of(start) is not None:
            yield Due(start, Reason.LATE, known is None or known.is_alone)
