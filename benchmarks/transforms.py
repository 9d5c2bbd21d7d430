"""What a batch costs by what is done with its records: `make bench-transforms`.

The same records are stored in four ways, in turns, by the worker's steps one after another, from the embedded AWS
to Parquet files. CPU is that of all the consumer's processes (driver, JVM, Python workers) without it.

as read      files for the batch, staged by the fetch
by Spark     the same through Spark, as where the fetch does not know yet what is stored
DataFrame    20 fields of JSON, parsed and projected by Spark
Arrow        the same by a function of Arrow tables

Prints a table and one JSON line for each figure. About two minutes.
"""

import argparse
import functools
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.machine import cpu_between, cpu_times
from benchmarks.ours import Ours
from benchmarks.run_time import Cost, typical
from benchmarks.source import MB, Load, Source, emulator
from benchmarks.worker import Figure
from kcl_dagster.application import BatchSettings
from kcl_dagster.spark.arrow_decoding import decode_json
from kcl_dagster.spark.arrow_transform import ArrowTransform
from kcl_dagster.spark.payload_decoding import with_json
from kcl_dagster.spark.session import SparkSettings, start_session, stop_session
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.staged_ranges import FetchStaging
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.reading import FIRST_SECONDS

FIELDS: Final = 20
LEAST_ARROW_OVER_FRAME: Final = 3.0  # times the records per CPU-second
MOST_ARROW_OVER_READ: Final = 2.0  # times the CPU
BATCHES: Final = 4  # of a run: the first one shows a sink what its transform does
WARM_UPS: Final = 8
WARM_UP_MEGABYTES: Final = 2.0

COLUMNS: Final = [
    (f"{kind}_{number}", kind)
    for number, kind in zip(range(FIELDS), itertools.cycle(["text", "whole", "real", "yes"]))
]
IN_SPARK: Final = {"text": "string", "whole": "long", "real": "double", "yes": "boolean"}
DDL: Final = ", ".join(f"{name} {IN_SPARK[kind]}" for name, kind in COLUMNS)
SCHEMA: Final = pa.schema(
    [
        (name, {"text": pa.string(), "whole": pa.int64(), "real": pa.float64(), "yes": pa.bool_()}[kind])
        for name, kind in COLUMNS
    ]
)


@dataclass(frozen=True)
class JsonLoad(Load):
    def payload(self, keys: Any) -> bytes:  # noqa: ARG002
        values: dict[str, Callable[[], Any]] = {
            "text": lambda: f"value {random.getrandbits(48):x}",
            "whole": lambda: random.getrandbits(40),
            "real": random.random,
            "yes": lambda: random.random() < 0.5,
        }
        text = json.dumps({name: values[kind]() for name, kind in COLUMNS})
        return text.encode().ljust(self.size)


LOAD: Final = JsonLoad("JSON", 640)


def in_frame(records: DataFrame) -> DataFrame:
    return with_json(records, DDL).select("arrival_timestamp", "value.*")


def in_tables(records: pa.Table) -> pa.Table:
    return decode_json(records, SCHEMA).append_column("arrival_timestamp", records["arrival_timestamp"])


class SinkThroughSpark(ParquetSink):
    """For which no fetch stages files."""

    def staging(self) -> FetchStaging | None:
        return None


class Transforms(Ours):
    """Stores one source in every way, in `BATCHES` batches."""

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
        """All but the first batch, in which a sink sees what its transform does."""
        part = 1 / BATCHES
        settings = BatchSettings(
            max_seconds=FIRST_SECONDS,
            max_records=int(self.source.records * part) + 1,
            max_bytes=int(self.source.bytes * part * 2) + MB,
            prefetch=False,
        )
        with self._new_folder() as folder:
            sink = new_sink(folder)
            with closing(self._engine(sink.staging)) as engine:
                worker = self._made(settings, engine, sink)
                first = self._step(worker)
                me = os.getpid()
                before, began, records = cpu_times(me, self._emulator_pid), time.monotonic(), first
                while records < self.source.records:
                    records += self._step(worker)
                seconds, used = time.monotonic() - began, cpu_between(before, cpu_times(me, self._emulator_pid))
                measured = records - first
                return Cost(measured, measured * self.source.load.size, seconds, used)

    @staticmethod
    def _step(worker: Worker[Any]) -> int:
        report = worker.step_batch()
        if report.error is not None:
            raise RuntimeError(report.error)
        return sum(lease.records for lease in report.leases)


def compared(costs: Mapping[str, Cost]) -> list[Figure]:
    """The bars are about records per CPU-second."""
    per_cpu = {name: cost.records_per_cpu for name, cost in costs.items()}
    arrow, read = per_cpu["Arrow"], per_cpu["as read"]
    return [
        *(Figure(f"{name}: CPU", cost.cpu_per_gb, "CPU-s/GB") for name, cost in costs.items()),
        *(Figure(f"{name}: records", per_cpu[name], "1/CPU-s") for name in costs),
        Figure("as read: CPU by Spark over staging in the fetch", read / per_cpu["by Spark"], "x"),
        Figure(
            f"{FIELDS} fields of JSON: records per CPU-second of Arrow over a DataFrame",
            arrow / per_cpu["DataFrame"],
            "x",
            LEAST_ARROW_OVER_FRAME,
        ),
        Figure(
            f"{FIELDS} fields of JSON: CPU of Arrow over storing as read",
            read / arrow,
            "x",
            MOST_ARROW_OVER_READ,
            at_most=True,
        ),
    ]


def measure(spark: SparkSession, megabytes: float, repeat: int) -> dict[str, Cost]:
    with emulator() as (endpoint, pid), tempfile.TemporaryDirectory() as folder:
        small = Transforms(Source.fill(LOAD, WARM_UP_MEGABYTES, endpoint, "warm-up"), spark, pid, folder)
        for _ in range(WARM_UPS):
            for run in small.ways().values():
                run()
        whole = Transforms(Source.fill(LOAD, megabytes, endpoint, "records"), spark, pid, folder)
        runs: dict[str, list[Cost]] = {name: [] for name in whole.ways()}
        for _ in range(repeat):  # in turns, so that whatever else the machine does meets all
            for name, run in whole.ways().items():
                runs[name].append(run())
    return {name: typical(found) for name, found in runs.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=48.0)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args(arguments)
    spark = start_session(SparkSettings(memory="1g"), "bench-transforms")
    try:
        costs = measure(spark, options.megabytes, options.repeat)
    finally:
        stop_session(spark)
    for name, cost in costs.items():
        print(f"{name:<20}{cost.cpu_per_gb:8.1f} CPU-s/GB {cost.records_per_cpu:11,.0f} rec/CPU-s")
    for figure in compared(costs):
        print(figure.as_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
