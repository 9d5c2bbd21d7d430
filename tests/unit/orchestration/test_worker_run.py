"""What a worker run finds out before it reads a record."""

import logging
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey
from pyspark.errors import PySparkException
from pyspark.sql import Row

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.diary import Diary
from kcl_dagster.orchestration.worker_run import WorkerRun
from tests.unit.spark.test_session import Session


class Answers(Session):
    """A session on a cluster, as any resource may have one, whose jobs end like this, one after the other."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(master="spark://elsewhere:7077")
        self._answers = list(answers)

    def collect(self) -> Any:
        self._answer = self._answers.pop(0)
        return super().collect()


SAME_VERSION = Row(kcl_dagster=kcl.__version__)
NO_PROBLEM = Row(kcl_dagster="")


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([Row(kcl_dagster="0.0.1")], r"executors have kcl-dagster 0\.0\.1"),
        (
            [PySparkException("ModuleNotFoundError: No module named 'kcl_dagster'")],
            "the executors cannot run our code",
        ),
        ([SAME_VERSION, Row(kcl_dagster="no route")], "executors cannot read stream clicks: no route"),
        (
            [SAME_VERSION, NO_PROBLEM, PySparkException("no such directory")],
            r"executors cannot write below .*/lake: no such directory",
        ),
    ],
)
def test_a_worker_does_not_begin_where_it_would_fail_later(
    answers: list[Any], problem: str, tmp_path: Path
) -> None:
    @kcl.kcl_consumer(application="clicks", stream="clicks", sink=kcl.parquet(str(tmp_path / "lake")))
    def clicks(records: Any) -> Any:
        return records

    session: Any = Answers(*answers)
    diary = Diary(AssetKey("clicks"), "worker-000", lambda _: None, logging.getLogger(__name__), lambda *_: None)
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    resource = kcl.KclResource(region_name="us-east-1", **keys)
    run = WorkerRun(clicks, resource, lambda: session, "worker-000", "run", diary)
    with pytest.raises(ConfigurationError, match=problem):
        run._open(run._sink())
