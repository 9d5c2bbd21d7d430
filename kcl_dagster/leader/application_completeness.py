"""Calculates the moment through which an application is complete: every record that arrived earlier is stored.

Pure. Each lease records the moment through which its own shard is stored. A recorded moment remains true until the
lease is reset, and a reset raises the epoch in `tables.completeness_row`. Leases that were read at slightly
different times can therefore be combined, if no lease is missing.

The lease of a child shard is created before its parents are finished, and the child is read only after its parents
are finished. While a parent is unfinished, the moment of the parent limits the result. A child that has not been
read yet has the moment of its parents.

Two rules detect a missing lease:

- The lease of a merged shard is created at the end of one parent, and names this parent. Until the merged shard is
  read, the other parent must have a lease. If the other parent has none, its lease was lost.
- If a lease is missing, some hash keys are covered by no unfinished lease. The exception is a missing lease of an
  unfinished parent of a merged shard: the lease of the merged shard covers the hash keys of the parent, too. The
  first rule detects this case.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kcl_dagster.leader.cleanup import has_started
from kcl_dagster.model.first_moment import FirstMoment
from kcl_dagster.model.hole import find_hole
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.stored import StoredRows
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.windows import Windows

NOTHING: Final[Mapping[LeaseKey, "Hindrance"]] = {}
NEVER: Final[Mapping[LeaseKey, float]] = {}


class Hindrance(StrEnum):
    """Why an application is not complete through a later moment."""

    READ = "its records are stored up to there"
    PAUSED = "it is paused"
    UNSERVED = "it has no worker"
    STOPPED = "it keeps failing and is stopped"
    NO_VALUE = "it has not been read yet"
    MISSING = "it is not in the lease table, where its parent or child is"
    HOLE = "a part of the hash range has no open lease"
    NO_LEASES = "it has no lease"
    UNREADABLE = "a row of the lease table cannot be read"


@dataclass(frozen=True, slots=True)
class HeldBy:
    """The reason why an application is not complete through a later moment. `what` names the lease, the stream or
    the row of the lease table that is the cause."""

    what: str
    why: Hindrance
    lease: LeaseKey | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True, slots=True)
class Completeness:
    """How far an application is complete.

    - `through`: epoch seconds. Every record that arrived earlier is stored and visible. None if the moment is not
      known. In a `TickReport`, this is the stored value, which never falls within an `epoch`.
    - `epoch`: a number that a reset or an import raises.
    - `back_to`: epoch seconds. A window that ends after this time, and was declared complete under an earlier
      epoch, is declared again. None: no windows are declared again.
    - `reached`: the moment that this tick calculated; None if it could not calculate one.
    """

    through: int | None = None
    held_by: HeldBy | None = None
    epoch: int = 0
    back_to: int | None = None
    reached: int | None = None
    seconds_ago: float | None = None
    """The seconds from `through` until now, by the leader's clock."""

    first: FirstMoment | None = None
    """The first moment: no window that begins earlier is complete. None if it is not known because an earlier
    version or a Java worker began the application."""


def complete_through(
    leases: Sequence[Lease],
    streams: Collection[str],
    margin: float,
    *,
    now: float,
    unreadable: Sequence[str] = (),
    hindered: Mapping[LeaseKey, Hindrance] = NOTHING,
    read_through: Mapping[LeaseKey, float] = NEVER,
) -> Completeness:
    """Return how far an application is complete, calculated from its leases. `streams`: the names of its streams.

    - `margin`: seconds that are subtracted from the result, because arrival times are approximate and records are
      not strictly in the order of their arrival times.
    - `now`: epoch seconds. If the moment of a lease is later, `now` is used instead.
    - `hindered`: leases that make no progress for a known reason, with this reason.
    - `read_through`: a time (epoch seconds) for each lease that no worker reads. All unread records of its shard
      arrived at this time or later.
    """
    if unreadable:
        return Completeness(held_by=HeldBy(unreadable[0], Hindrance.UNREADABLE))
    lowest: tuple[float, HeldBy] | None = None
    groups = _by_stream(leases, streams)
    for stream, group in groups.items():
        held_by = _not_covered(stream, group)
        if held_by is not None:
            return Completeness(held_by=held_by)
        known = {lease.shard_id: lease for lease in group}
        for lease in group:
            if lease.is_finished:
                continue
            stored = stored_through(lease, known)
            if stored is not None and lease.key in read_through:
                stored = max(stored, int(read_through[lease.key]))
            why = hindered.get(lease.key, Hindrance.READ if stored is not None else Hindrance.NO_VALUE)
            held_by = HeldBy(str(lease.key), why, lease.key)
            if stored is None:
                return Completeness(held_by=held_by)
            if lowest is None or stored < lowest[0]:
                lowest = stored, held_by
    if lowest is None:  # there are no streams
        return Completeness()
    through = max(0, int(min(lowest[0], now) - margin))
    return Completeness(through, lowest[1], reached=through)


def _by_stream(leases: Sequence[Lease], streams: Collection[str]) -> dict[str, list[Lease]]:
    """Group the leases by stream. Leases of a single-stream application do not name their stream. If a stream was
    deleted and created again, the old and the new stream are two groups."""
    groups: dict[str, list[Lease]] = {}
    for lease in leases:
        groups.setdefault("" if lease.stream is None else str(lease.stream), []).append(lease)
    if "" in groups and len(streams) == 1:
        groups[next(iter(streams))] = groups.pop("")
    there = {group[0].stream.name if group[0].stream is not None else name for name, group in groups.items()}
    for name in streams:
        if name not in there:
            groups[name] = []
    return dict(sorted(groups.items()))


def _not_covered(stream: str, leases: Sequence[Lease]) -> HeldBy | None:
    """Return which lease or part of the hash range a stream lacks; None if nothing is missing."""
    if not leases:
        return HeldBy(stream, Hindrance.NO_LEASES)
    held = {lease.shard_id for lease in leases}
    for lease in leases:
        if lease.is_finished:
            for child in sorted(lease.children - held):
                return HeldBy(child, Hindrance.MISSING)
        else:
            is_whole = has_started(lease) or lease.parents.isdisjoint(held)
            for parent in sorted((lease.awaited_parents if is_whole else lease.parents) - held):
                return HeldBy(parent, Hindrance.MISSING)
    unfinished = [lease.hash_range for lease in leases if not lease.is_finished]
    if find_hole(range_ for range_ in unfinished if range_ is not None) is not None:
        return HeldBy(stream, Hindrance.HOLE)
    return None


def stored_through(lease: Lease, known: Mapping[str, Lease]) -> int | None:
    """Return the moment before which all records of a lease's shard are stored. `known`: the leases of its stream,
    by shard.

    If the lease has no moment, the latest moment of its parents applies: all records of a child arrived later than
    all records of its parents. A lease has no moment if its shard was not read yet, or if the lease was created
    again.
    """
    if lease.stored_through is not None:
        return lease.stored_through
    parents = [known[parent].stored_through for parent in lease.parents if parent in known]
    return max((moment for moment in parents if moment is not None), default=None)


# --- counts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShardPart:
    """The first and the last sequence number of a shard in a window; each is None if it is not known."""

    first: str | None
    last: str | None


@dataclass(frozen=True, slots=True)
class WindowCounts:
    """The counts of the rows of one window: the sums over all leases.

    If `is_known` is False, the counts are too small. There are three possible reasons: a Java worker or an earlier
    version stored rows without counting them; counts were dropped; or rows were counted for the windows of another
    configuration, such as a former partitioning.
    """

    start: int
    rows: int = 0
    bytes: int = 0
    files: int = 0
    late: int = 0
    is_known: bool = True
    shards: Mapping[str, ShardPart] = field(default_factory=dict)
    """The first and the last sequence number in the window, by lease key. If the application reads one stream, the
    lease key is the shard's id."""

    late_batches: Mapping[str, int] = field(default_factory=dict)
    """For each lease key, the number of the newest batch that stored late rows. If a number is higher than in the
    last declaration of the window, or if the declaration lacks the lease key, late rows were stored since then.
    This is true even if the counts of the rows were deleted or dropped."""


def late_batches(leases: Iterable[Lease], windows: Windows | None = None) -> dict[int, dict[str, int]]:
    """Return `WindowCounts.late_batches` of each window with late rows, by the start of the window. `windows`: the
    present partitioning. If it is given, late rows of a window of a former partitioning count for the present
    window that contains the start of the former window."""
    found: dict[int, dict[str, int]] = {}
    for lease in leases:
        for one in lease.stored.late_batches if lease.stored is not None else ():
            of_window = found.setdefault(one.start if windows is None else windows.start_of(one.start), {})
            of_window[str(lease.key)] = max(one.number, of_window.get(str(lease.key), 0))
    return found


def window_counts(
    leases: Iterable[Lease], start: int, rules: int = 0, windows: Windows | None = None
) -> WindowCounts:
    """Return the counts of the window that begins at `start`, from all leases of an application, including finished
    leases. `rules`: the digest of the rules by which rows are counted (see `model.stored.rules_of`). Counts by
    other rules are not added; 0 accepts counts by any rules."""
    every = list(leases)
    held = {(lease.stream, lease.shard_id): lease for lease in every}
    counted = [(lease, lease.stored) for lease in every if lease.stored is not None and lease.stored.is_by(rules)]
    found = [(lease, of_window) for lease, counts in counted if (of_window := counts.at(start)) is not None]
    return WindowCounts(
        start=start,
        rows=sum(rows.rows for _, rows in found),
        bytes=sum(rows.bytes for _, rows in found),
        files=sum(rows.files for _, rows in found),
        late=sum(rows.late for _, rows in found),
        is_known=all(_counts_in_full(lease, start, rules, held) for lease in every),
        shards={str(lease.key): _part(lease, rows) for lease, rows in found if rows.rows},
        late_batches=late_batches(every, windows).get(start, {}),
    )


def _part(lease: Lease, rows: StoredRows) -> ShardPart:
    """Return the first and last sequence number of the lease's shard in the window. Both are None if the lease did
    not count all records of the shard in the window, for example after a reset to the middle of the window."""
    counts = lease.stored
    if counts is None or not counts.is_of(lease.checkpoint) or not (counts.whole or rows.start >= counts.since):
        return ShardPart(None, None)
    return ShardPart(rows.first, rows.last)


def _counts_in_full(
    lease: Lease, start: int, rules: int, held: Mapping[tuple[StreamIdentifier | None, str], Lease]
) -> bool:
    """Whether the counts of this lease, together with those of its parents, include all rows of a window that were
    stored from the shards of these leases."""
    counts = lease.stored
    if counts is None:
        return _is_untouched(lease)
    if not counts.is_of(lease.checkpoint):
        return False
    if not counts.is_by(rules):  # these counts are not added, so they must include no row of the window
        return start >= max(counts.since, counts.until)
    if start >= counts.since:
        return True
    return counts.whole and all((lease.stream, parent) in held for parent in lease.parents)


def _is_untouched(lease: Lease) -> bool:
    """Whether nothing was stored of the lease's shard yet."""
    return lease.checkpoint is not None and lease.checkpoint.is_initial_position
