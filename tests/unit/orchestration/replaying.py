"""A replay in a process of its own, which a test kills: python -m tests.unit.orchestration.replaying '{...}'."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession

import kcl_dagster as kcl
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.replay_asset import build_kcl_replay_asset
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.testing import EmulatorResource

RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"


@dataclass
class SharedSpark:
    """A session that outlives the run. Anything with a `spark_session` will do."""

    spark_session: SparkSession


def hours(first: str) -> dg.HourlyPartitionsDefinition:
    return dg.HourlyPartitionsDefinition(start_date=first, fmt="%Y-%m-%d-%H:%M", end_offset=1)


def resource_at(endpoint: str) -> kcl.KclResource:
    return EmulatorResource(endpoint_url=endpoint)


def replaying(consumer: Consumer, lake: Path, endpoint: str, spark: SparkSession, first: str) -> dg.JobDefinition:
    """The job of the replay asset."""
    asset = build_kcl_replay_asset(consumer, partitions_def=hours(first), sink=kcl.parquet(str(lake)))
    job = dg.define_asset_job("replay", selection=[asset], executor_def=dg.in_process_executor)
    definitions = dg.Definitions(
        assets=[asset], jobs=[job], resources={"kcl": resource_at(endpoint), "spark": SharedSpark(spark)}
    )
    return definitions.resolve_job_def("replay")


def consumer_of(name: str, lake: Path) -> Consumer:
    @kcl.kcl_consumer(
        application=name,
        stream=name,
        sink=kcl.parquet(str(lake)),
        workers=1,
        timings=kcl.Timings(lease_duration=10, heartbeat=1, handoff_timeout=2, shard_audit=5),
        batch=kcl.BatchSettings(max_seconds=1, idle_seconds=0.2),
        name="things",
    )
    def things(records: Any) -> Any:
        """Things that happened."""
        return records.selectExpr("lease_key", "cast(data as string) as body")

    return things


def main(told: dict[str, str]) -> None:
    spark = start_session(SparkSettings(slots=2), "replaying")
    lake = Path(told["lake"])
    job = replaying(consumer_of(told["name"], lake), lake, told["endpoint"], spark, told["first"])
    with dg.DagsterInstance.ephemeral() as instance:
        job.execute_in_process(
            instance=instance, tags={RANGE_START: told["first"], RANGE_END: told["last"]}, raise_on_error=True
        )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
