"""The first job of a session, before there is anything to read."""

import logging
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark import fetch
from kcl_dagster.spark.engine import EngineSettings, SparkEngine
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.reader_processes import VARIABLE
from kcl_dagster.spark.warm_up import INTERPRETED, _WarmUp, interpreted_if_new, mark_new, warm_up
from kcl_dagster.worker.batch import Budget, Range
from tests.unit.spark.test_session import Session

CONNECTION = Connection(region="eu-west-1", access_key="key", secret_key="secret")


class Jobs(Session):
    def __init__(self, answer: Any = None) -> None:
        super().__init__(answer=answer)
        self.jobs: list[Any] = []

    def range(self, *given: int) -> "Jobs":
        self.jobs.append(given)
        return self


def test_it_has_the_one_task_of_the_first_fetch() -> None:
    session: Any = Jobs()
    warm_up(session, CONNECTION)
    assert session.jobs == [(0, 1, 1, 1)]


def test_a_job_that_fails_is_left_to_the_first_batch(caplog: pytest.LogCaptureFixture) -> None:
    session: Any = Jobs(PySparkException("no Python here"))
    with caplog.at_level(logging.WARNING):
        warm_up(session, CONNECTION)
    assert "no Python here" in caplog.text


def test_a_python_worker_has_the_client_that_its_first_fetch_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_clients", {})
    rows = pa.RecordBatch.from_pydict({"id": [0]})
    assert list(_WarmUp(CONNECTION)(iter([rows]))) == [rows]
    assert list(fetch._clients) == [CONNECTION]


class Context:
    """Of a classic session."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self._gateway = None


class Processes(Jobs):
    """`environments`: of each function that was passed to Spark."""

    def __init__(self) -> None:
        super().__init__()
        self.sparkContext = Context()
        self.environments: list[dict[str, str]] = []

    def mapInArrow(self, *_: Any) -> "Processes":  # noqa: N802 - Spark's name
        self.environments.append(dict(self.sparkContext.environment))
        return self


@pytest.mark.parametrize(("consumer", "environments"), [(None, [{}]), ("app", [{}, {VARIABLE: "0"}])])
def test_the_processes_that_read_by_fan_out_are_started_as_well(consumer: str | None, environments: Any) -> None:
    session: Any = Processes()
    engine = SparkEngine(session, CONNECTION, EngineSettings(consumer_name=consumer))
    engine.warm_up()
    engine.close()
    assert session.environments == environments


@pytest.mark.parametrize(
    ("ranges", "consumer", "tasks"), [(1, None, 1), (99, None, 1), (1000, None, 2), (1000, "app", 1)]
)
def test_the_first_fetch_has_one_task_unless_it_has_very_many_ranges(
    ranges: int, consumer: str | None, tasks: int
) -> None:
    session: Any = Processes()
    engine = SparkEngine(session, CONNECTION, EngineSettings(consumer_name=consumer))
    stream = StreamIdentifier("clicks")
    wanted = [Range(LeaseKey(f"s{n}"), stream, f"s{n}", TRIM_HORIZON, 1) for n in range(ranges)]
    planned, _ = engine._tasks(wanted, Budget(records=1000, bytes=1 << 30, seconds=1.0))
    engine.close()
    assert planned.count == tasks


@pytest.mark.parametrize("consumer", [None, "app"])
def test_a_fetch_of_nothing_has_one_task(consumer: str | None) -> None:
    """Records that have to be read again may be those of shards that had none."""
    session: Any = Processes()
    engine = SparkEngine(session, CONNECTION, EngineSettings(consumer_name=consumer, tasks=2))
    tasks, plan = engine._tasks([], Budget(records=1, bytes=1 << 30, seconds=1.0))
    engine.close()
    assert (tasks.count, plan.tasks) == (1, ((),))


class Conf(dict[str, str]):
    def set(self, name: str, value: str) -> None:
        self[name] = value


COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


def new_session() -> Any:
    session: Any = Processes()
    session.conf = Conf({"spark.master": "local[4]", **COMPILED})
    mark_new(session)
    return session


def settings_of_fetches(engine: SparkEngine, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The settings about compilation that Spark has during each fetch of the engine."""
    seen: list[dict[str, str]] = []

    def fetch(*_: Any) -> None:
        seen.append({name: engine._spark.conf.get(name) or "" for name in INTERPRETED})

    monkeypatch.setattr(engine, "_tag", lambda: None)
    monkeypatch.setattr(engine, "_fetch", fetch)
    return seen


def fetch_twice(engine: SparkEngine) -> None:
    for _ in range(2):
        engine.fetch([], Budget(records=1, bytes=1 << 30, seconds=1.0))
    engine.close()


def test_spark_compiles_the_plans_of_all_fetches_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    session = new_session()
    engine = SparkEngine(session, CONNECTION)
    seen = settings_of_fetches(engine, monkeypatch)
    fetch_twice(engine)
    assert seen == [INTERPRETED, COMPILED]


def test_after_a_warm_up_the_first_fetch_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SparkEngine(new_session(), CONNECTION)
    engine.warm_up()
    seen = settings_of_fetches(engine, monkeypatch)
    fetch_twice(engine)
    assert seen == [COMPILED, COMPILED]


def test_a_session_that_others_may_use_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = Processes()
    session.conf = Conf({"spark.master": "local[4]", **COMPILED})
    engine = SparkEngine(session, CONNECTION)
    seen = settings_of_fetches(engine, monkeypatch)
    fetch_twice(engine)
    assert seen == [COMPILED, COMPILED]


def test_a_second_engine_does_not_change_the_session_that_the_first_one_uses() -> None:
    session = new_session()
    with interpreted_if_new(session):
        with interpreted_if_new(session):
            assert session.conf.items() >= INTERPRETED.items()
        assert session.conf.items() >= INTERPRETED.items(), "the first one restores the settings"
    assert session.conf.items() >= COMPILED.items()


def test_settings_of_the_user_come_back_after_a_fetch_that_failed() -> None:
    session = new_session()
    session.conf["spark.sql.codegen.factoryMode"] = "CODEGEN_ONLY"
    with pytest.raises(ValueError, match="of the fetch"), interpreted_if_new(session):
        raise ValueError("of the fetch")
    assert session.conf["spark.sql.codegen.wholeStage"] == "true"
    assert session.conf["spark.sql.codegen.factoryMode"] == "CODEGEN_ONLY"


def test_the_error_of_a_fetch_is_not_hidden_by_a_session_that_has_ended() -> None:
    session = new_session()

    def fetch() -> None:
        session.conf.set = refused
        raise ValueError("of the fetch")

    with pytest.raises(ValueError, match="of the fetch"), interpreted_if_new(session):
        fetch()


def test_a_fetch_begins_although_a_setting_is_refused() -> None:
    session = new_session()
    session.conf.set = refused
    with interpreted_if_new(session):
        assert session.conf.items() >= COMPILED.items()


def refused(*_: str) -> None:
    raise ConnectionRefusedError("the JVM has ended")
