"""The records of an application, as an asset with one partition for each window of time.

The leader materializes a partition when it is complete; see `declaring`. Materializing one by hand is a bounded
run: it reads what is there now, and materializes those of its partitions that are complete then.
"""

from collections.abc import Iterator

from dagster import (
    AssetExecutionContext,
    AssetMaterialization,
    AssetsDefinition,
    BackfillPolicy,
    MaterializeResult,
    multi_asset,
)

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.catch_up import read_until
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.declared_windows import again, declare
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role, identifier


def build_records_asset(
    consumer: Consumer, translator: KclTranslator, *, kcl_key: str = "kcl", spark_key: str = "spark"
) -> AssetsDefinition:
    """The records asset of a consumer. Raises ConfigurationError where it has an automation condition."""
    application = consumer.application
    # A window that is not complete when the run ends is materialized later, by the leader.
    spec = translator.get_asset_spec(KclAsset(Role.RECORDS, consumer)).replace_attributes(skippable=True)
    if spec.automation_condition is not None:
        raise ConfigurationError(
            f"the asset {spec.key.to_user_string()} has an automation condition: the leader of {application.name} "
            f"materializes its partitions when they are complete. Give the condition to assets downstream of it"
        )

    @multi_asset(
        specs=[spec],
        name=f"{identifier(application.name)}_records",
        partitions_def=consumer.partitions,
        backfill_policy=BackfillPolicy.single_run(),
        required_resource_keys={kcl_key, spark_key, *consumer.resources},
        op_tags={"dagster/max_retries": "0"},
    )
    def records(context: AssetExecutionContext) -> Iterator[MaterializeResult[None]]:
        kcl, spark = getattr(context.resources, kcl_key), getattr(context.resources, spark_key)
        wanted = {key: consumer.windows.start_of_key(key) for key in context.partition_keys}
        ends = [consumer.windows.end_of(start) for start in wanted.values() if start is not None]
        through = max(ends) + consumer.allowed_lateness.total_seconds()
        outcome = read_until(context, consumer, translator, kcl, spark, through)

        def write(event: AssetMaterialization) -> None:
            if event.partition in wanted:
                context.log_event(event)
            else:
                context.instance.report_runless_asset_event(event)

        with outcome.leading() as lead:
            told = declare(context.instance, consumer, translator, kcl, lead, write)
        for key, start in wanted.items():
            if key in told or start is None:
                continue
            event = again(context.instance, consumer, translator, outcome.tick, start)
            if event is not None:
                context.log_event(event)
            else:
                context.log.warning(
                    "%s: the leader of %s materializes it when it is complete", key, application.name
                )
        yield from ()

    return records
