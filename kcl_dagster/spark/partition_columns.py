"""Partitions of folders and tables by columns, or by the month, day or hour of a timestamp.

`day(arrival_timestamp)` is a column `arrival_timestamp_day` (`2026-01-31`) that the sink adds to the transform's
output. It is always in UTC, whatever time zone the session has, so that a batch that is written again goes to the
same partitions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.model.partition_terms import columns_or_times
from kcl_dagster.spark.transform import Transform, guarded

_SECONDS_PER_DAY: Final = 86_400
_SECONDS_PER_HOUR: Final = 3_600
_MONTH: Final = 7  # characters of 2026-01
_TIMES: Final = (types.DateType, types.TimestampType, types.TimestampNTZType)


@dataclass(frozen=True, slots=True)
class PartitionTimes:
    """Adds the partition columns that are units of time (in UTC) to an output. Can be sent to an executor. `units`:
    the name, the unit and the source column of each added column."""

    units: tuple[tuple[str, str, str], ...]

    def of_frame(self, output: DataFrame) -> DataFrame:
        for name, unit, column in self.units:
            if column not in getattr(output, "columns", ()):
                raise ConfigurationError(f"partition_by has {unit}({column}), and the output has no {column}")
            kind = output.schema[column].dataType
            if not isinstance(kind, _TIMES):
                raise _no_time(unit, column, kind.simpleString())
            output = output.withColumn(name, _unit_of(unit, F.col(column)))
        return output

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the columns to Arrow batches, as `of_frame` does to a DataFrame."""
        for batch in rows:
            added = batch
            for name, unit, column in self.units:
                place = batch.schema.get_field_index(column)
                if place < 0:
                    raise ConfigurationError(f"partition_by has {unit}({column}), and the output has no {column}")
                times = batch.column(place)
                if not (pa.types.is_timestamp(times.type) or pa.types.is_date(times.type)):
                    raise _no_time(unit, column, str(times.type))
                values = _unit_in_utc(unit, times)
                if name in batch.schema.names:
                    added = added.set_column(batch.schema.get_field_index(name), name, values)
                else:
                    added = added.append_column(name, values)
            yield added


def partition_columns(partition_by: Sequence[str]) -> tuple[PartitionTimes, tuple[str, ...]]:
    """Parse `partition_by`. Returns the columns that are units of time, and the names of all partition columns.

    Raises ConfigurationError for an entry that is neither a name nor a unit of time.
    """
    entries = columns_or_times(partition_by)
    times = {one.name: (one.name, one.unit, one.source) for one in entries if one.unit}
    return PartitionTimes(tuple(times.values())), tuple(one.name for one in entries)


def partitioned(transform: Transform, partition_by: Sequence[str]) -> tuple[Transform, tuple[str, ...]]:
    """Wrap the transform, so that it adds a column for each unit of time in `partition_by`. Also returns the names
    of all partition columns.

    Raises ConfigurationError for an entry that is neither a name nor a unit of time.
    """
    times, names = partition_columns(partition_by)
    transform = guarded(transform)
    if not times.units:
        return transform, names

    def with_times(records: DataFrame) -> DataFrame:
        return times.of_frame(transform(records))

    return with_times, names


def _no_time(unit: str, column: str, kind: str) -> ConfigurationError:
    return ConfigurationError(
        f"partition_by has {unit}({column}), and {column} is of type {kind}: name a column of type timestamp or "
        "date, or make one of it in the function"
    )


def _unit_of(unit: str, time: Column) -> Column:
    seconds = F.unix_seconds(time)
    day = F.date_add(F.lit("1970-01-01").cast("date"), F.floor(seconds / _SECONDS_PER_DAY).cast("int")).cast(
        "string"
    )
    if unit == "month":
        return F.substring(day, 1, _MONTH)
    if unit == "day":
        return day
    hour = F.floor(F.pmod(seconds, F.lit(_SECONDS_PER_DAY)) / _SECONDS_PER_HOUR).cast("string")
    return F.concat(day, F.lit("-"), F.lpad(hour, 2, "0"))


def _unit_in_utc(unit: str, times: pa.Array) -> pa.Array:
    """The month, day or hour of Arrow times, in the same form as from `_unit_of`. A time without a zone is
    interpreted as UTC."""
    seconds = times.cast(pa.timestamp("us"), safe=False)
    day = pc.floor_temporal(seconds, unit="day").cast(pa.date32()).cast(pa.string())
    if unit == "month":
        return pc.utf8_slice_codeunits(day, 0, _MONTH)
    if unit == "day":
        return day
    hour = pc.utf8_lpad(pc.hour(seconds).cast(pa.string()), 2, "0")
    return pc.binary_join_element_wise(day, hour, "-")
