"""The ways in which this package reads a stream, and two loops for comparison.

bare (boto3)   a loop of GetRecords with stock boto3, the least work that a consumer in Python has. It opens
               aggregates, because every consumer has to do this
bare           the same loop with the parser of this package
fetch          the fetch of this package in Spark. Each record is evaluated once, and nothing is stored
unsafe         fetch and Parquet in one job, without leases, entries and checkpoints. Files are not renamed
exactly once   batches of the worker, one after another, with leases in DynamoDB, Parquet, entries of a chain, and
               checkpoints
through Spark  like `exactly once`, with a transform. The records are therefore kept in Spark as rows of a
               DataFrame. In eight batches, or in one
worker         like `exactly once`, but as in production: the next batch is read while one is written
"""

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.machine import cpu_between, cpu_times
from benchmarks.run_time import Cost
from benchmarks.source import KEYS, MB, Source
from kcl_dagster import aws
from kcl_dagster.application import Application, BatchSettings, Timings
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker_row import worker_id
from kcl_dagster.runtime import system
from kcl_dagster.spark.engine import EngineSettings, SparkEngine, StagingOfFetches, no_staging
from kcl_dagster.spark.fetch import Connection, FetchPlan, ShardPlan, client_of, fetch
from kcl_dagster.spark.parquet_file import ParquetFile
from kcl_dagster.spark.schema import COLUMNS, PROGRESS, RECORDS
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.storage import Store, open_store
from kcl_dagster.spark.transform import Transform, unchanged
from kcl_dagster.streams.deaggregation import deaggregate
from kcl_dagster.streams.listing import list_shards
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.streams.records import StreamRecord
from kcl_dagster.tables.creation import create_tables
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.worker import reading
from kcl_dagster.worker.batch import Budget, Range
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.staging import StagingSink
from kcl_dagster.worker.surroundings import NoSink, Surroundings

UNLIMITED: Final = ShardLimits.unlimited()
TASKS: Final = 2  # as many as a worker uses after its first fetch
BATCH_SECONDS: Final = 0.2  # how long an empty batch waits for records
NO_SECONDS: Final = 0.001  # a batch that is so short gets one response of each shard
PATIENCE_SECONDS: Final = 60.0
EMPTY_BATCHES: Final = 5
BATCHES: Final = 8  # batches into which a source is divided, if it is read in several batches
_numbers = itertools.count()  # each run has its own application, because leases store checkpoints


def with_length(records: DataFrame) -> DataFrame:
    """A transform that does as little as possible."""
    return records.withColumn("length", F.length("data"))


@dataclass(frozen=True, slots=True)
class WriteUnsafely:
    """Function for `mapInArrow`: stores the records of the shards of a task in a file, and yields how many records
    there were."""

    plan: FetchPlan
    store: Store

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client = client_of(self.plan.connection)
        for task in (task for batch in batches for task in batch.column(0).to_pylist()):
            file = ParquetFile(RECORDS)
            for records in fetch(self.plan, task, client, system()):
                if records.column(PROGRESS).null_count:
                    file.write(records.select(COLUMNS))
            self.store.put(f"{task}.parquet", file.finish())
            yield pa.RecordBatch.from_pydict({"rows": pa.array([file.rows], pa.int64())})


class Ours:
    """Reads one source in each way. Each run reads all records of the source."""

    def __init__(self, source: Source, spark: SparkSession, emulator_pid: int, folder: str) -> None:
        self.source = source
        self._spark = spark
        self._emulator_pid = emulator_pid
        self._folder = folder
        self._connection = Connection(endpoint_url=source.endpoint, **KEYS)

    def bare(self, *, stock: bool) -> Cost:
        source = self.source
        client = (
            aws.client("kinesis", endpoint_url=source.endpoint, **KEYS) if stock else self._connection.kinesis()
        )

        def read() -> int:
            records = 0
            for shard in source.shards:
                iterator = client.get_shard_iterator(
                    StreamName=source.stream, ShardId=shard.id, ShardIteratorType="TRIM_HORIZON"
                )["ShardIterator"]
                while True:
                    page = client.get_records(ShardIterator=iterator, Limit=10_000)
                    records += self._opened(page["Records"])
                    if not page["MillisBehindLatest"]:
                        break
                    iterator = page["NextShardIterator"]
            return records

        return self._measured(read)

    def _opened(self, page: Sequence[StreamRecord]) -> int:
        """The number of user records in a page. Opens the aggregates, because every consumer has to do this."""
        if self.source.load.aggregated == 1:
            return len(page)
        opened = [deaggregate(record["Data"]) for record in page]
        return sum(len(aggregate.records) for aggregate in opened if aggregate is not None)

    def fetch(self) -> Cost:
        engine = self._engine()

        def run() -> int:
            fetched = engine.fetch(self._ranges(), self._budget())
            fetched.data(list(fetched.progress)).frame.select(F.sum(F.length("data"))).collect()
            fetched.release()
            return sum(progress.records for progress in fetched.progress.values())

        try:
            return self._measured(run)
        finally:
            engine.close()

    def unsafe(self) -> Cost:
        """Read and store without checkpoints. The progress is not recorded, and if a task is repeated, it can read
        other records."""

        def run(store: Store) -> int:
            plans = [ShardPlan(range_) for range_ in self._ranges()]
            plan = FetchPlan(self._connection, (tuple(plans[::2]), tuple(plans[1::2])), self._budget(), UNLIMITED)
            tasks = self._spark.range(0, 2, 1, 2).mapInArrow(WriteUnsafely(plan, store), "rows long")
            return sum(row.rows for row in tasks.collect())

        with self._new_folder() as folder:
            return self._measured(partial(run, open_store(folder)))

    def exactly_once(self, transform: Transform = unchanged, batches: int = 1) -> Cost:
        """Read the whole source and store each record exactly once. With one batch, the source is read as `unsafe`
        reads it."""
        budget = self._budget()
        large = BatchSettings(
            max_seconds=PATIENCE_SECONDS,
            max_records=max(1, budget.records // batches),
            max_bytes=max(MB, budget.bytes // batches),
            prefetch=False,
        )
        # A worker ends its first batch after half a second, but reading this source takes longer.
        with patch.object(reading, "FIRST_SECONDS", PATIENCE_SECONDS):
            return self._work(large, transform)

    def through_spark(self) -> Cost:
        return self.exactly_once(with_length, BATCHES)

    def worker(self) -> Cost:
        return self._work(BatchSettings(max_seconds=BATCH_SECONDS))

    def empty_batch_ms(self) -> float:
        """The milliseconds of a batch in which no records arrive, and which does not wait for records."""
        with self._worker(BatchSettings(max_seconds=NO_SECONDS, prefetch=False)) as worker:
            self._read_all(worker)
            return min(self._empty_batch(worker) for _ in range(EMPTY_BATCHES))

    def _work(self, batch: BatchSettings, transform: Transform = unchanged) -> Cost:
        with self._worker(batch, transform) as worker:
            cost = self._measured(lambda: self._read_all(worker))
            if batch.prefetch:
                # The worker has begun to read the next batch. If this task were cancelled, its Python worker would
                # end too, and the next run would have to start another one. So the batch is processed.
                worker.step_batch()
            return cost

    def _read_all(self, worker: Worker[Any]) -> int:
        records = 0
        while records < self.source.records:
            report = worker.step_batch()
            if report.error is not None:
                raise RuntimeError(report.error)
            records += sum(lease.records for lease in report.leases)
        return records

    @contextmanager
    def _worker(self, batch: BatchSettings, transform: Transform = unchanged) -> Iterator[Worker[Any]]:
        """A worker as in production, but without its threads: the caller runs its steps one after another."""
        with (
            self._new_folder() as folder,
            closing(self._engine((sink := ParquetSink(folder, transform=transform)).staging)) as engine,
        ):
            yield self._made(batch, engine, sink)

    def _made(self, batch: BatchSettings, engine: SparkEngine, sink: StagingSink[Any]) -> Worker[Any]:
        source, number = self.source, next(_numbers)
        application = Application.model_validate(
            {
                "name": f"bench-{number}",
                "streams": [source.stream],
                "timings": Timings(lease_duration=600.0),
                "batch": batch,
            }
        )
        kinesis = aws.client("kinesis", endpoint_url=source.endpoint, **KEYS)
        dynamodb, runtime = aws.client("dynamodb", endpoint_url=source.endpoint, **KEYS), system()
        layout = detect_layout(dynamodb, application, runtime)
        create_tables(dynamodb, application, layout, runtime)
        leases = LeaseTable(dynamodb, application, layout, runtime, deadline_seconds=5.0)
        me = worker_id("worker-000", "benchmark")
        for shard in source.shards:
            key = LeaseKey(shard.id)
            leases.create(Lease(key, shard.id, owner=me, checkpoint=TRIM_HORIZON, hash_range=shard.hash_range))
        worker = Worker(
            Surroundings(
                application=application,
                leases=leases,
                workers=WorkerTable(dynamodb, application, layout, runtime),
                list_shards=lambda _: list_shards(kinesis, source.stream, runtime=runtime),
                engine=engine,
                sink=NoSink(),
                chains=sink,
            ),
            Identity(me, "worker-000", "benchmark", None),
            runtime,
        )
        worker.start()
        worker.step_discovery()
        return worker

    @staticmethod
    def _empty_batch(worker: Worker[Any]) -> float:
        began = time.monotonic()
        worker.step_batch()
        return (time.monotonic() - began) * 1000

    def _engine(self, staging: StagingOfFetches = no_staging, tasks_per_shard: int | None = None) -> SparkEngine:
        settings = EngineSettings(limits=UNLIMITED, tasks=TASKS, tasks_per_shard=tasks_per_shard)
        return SparkEngine(self._spark, self._connection, settings, staging=staging)

    def _ranges(self) -> list[Range]:
        stream = StreamIdentifier.single(self.source.stream)
        return [
            Range(LeaseKey(shard.id), stream, shard.id, TRIM_HORIZON, 1, hash_range=shard.hash_range)
            for shard in self.source.shards
        ]

    def _budget(self) -> Budget:
        """A budget that is used up when all records are read, and not before. It counts Kinesis records, not user
        records."""
        source = self.source
        return Budget(source.records // source.load.aggregated, max(source.bytes * 2, MB), PATIENCE_SECONDS)

    @contextmanager
    def _new_folder(self) -> Iterator[str]:
        """A folder for the files of one run. The files are removed after the run, so that later files are cached in
        the same pages of memory. To cache a file in pages that the machine has never used can take ten times as
        long, and would distort the figures."""
        folder = Path(self._folder, str(next(_numbers)))
        folder.mkdir(parents=True)
        try:
            yield str(folder)
        finally:
            shutil.rmtree(folder)

    def _measured(self, run: Callable[[], int]) -> Cost:
        me = os.getpid()
        before, began = cpu_times(me, self._emulator_pid), time.monotonic()
        records = run()
        seconds, used = time.monotonic() - began, cpu_between(before, cpu_times(me, self._emulator_pid))
        if records != self.source.records:
            raise RuntimeError(f"{records} of {self.source.records} records were read")
        return Cost(records, self.source.bytes, seconds, used)
