"""What a worker run finds out before it reads a record."""

import logging
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey
from pyspark.errors import PySparkException

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.diary import Diary
from kcl_dagster.orchestration.worker_run import WorkerRun
from tests.unit.spark.test_session import Session


def test_a_worker_does_not_store_where_the_driver_does_not_look(tmp_path: Path) -> None:
    @kcl.kcl_consumer(application="clicks", stream="clicks", sink=kcl.parquet(str(tmp_path / "lake")))
    def clicks(records: Any) -> Any:
        return records

    session: Any = Session(master="spark://elsewhere:7077", answer=PySparkException("no such directory"))
    diary = Diary(AssetKey("clicks"), "worker-000", lambda _: None, logging.getLogger(__name__), lambda *_: None)
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    resource = kcl.KclResource(region_name="us-east-1", **keys)
    run = WorkerRun(clicks, resource, lambda: session, "worker-000", "run", diary)
    with pytest.raises(ConfigurationError, match=r"executors cannot write below .*/lake: no such directory"):
        run._open(run._sink())
