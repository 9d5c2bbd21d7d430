"""What a commit adds to the counts of a lease: rows by window. Pure, and on the driver, where the windows are."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from kcl_dagster.model.lease import Lease
from kcl_dagster.model.stored import BatchCounts, StoredRows, by_start
from kcl_dagster.model.windows import Windows
from kcl_dagster.worker.batch import FileCounts, MinuteRecords, PartCounts, Progress

ARRIVAL: Final = "arrival_timestamp"
MINUTE: Final = 60


@dataclass(frozen=True, slots=True)
class WindowRules:
    """By which windows a worker counts. `event_time`: the column of the output that says when a row belongs to,
    None for the arrival of its record. `allowed_lateness`: seconds; later rows count as late. `margin`: see
    `Timings.arrival_margin`."""

    windows: Windows
    event_time: str | None = None
    allowed_lateness: int = 0
    margin: float = 10.0

    @property
    def time_column(self) -> str:
        return self.event_time or ARRIVAL

    def counts(self, lease: Lease, progress: Progress, stored: PartCounts | None) -> BatchCounts | None:
        """What `progress` adds to the counts of `lease`, as it was before. `stored`: what the sink says of the
        part. None: not known."""
        read = progress.minutes
        if read is None or stored is None:
            return None
        if stored.files is not None:
            rows = self._of_files(stored.files, progress)
        elif self.event_time is None:
            rows = self._of_records(read, stored)
        else:
            return None
        return replace(
            self.nothing(lease, progress),
            rows=tuple(rows),
            until=max((self.windows.end_of(one.start) + self.allowed_lateness for one in rows), default=0),
        )

    def nothing(self, lease: Lease, progress: Progress) -> BatchCounts:
        """Of a range of which nothing is stored: its records were set aside, or it has none."""
        return BatchCounts((), self._shared_until(lease), self._restart(lease, progress))

    def _of_records(self, read: Iterable[MinuteRecords], stored: PartCounts) -> list[StoredRows]:
        """Rows are the records. Bytes are those of the files, or of the payloads where no file is known."""
        found = by_start(
            StoredRows(self.windows.start_of(one.minute), one.records, one.bytes, 0, 0, one.first, one.last)
            for one in read
            if one.records
        )
        payload = sum(rows.bytes for rows in found.values())
        if not stored.number or not payload:
            return list(found.values())
        return [
            replace(rows, files=stored.number, bytes=stored.size * rows.bytes // payload) for rows in found.values()
        ]

    def _of_files(self, files: Iterable[FileCounts], progress: Progress) -> list[StoredRows]:
        """Rows by their own times. A file's bytes are shared out by rows, and it counts for each window that it has
        rows of. Sequence numbers are those of the records that arrived in the window, or, with times of events,
        those between which the rows' records are."""
        counted: list[StoredRows] = []
        for file in files:
            every = sum(one.rows for one in file.minutes)
            rows: Counter[int] = Counter()
            late: Counter[int] = Counter()
            for one in file.minutes:
                start = self.windows.start_of(one.minute)
                rows[start] += one.rows
                late[start] += one.rows if self._is_late(start, one.arrived, progress) else 0
            for start, count in rows.items():
                counted.append(StoredRows(start, count, file.bytes * count // every, 1, late[start]))
        between = self._numbers(progress)
        whole = progress.first, None if progress.through is None else progress.through.sequence
        return [
            replace(rows, first=first, last=last)
            for rows in by_start(counted).values()
            for first, last in [between.get(rows.start, whole)]
        ]

    def _numbers(self, progress: Progress) -> dict[int, tuple[str | None, str | None]]:
        if self.event_time is not None:
            return {}
        found = self._of_records(progress.minutes or (), PartCounts(None))
        return {rows.start: (rows.first, rows.last) for rows in found}

    def _is_late(self, start: int, arrived: int | None, progress: Progress) -> bool:
        """Whether a row's record arrived when its window may have been declared already. Where the row does not say
        when it arrived, it may be as late as the last one of the batch."""
        if self.event_time is None:
            return False
        if arrived is None:
            arrived = (progress.last_arrival_ms or 0) // 1000
        return arrived >= self.windows.end_of(start) + self.allowed_lateness

    def _shared_until(self, lease: Lease) -> int:
        """A child has the moment of its parents until it is read: they have records of that moment's window."""
        return 0 if lease.stored_through is None else self._end_of_window(lease.stored_through)

    def _restart(self, lease: Lease, progress: Progress) -> int:
        arrived = (progress.first_arrival_ms or 0) // 1000
        return self._end_of_window(int(max(arrived, lease.stored_through or 0) + self.margin))

    def _end_of_window(self, moment: int) -> int:
        return self.windows.end_of(self.windows.start_of(moment))
