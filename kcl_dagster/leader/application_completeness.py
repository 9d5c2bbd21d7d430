"""Through which moment an application is complete: every record that arrived before it is stored and visible.

Pure. Each lease says through which moment its own shard is stored, and that never becomes untrue, except by a
rewind, which raises the epoch of `tables.completeness_row`. So leases that were read at slightly different moments
may be taken together, as long as none is missing:

- Children are not read before their parents are finished, and have leases before that. While a parent is
  unfinished, its own moment holds the application back. A child that was not begun has everything that its parents'
  moment says. The lease of a merged shard names the parent at whose end it was made: until the shard is read, the
  lease of the other parent is there, or was lost.
- A lease that a scan did not return leaves a part of the hash range without an unfinished lease. Only an unfinished
  parent of a merged shard does not, because its child has a lease already; the other parent tells.
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
    """What keeps an application from being complete through a later moment. `what`: a lease, a stream or a row."""

    what: str
    why: Hindrance
    lease: LeaseKey | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True, slots=True)
class Completeness:
    """`through`: epoch seconds; every record that arrived before it is stored and visible. None: not known.

    In a `TickReport`, `through` is what is written down. It never falls within an `epoch`. A reset or an import
    raises the epoch: what was declared for windows that end after `back_to` under an earlier epoch is declared
    again (None: for no window). `reached` is what this tick found by itself, None where something holds it
    altogether.
    """

    through: int | None = None
    held_by: HeldBy | None = None
    epoch: int = 0
    back_to: int | None = None
    reached: int | None = None
    seconds_ago: float | None = None
    """How long ago `through` is, by the clock of the leader."""

    first: FirstMoment | None = None
    """No window that begins earlier is complete. None: it is not known, in applications that former versions or
    Java workers began."""


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
    """What the leases say, for an application that reads `streams` (names).

    `margin`: arrival times are approximate, and records of a shard are not strictly in their order. `now`: epoch
    seconds; no lease is believed that says more than that. `hindered`: leases of which more is known than that they
    are read. `read_through`: leases that no worker reads and that have no unread record which arrived before that.
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
    if lowest is None:  # no stream at all
        return Completeness()
    through = max(0, int(min(lowest[0], now) - margin))
    return Completeness(through, lowest[1], reached=through)


def _by_stream(leases: Sequence[Lease], streams: Collection[str]) -> dict[str, list[Lease]]:
    """Leases of a single-stream application name no stream. A stream that was made anew is another group."""
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
    """What is missing of a stream's leases."""
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
    """The moment of a lease, before which all its records are stored. `known`: by shard, the leases of its stream.

    A lease without a moment has that of its parents: all its records arrived after all of theirs. Only a lease
    of which nothing was read is without one, or one that was made again."""
    if lease.stored_through is not None:
        return lease.stored_through
    parents = [known[parent].stored_through for parent in lease.parents if parent in known]
    return max((moment for moment in parents if moment is not None), default=None)


# --- counts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShardPart:
    """The first and last sequence number that a shard has in a window; None where they are not known."""

    first: str | None
    last: str | None


@dataclass(frozen=True, slots=True)
class WindowCounts:
    """What of a window was stored by all leases together.

    `is_known` is False where a part was stored that was not counted, by a Java worker or a former version, whose
    counts were dropped, or that was counted by other rules, such as those of former partitions. The numbers are
    then too small.
    """

    start: int
    rows: int = 0
    bytes: int = 0
    files: int = 0
    late: int = 0
    is_known: bool = True
    shards: Mapping[str, ShardPart] = field(default_factory=dict)
    """By lease key, which is the shard's id where the application reads one stream."""

    late_batches: Mapping[str, int] = field(default_factory=dict)
    """By lease key, the newest batch that stored late rows. Whatever was deleted or dropped, a number that grew, or
    that is new, means that late rows came."""


def late_batches(leases: Iterable[Lease], windows: Windows | None = None) -> dict[int, dict[str, int]]:
    """Of each window that has late rows, by its start: see `WindowCounts`. With `windows`: late rows of a window of
    other rules are those of the window in which it begins."""
    found: dict[int, dict[str, int]] = {}
    for lease in leases:
        for one in lease.stored.late_batches if lease.stored is not None else ():
            of_window = found.setdefault(one.start if windows is None else windows.start_of(one.start), {})
            of_window[str(lease.key)] = max(one.number, of_window.get(str(lease.key), 0))
    return found


def window_counts(
    leases: Iterable[Lease], start: int, rules: int = 0, windows: Windows | None = None
) -> WindowCounts:
    """The counts of the window that begins at `start`, from the leases of an application, finished ones
    included. `rules`: see `model.stored.rules_of`; 0 for those that the leases were counted by."""
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
    """The numbers are known if the lease counted the window from the shard's first record in it on. After a reset
    into the window, the first number that is kept is that of a record which was read again."""
    counts = lease.stored
    if counts is None or not counts.is_of(lease.checkpoint) or not (counts.whole or rows.start >= counts.since):
        return ShardPart(None, None)
    return ShardPart(rows.first, rows.last)


def _counts_in_full(
    lease: Lease, start: int, rules: int, held: Mapping[tuple[StreamIdentifier | None, str], Lease]
) -> bool:
    """Whether this lease, or it and its parents, counted everything that was stored of a window."""
    counts = lease.stored
    if counts is None:
        return _is_untouched(lease)
    if not counts.is_of(lease.checkpoint):
        return False
    if not counts.is_by(rules):  # nothing is known of its windows but when the last one is over
        return start >= max(counts.since, counts.until)
    if start >= counts.since:
        return True
    return counts.whole and all((lease.stream, parent) in held for parent in lease.parents)


def _is_untouched(lease: Lease) -> bool:
    """Nothing was stored of it yet."""
    return lease.checkpoint is not None and lease.checkpoint.is_initial_position
