"""One worker, put together from its application, its run and its Spark session."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kcl_dagster.application import Application
from kcl_dagster.model.shard import Shard
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker import worker_id
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.diary import Diary
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.engine import EngineSettings, SparkEngine
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.streams.listing import describe, list_shards
from kcl_dagster.tables.layout import detect_layout
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.settings import WorkerSettings
from kcl_dagster.worker.stop import StopReason, StopSignal
from kcl_dagster.worker.surroundings import Surroundings, Watch


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """What a run gives its worker."""

    consumer: Consumer
    kcl: KclResource
    spark: SparkSession
    slot: str
    run_id: str
    diary: Diary
    watches: tuple[Watch, ...] = ()

    def work(self, stop: StopSignal) -> StopReason:
        """Consume until there is a reason to stop. Blocks for hours."""
        runtime = system()
        application = self.consumer.application
        engine = SparkEngine(
            self.spark,
            Connection(**self.kcl.connection("kinesis")),
            EngineSettings(opens_aggregates=application.batch.deaggregate),
            runtime=runtime,
        )
        identity = Identity(worker_id(self.slot, self.run_id), self.slot, self.run_id, application.fleet.zone)
        try:
            return Worker(self._surroundings(engine, runtime), identity, runtime).run(stop)
        finally:
            engine.close()

    def _s3(self) -> dict[str, str]:
        """S3 answers where the rest of AWS does; roles of the streams' account are not for the lake."""
        connection = self.kcl.connection("s3")
        return {key: value for key, value in connection.items() if key not in ("role_arn", "external_id")}

    def _surroundings(self, engine: SparkEngine, runtime: Runtime) -> Surroundings[DataFrame]:
        application = self.consumer.application
        dynamodb = self.kcl.client("dynamodb")
        layout = detect_layout(dynamodb, application)
        deadline = WorkerSettings.of(application).write_deadline
        streams = _Streams(self.kcl.client("kinesis"), application, runtime)
        return Surroundings(
            application=application,
            leases=LeaseTable(dynamodb, application, layout, runtime, deadline_seconds=deadline),
            workers=WorkerTable(dynamodb, application, layout, runtime),
            list_shards=streams.list_shards,
            engine=engine,
            sink=self.consumer.sink.open(self.consumer.transform, self._s3()),
            retention_of=streams.retention_of,
            watches=self.watches,
            on_batch=self.diary.batch,
            on_event=self.diary.event,
        )


class _Streams:
    """What a worker asks about its streams; seldom, so nothing is kept."""

    def __init__(self, kinesis: Any, application: Application, runtime: Runtime) -> None:
        self._kinesis = kinesis
        self._application = application
        self._runtime = runtime

    def list_shards(self, stream: StreamIdentifier) -> Sequence[Shard]:
        return list_shards(self._kinesis, stream.name, runtime=self._runtime)

    def retention_of(self, stream: StreamIdentifier) -> float | None:
        return describe(self._kinesis, stream.name).retention_hours * 3600.0
