"""The environment of functions that read by fan-out, and that of everything else which runs beside them."""

from types import SimpleNamespace
from typing import Any

import pytest

from kcl_dagster.spark import reader_processes as module
from kcl_dagster.spark.reader_processes import VARIABLE, reader_processes


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "is_classic", lambda _: True)
    return SimpleNamespace(sparkContext=SimpleNamespace(environment={"TZ": "UTC"}))


def test_functions_within_have_processes_of_their_own(spark: Any) -> None:
    with reader_processes(spark, is_fanout=True):
        assert spark.sparkContext.environment == {"TZ": "UTC", VARIABLE: "fan-out"}
    assert spark.sparkContext.environment == {"TZ": "UTC"}


def test_another_thread_may_be_handing_a_function_over(spark: Any) -> None:
    """Py4J copies the environment name by name, with a request to the JVM for each."""
    before = iter(spark.sparkContext.environment)
    with reader_processes(spark, is_fanout=True):
        assert next(before) == "TZ"
        within = iter(spark.sparkContext.environment)
    assert list(within) == ["TZ", VARIABLE]


def test_what_another_thread_sets_meanwhile_stays(spark: Any) -> None:
    with reader_processes(spark, is_fanout=True):
        spark.sparkContext.environment["LANG"] = "C"
    assert spark.sparkContext.environment == {"TZ": "UTC", "LANG": "C"}


def test_polling_has_no_such_processes(spark: Any) -> None:
    with reader_processes(spark, is_fanout=False):
        assert spark.sparkContext.environment == {"TZ": "UTC"}
