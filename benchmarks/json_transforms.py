"""Records with 20 fields of JSON, and the ways in which this package decodes, projects and stores them."""

import functools
import json
import os
import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from benchmarks.machine import cpu_between, cpu_times
from benchmarks.ours import PATIENCE_SECONDS, Ours
from benchmarks.rivals.json_fields import COLUMNS, DDL, SCHEMA
from benchmarks.run_time import Cost
from benchmarks.source import MB, Load
from kcl_dagster.application import BatchSettings
from kcl_dagster.spark.arrow_decoding import decode_json
from kcl_dagster.spark.arrow_transform import ArrowTransform
from kcl_dagster.spark.payload_decoding import with_json
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.staged_ranges import FetchStaging
from kcl_dagster.worker.loop import Worker

# The number of batches into which a source is divided. A run does not read the last one, because a worker would
# wait for more records in it. In the first batch, the sink finds out which columns its transform makes.
BATCHES: Final = 5
VALUES: Final[dict[str, Callable[[], Any]]] = {
    "text": lambda: f"value {random.getrandbits(48):x}",
    "whole": lambda: random.getrandbits(40),
    "real": random.random,
    "yes": lambda: random.random() < 0.5,
}


@dataclass(frozen=True)
class JsonLoad(Load):
    is_json: bool = True

    def user_payload(self) -> bytes:
        text = json.dumps({name: VALUES[kind]() for name, kind in COLUMNS})
        return text.encode().ljust(self.size)


JSON: Final = JsonLoad("JSON", 640)
KPL_JSON: Final = JsonLoad("KPL JSON", 640, aggregated=60)


def in_frame(records: DataFrame) -> DataFrame:
    return with_json(records, DDL).select("arrival_timestamp", "value.*")


def in_tables(records: pa.Table) -> pa.Table:
    return decode_json(records, SCHEMA).append_column("arrival_timestamp", records["arrival_timestamp"])


class SinkThroughSpark(ParquetSink):
    """A sink for which the fetch stages no files, so that all records go through Spark."""

    def staging(self) -> FetchStaging | None:
        return None


class Transforms(Ours):
    """Stores the records of one source in each way, in batches."""

    def ways(self) -> dict[str, Callable[[], Cost]]:
        return {
            "as read": functools.partial(self._stored, ParquetSink),
            "by Spark": functools.partial(self._stored, SinkThroughSpark),
            "DataFrame": functools.partial(self._stored, functools.partial(ParquetSink, transform=in_frame)),
            "Arrow": functools.partial(
                self._stored, functools.partial(ParquetSink, transform=ArrowTransform(in_tables))
            ),
        }

    def _stored(self, new_sink: Callable[[str], ParquetSink]) -> Cost:
        """The cost of the batches after the first one and before the last one."""
        part = 1 / BATCHES
        settings = BatchSettings(
            max_seconds=PATIENCE_SECONDS,
            max_records=int(self.source.records * part) + 1,
            max_bytes=int(self.source.bytes * part * 2) + MB,
            prefetch=False,
        )
        with self._new_folder() as folder:
            sink = new_sink(folder)
            with closing(self._engine(sink.staging)) as engine:
                worker = self._made(settings, engine, sink)
                self._step(worker)
                me = os.getpid()
                before, began = cpu_times(me, self._emulator_pid), time.monotonic()
                records = sum(self._step(worker) for _ in range(BATCHES - 2))
                seconds, used = time.monotonic() - began, cpu_between(before, cpu_times(me, self._emulator_pid))
                return Cost(records, records * self.source.load.size, seconds, used)

    @staticmethod
    def _step(worker: Worker[Any]) -> int:
        report = worker.step_batch()
        if report.error is not None:
            raise RuntimeError(report.error)
        return sum(lease.records for lease in report.leases)
