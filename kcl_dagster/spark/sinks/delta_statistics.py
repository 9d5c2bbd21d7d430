"""Statistics of a file in the log of a Delta table, by which readers skip files.

The statistics are made from the footer of the Parquet file, so the file is not read again. Bounds that can be wrong
are left out. These are the bounds of floats, because they do not include NaN; of decimals, because they lose digits
in JSON; and of bytes.

Merges and compactions write files with delta-rs, which makes the statistics itself. In delta-rs, bounds of floats
do not include NaN, and bounds of decimals are converted to doubles. With such bounds, readers would skip files
although these contain rows that the readers search for. So `file_writer` configures delta-rs to leave out the
statistics of such columns.
"""

import json
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kcl_dagster.spark.parquet_file import Footer, columns_of, has_readable_bounds, read_footer

if TYPE_CHECKING:
    from deltalake import WriterProperties

INDEXED_COLUMNS: Final = 32  # Delta's default; more statistics would make the log larger for all readers
LONGEST_TEXT: Final = 32  # characters of a bound
_HIGHEST: Final = "\U0010ffff"
_EXACT_DIGITS: Final = 15  # a decimal of so many digits is the same after a conversion to a double and back
_MILLISECOND: Final = timedelta(milliseconds=1)


def delta_statistics(footer: pq.FileMetaData, columns: int = INDEXED_COLUMNS) -> str:
    """The statistics of the first `columns` columns as JSON. If `columns` is negative: of all columns."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, chunks in columns_of(footer, footer.num_columns if columns < 0 else columns):
        statistics = [chunk.statistics for chunk in chunks]
        if not all(found is not None and found.has_null_count for found in statistics):
            continue
        nulls[name] = sum(found.null_count for found in statistics)
        if not all(map(has_readable_bounds, chunks)):  # without bounds, readers do not skip the file
            continue
        bounds = [(found.min, found.max) for found in statistics if found.has_min_max]
        filled = sum(found.num_values > 0 for found in statistics)
        low, high = _least(bounds), _greatest(bounds)
        if len(bounds) == filled and low is not None and high is not None:
            least[name], greatest[name] = low, high
    return json.dumps(
        {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    )


@dataclass(frozen=True, slots=True)
class DeltaStatistics:
    """Makes the statistics of the first `columns` columns of a file. Can be sent to an executor."""

    columns: int = INDEXED_COLUMNS

    def __call__(self, footer: Footer) -> str:
        return delta_statistics(read_footer(footer), self.columns)


def are_bounds_wrong(kind: pa.DataType) -> bool:
    """Whether the bounds that delta-rs makes of a column of this type, or of a field in it, can be wrong. delta-rs
    makes no bounds of lists, maps and bytes."""
    if pa.types.is_struct(kind):
        return any(are_bounds_wrong(field.type) for field in kind)
    if pa.types.is_decimal(kind):
        return bool(kind.precision > _EXACT_DIGITS)
    return bool(pa.types.is_floating(kind))


def file_writer(schema: pa.Schema, compression_level: int | None = None) -> "WriterProperties":
    """The settings with which delta-rs writes the files of a table: without statistics of the columns whose bounds
    can be wrong."""
    from deltalake import ColumnProperties, WriterProperties

    wrong = [field for field in schema if are_bounds_wrong(field.type)]
    without = ColumnProperties(statistics_enabled="NONE")
    if not any(pa.types.is_struct(field.type) for field in wrong):
        columns = {field.name: without for field in wrong}
        return WriterProperties(compression="ZSTD", compression_level=compression_level, column_properties=columns)
    # The settings cannot name a field of a struct. So they name the columns that keep their statistics.
    with_statistics = ColumnProperties(statistics_enabled="PAGE")
    columns = {field.name: with_statistics for field in schema if field not in wrong}
    return WriterProperties(
        compression="ZSTD",
        compression_level=compression_level,
        default_column_properties=without,
        column_properties=columns,
    )


def _least(bounds: list[tuple[Any, Any]]) -> Any:
    if not bounds:
        return None
    low = min(pair[0] for pair in bounds)
    if isinstance(low, datetime):
        return _moment(low)
    return low[:LONGEST_TEXT] if isinstance(low, str) else _plain(low)


def _greatest(bounds: list[tuple[Any, Any]]) -> Any:
    if not bounds:
        return None
    high = max(pair[1] for pair in bounds)
    if isinstance(high, datetime):
        is_whole = high.microsecond % 1000 == 0
        return _moment(high if is_whole or high.year == MAXYEAR else high + _MILLISECOND)
    if isinstance(high, str) and len(high) > LONGEST_TEXT:
        return high[:LONGEST_TEXT] + _HIGHEST
    return high if isinstance(high, str) else _plain(high)


def _plain(value: object) -> int | str | None:
    if isinstance(value, date):
        return value.isoformat()
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _moment(time: datetime) -> str:
    """The time as text in milliseconds, the precision of Delta's statistics."""
    if time.tzinfo is None:
        return time.isoformat(timespec="milliseconds")
    return time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
