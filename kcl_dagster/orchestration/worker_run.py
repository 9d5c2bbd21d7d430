"""One worker, put together from its application, its run and its Spark session."""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from kcl_dagster.errors import BatchError
from kcl_dagster.model.worker import worker_id
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.diary import Diary
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.runtime import system
from kcl_dagster.spark.engine import EngineSettings, SparkEngine
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.storage import S3Options, open_store
from kcl_dagster.worker.dead_letter import DeadLetters, FiledDeadLetters
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.opening import open_surroundings
from kcl_dagster.worker.stop import StopReason, StopSignal
from kcl_dagster.worker.surroundings import Watch
from kcl_dagster.worker.utilization.platform import measured


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
        """Consume until there is a reason to stop. Blocks for hours.

        Raises BatchError when the reason is that Spark is gone: the leases are released then, and the run should be
        seen to have failed.
        """
        runtime = system()
        application, choice = self.consumer.application, self.consumer.sink
        engine = SparkEngine(
            self.spark,
            Connection(**self.kcl.connection("kinesis")),
            EngineSettings.of(application),
            runtime=runtime,
        )
        try:
            surroundings = open_surroundings(
                application,
                dynamodb=self.kcl.client("dynamodb"),
                kinesis=self.kcl.client("kinesis"),
                engine=engine,
                sink=None if choice.processors else choice.open(self.consumer.transform, self._s3()),
                processors=choice.processors,
                runtime=runtime,
                dead_letters=self._dead_letters(),
                utilization=measured(runtime.clock),
                watches=(*self.watches, engine.health.why_lost),
                on_batch=self.diary.batch,
                on_event=self.diary.event,
            )
            identity = Identity(worker_id(self.slot, self.run_id), self.slot, self.run_id, application.fleet.zone)
            reason = Worker(surroundings, identity, runtime).run(stop)
            lost = engine.health.why_lost()
            if lost is not None:
                raise BatchError(f"{identity.worker} released its leases and ended: {lost}")
            return reason
        finally:
            engine.close()

    def _dead_letters(self) -> DeadLetters | None:
        path = self.consumer.application.batch.failure.dead_letter_path
        return None if path is None else FiledDeadLetters(open_store(path, S3Options(**self._s3())).put)

    def _s3(self) -> dict[str, Any]:
        """S3 answers where the rest of AWS does. The role is the streams' account's, not the lake's."""
        connection = self.kcl.connection("s3")
        return {key: value for key, value in connection.items() if key not in ("role_arn", "external_id")}
