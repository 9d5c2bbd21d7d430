"""Counts of the stored rows of a shard, by window, and their form in a lease's row.

The counts of a lease are written in the same conditional update as its checkpoint, so they are right for that
checkpoint, however often a batch was retried. The counts contain a digest of this checkpoint. If a Java worker or
an earlier version writes a checkpoint without counts, the digest no longer matches, and the counts are unknown.
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
"""The most windows per lease. The counts of older windows are dropped, and are unknown from then on."""

NUMBERED_WINDOWS: Final = 3
"""The number of newest windows per lease whose sequence numbers are always kept."""

MOST_BYTES: Final = 400
"""The size limit of the packed counts. A row with counts of this size has about a kilobyte, for which DynamoDB
charges one unit. If the counts are larger, sequence numbers are dropped first, oldest window first, except those of
the NUMBERED_WINDOWS newest windows. If that is not enough, the oldest windows are dropped."""

MOST_BYTES_BETWEEN_RUNS: Final = 2000
"""The size limit in a bounded run: enough for MOST_WINDOWS windows with sequence numbers. A bounded run declares
its windows only at its end and needs their counts until then. It writes so few rows that a second unit costs
little."""

MOST_LATE: Final = 32
"""The most windows with late rows per lease for which a `LateBatch` is kept. Each takes 5 bytes in addition to
MOST_BYTES. If there are more, the windows that have had no late rows for the longest time are dropped."""

# The lowest bit of a packed window's flag: the window has sequence numbers. In the newest such window, the other
# bits of the flag contain the digest of the rules, see `StoredCounts.rules`.
_BEGUN: Final = 1
_RULES: Final = 1 << 20
_LONGEST: Final = 64  # bits of a count; no worker writes a larger one
_LONGEST_SEQUENCE: Final = 432  # bits of a number of 129 digits, the most that Kinesis allows


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The counts of one window's stored rows. `start`: when the window begins. `late`: the number of late rows.
    `first` and `last`: sequence numbers of the first and last record; None if they are not known, or were dropped.
    """

    start: int
    rows: int = 0
    bytes: int = 0
    files: int = 0
    late: int = 0
    first: str | None = None
    last: str | None = None

    def plus(self, other: "StoredRows") -> "StoredRows":
        """The sum of these counts and the counts of rows that were stored later. If these counts have rows but no
        sequence numbers, the sum has no sequence numbers either. Its `first` would be the number of a later record.
        """
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
    """The newest batch of a lease that stored late rows of the window that begins at `start`. The numbers of a
    lease's batches only grow, even over a reset. So if `number` is higher than at an earlier look, late rows were
    stored in between. This is true even if the window's counts were dropped."""

    start: int
    number: int


@dataclass(frozen=True, slots=True)
class StoredCounts:
    """The counts of one lease, by window, oldest first.

    - `since`: windows that begin at or after this time are counted in full by this lease alone.
    - `whole`: whether the rows of the lease were counted from its first record on. If so, windows before `since`
      are counted by this lease and its parents' leases together. If not, the counts of these windows are not known.
    - `mark`: a digest of the checkpoint for which the counts are right.
    """

    windows: tuple[StoredRows, ...] = ()
    since: int = 0
    whole: bool = False
    mark: int = 0
    until: int = 0
    """When the last of the windows is complete (allowed lateness included), or when the last late rows arrived if
    that is later. The lease is kept until this time, even if its shard is finished."""

    outside: int = 0
    """The number of the lease's rows that count for no window: rows without an event time, with an event time too
    far from the arrival of their record, or in a window that has no partition."""

    late_uncounted: int = 0
    """The number of late rows whose window has no counts. The counts of the window had been dropped before these
    rows were stored, or were dropped when these rows were added."""

    late_batches: tuple[LateBatch, ...] = ()
    """For each window with late rows, the newest batch that stored such rows; in the order of `start`. At most
    MOST_LATE. Includes windows whose counts were dropped."""

    rules: int = 0
    """A digest of the rules by which rows were counted, see `rules_of`. 0 if not known, as in a lease's row that an
    earlier version wrote; the present rules are then assumed. The digest is packed into the flag of the newest
    window with sequence numbers, where it does not prevent earlier versions from reading the counts."""

    def at(self, start: int) -> StoredRows | None:
        """The counts of the window that begins at `start`; None if there are none for this window."""
        return next((rows for rows in self.windows if rows.start == start), None)

    def is_of(self, checkpoint: Checkpoint | None) -> bool:
        """Whether the counts are right for a lease with this `checkpoint`."""
        return checkpoint is not None and self.mark == mark_of(checkpoint)

    def is_by(self, rules: int) -> bool:
        """Whether the rows were counted by the rules with this digest. True if either digest is 0 (not known)."""
        return 0 in (rules, self.rules) or rules == self.rules

    def plus(
        self, more: Collection[StoredRows], checkpoint: Checkpoint, batch: int = 0, most_bytes: int = MOST_BYTES
    ) -> "StoredCounts":
        """Return the counts after the batch with the number `batch` has stored `more` and ended at `checkpoint`."""
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
        """The counts, reduced until they fit into `most_bytes`. For the order, see MOST_BYTES."""
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
        """The counts of only the newest `count` windows. The counts of older windows are not known from then on."""
        left = max(0, len(self.windows) - count)
        if left == 0:
            return self
        since = max(self.since, self.windows[left - 1].start + 1)
        return replace(self, windows=self.windows[left:], since=since, whole=False)


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What a commit adds to the counts of its lease.

    - `shared_until`: used if the lease had not been read before. Parents of its shard may have records of windows
      that begin before this time.
    - `restart`: used if the counts begin anew, because another worker has committed without counting, or has
      counted by other rules. Windows that begin at or after this time have none of the records that were stored
      before.
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
        """The sum of what this commit and the next commit add, for writing both together."""
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
        """The counts of a lease after the batch with this number, which moved the checkpoint of the lease from
        `before` to `after`."""
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
    """The counts of a lease that was reset to `checkpoint`. From this checkpoint on, all records that arrived since
    `moment` are read again."""
    return StoredCounts(since=moment, mark=mark_of(checkpoint))


def mark_of(checkpoint: Checkpoint) -> int:
    return zlib.crc32(str(checkpoint).encode())


def rules_of(windows: Windows, event_time: str | None = None, allowed_lateness: int = 0) -> int:
    """A short digest of the rules that decide to which window a row belongs, and whether it is late. Never 0."""
    text = f"{windows.division}|{event_time or ''}|{allowed_lateness}"
    return 1 + zlib.crc32(text.encode()) % (_RULES - 1)


# --- packed ------------------------------------------------------------------------------------------------------


def packed(counts: StoredCounts) -> bytes:
    """Encode the counts as integers of variable length. A window takes about 12 bytes, or 50 with its sequence
    numbers."""
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
    if counts.outside or counts.late_uncounted or counts.late_batches:  # earlier versions cannot read them
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
    """Decode counts. Returns None for data that this version cannot read; the counts are then not known."""
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
        """Read the next integer. Raises ValueError if the data end within it, or if it is larger than any number
        that workers write."""
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
    """Add up the counts of each window. Returns the sums by the windows' `start`."""
    found: dict[int, StoredRows] = {}
    for one in rows:
        found[one.start] = found[one.start].plus(one) if one.start in found else one
    return found
