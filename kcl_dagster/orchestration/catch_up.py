"""Bounded runs as Dagster runs: a job, its schedule, and the function that the records asset calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from dagster import (
    AssetCheckEvaluation,
    AssetExecutionContext,
    Config,
    DagsterEvent,
    DagsterInstance,
    DefaultScheduleStatus,
    Failure,
    JobDefinition,
    MetadataValue,
    OpExecutionContext,
    RunConfig,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    in_process_executor,
    job,
    op,
    schedule,
)
from pydantic import Field

from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.model.counting import counted
from kcl_dagster.model.worker_row import BOUNDED_SLOT
from kcl_dagster.orchestration import asset_checks, watchdog
from kcl_dagster.orchestration.bounded_outcome import BoundedOutcome
from kcl_dagster.orchestration.check_definitions import look
from kcl_dagster.orchestration.complete_windows import declare
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.interrupts import interrupts_ask
from kcl_dagster.orchestration.remote_launch import Launch, read_elsewhere, resources_of
from kcl_dagster.orchestration.run_end import ending
from kcl_dagster.orchestration.run_event_log import event_log_of
from kcl_dagster.orchestration.run_storage import ACTIVE, APPLICATION_TAG, run_view
from kcl_dagster.orchestration.translator import KclTranslator, identifier
from kcl_dagster.worker.stop import StopSignal

NOTHING: Final[Mapping[str, Any]] = {}
CLOCKS_APART: Final = timedelta(minutes=5)  # a given time is refused if it is further in the future than this


class CatchUpConfig(Config):
    """The settings in the launchpad."""

    through: str | None = Field(
        default=None,
        description="Read the records that had arrived by this time, such as 2026-01-31T12:00:00Z. Default: the "
        "start of the run.",
    )


def read_until(
    context: OpExecutionContext | AssetExecutionContext,
    consumer: Consumer,
    translator: KclTranslator,
    kcl: Any,
    spark: Any,
    through: float | None = None,
) -> BoundedOutcome:
    """Carry out a bounded run inside a Dagster run, and return its outcome. Blocks the main thread of the run.
    `spark` has a `spark_session`, which is used only if there are records to read.

    `through`: epoch seconds; by default the start of the run. The run reads the records that had arrived by then.
    If some of them were not read, raises Failure, which names the remaining shards. Raises Failure if tables or
    streams cannot be reached.
    """
    # Importing Spark is slow, and the code server imports this module without using it.
    from kcl_dagster.orchestration.bounded_run import BoundedRun

    instance, run, application = context.instance, context.run, consumer.application
    stop = StopSignal()
    bounded = BoundedRun(
        consumer.bound(context, context.resources),
        kcl,
        lambda: spark.spark_session,
        run.run_id,
        event_log_of(context, consumer, translator, BOUNDED_SLOT),
        watchdog.watches(instance, run.run_id),
        ending(instance, run.run_id),
        partial(run_view, instance, application),
        job=run.job_name,
    )
    with interrupts_ask(stop):
        try:
            outcome = bounded.run(stop, through)
        except KclError as error:
            raise Failure(" ".join(str(error).split()), allow_retries=False) from error
    return judged(context, application.name, outcome)


def judged(
    context: OpExecutionContext | AssetExecutionContext,
    application: str,
    outcome: BoundedOutcome,
    about: Mapping[str, Any] = NOTHING,
) -> BoundedOutcome:
    """Log and return the outcome if everything was read. Otherwise raise Failure, with `about` as metadata."""
    line = summary(application, outcome)
    if not outcome.is_caught_up:
        raise Failure(line, metadata={"records": outcome.records, **about}, allow_retries=False)
    context.log.info(line)
    return outcome


def summary(application: str, outcome: BoundedOutcome) -> str:
    moment = datetime.fromtimestamp(outcome.through, UTC).isoformat(timespec="seconds")
    if not outcome.is_caught_up:
        return f"{application} is not read through {moment}: {outcome}"
    what = (
        f"this run stored {counted(outcome.records, 'record')}" if outcome.worked else "this run had nothing to do"
    )
    return f"{application} is read through {moment}: {what}"


def build_kcl_catch_up_job(
    consumer: Consumer,
    *,
    translator: KclTranslator | None = None,
    kcl_key: str = "kcl",
    spark_key: str = "spark",
    launch: Launch | None = None,
) -> JobDefinition:
    """Build the job `<application>_catch_up`, which reads everything that is in the streams now, stores it, and
    ends.

    A run of the job is a worker with the application's leases and guarantees. It needs no leader and no fleet. If a
    fleet reads already, the run waits until everything is stored. If shards are left that cannot be read, the run
    fails and names them.

    Args:
        translator: How assets appear; see `KclTranslator`.
        kcl_key: The name of the `KclResource`.
        spark_key: The name of the resource with the Spark session.
        launch: A function that starts a Spark driver elsewhere, with a Pipes client. The records are then read in
            this driver. The function is called with the context and the extras to pass to the client's `run`, and
            returns what `run` returns. Its further parameters are resources.

    Example:
        .. code-block:: python

            catch_up = kcl.build_kcl_catch_up_job(clicks)
    """
    translator = translator or KclTranslator()
    name = f"{identifier(consumer.application.name)}_catch_up"

    asked = {spark_key, *consumer.resources} if launch is None else resources_of(launch)

    @op(name=f"read_{name}", required_resource_keys={kcl_key, *asked})
    def read(context: OpExecutionContext, config: CatchUpConfig) -> None:
        kcl, through = getattr(context.resources, kcl_key), moment_of(config.through)
        # These events are reported outside of runs. If they were events of this run, Dagster would delete them
        # with the run when runs of the application are pruned.
        write = context.instance.report_runless_asset_event
        about: Mapping[str, Any] = NOTHING
        try:
            if launch is None:
                spark = getattr(context.resources, spark_key)
                outcome = read_until(context, consumer, translator, kcl, spark, through)
            else:
                outcome, about = read_elsewhere(context, consumer, kcl, launch, through)
                judged(context, consumer.application.name, outcome, about)
            with outcome.leading() as lead:
                complete = declare(context.instance, consumer, translator, kcl, lead, write)
        finally:
            evaluate_windows(consumer, translator, kcl, write)
        context.add_output_metadata(
            {
                "summary": MetadataValue.text(summary(consumer.application.name, outcome)),
                "through": MetadataValue.timestamp(outcome.through),
                "records": outcome.records,
                "worked": outcome.worked,
                "complete": len(complete),
                **about,
            }
        )

    @job(
        name=name,
        executor_def=in_process_executor,
        config=RunConfig({f"read_{name}": CatchUpConfig()}),
        description=f"Reads what is in the streams of {consumer.application.name} now, stores it, and ends.",
        tags={APPLICATION_TAG: consumer.application.name, "dagster/max_retries": "0"},
    )
    def catch_up() -> None:
        read()

    return catch_up


def evaluate_windows(
    consumer: Consumer, translator: KclTranslator, kcl: Any, write: Callable[[AssetCheckEvaluation], object]
) -> None:
    """Evaluate the check `windows_complete_in_time` if there is no leader that evaluates it. If the definitions
    have a `catch_up=`, there is usually no leader, because the leader sensor is stopped. The check fails, for
    example, if a bounded run could not read a shard."""
    try:
        seen = look(consumer.application, kcl, patient=False)
    except KclError:  # the run could not reach the tables either, and has reported this
        return
    if seen.leader is not None:
        return
    for check, problem in asset_checks.evaluate(seen, consumer):
        if check is asset_checks.WINDOWS:
            write(asset_checks.evaluation(check, problem, consumer, translator, seen))


def moment_of(text: str | None) -> float | None:
    """Epoch seconds of a time in ISO 8601. Raises ConfigurationError if it has no time zone or is in the future."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"through {text!r} is no moment such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ConfigurationError(f"through {text!r} has no time zone: end it with Z, or with +01:00")
    if moment > datetime.now(UTC) + CLOCKS_APART:
        raise ConfigurationError(f"through {text!r} is in the future: a bounded run reads what has arrived")
    return moment.timestamp()


@dataclass(frozen=True, slots=True)
class CatchUpAnswer:
    """The result of a run for the terminal: one line, and whether everything was read."""

    text: str
    is_well: bool


def run_here(
    consumer: Consumer,
    translator: KclTranslator,
    resources: Mapping[str, Any],
    instance: DagsterInstance,
    through: str | None = None,
) -> CatchUpAnswer:
    """Run the job of `build_kcl_catch_up_job` in this process, on its main thread. `resources`: `kcl`, `spark`, and
    those that the consumer's code asks for. The run is stored in `instance`.

    Raises ConfigurationError if a resource that the consumer's code asks for is missing.
    """
    refuse_missing(consumer, resources)
    made = build_kcl_catch_up_job(consumer, translator=translator)
    [op_name] = [node.name for node in made.nodes]
    result = made.execute_in_process(
        instance=instance,
        resources=resources,
        run_config={
            "ops": {op_name: {"config": {"through": through}}},
            "loggers": {"console": {"config": {"log_level": "INFO"}}},
        },
        raise_on_error=False,
    )
    if not result.success:
        problems = [_why_failed(event) for event in result.all_events if event.is_step_failure]
        return CatchUpAnswer("; ".join(problems) or "the run did not start", is_well=False)
    [told] = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    return CatchUpAnswer(str(told["summary"].value), is_well=True)


def refuse_missing(consumer: Consumer, resources: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if a resource that the consumer's code asks for is missing."""
    missing = sorted(consumer.resources - resources.keys())
    if missing:
        raise ConfigurationError(
            f"{consumer.name} asks for the resources {', '.join(missing)}: name the definitions that have them"
        )


def _why_failed(event: DagsterEvent) -> str:
    data = event.step_failure_data
    said = None if data.user_failure_data is None else data.user_failure_data.description
    return said or (" ".join(data.error.message.split()) if data.error is not None else "the run failed")


def build_kcl_catch_up_schedule(
    consumer: Consumer,
    *,
    job: JobDefinition,
    cron: str,
    timezone: str | None = None,
    default_status: DefaultScheduleStatus = DefaultScheduleStatus.RUNNING,
) -> ScheduleDefinition:
    """Build a schedule that launches `job` at the times of `cron`, unless a run of the job is still active.

    Args:
        job: Made by `build_kcl_catch_up_job`.
        cron: For example `0 * * * *`. A run reads what had arrived when it began.
        timezone: The time zone of `cron`; UTC by default.
        default_status: Running by default.

    Example:
        .. code-block:: python

            hourly = kcl.build_kcl_catch_up_schedule(clicks, job=catch_up, cron="0 * * * *")
    """

    @schedule(
        name=f"{identifier(consumer.application.name)}_catch_up_schedule",
        job=job,
        cron_schedule=cron,
        execution_timezone=timezone or "UTC",
        default_status=default_status,
        description=f"Reads the streams of {consumer.application.name} at these times, and not in between.",
    )
    def scheduled(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        going_on = context.instance.get_runs(RunsFilter(job_name=job.name, statuses=ACTIVE), limit=1)
        if going_on:
            return SkipReason(f"run {going_on[0].run_id} is still reading")
        return RunRequest()

    return scheduled
