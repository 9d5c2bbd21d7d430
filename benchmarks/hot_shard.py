"""Measures how one shard whose records take long to process uses the cores: part of `make bench-scale`.

A worker reads one shard, and stores it with a function that takes two milliseconds of CPU for each record. The
function is that of a DataFrame (a Python function that Spark calls) or of Arrow tables.

one task     the setting `tasks_per_shard` is 1
all cores    the default

The first batches are not measured, because the worker learns from them how long the function takes. The embedded
AWS uses the same cores.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.ours import PATIENCE_SECONDS, Ours
from benchmarks.source import LOADS, MB, Source, emulator
from benchmarks.worker import Figure
from kcl_dagster.application import BatchSettings
from kcl_dagster.spark.arrow_transform import ArrowTransform
from kcl_dagster.spark.session import SparkSettings, start_session, stop_session
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.task_slices import BATCHES_KNOWN
from kcl_dagster.spark.transform import Transform

MEGABYTES: Final = 20.0
BATCHES: Final = 10
MEASURED: Final = 4
REPEATS: Final = 2
ROUNDS: Final = 6_000  # of the hash; two milliseconds
LEAST_OF_CORES: Final = 0.75  # the least ratio of records per second to those of one task, for each core


def digest(data: bytes) -> str:
    """The hash of a payload, made slowly."""
    found = data
    for _ in range(ROUNDS):
        found = hashlib.sha256(found).digest()
    return found.hex()


def in_frame(records: DataFrame) -> DataFrame:
    return records.select("sequence_number", F.udf(digest, "string")("data").alias("digest"))


def in_tables(records: pa.Table) -> pa.Table:
    digests = [digest(data) for data in records["data"].to_pylist()]
    return records.select(["sequence_number"]).append_column("digest", pa.array(digests, pa.string()))


def shuffled(records: DataFrame) -> DataFrame:
    return in_frame(records).dropDuplicates(["digest"])


WAYS: Final[dict[str, Transform]] = {
    "DataFrame": in_frame,
    "DataFrame with a shuffle": shuffled,
    "Arrow": ArrowTransform(in_tables),
}


def rows_in_order(folder: str) -> bool:
    """Whether the sequence numbers increase within each batch, if its files are read in the order of their names.
    Raises RuntimeError if there are no files."""
    batches: dict[str, list[int]] = {}
    for path in sorted(Path(folder).glob("*.parquet")):
        numbers = pq.read_table(path, columns=["sequence_number"])["sequence_number"].to_pylist()
        batches.setdefault(path.name.partition("_")[0], []).extend(map(int, numbers))
    if not batches:
        raise RuntimeError("nothing was stored")
    return all(numbers == sorted(numbers) for numbers in batches.values())


class HotShard(Ours):
    def records_per_second(self, transform: Transform, tasks_per_shard: int | None) -> tuple[float, bool]:
        """Read a part of the source. Returns the records per second, and whether the output is in order."""
        settings = BatchSettings(
            max_seconds=PATIENCE_SECONDS,
            max_records=self.source.records // BATCHES,
            max_bytes=2 * self.source.bytes // BATCHES + MB,
            prefetch=False,
        )
        with self._new_folder() as folder:
            sink = ParquetSink(folder, transform=transform)
            with closing(self._engine(sink.staging, tasks_per_shard)) as engine:
                worker = self._made(settings, engine, sink)
                for _ in range(BATCHES_KNOWN + 1):
                    worker.step_batch()
                began, records = time.monotonic(), 0
                for _ in range(MEASURED):
                    report = worker.step_batch()
                    if report.error is not None:
                        raise RuntimeError(report.error)
                    records += sum(lease.records for lease in report.leases)
                seconds = time.monotonic() - began
                worker.protocol.close()
            return records / seconds, rows_in_order(folder)


def measure(add: Callable[[Figure], None], say: Callable[[str], None]) -> None:
    """Measure both ways, and call `add` with each figure."""
    cores = os.cpu_count() or 1
    spark = start_session(SparkSettings(), "bench-hot-shard")
    try:
        with emulator() as (endpoint, pid), tempfile.TemporaryDirectory() as folder:
            source = Source.fill(LOADS["1KB"], MEGABYTES, endpoint, "hot", shards=1)
            hot = HotShard(source, spark, pid, folder)
            for name, transform in WAYS.items():
                found: dict[int | None, list[float]] = {1: [], None: []}
                is_ordered = True
                for _ in range(REPEATS):  # in turns, so that other work of the machine slows both down equally
                    for tasks, rates in found.items():
                        rate, in_order = hot.records_per_second(transform, tasks)
                        rates.append(rate)
                        is_ordered &= in_order
                        say(f"one shard, {name}, {'one task' if tasks else 'all cores'}: {rate:,.0f} records/s")
                ratio = median(found[None]) / median(found[1])
                add(Figure(f"one shard, {name}: one task", median(found[1]), "records/s"))
                add(Figure(f"one shard, {name}: all cores", median(found[None]), "records/s"))
                what = f"one shard, {name}: {cores} cores over one task"
                add(Figure(what, ratio, "x", LEAST_OF_CORES * cores if cores > 1 else None))
                if transform is not shuffled:
                    add(Figure(f"one shard, {name}: rows are in order", float(is_ordered), "", 1.0))
    finally:
        stop_session(spark)
