"""Counts the rows of a file by the minutes of a time column. Runs in the executors."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types

from kcl_dagster.worker.batch import MinuteRows
from kcl_dagster.worker.stored_counts import ARRIVAL

_MINUTE_MICROS: Final = 60_000_000


@dataclass(slots=True)
class MinuteCounts:
    """Counts rows by the minute of `time_column`. If rows also have an arrival time in another column, counts them
    by both minutes."""

    time_column: str
    _rows: Counter[tuple[int, int | None]] | None = field(default_factory=Counter)

    def add(self, rows: pa.RecordBatch) -> None:
        if self._rows is None:
            return
        times = _minutes_in(rows, self.time_column)
        if times is None:
            self._rows = None
            return
        arrived = None if self.time_column == ARRIVAL else _minutes_in(rows, ARRIVAL)
        if arrived is None:
            found, sizes = np.unique(times[~np.isnan(times)], return_counts=True)
            self._rows.update({(int(at) * 60, None): int(size) for at, size in zip(found, sizes, strict=True)})
            return
        both = np.stack([times, arrived])[:, ~np.isnan(times)]
        pairs, sizes = np.unique(both, axis=1, return_counts=True)
        for (at, came), size in zip(pairs.T, sizes, strict=True):
            self._rows[int(at) * 60, None if np.isnan(came) else int(came) * 60] += int(size)

    @property
    def counted(self) -> list[list[int | None]] | None:
        """The counts in a form that JSON supports, for `minute_rows`. None if the column has no times."""
        if self._rows is None:
            return None
        return [[at, came, rows] for (at, came), rows in self._rows.items()]


def minute_rows(counted: Sequence[Sequence[Any]] | None) -> tuple[MinuteRows, ...] | None:
    return None if counted is None else tuple(MinuteRows(*one) for one in counted)


def _minutes_in(rows: pa.RecordBatch, column: str) -> "np.ndarray[Any, np.dtype[np.float64]] | None":
    """The time of each row in minutes since the epoch; NaN for null. None if the column is missing or is no
    timestamp. A time without a zone is interpreted as UTC."""
    place = rows.schema.get_field_index(column)
    if place < 0 or not pyarrow.types.is_timestamp(rows.schema.field(place).type):
        return None
    micros = rows.column(place).cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    minutes: np.ndarray[Any, np.dtype[np.float64]] = micros.to_numpy(zero_copy_only=False).astype(np.float64)
    return np.floor(minutes / _MINUTE_MICROS)
