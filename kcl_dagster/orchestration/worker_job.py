"""The asset and the job of a worker: one run per slot, for as long as the worker lives."""

from collections.abc import Iterator

from dagster import (
    AssetCheckEvaluation,
    AssetExecutionContext,
    AssetMaterialization,
    AssetsDefinition,
    AssetSelection,
    MaterializeResult,
    define_asset_job,
    in_process_executor,
    multi_asset,
)
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration import checks, watchdog
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.diary import Diary
from kcl_dagster.orchestration.interrupts import interrupts_ask
from kcl_dagster.orchestration.run_end import ending
from kcl_dagster.orchestration.runs import APPLICATION_TAG, CODE_TAG, WORKER_TAG, rival, worker_tag
from kcl_dagster.orchestration.sinks import place_of
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role, identifier, slots_of
from kcl_dagster.worker.stop import StopSignal


def build_worker_asset(
    consumer: Consumer, translator: KclTranslator, *, kcl_key: str = "kcl", spark_key: str = "spark"
) -> AssetsDefinition:
    """The records of an application, as an asset with one partition per slot, made by worker runs."""
    application = consumer.application
    # A run that finds its slot taken ends without having made anything.
    spec = translator.get_asset_spec(KclAsset(Role.RECORDS, consumer)).replace_attributes(skippable=True)
    if spec.automation_condition is not None:
        raise ConfigurationError(
            f"the asset {spec.key.to_user_string()} has an automation condition: the leader of {application.name} "
            f"launches the runs of its workers, and others would take their slots. Give the condition to assets "
            f"downstream of it"
        )

    @multi_asset(
        specs=[spec],
        name=f"{identifier(application.name)}_records",
        partitions_def=slots_of(application),
        required_resource_keys={kcl_key, spark_key, *consumer.resources},
    )
    def worker(context: AssetExecutionContext) -> Iterator[MaterializeResult[None]]:
        # Spark's side is heavy; the code server evaluates this module without ever working.
        from kcl_dagster.orchestration.worker_run import WorkerRun

        slot, run, instance = context.partition_key, context.run, context.instance
        taken_by = rival(instance, application, slot, run)
        if taken_by is not None:
            context.log.warning("slot %s is served by run %s: nothing to do here", slot, taken_by)
            return
        # A run launched by hand, from the asset's page, lacks what the leader knows its runs by.
        known = {APPLICATION_TAG: application.name, WORKER_TAG: worker_tag(application, slot)}
        if CODE_TAG not in run.tags:
            known[CODE_TAG] = consumer.code_version
        instance.add_run_tags(run.run_id, known)
        watches = watchdog.watches(instance, run.run_id)

        def write(event: AssetMaterialization | AssetCheckEvaluation) -> None:
            if isinstance(event, AssetCheckEvaluation):
                instance.report_runless_asset_event(event)  # see checks
            else:
                context.log_event(event)

        diary = Diary(
            spec.key,
            slot,
            write,
            context.log,
            lambda kind, what: checks.alarm(kind, what, consumer, translator),
            freshness=consumer.freshness,
            place=place_of(consumer.sink),
        )
        kcl, spark = getattr(context.resources, kcl_key), getattr(context.resources, spark_key)
        stop = StopSignal()
        with interrupts_ask(stop):
            # PySpark replaces the handler only where it is started on the main thread, and the worker does not.
            ours = consumer.bound(context, context.resources)
            made = WorkerRun(
                ours,
                kcl,
                lambda: spark.spark_session,
                slot,
                run.run_id,
                diary,
                watches,
                ending(instance, run.run_id),
            )
            reason = made.work(stop)
        context.log.info("worker %s stopped: %s", slot, reason)
        yield MaterializeResult(asset_key=spec.key, metadata=diary.metadata())

    return worker


def build_worker_job(consumer: Consumer, translator: KclTranslator) -> UnresolvedAssetJobDefinition:
    """The job the leader launches. In process: with a step process of its own, a run that is killed would leave
    a worker behind that goes on renewing its leases. Not retried: the leader relaunches."""
    application = consumer.application
    return define_asset_job(
        name=f"{identifier(application.name)}_worker",
        # The leader evaluates the checks. In a worker's run they would be pending for as long as it lives.
        selection=AssetSelection.assets(
            translator.get_asset_key(KclAsset(Role.RECORDS, consumer))
        ).without_checks(),
        executor_def=in_process_executor,
        description=f"One worker of {application.name}; launched, one per slot, by its leader.",
        tags={APPLICATION_TAG: application.name, "dagster/max_retries": "0"},
    )
