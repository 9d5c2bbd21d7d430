"""Reads the elements of `partition_by`: a column, or a transform of a column such as `day(arrival_timestamp)`."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from kcl_dagster.errors import ConfigurationError

_OF_TIME: Final = re.compile(r"(month|day|hour)\((\w+)\)")
_OF_TABLE: Final = re.compile(r"(?:(year|month|day|hour)\((\w+)\)|(bucket|truncate)\((\d+),(\w+)\)|(\w+))")
_LARGEST_SIZE: Final = 2**31 - 1  # Iceberg's numbers of buckets and characters are integers of 32 bits


@dataclass(frozen=True, slots=True)
class ColumnOrTime:
    """An entry of `partition_by` of a folder or a Delta table. If `unit` is empty, the entry is the column `name`.
    If `unit` is month, day or hour, the entry is this unit of the times in the column `source`. The additional
    column `name` then contains the month, day or hour."""

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
            if not 0 < int(size) <= _LARGEST_SIZE:
                raise ConfigurationError(f"partition_by has {entry!r}: its number must be 1 to {_LARGEST_SIZE}")
            return cls(of_value, f"{sized}[{size}]", f"{of_value}_{'trunc' if sized == 'truncate' else sized}")
        return cls(column, "identity", column)


def columns_or_times(partition_by: Sequence[str]) -> tuple[ColumnOrTime, ...]:
    """Read `partition_by` of a folder or a Delta table. Raises ConfigurationError for an entry that is neither a
    column nor a unit of time, and for two entries of one name."""
    found = tuple(_column_or_time(entry) for entry in _entries(partition_by))
    _refuse_twice([one.name for one in found], partition_by)
    return found


def partition_terms(partition_by: Sequence[str]) -> tuple[PartitionTerm, ...]:
    """Read `partition_by` of an Iceberg table. Raises ConfigurationError as `PartitionTerm.parse` does,
    and for two entries whose partition fields would have the same name."""
    found = tuple(PartitionTerm.parse(entry) for entry in _entries(partition_by))
    _refuse_twice([one.name for one in found], partition_by)
    return found


def _entries(partition_by: Sequence[str]) -> Iterator[str]:
    if isinstance(partition_by, str):
        raise ConfigurationError(f"partition_by is a list of columns: [{partition_by!r}]")
    yield from partition_by


def _refuse_twice(names: Sequence[str], partition_by: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"partition_by={list(partition_by)} has two entries that make the partition column {twice[0]}: remove "
            "one of them"
        )


def _column_or_time(entry: str) -> ColumnOrTime:
    found = _OF_TIME.fullmatch(entry.replace(" ", ""))
    if found is not None:
        return ColumnOrTime(f"{found[2]}_{found[1]}", found[1], found[2])
    if not re.fullmatch(r"\w+", entry):
        raise ConfigurationError(
            f"partition_by has {entry!r}: name a column, or month(...), day(...) or hour(...) of a timestamp"
        )
    return ColumnOrTime(entry)
