"""The records of an application, as an asset with one partition for each window of time.

The leader materializes a partition when it is complete; see `declaring`. A run that is launched for partitions, by
hand or by a backfill, is a bounded run. It reads what is in the streams now and materializes its partitions, so
that assets downstream in the same run can continue.

- If one of the partitions is not complete then, the run materializes the others and fails.
- If all of them had been materialized as complete before, the run reads nothing, and repeats the materializations.
"""

from collections.abc import Iterator

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    BackfillPolicy,
    Failure,
    MaterializeResult,
    multi_asset,
)

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.orchestration.asked_windows import AskedWindows
from kcl_dagster.orchestration.catch_up import read_until
from kcl_dagster.orchestration.complete_windows import EPOCH_TAG, declare
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_storage import WINDOWS_TAG
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role, identifier
from kcl_dagster.runtime import system


def build_records_asset(
    consumer: Consumer, translator: KclTranslator, *, kcl_key: str = "kcl", spark_key: str = "spark"
) -> AssetsDefinition:
    """Build the records asset of a consumer. Raises ConfigurationError if it has an automation condition."""
    application = consumer.application
    of_tables = [KclAsset(Role.TABLE, consumer, table=name) for name in consumer.sink.tables]
    specs = [translator.get_asset_spec(one) for one in (KclAsset(Role.RECORDS, consumer), *of_tables)]
    for spec in specs:
        if spec.automation_condition is None:
            continue
        raise ConfigurationError(
            f"the asset {spec.key.to_user_string()} has an automation condition: the leader of {application.name} "
            f"materializes its partitions when they are complete. Give the condition to assets downstream of it"
        )

    if of_tables:  # a run can be launched for some of the tables; the others are reported nevertheless
        specs = [spec.replace_attributes(skippable=True) for spec in specs]

    @multi_asset(
        specs=specs,
        can_subset=bool(of_tables),
        name=f"{identifier(application.name)}_records",
        partitions_def=consumer.partitions,
        backfill_policy=BackfillPolicy.single_run(),
        required_resource_keys={kcl_key, spark_key, *consumer.resources},
        op_tags={"dagster/max_retries": "0"},
    )
    def records(context: AssetExecutionContext) -> Iterator[MaterializeResult[None]]:
        kcl, spark = getattr(context.resources, kcl_key), getattr(context.resources, spark_key)
        starts = {key: consumer.windows.start_of_key(key) for key in context.partition_keys}
        wanted = {key: start for key, start in starts.items() if start is not None}
        instance = context.instance
        instance.add_run_tags(context.run.run_id, {WINDOWS_TAG: application.name})
        asked = AskedWindows(instance, consumer, translator, kcl, wanted, system())
        answer = asked.repeated()
        if answer is None:
            outcome = read_until(context, consumer, translator, kcl, spark, asked.through)
            # Windows for which this run was not launched are materialized outside of runs.
            write = instance.report_runless_asset_event
            with outcome.leading() as lead:
                answer = asked.answer(
                    lambda: declare(instance, consumer, translator, kcl, lead, write), held_by(outcome.tick)
                )
        if answer.is_repeated:
            context.log.info("complete already, nothing was read for: %s", ", ".join(answer.events))
        if answer.problems:
            for event in answer.events.values():
                for one in asked.with_tables(event):
                    context.log_event(one)
            raise Failure(". ".join(answer.problems), allow_retries=False)
        for key, event in answer.events.items():
            for one in asked.with_tables(event):
                if one.asset_key in context.selected_asset_keys:
                    context.add_asset_metadata(one.metadata, asset_key=one.asset_key, partition_key=key)
                else:
                    instance.report_runless_asset_event(one)
        for spec in reversed(specs):  # the result of the records declares the window, so it comes last
            if spec.key in context.selected_asset_keys:
                yield MaterializeResult(asset_key=spec.key, tags={EPOCH_TAG: str(answer.epoch)})

    return records


def held_by(tick: TickReport | None) -> str:
    """The reason why the application is not complete through a later moment, according to the last tick of a run.
    Empty if it is not known."""
    found = None if tick is None or tick.completeness is None else tick.completeness.held_by
    return "" if found is None else str(found)
