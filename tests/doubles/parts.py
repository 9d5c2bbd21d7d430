"""Batches that tests store without a worker: each part once, as replays and dead letters are stored."""

import itertools
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from kcl_dagster.runtime import system
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.sinks.contract import SparkSink
from kcl_dagster.worker.batch import Batch, Part
from kcl_dagster.worker.parts_chain import PartsChain

_names = map("parts-{}".format, itertools.count(1))


@dataclass
class Parts:
    """Stores batches into a sink, by a chain of their own. Those with one name know what the others have stored."""

    sink: SparkSink
    name: str = field(default_factory=_names.__next__)

    def __post_init__(self) -> None:
        self._chain = PartsChain(self.sink, "app/tests", self.name, system())

    def write(self, data: DataFrame | Records, batch: Batch) -> None:
        self._chain.write(data if isinstance(data, Records) else Records.of(data), batch)

    def holds(self, part: Part) -> bool:
        return self._chain.holds(part)
