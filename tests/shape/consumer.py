"""What a consumer brings into a code location."""

from pyspark.sql import DataFrame

import kcl_dagster as kcl


@kcl.kcl_consumer(application="shape", stream="shape", sink=kcl.parquet("s3://shape/records"))
def records(frame: DataFrame) -> DataFrame:
    return frame


def jobs_of_a_consumer() -> list[str]:
    """The names of its jobs. Those that Dagster makes for assets by itself do not count."""
    resources = {"kcl": kcl.KclResource(region_name="eu-west-1")}
    jobs = kcl.build_kcl_definitions(records, resources=resources).resolve_all_job_defs()
    return sorted(job.name for job in jobs if not job.name.startswith("__ASSET"))
