"""A bounded run in the process of a Spark driver elsewhere: EMR Serverless, EMR on EKS, Databricks, or any machine.

A Dagster run launches the driver with a Pipes client, see `remote_launch`. The driver reports to the Dagster run
through Dagster Pipes. It carries out the same `BoundedRun` as the local job, with the worker name of that Dagster
run.

When the report is complete, the driver's process exits with 0, even if the report is a failure. If the process
failed, Pipes clients would not pass on its custom messages, and the platform might start it again.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import boto3
from dagster import DagsterInstance, OpExecutionContext, RunConfig, in_process_executor, job, op
from dagster_pipes import (
    PipesCliArgsParamsLoader,
    PipesContext,
    PipesContextLoader,
    PipesDbfsContextLoader,
    PipesDbfsMessageWriter,
    PipesDefaultContextLoader,
    PipesDefaultMessageWriter,
    PipesEnvVarParamsLoader,
    PipesMessageWriter,
    PipesS3ContextLoader,
    PipesS3MessageWriter,
    PipesUnityCatalogVolumesMessageWriter,
    open_dagster_pipes,
)
from pyspark.sql import SparkSession

from kcl_dagster.application import Application
from kcl_dagster.errors import ConfigurationError, KclError, TableNotFound
from kcl_dagster.model.worker_row import BOUNDED_SLOT, worker_id
from kcl_dagster.orchestration.bounded_outcome import BoundedOutcome
from kcl_dagster.orchestration.bounded_run import BoundedRun
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.interrupts import interrupts_ask
from kcl_dagster.orchestration.remote_report import (
    APPLICATION,
    THROUGH,
    send_event,
    send_outcome,
    send_problem,
    send_versions,
)
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.run_end import report_in_time
from kcl_dagster.orchestration.run_event_log import open_event_log
from kcl_dagster.orchestration.spark_resource import KclSparkResource
from kcl_dagster.orchestration.translator import KclTranslator
from kcl_dagster.runtime import system
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.worker.error_text import brief
from kcl_dagster.worker.stop import StopSignal

log = logging.getLogger(__name__)

DBFS: Final = Path("/dbfs")  # the mount point in Databricks
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # spark-submit sets it for the Python process of a driver


@contextmanager
def reporting() -> Iterator[PipesContext]:
    """Yield the Pipes context of this process. An error in the block is reported to the Dagster run, and not
    raised.

    Raises ConfigurationError if no Pipes client has launched this process.
    """
    with _open_pipes() as pipes:
        send_versions(pipes.report_custom_message)
        try:
            yield pipes
        except Exception as error:
            told = " ".join(str(error).split()) if isinstance(error, KclError) else brief(error)
            log.exception("this run failed, which is reported to the Dagster run: %s", told)
            send_problem(pipes.report_custom_message, told)


def run_in_driver(
    consumer: Consumer,
    translator: KclTranslator,
    resources: Mapping[str, Any],
    pipes: PipesContext,
    exit_process: Callable[[int], object] = os._exit,
) -> BoundedOutcome:
    """Carry out and report the bounded run that the Dagster run requests. Blocks the main thread until the run has
    ended. `resources`: `kcl`, `spark`, and those that the consumer's code asks for.

    Raises ConfigurationError if the Dagster run requests another application. Raises the errors of
    `BoundedRun.run`.
    """
    application, kcl = consumer.application, resources["kcl"]
    asked = pipes.extras.get(APPLICATION)
    if asked != application.name:
        raise ConfigurationError(
            f"the Dagster run asks for application {asked}, and this driver was started for {application.name}"
            if asked is not None
            else "the Dagster run has passed no extras: launch= must give the Pipes client those that it gets"
        )
    _refuse_second_start(application, kcl, pipes.run_id)
    send = pipes.report_custom_message

    def end_process(why: str) -> None:
        def report() -> None:
            send_problem(send, why)
            pipes.close()

        report_in_time(report)
        exit_process(0)

    outcomes: list[BoundedOutcome] = []

    # The bounded run is an op of a job in this process, because the consumer's code can ask for Dagster's context
    # and for resources.
    @op(required_resource_keys={"kcl", "spark", *consumer.resources})
    def read(context: OpExecutionContext) -> None:
        spark = context.resources.spark
        bounded = BoundedRun(
            consumer.bound(context, context.resources),
            context.resources.kcl,
            lambda: spark.spark_session,
            pipes.run_id,
            open_event_log(consumer, translator, BOUNDED_SLOT, partial(send_event, send), pipes.log),
            end_process=end_process,
        )
        stop = StopSignal()
        with interrupts_ask(stop):
            outcomes.append(bounded.run(stop, pipes.extras.get(THROUGH)))

    @job(executor_def=in_process_executor, config=RunConfig(loggers={"console": {"config": {"log_level": "INFO"}}}))
    def catch_up_in_driver() -> None:
        read()

    with DagsterInstance.ephemeral() as instance:
        catch_up_in_driver.execute_in_process(
            instance=instance,
            run_id=pipes.run_id,
            resources={**resources, "spark": _session_here(resources["spark"])},
        )
    [outcome] = outcomes
    send_outcome(send, outcome)
    return outcome


def _refuse_second_start(application: Application, kcl: KclResource, run_id: str) -> None:
    """Raise KclError if the platform has started the driver again. Possibly the first process still runs and owns
    leases under the same name, and the Dagster run reads the messages of only one process."""
    runtime, dynamodb = system(), kcl.client("dynamodb", application)
    layout = detect_layout(dynamodb, application, runtime)
    worker = worker_id(BOUNDED_SLOT, run_id)
    try:
        row = WorkerTable(dynamodb, application, layout, runtime).get(worker)
    except TableNotFound:
        return
    if row is not None:
        raise KclError(
            f"worker {worker} of this run has a row already: the platform has started the driver a second time. "
            "Let it start a driver once; the next run reads what this one has left"
        )


def _session_here(spark: Any) -> Any:
    """The resource `spark` to use in a driver. If `spark` would start a local session although the environment
    provides a session, the result uses the session of the environment instead. A local session would leave the
    executors of the environment idle."""
    is_local = isinstance(spark, KclSparkResource) and spark.mode == "local"
    is_provided = SUBMITTED in os.environ or SparkSession.getActiveSession() is not None
    return KclSparkResource(mode="existing") if is_local and is_provided else spark


def _open_pipes() -> PipesContext:
    kinds: tuple[Any, ...] = (PipesCliArgsParamsLoader, PipesEnvVarParamsLoader)
    for loader in [kind() for kind in kinds]:
        if loader.is_dagster_pipes_process():
            return open_dagster_pipes(
                params_loader=loader,
                context_loader=context_loader(loader.load_context_params()),
                message_writer=message_writer(loader.load_messages_params()),
            )
    raise ConfigurationError(
        "--pipes is for a process that a Pipes client of Dagster has launched: neither the environment variable "
        "DAGSTER_PIPES_CONTEXT nor the option --dagster-pipes-context is here"
    )


def context_loader(params: Mapping[str, Any], dbfs: Path = DBFS) -> PipesContextLoader:
    """The context loader for the place in `params`, where the Pipes client has put the context."""
    if "bucket" in params:
        return PipesS3ContextLoader(client=boto3.client("s3"))
    return PipesDbfsContextLoader() if _is_on(dbfs, params) else PipesDefaultContextLoader()


def message_writer(params: Mapping[str, Any], dbfs: Path = DBFS) -> PipesMessageWriter[Any]:
    """The message writer for the place in `params`, where the Dagster run reads messages: objects in S3, files in a
    folder of DBFS or of a volume of Databricks, one file, or standard output."""
    if "bucket" in params:
        return PipesS3MessageWriter(client=boto3.client("s3"))
    if _is_on(dbfs, params):
        return PipesDbfsMessageWriter()
    is_folder = "path" in params and Path(params["path"]).is_dir()
    return PipesUnityCatalogVolumesMessageWriter() if is_folder else PipesDefaultMessageWriter()


def _is_on(dbfs: Path, params: Mapping[str, Any]) -> bool:
    return "path" in params and (dbfs / str(params["path"]).lstrip("/")).exists()
