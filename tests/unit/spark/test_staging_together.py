"""Stagings of several sinks that share a job: what becomes of the others where one of them fails."""

from collections.abc import Callable
from typing import Any

import pytest

from kcl_dagster.errors import SinkError
from kcl_dagster.spark.sinks.staging_job import Staging, together


@pytest.fixture(autouse=True)
def frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame is the list of the rows of its manifest."""
    monkeypatch.setattr("pyspark.sql.functions.lit", lambda name: name)


class Frame(list[dict[str, Any]]):
    def withColumn(self, column: str, value: str) -> "Frame":  # noqa: N802 - Spark's name
        return Frame([{**row, column: value} for row in self])

    def unionAll(self, other: "Frame") -> "Frame":  # noqa: N802 - Spark's name
        return Frame([*self, *other])


def sink(name: str, end: BaseException | None = None, at_close: Exception | None = None) -> Staging[str]:
    frame: Any = Frame([{"path": name}])
    try:
        manifest = yield frame
    except GeneratorExit:
        if at_close is not None:
            raise at_close from None
        raise
    if end is not None:
        raise end
    return ",".join(row["path"] for row in manifest)


def run(stagings: dict[str, Staging[str]], job: Callable[[Any], Any] = list) -> tuple[dict[str, str], list[str]]:
    discarded: list[str] = []
    all_of_them = together(stagings, lambda name, _: discarded.append(name))
    try:
        frame = next(all_of_them)
        try:
            rows = job(frame)
        except BaseException as error:
            all_of_them.throw(error)
            raise
        all_of_them.send(rows)
    except StopIteration as end:
        return end.value, discarded
    except BaseException as error:
        error.add_note(",".join(discarded))
        raise
    raise AssertionError("there is one job")


def test_each_sink_gets_the_manifest_of_its_own_files() -> None:
    assert run({"": sink("a"), "b": sink("b")}) == ({"": "a", "b": "b"}, [])


def test_what_was_staged_is_discarded_where_another_sink_fails_after_the_job() -> None:
    with pytest.raises(SinkError, match="refused") as failed:
        run({"": sink("a"), "b": sink("b", SinkError("refused")), "c": sink("c")})
    assert failed.value.__notes__ == [",c"]


def test_an_interrupt_is_not_lost_behind_an_error() -> None:
    with pytest.raises(KeyboardInterrupt):
        run({"": sink("a", SinkError("refused")), "b": sink("b", KeyboardInterrupt())})


def test_a_clean_up_that_fails_hides_neither_the_error_nor_the_clean_up_of_others() -> None:
    def job(_: Any) -> Any:
        raise ValueError("the job failed")

    closed: list[str] = []

    def last() -> Staging[str]:
        frame: Any = Frame()
        try:
            yield frame
        finally:
            closed.append("last")
        return ""

    with pytest.raises(ValueError, match="the job failed"):
        run({"": sink("a"), "b": sink("b", at_close=RuntimeError("cannot delete")), "c": last()}, job)
    assert closed == ["last"]
