"""Records that are published as they were written: Spark has no part in it."""

from pathlib import Path
from typing import Any

import pytest

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.drafts import Draft, Drafted
from kcl_dagster.spark.origins import made, origin_of, promised
from kcl_dagster.spark.sinks.writing import write_files
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.spark.transform import unchanged


class NoSpark:
    """A session that makes nothing."""

    def range(self, *_: Any) -> Any:
        raise AssertionError("nobody needs a DataFrame")


def test_drafts_are_published_without_a_dataframe(tmp_path: Path) -> None:
    store, lease = LocalStore(str(tmp_path)), LeaseKey("a")
    store.put("_drafts/x.draft", b"records")
    session: Any = NoSpark()
    drafted = Drafted(session, store, {lease: Draft("_drafts/x.draft", 3, 7)})
    written = write_files(drafted.records(), unchanged, store, {lease: "a.parquet"})
    assert store.get("a.parquet") == b"records"
    assert [(file.path, file.rows) for file in written.files] == [("a.parquet", 3)]
    with pytest.raises(AssertionError, match="nobody needs"):
        made(drafted.records())


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
