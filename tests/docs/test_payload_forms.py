"""What the page on formats says of forms of payloads for which no helper exists."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import kcl_dagster as kcl
from kcl_dagster.decoding import with_json
from kcl_dagster.testing import records
from tests.docs.pages import ROOT, blocks
from tests.docs.protobuf import CLICK_DESCRIPTOR

pytestmark = pytest.mark.spark


@pytest.fixture
def consumers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Those of the page, by their names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "click.desc").write_bytes(CLICK_DESCRIPTOR)
    known: dict[str, Any] = {"__name__": "page_formats"}
    for block in blocks(ROOT / "docs/how-to/formats.md"):
        if block.language == "python":
            exec(block.text, known)
    return {one.application.name: one for one in known.values() if isinstance(one, kcl.Consumer)}


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.drop("arrival_timestamp").collect()]


def test_fields_that_the_schema_does_not_name_are_kept_as_text(
    spark: SparkSession, consumers: dict[str, Any]
) -> None:
    given = records(spark, [b'{"user": "ann", "page": "/", "n": 7, "more": {"x": [1]}}', b'{"user": "bo"}'])
    (ann, page, rest), bo = rows(consumers["clicks-rest"](given))
    assert (ann, page) == ("ann", "/")
    assert json.loads(rest) == {"n": "7", "more": '{"x":[1]}'}
    assert bo == ("bo", None, "{}")


def test_joined_objects_become_rows(spark: SparkSession, consumers: dict[str, Any]) -> None:
    given = records(spark, [b'{"user": "ann{}"}{"user": "bo"} \n{"user": "cy"}\n', b'{"user": "di"}'])
    assert rows(consumers["clicks-joined"](given)) == [("ann{}", None), ("bo", None), ("cy", None), ("di", None)]


def test_prefixes_of_a_registry_are_removed(spark: SparkSession, consumers: dict[str, Any]) -> None:
    prefix = b"\x00\x00\x00\x00\x07"
    click = b"\x0a\x03ann\x12\x01/"
    framed = records(spark, [prefix + b"\x00" + click, prefix + b"\x02\x02" + click, click])
    assert rows(consumers["clicks-framed"](framed)) == [("ann", "/"), (None, None), (None, None)]
    of_json_schema = records(spark, [prefix + b'{"user": "ann", "page": "/"}'])
    assert rows(consumers["clicks-json-schema"](of_json_schema)) == [("ann", "/")]


def test_milliseconds_become_times(spark: SparkSession) -> None:
    given = records(spark, [b'{"at": 1700000000123}'])
    found = with_json(given, "at bigint").selectExpr("cast(timestamp_millis(value.at) as double) as at")
    assert rows(found) == [(1700000000.123,)]
    wrong = with_json(given, "at timestamp").selectExpr("cast(value.at as double) as at")
    assert rows(wrong) == [(1700000000123.0,)]
