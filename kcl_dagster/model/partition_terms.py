"""Reads the elements of `partition_by`: a column, or a transform of a column such as `day(arrival_timestamp)`."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from kcl_dagster.errors import ConfigurationError

_OF_TIME: Final = re.compile(r"(month|day|hour)\((\w+)\)")
_OF_TABLE: Final = re.compile(r"(?:(year|month|day|hour)\((\w+)\)|(bucket|truncate)\((\d+),(\w+)\)|(\w+))")


@dataclass(frozen=True, slots=True)
class ColumnOrTime:
    """An entry of `partition_by` of a folder or a Delta table. If `unit` is empty, the entry is the column `name`.
    Otherwise it is a unit of the time in the column `source`, and `name` is an additional column with this unit."""

    name: str
    unit: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class PartitionTerm:
    """An entry of `partition_by` of an Iceberg table: a column and the transform of its values."""

    column: str
    transform: str
    name: str

    @classmethod
    def parse(cls, entry: str) -> Self:
        """Read an entry. Raises ConfigurationError if it is neither a column nor a transform of a column."""
        found = _OF_TABLE.fullmatch(entry.replace(" ", "") if "(" in entry else entry)
        if found is None:
            raise ConfigurationError(
                f"partition_by has {entry!r}: name a column; year(...), month(...), day(...) or hour(...) of "
                "a time; bucket(16, ...) or truncate(4, ...)"
            )
        unit, of_time, sized, size, of_value, column = found.groups()
        if unit:
            return cls(of_time, unit, f"{of_time}_{unit}")
        if sized:
            return cls(of_value, f"{sized}[{size}]", f"{of_value}_{'trunc' if sized == 'truncate' else sized}")
        return cls(column, "identity", column)


def columns_or_times(partition_by: Sequence[str]) -> tuple[ColumnOrTime, ...]:
    """Read `partition_by` of a folder or a Delta table. Raises ConfigurationError for an entry that is neither a
    column nor a unit of time."""
    return tuple(_column_or_time(entry) for entry in _entries(partition_by))


def partition_terms(partition_by: Sequence[str]) -> tuple[PartitionTerm, ...]:
    """Read `partition_by` of an Iceberg table. Raises ConfigurationError as `PartitionTerm.parse` does."""
    return tuple(PartitionTerm.parse(entry) for entry in _entries(partition_by))


def _entries(partition_by: Sequence[str]) -> Iterator[str]:
    if isinstance(partition_by, str):
        raise ConfigurationError(f"partition_by is a list of columns: [{partition_by!r}]")
    yield from partition_by


def _column_or_time(entry: str) -> ColumnOrTime:
    found = _OF_TIME.fullmatch(entry.replace(" ", ""))
    if found is not None:
        return ColumnOrTime(f"{found[2]}_{found[1]}", found[1], found[2])
    if not re.fullmatch(r"\w+", entry):
        raise ConfigurationError(
            f"partition_by has {entry!r}: name a column, or month(...), day(...) or hour(...) of a timestamp"
        )
    return ColumnOrTime(entry)
