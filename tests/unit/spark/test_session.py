"""Settings of a session, without starting one."""

from typing import Any

import pytest
from pyspark.errors import PySparkException

from kcl_dagster.application import Application
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.engine import EngineSettings, _fitting_tasks
from kcl_dagster.spark.executors import check_executors
from kcl_dagster.spark.session import CLUSTER, COMPILES_LATER, LOCAL, SparkSettings, plan_session, start_session


@pytest.mark.parametrize("mode", ["connect", "cluster"])
def test_a_mode_that_needs_a_url_says_so(mode: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{mode} needs a url"):
        start_session(SparkSettings(mode=mode), "x")


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"mode": "yarn"}, {"attempts": 0}, {"unknown": 1}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SparkSettings(**wrong)


HERE = "/opt/here/bin/python"
TIED_TO_THIS_MACHINE = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": HERE,
    "PYSPARK_DRIVER_PYTHON": HERE,
}


@pytest.mark.audit("E1")
@pytest.mark.parametrize(
    ("settings", "master", "remote", "environment"),
    [
        ({}, "local[8,2]", None, TIED_TO_THIS_MACHINE),
        ({"slots": 3, "attempts": 1}, "local[3,1]", None, TIED_TO_THIS_MACHINE),
        ({"mode": "cluster", "url": "spark://m:7077"}, "spark://m:7077", None, {"PYSPARK_DRIVER_PYTHON": HERE}),
        ({"mode": "cluster", "url": "yarn"}, "yarn", None, {"PYSPARK_DRIVER_PYTHON": HERE}),
        (
            {"mode": "cluster", "url": "yarn", "conf": {"spark.pyspark.python": "./environment/bin/python"}},
            "yarn",
            None,
            {"PYSPARK_DRIVER_PYTHON": HERE, "PYSPARK_PYTHON": "./environment/bin/python"},
        ),
        ({"mode": "connect", "url": "sc://s:15002"}, None, "sc://s:15002", {}),
        ({"mode": "existing"}, None, None, {}),
    ],
)
def test_only_a_local_session_is_tied_to_this_machine(
    settings: dict[str, Any], master: str | None, remote: str | None, environment: dict[str, str]
) -> None:
    plan = plan_session(SparkSettings(**settings), python=HERE, cores=4)
    assert (plan.master, plan.remote, plan.environment) == (master, remote, environment)
    tied = [key for key in ("spark.driver.host", "spark.driver.bindAddress") if key in plan.conf]
    assert bool(tied) == (plan.master is not None and plan.master.startswith("local["))


@pytest.mark.parametrize(
    ("mode", "ours"), [("local", LOCAL), ("cluster", CLUSTER), ("connect", {}), ("existing", {})]
)
def test_what_a_user_configures_wins_over_what_a_mode_starts_with(mode: Any, ours: dict[str, str]) -> None:
    own = {"spark.speculation": "true", "spark.app.own": "1"}
    plan = plan_session(SparkSettings(mode=mode, url="x://y", conf=own), python=HERE, cores=1)
    assert own.items() <= plan.conf.items()
    assert {key: value for key, value in ours.items() if key not in own}.items() <= plan.conf.items()
    if mode in ("connect", "existing"):
        assert plan.conf == own


@pytest.mark.parametrize("mode", ["local", "cluster"])
def test_an_arrow_batch_is_limited_by_its_bytes(mode: Any) -> None:
    """Rows of 100 KB exceed the JVM's direct memory otherwise, and the JVM ends."""
    plan = plan_session(SparkSettings(mode=mode, url="x://y"), python=HERE, cores=1)
    assert plan.conf["spark.sql.execution.arrow.maxRecordsPerBatch"] == "4000"
    assert "spark.sql.execution.arrow.maxBytesPerBatch" not in plan.conf


@pytest.mark.parametrize("own", ["-XX:+UseG1GC", "-XX:TieredStopAtLevel=1", "-XX:Tier4CompileThreshold=9"])
def test_a_local_jvm_compiles_later_unless_the_user_chooses(own: str) -> None:
    plan = plan_session(SparkSettings(java_options=own), python=HERE, cores=1)
    chosen = plan.conf["spark.driver.extraJavaOptions"]
    assert chosen.startswith(own)
    assert (COMPILES_LATER in chosen) == ("Tier" not in own)


@pytest.mark.parametrize("mode", ["local", "cluster"])
def test_part_of_a_shuffle_is_not_evaluated_again_beside_results_of_the_rest(mode: Any) -> None:
    plan = plan_session(SparkSettings(mode=mode, url="x://y"), python=HERE, cores=1)
    assert plan.conf["spark.stage.maxConsecutiveAttempts"] == "1"


class Conf:
    def __init__(self, master: str | None) -> None:
        self._master = master

    def get(self, key: str, default: str | None = None) -> str | None:
        return self._master if key == "spark.master" and self._master is not None else default


class Session:
    """As much of a session as is asked for."""

    def __init__(self, version: str = "4.3.0", master: str | None = None, answer: Any = None) -> None:
        self.version = version
        self.conf = Conf(master)
        self._answer = answer

    def range(self, *_: int) -> "Session":
        return self

    def mapInArrow(self, *_: Any) -> "Session":  # noqa: N802 - Spark's name
        return self

    def collect(self) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return [self._answer]


@pytest.mark.parametrize(
    ("master", "tasks"),
    [
        ("local", 1),
        ("local[1]", 1),
        ("local[2]", 1),
        ("local[4]", 2),
        ("local[16,4]", 2),
        ("local-cluster[2,1,1024]", 2),
        ("spark://x:1", 2),
        (None, 2),
    ],
)
def test_a_fetch_leaves_half_of_a_local_session_to_the_batch_before(master: str | None, tasks: int) -> None:
    session: Any = Session(master=master)
    assert _fitting_tasks(session) == tasks


@pytest.mark.parametrize(
    ("batch", "name"),
    [
        ({}, None),
        ({"consumer_name": "x"}, None),
        ({"retrieval": "fanout"}, "my-app"),
        ({"retrieval": "fanout", "consumer_name": "x"}, "x"),
    ],
)
def test_an_engine_reads_as_its_application_asks(batch: dict[str, Any], name: str | None) -> None:
    application = Application.model_validate({"name": "my-app", "streams": ["clicks"], "batch": batch})
    assert EngineSettings.of(application) == EngineSettings(consumer_name=name)


class Row:
    kcl_dagster = "0.0.1"


@pytest.mark.parametrize(
    ("session", "problem"),
    [
        (Session("3.5.6"), "too old"),
        (Session(answer=Row()), "executors have kcl-dagster 0.0.1"),
        (
            Session(answer=PySparkException("job aborted\nModuleNotFoundError: No module named 'kcl_dagster'\n")),
            "No module named 'kcl_dagster'. Executors need",
        ),
        (Session(answer=PySparkException("no executors")), "no executors. Executors need"),
    ],
)
def test_executors_that_cannot_do_the_work_are_found_at_start(session: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        check_executors(session)
