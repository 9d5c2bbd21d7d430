"""Calculates what a commit adds to the counts of a lease: the number of rows by window. Pure. Runs on the driver,
which has the windows."""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from kcl_dagster.model.lease import Lease
from kcl_dagster.model.stored import MOST_BYTES, BatchCounts, StoredRows, by_start, rules_of
from kcl_dagster.model.windows import Windows
from kcl_dagster.worker.batch import FileCounts, MinuteRecords, MinuteRows, PartCounts, Progress

log = logging.getLogger(__name__)

ARRIVAL: Final = "arrival_timestamp"
MINUTE: Final = 60
DAY: Final = 86_400

EARLIEST_SECONDS: Final = 365 * DAY  # the longest retention of a stream
LATEST_SECONDS: Final = DAY  # a local time that was mistaken for UTC is wrong by less
WINDOWS_AHEAD: Final = 8
"""A row is counted if its time is at most `EARLIEST_SECONDS` before the arrival of its record, and at most
`LATEST_SECONDS` and `WINDOWS_AHEAD` windows after it. Other times come from wrong clocks or units. Rows with such
times are not counted for any window. Their windows would not be complete for years, and would take room that the
counts of present windows need."""


@dataclass(frozen=True, slots=True)
class WindowRules:
    """The rules by which a worker counts rows.

    - `event_time`: the column of the output that determines the window of a row; None if the arrival of the row's
      record determines it.
    - `allowed_lateness`: seconds after a window's end; rows whose records arrive later are late.
    - `margin`: see `Timings.arrival_margin`.
    - `most_bytes`: the size limit of the counts in a lease's row; see `model.stored`.
    """

    windows: Windows
    event_time: str | None = None
    allowed_lateness: int = 0
    margin: float = 10.0
    most_bytes: int = MOST_BYTES

    @property
    def time_column(self) -> str:
        return self.event_time or ARRIVAL

    @property
    def _rules(self) -> int:
        return rules_of(self.windows, self.event_time, self.allowed_lateness)

    def counts(self, lease: Lease, progress: Progress, stored: PartCounts | None) -> BatchCounts | None:
        """What `progress` adds to the counts of `lease`. None if that is not known. `lease`: as it was before the
        commit. `stored`: what the sink reports about the part; None if not known. Does not raise, although the
        times of rows are user data and can have any value. The rows are stored in any case."""
        try:
            return self._counts(lease, progress, stored)
        except Exception:
            log.exception("lease %s: the stored rows of a batch could not be counted", lease.key)
            return None

    def _counts(self, lease: Lease, progress: Progress, stored: PartCounts | None) -> BatchCounts | None:
        outside = 0
        read = progress.minutes
        if read is None or stored is None:
            return None
        if stored.files is not None:
            rows, outside = self._of_files(stored.files, progress)
        elif self.event_time is None:
            rows = self._of_records(read, stored)
            if stored.rows not in (None, sum(one.rows for one in rows)):
                if len(rows) != 1:  # user code has changed the number of rows, so the rows per window are not known
                    return None
                rows = [replace(rows[0], rows=stored.rows or 0, bytes=stored.size, files=stored.number)]
        else:
            return None
        return replace(
            self.nothing(lease, progress),
            rows=tuple(rows),
            outside=outside,
            until=self._until(rows, progress),
        )

    def _until(self, rows: Iterable[StoredRows], progress: Progress) -> int:
        """The moment until which the lease must not be deleted, because the leader needs its counts to declare
        windows. This is the latest end of the windows plus the allowed lateness. If there are late rows, it is at
        least the arrival of the last record, because a window with late rows is declared at the leader's next
        tick."""
        arrived = (progress.last_arrival_ms or 0) // 1000
        ends = [self.windows.end_of(one.start) + self.allowed_lateness for one in rows]
        return max([0, *ends, *(arrived for one in rows if one.late)])

    def nothing(self, lease: Lease, progress: Progress) -> BatchCounts:
        """The counts of a range of which nothing is stored: its records were set aside, or it has no records."""
        shared_until, restart = self._shared_until(lease, progress), self._restart(lease, progress)
        return BatchCounts((), shared_until, restart, rules=self._rules, most_bytes=self.most_bytes)

    def _of_records(self, read: Iterable[MinuteRecords], stored: PartCounts) -> list[StoredRows]:
        """Count each record as a row. The bytes are those of the files, divided among the windows in proportion to
        the payload. If the size of the files is not known, the bytes are those of the payloads."""
        found = by_start(
            StoredRows(self.windows.start_of(one.minute), one.records, one.bytes, 0, 0, one.first, one.last)
            for one in read
            if one.records
        )
        payload = sum(rows.bytes for rows in found.values())
        if not stored.size or not payload:
            return list(found.values())
        return [
            replace(rows, files=stored.number, bytes=stored.size * rows.bytes // payload) for rows in found.values()
        ]

    def _of_files(self, files: Iterable[FileCounts], progress: Progress) -> tuple[list[StoredRows], int]:
        """Count rows by their own times. Also returns the number of rows that count for no window, see
        `StoredCounts.outside`.

        A file's bytes are divided among windows in proportion to the rows. The file counts for each window of which
        it has rows. The sequence numbers are those of the first and the last record that arrived in the window.
        With event times, they are those of the whole batch, and no materialization shows them.
        """
        counted: list[StoredRows] = []
        outside = 0
        for file in files:
            every = sum(one.rows for one in file.minutes)
            outside += file.timeless
            rows: Counter[int] = Counter()
            late: Counter[int] = Counter()
            for one in file.minutes:
                if not self._has_window(one, progress):
                    outside += one.rows
                    continue
                start = self.windows.start_of(one.minute)
                if self.event_time is not None and start not in rows and not self.windows.has_partition(start):
                    outside += one.rows
                    continue
                rows[start] += one.rows
                late[start] += one.rows if self._is_late(start, one.arrived, progress) else 0
            for start, count in rows.items():
                counted.append(StoredRows(start, count, file.bytes * count // every, file.files, late[start]))
        between = self._numbers(progress)
        whole = progress.first, None if progress.through is None else progress.through.sequence
        found = [
            replace(rows, first=first, last=last)
            for rows in by_start(counted).values()
            for first, last in [between.get(rows.start, whole)]
        ]
        return found, outside

    def _has_window(self, one: MinuteRows, progress: Progress) -> bool:
        """Whether a row's time is near enough to the arrival of its record. If the row has no arrival time, the
        arrivals of the batch's first and last record are used."""
        first = one.arrived if one.arrived is not None else (progress.first_arrival_ms or 0) // 1000
        last = one.arrived if one.arrived is not None else (progress.last_arrival_ms or 0) // 1000
        if not max(0, first - EARLIEST_SECONDS) <= one.minute <= last + LATEST_SECONDS:
            return False
        end = self.windows.start_of(last)
        for _ in range(1 + WINDOWS_AHEAD):
            end = self.windows.end_of(end)
            if one.minute < end:
                return True
        return False

    def _numbers(self, progress: Progress) -> dict[int, tuple[str | None, str | None]]:
        if self.event_time is not None:
            return {}
        found = self._of_records(progress.minutes or (), PartCounts(None))
        return {rows.start: (rows.first, rows.last) for rows in found}

    def _is_late(self, start: int, arrived: int | None, progress: Progress) -> bool:
        """Whether a row's record arrived when the row's window may have been declared already.

        If the row has no arrival time, the arrival of the batch's first record decides. A window is declared only
        when this shard is stored through the window's deadline: its end plus the allowed lateness. If the first
        record of the batch arrived before the deadline, the shard is stored through the deadline only after this
        batch. The window is then declared with all rows of the batch.

        Arrivals are known by the minute. Rows that arrived in the minute that contains the deadline therefore count
        as late, although some of them arrived before the deadline. The opposite would be worse, because a late row
        that is not counted as late does not update its window.
        """
        if self.event_time is None:
            return False
        if arrived is None:
            arrived = (progress.first_arrival_ms or 0) // 1000
        deadline = self.windows.end_of(start) + self.allowed_lateness
        return arrived >= deadline - deadline % MINUTE

    def _shared_until(self, lease: Lease, progress: Progress) -> int:
        """The time before which windows can also have records of the shard's parents. 0 if the lease has neither
        parents nor a `stored_through`.

        The lease of a child that was not read yet has the `stored_through` of its parents. The window of this
        moment may have records of the parents, so the result is the end of this window. If a Java worker created
        the lease of a child, the lease has no `stored_through`. The result is then calculated from the arrival of
        the child's first record, because the parents ended before it.
        """
        if lease.stored_through is not None:
            return self._end_of_window(lease.stored_through)
        return self._restart(lease, progress) if lease.parents else 0

    def _restart(self, lease: Lease, progress: Progress) -> int:
        arrived = (progress.first_arrival_ms or 0) // 1000
        return self._end_of_window(int(max(arrived, lease.stored_through or 0) + self.margin))

    def _end_of_window(self, moment: int) -> int:
        return self.windows.end_of(self.windows.start_of(moment))
