"""The records of a batch for sinks: in the form in which the fetch holds them, and as columns for user code."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from pyspark.sql import DataFrame

from kcl_dagster.spark.sealing import Sealed
from kcl_dagster.spark.staged_ranges import StagedRecords


@dataclass(slots=True)
class Records:
    """The records of a batch. `held`: the form of the fetch, for sinks that store records as they were read;
    None if the records come from several places. `frame` is made when it is first used, because that takes Spark
    longer than moving some files."""

    held: Sealed | StagedRecords | None
    _make: Callable[[], DataFrame]
    _frame: DataFrame | None = field(default=None, init=False)

    @classmethod
    def of(cls, frame: DataFrame) -> Self:
        return cls(None, lambda: frame)

    @property
    def frame(self) -> DataFrame:
        """The records as columns. Always the same object."""
        if self._frame is None:
            self._frame = self._make()
        return self._frame
