"""Records of a fetch whose DataFrame is made when somebody needs it."""

from typing import Any

from kcl_dagster.spark.origins import made, origin_of, promised


def test_a_promise_is_kept_once_and_stands_for_what_it_promised() -> None:
    calls: list[object] = []

    class Frame:
        columns = ["data"]

    def make() -> Any:
        calls.append(None)
        return Frame()

    records = promised(make, "where from")
    assert (origin_of(records), calls) == ("where from", [])
    assert records.columns == ["data"]
    assert made(records) is made(records)
    assert len(calls) == 1
    assert made(made(records)) is made(records)
