"""The records of a batch as sinks get them: as the fetch holds them, and as columns for user code."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from pyspark.sql import DataFrame

from kcl_dagster.spark.sealing import Sealed
from kcl_dagster.spark.staged_ranges import StagedRecords


@dataclass(slots=True)
class Records:
    """`held`: what the fetch holds, for sinks that store records as they were read; None where they come from
    several places. `frame` is made when it is asked for first, which takes Spark longer than to move some files."""

    held: Sealed | StagedRecords | None
    _make: Callable[[], DataFrame]
    _frame: DataFrame | None = field(default=None, init=False)

    @classmethod
    def of(cls, frame: DataFrame) -> Self:
        return cls(None, lambda: frame)

    @property
    def frame(self) -> DataFrame:
        """The records as columns, always the same object."""
        if self._frame is None:
            self._frame = self._make()
        return self._frame
