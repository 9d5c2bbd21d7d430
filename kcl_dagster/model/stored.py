"""What of a shard was stored, window by window: values, and their form in a lease's row.

The counts of a lease are written in the same conditional update as its checkpoint. They are therefore right for
that checkpoint, however often a batch was tried. A checkpoint that was written without them (by a Java worker, or
by a former version) makes them unknown, never wrong: they name the checkpoint that they belong to.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.windows import Windows

FORMAT: Final = 1
MOST_WINDOWS: Final = 32
"""Of a lease. Older ones are dropped, and are unknown from then on."""

NUMBERED_WINDOWS: Final = 3
"""Of a lease: the newest, whose sequence numbers are always kept."""

MOST_BYTES: Final = 400
"""Of the packed counts. With them a row has about a kilobyte, which is what DynamoDB charges one unit for. Sequence
numbers go first, those of the oldest windows before others, but for NUMBERED_WINDOWS; then the oldest windows."""

MOST_BYTES_BETWEEN_RUNS: Final = 2000
"""The same in a bounded run: MOST_WINDOWS with their sequence numbers. A run declares its windows at its end only,
when there are newer ones, and it writes a row too seldom for the second unit to matter."""

MOST_LATE: Final = 32
"""Windows of a lease of which it is known that late rows came. Each takes 5 bytes beside MOST_BYTES. Those whose
late rows came first are dropped."""

_BEGUN: Final = 1  # flag of a packed window with numbers; the other bits of the newest such window are the rules
_RULES: Final = 1 << 20
_LONGEST: Final = 64  # bits of a count; more was not written by a worker
_LONGEST_SEQUENCE: Final = 432  # bits of 129 digits, the most that Kinesis allows


@dataclass(frozen=True, slots=True)
class StoredRows:
    """What was stored of one window. `late`: rows among them whose record arrived after the window's end and the
    allowed lateness. `first` and `last`: sequence numbers; None where they are not known (any more)."""

    start: int
    rows: int = 0
    bytes: int = 0
    files: int = 0
    late: int = 0
    first: str | None = None
    last: str | None = None

    def plus(self, other: "StoredRows") -> "StoredRows":
        """This, and what was stored after it. Sequence numbers of a window are known from its beginning or not at
        all: where this has rows and no numbers, the sum has none."""
        is_known = self.first is not None or not self.rows
        return StoredRows(
            self.start,
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.files + other.files,
            self.late + other.late,
            (self.first or other.first) if is_known else None,
            (other.last or self.last) if is_known else None,
        )


@dataclass(frozen=True, slots=True)
class LateBatch:
    """The newest batch of a lease that stored late rows of the window which begins at `start`. The numbers of a
    lease's batches only grow, also over a reset. So a number that grew means that late rows came, whatever else of
    the window is known."""

    start: int
    number: int


@dataclass(frozen=True, slots=True)
class StoredCounts:
    """The counts of one lease, by the start of their window, oldest first.

    `since`: windows that start then or later are counted in full by this lease alone. Of earlier windows a part is
    in the leases of the shard's parents if `whole`, which says that the lease was counted from its first record;
    else they are not known. `mark` stands for the checkpoint that the counts are right for.
    """

    windows: tuple[StoredRows, ...] = ()
    since: int = 0
    whole: bool = False
    mark: int = 0
    until: int = 0
    """When the last of the windows is complete, lateness included, or when the last late rows arrived. The lease is
    kept until then, although its shard is finished."""

    outside: int = 0
    """All rows of the lease that count for no window: they have no time of their own, it is too far from their
    record's arrival, or its window has no partition."""

    late_uncounted: int = 0
    """All late rows of the lease that came when the counts of their window had been dropped, or made them drop."""

    late_batches: tuple[LateBatch, ...] = ()
    """By start, MOST_LATE at most. Also of windows whose counts were dropped."""

    rules: int = 0
    """By which rules was counted, see `rules_of`. 0: not known, as in the rows of former versions; then the rules
    are taken for the present ones. Kept with the sequence numbers of the newest window, where former versions read
    the counts in spite of it."""

    def at(self, start: int) -> StoredRows | None:
        """The counts of the window that begins at `start`; None where nothing was counted."""
        return next((rows for rows in self.windows if rows.start == start), None)

    def is_of(self, checkpoint: Checkpoint | None) -> bool:
        """Whether the counts are right for a lease that is at `checkpoint`."""
        return checkpoint is not None and self.mark == mark_of(checkpoint)

    def is_by(self, rules: int) -> bool:
        """Whether it was counted by these rules, as far as that is known."""
        return 0 in (rules, self.rules) or rules == self.rules

    def plus(
        self, more: Collection[StoredRows], checkpoint: Checkpoint, batch: int = 0, most_bytes: int = MOST_BYTES
    ) -> "StoredCounts":
        """With what was stored on the way to `checkpoint`, by the batch of this number."""
        found = {rows.start: rows for rows in self.windows}
        for rows in more:
            known = found.get(rows.start)
            found[rows.start] = rows if known is None else known.plus(rows)
        windows = tuple(found[start] for start in sorted(found))
        late = self._late_with([rows.start for rows in more if rows.late], batch)
        counts = replace(self, windows=windows, mark=mark_of(checkpoint), late_batches=late).fitted(most_bytes)
        unseen = sum(rows.late for rows in more if counts.at(rows.start) is None)
        return replace(counts, late_uncounted=self.late_uncounted + unseen) if unseen else counts

    def _late_with(self, starts: Collection[int], batch: int) -> tuple[LateBatch, ...]:
        if not starts:
            return self.late_batches
        number = max([batch, *(one.number + 1 for one in self.late_batches)])
        found = {one.start: one for one in self.late_batches} | {
            start: LateBatch(start, number) for start in starts
        }
        newest = sorted(found.values(), key=lambda one: (one.number, one.start))[-MOST_LATE:]
        return tuple(sorted(newest, key=lambda one: one.start))

    def fitted(self, most_bytes: int = MOST_BYTES) -> "StoredCounts":
        """Without what a row has no room for."""
        counts = self.newest(MOST_WINDOWS)
        windows = list(counts.windows)
        for place, rows in enumerate(windows[:-NUMBERED_WINDOWS]):
            if _size(counts) <= most_bytes:
                return counts
            windows[place] = replace(rows, first=None, last=None)
            counts = replace(counts, windows=tuple(windows))
        while _size(counts) > most_bytes:
            counts = counts.newest(len(counts.windows) - 1)
        return counts

    def newest(self, count: int) -> "StoredCounts":
        """Without older windows, which are not known from then on."""
        left = max(0, len(self.windows) - count)
        if left == 0:
            return self
        since = max(self.since, self.windows[left - 1].start + 1)
        return replace(self, windows=self.windows[left:], since=since, whole=False)


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What a commit adds to the counts of its lease.

    `shared_until`: if the lease was not begun, windows that start earlier may have records in its parents.
    `restart`: if others have committed without counting, windows that start then or later have none of those
    records.
    """

    rows: tuple[StoredRows, ...] = ()
    shared_until: int = 0
    restart: int = 0
    until: int = 0
    """See `StoredCounts`."""

    outside: int = 0
    """See `StoredCounts`."""

    rules: int = 0
    """See `StoredCounts`."""

    most_bytes: int = MOST_BYTES

    def followed_by(self, other: "BatchCounts") -> "BatchCounts":
        """What this and the next commit add, if both are written at once."""
        rows = by_start([*self.rows, *other.rows])
        return replace(
            self,
            rows=tuple(rows[start] for start in sorted(rows)),
            until=max(self.until, other.until),
            outside=self.outside + other.outside,
        )

    def added_to(
        self, known: StoredCounts | None, before: Checkpoint | None, after: Checkpoint, batch: int = 0
    ) -> StoredCounts:
        """The counts of a lease that goes on from `before` to `after` with the batch of this number."""
        if known is not None and known.is_of(before) and known.is_by(self.rules):
            base = known
        elif before is not None and before.is_initial_position:
            base = StoredCounts(since=self.shared_until, whole=True)
        else:
            base = StoredCounts(since=self.restart)
            if known is not None:
                base = replace(
                    base,
                    outside=known.outside,
                    late_uncounted=known.late_uncounted,
                    late_batches=known.late_batches,
                )
        until, outside = max(base.until, self.until), base.outside + self.outside
        rules = self.rules or base.rules
        return replace(base, until=until, outside=outside, rules=rules).plus(
            self.rows, after, batch, self.most_bytes
        )


def nothing_since(moment: int, checkpoint: Checkpoint) -> StoredCounts:
    """The counts of a lease that was put to `checkpoint`, and has all records behind it from `moment` on."""
    return StoredCounts(since=moment, mark=mark_of(checkpoint))


def mark_of(checkpoint: Checkpoint) -> int:
    """A short stand-in for a checkpoint."""
    return zlib.crc32(str(checkpoint).encode())


def rules_of(windows: Windows, event_time: str | None = None, allowed_lateness: int = 0) -> int:
    """A short stand-in for what decides of a row in which window it is, and whether it is late. Never 0."""
    text = f"{windows.division}|{event_time or ''}|{allowed_lateness}"
    return 1 + zlib.crc32(text.encode()) % (_RULES - 1)


# --- packed ------------------------------------------------------------------------------------------------------


def packed(counts: StoredCounts) -> bytes:
    """Whole numbers of variable length: a window takes about 12 bytes, and 50 with its sequence numbers."""
    out = bytearray([FORMAT])
    before = 0
    newest = max((rows.start for rows in counts.windows if None not in (rows.first, rows.last)), default=None)
    for number in (counts.since, counts.whole, counts.mark, counts.until, len(counts.windows)):
        out += _number(number)
    for rows in counts.windows:
        out += _number(rows.start - before)
        before = rows.start
        for number in (rows.rows, rows.bytes, rows.files, rows.late):
            out += _number(number)
        numbers = (rows.first, rows.last)
        if None in numbers:
            out += _number(0)
        else:
            first, last = int(rows.first or 0), int(rows.last or 0)
            flag = _BEGUN | counts.rules << 1 if rows.start == newest else _BEGUN
            out += _number(flag) + _number(first) + _number(max(0, last - first))
    if counts.outside or counts.late_uncounted or counts.late_batches:  # former versions cannot read these
        out += _number(counts.outside) + _number(counts.late_uncounted)
    if counts.late_batches:
        out += _packed_late(counts.late_batches)
    return bytes(out)


def _packed_late(batches: Collection[LateBatch]) -> bytes:
    newest = max(one.number for one in batches)
    out = bytearray(_number(newest) + _number(len(batches)))
    before = 0
    for one in batches:
        out += _number(one.start - before) + _number(newest - one.number)
        before = one.start
    return bytes(out)


@lru_cache(maxsize=4096)  # rows are read far more often than their counts change
def unpacked(data: bytes) -> StoredCounts | None:
    """None for what this version did not write: the counts are then not known."""
    try:
        if not data or data[0] != FORMAT:
            return None
        numbers = _Numbers(data[1:])
        since, whole, mark, until, count = (numbers.next() for _ in range(5))
        if count > MOST_WINDOWS or whole > 1:
            return None
        windows: list[StoredRows] = []
        start = rules = 0
        for _ in range(count):
            start += numbers.next()
            rows, size, files, late, flag = (numbers.next() for _ in range(5))
            first = last = None
            if flag:
                rules = flag >> 1
                number = numbers.next(_LONGEST_SEQUENCE)
                first, last = str(number), str(number + numbers.next(_LONGEST_SEQUENCE))
            windows.append(StoredRows(start, rows, size, files, late, first, last))
        outside, late = (0, 0) if numbers.are_over else (numbers.next(), numbers.next())
        batches = () if numbers.are_over else _unpacked_late(numbers)
        counts = StoredCounts(tuple(windows), since, bool(whole), mark, until, outside, late, batches, rules)
        return counts if numbers.are_over else None
    except ValueError:
        return None


def _unpacked_late(numbers: "_Numbers") -> tuple[LateBatch, ...]:
    """Raises ValueError."""
    newest, count = numbers.next(), numbers.next()
    if not 0 < count <= MOST_LATE:
        msg = f"{count} windows with late rows were not written by a worker"
        raise ValueError(msg)
    found: list[LateBatch] = []
    start = 0
    for _ in range(count):
        start += numbers.next()
        found.append(LateBatch(start, newest - numbers.next()))
    return tuple(found)


def _size(counts: StoredCounts) -> int:
    return len(packed(replace(counts, late_batches=())))


def _number(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Numbers:
    def __init__(self, data: bytes) -> None:
        self._bytes: Iterator[int] = iter(data)
        self._left = len(data)

    @property
    def are_over(self) -> bool:
        return self._left == 0

    def next(self, most_bits: int = _LONGEST) -> int:
        """Raises ValueError where the data end, or for a number that no worker wrote."""
        number = shift = 0
        for byte in self._bytes:
            self._left -= 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > most_bits:
                raise ValueError("a number is too large")
        else:
            raise ValueError("the data are cut off")
        return number


def by_start(rows: Iterable[StoredRows]) -> Mapping[int, StoredRows]:
    """Sums of rows that were counted apart, by window."""
    found: dict[int, StoredRows] = {}
    for one in rows:
        found[one.start] = found[one.start].plus(one) if one.start in found else one
    return found
