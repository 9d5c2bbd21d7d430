"""The definitions that `dagster dev` opens: the clickstream, on the AWS that boto3 finds. `make demo` runs the same
definitions on an embedded AWS."""

import dagster as dg

import kcl_dagster as kcl
from assets.clicks import clicks
from assets.replayed import clicks_replayed
from assets.sessions import sessions, sessions_per_day
from jobs.replay import replay
from resources.aws import AWS
from resources.spark import pyspark, worker_spark

defs = dg.Definitions.merge(
    kcl.build_kcl_definitions(clicks, resources={"kcl": AWS, "spark": worker_spark()}, compaction="17 * * * *"),
    dg.Definitions(
        assets=[clicks_replayed, sessions, sessions_per_day],
        jobs=[replay],
        resources={"pyspark": pyspark()},
        # A run of one step then needs only one process, so the code is imported once.
        executor=dg.in_process_executor,
        sensors=[
            dg.AutomationConditionSensorDefinition(
                "automation",
                target=[sessions, sessions_per_day],
                minimum_interval_seconds=4,  # as often as Dagster's sensor loop; windows of the demo are minutes
                default_status=dg.DefaultSensorStatus.RUNNING,
            )
        ],
    ),
)
