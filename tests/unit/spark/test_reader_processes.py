"""The environment of functions that read by fan-out, that of everything else that runs beside them, and the process
in which each lease is read."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.reader_processes import (
    FETCHES_UNTIL_CHANGE,
    VARIABLE,
    FetchTasks,
    SubscribedLeases,
    merges_tasks,
    reader_process,
)
from kcl_dagster.spark.row_types import RECORD_TYPE
from kcl_dagster.worker.batch import Range


@pytest.fixture
def spark() -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(environment={"TZ": "UTC"}))


def test_functions_within_have_a_process_of_their_own(spark: Any) -> None:
    with reader_process(spark, 1):
        assert spark.sparkContext.environment == {"TZ": "UTC", VARIABLE: "1"}
    assert spark.sparkContext.environment == {"TZ": "UTC"}


def test_another_thread_may_be_handing_a_function_over(spark: Any) -> None:
    """Py4J copies the environment name by name, with a request to the JVM for each."""
    before = iter(spark.sparkContext.environment)
    with reader_process(spark, 0):
        assert next(before) == "TZ"
        within = iter(spark.sparkContext.environment)
    assert list(within) == ["TZ", VARIABLE]


def test_what_another_thread_sets_meanwhile_stays(spark: Any) -> None:
    with reader_process(spark, 0):
        spark.sparkContext.environment["LANG"] = "C"
    assert spark.sparkContext.environment == {"TZ": "UTC", "LANG": "C"}


class Tasks:
    """A session, and a DataFrame of it. `mapped`: the numbers of the tasks of each function, and its process."""

    def __init__(self) -> None:
        self.sparkContext = SimpleNamespace(environment={})
        self.mapped: list[tuple[tuple[int, ...], str | None]] = []

    def range(self, *numbers: int) -> "Tasks":
        self._numbers = numbers
        return self

    def mapInArrow(self, *_: Any) -> "Tasks":  # noqa: N802 - Spark's name
        self.mapped.append((self._numbers, self.sparkContext.environment.get(VARIABLE)))
        return self

    def unionAll(self, _: "Tasks") -> "Tasks":  # noqa: N802 - Spark's name
        return self


def nothing(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return iter(())


def test_each_task_runs_in_its_process() -> None:
    session: Any = Tasks()
    FetchTasks(session, 2, (0, 3)).map(nothing, RECORD_TYPE)
    assert session.mapped == [((0, 1, 1, 1), "0"), ((1, 2, 1, 1), "3")]


def test_tasks_of_polling_run_anywhere() -> None:
    session: Any = Tasks()
    FetchTasks(session, 2).map(nothing, RECORD_TYPE)
    assert session.mapped == [((0, 2, 1, 2), None)]


def ranges(*leases: int) -> list[Range]:
    stream = StreamIdentifier("clicks")
    return [Range(LeaseKey(f"shard-{lease}"), stream, f"shard-{lease}", TRIM_HORIZON, 1) for lease in leases]


def divided(leases: SubscribedLeases, numbers: Sequence[int], wanted: int) -> list[list[int]]:
    shares = leases.divide(ranges(*numbers), wanted)
    return [[int(one.shard_id.rpartition("-")[2]) for one in share] for share in shares.values()]


def test_a_lease_stays_in_its_process_whatever_is_read_and_in_which_order() -> None:
    leases = SubscribedLeases()
    first = divided(leases, [0, 1, 2, 3], 2)
    assert first == [[0, 2], [1, 3]]
    assert divided(leases, [3, 2, 1, 0], 2) == [[2, 0], [3, 1]]
    assert divided(leases, [1, 0, 3], 2) == [[0], [1, 3]]
    assert divided(leases, [3], 1) == [[3]]
    assert divided(leases, [0, 1, 2, 3], 2) == first


def test_a_new_lease_gets_the_process_with_the_fewest() -> None:
    leases = SubscribedLeases()
    assert divided(leases, [0, 1, 2], 2) == [[0, 2], [1]]
    assert divided(leases, [0, 1, 2, 7], 2) == [[0, 2], [1, 7]]


def test_more_processes_are_used_at_once_and_fewer_only_after_a_while() -> None:
    leases = SubscribedLeases()
    assert len(divided(leases, range(4), 1)) == 1
    assert len(divided(leases, range(4), 2)) == 2
    counts = [len(divided(leases, range(4), 1)) for _ in range(FETCHES_UNTIL_CHANGE)]
    assert counts == [2] * (FETCHES_UNTIL_CHANGE - 1) + [1]


def test_a_load_that_varies_changes_no_process() -> None:
    leases = SubscribedLeases()
    first = divided(leases, range(4), 2)
    assert all(divided(leases, range(4), 1 + number % 2) == first for number in range(100))


def test_what_is_left_of_lost_leases_is_divided_anew() -> None:
    leases = SubscribedLeases()
    divided(leases, range(12), 2)
    found = [divided(leases, [0, 2, 4, 6], 2) for _ in range(FETCHES_UNTIL_CHANGE)]
    assert found == [[[0, 2, 4, 6]]] * (FETCHES_UNTIL_CHANGE - 1) + [[[0, 4], [2, 6]]], (
        "some fetches leave out leases"
    )


@pytest.mark.parametrize(("value", "merges"), [("true", True), ("false", False), (None, False)])
def test_a_session_that_merges_tasks_is_recognised(value: str | None, merges: bool) -> None:
    conf = SimpleNamespace(get=lambda _, default: default if value is None else value)
    session: Any = SimpleNamespace(conf=conf)
    assert merges_tasks(session) is merges
