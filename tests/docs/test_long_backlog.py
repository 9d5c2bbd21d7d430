"""The function with which readers read both folders while an application catches up."""

from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/several-applications.md"
COLUMNS = (
    "shard_id string, sequence_number string, sub_sequence_number long, arrival_timestamp timestamp, json string"
)


def each_click_once() -> Any:
    known: dict[str, Any] = {}
    [block] = [block for block in blocks(PAGE) if "def each_click_once" in block.text]
    exec("from pyspark.sql import functions as F\n" + block.text, known)
    return known["each_click_once"]


def row(shard: str, number: str, hour: int, place: int = 0) -> tuple[Any, ...]:
    return shard, number, place, datetime(2026, 11, 22, hour, tzinfo=UTC), f"{shard} {number} {place}"


def test_a_record_that_is_in_both_folders_is_read_once(spark: SparkSession) -> None:
    stored = [row("a", "1", 1), row("a", "2", 9), row("a", "2", 9, place=1), row("b", "1", 2)]
    newest = [row("a", "2", 9), row("a", "2", 9, place=1), row("a", "3", 9), row("b", "2", 10)]
    found = each_click_once()(spark.createDataFrame(stored, COLUMNS), spark.createDataFrame(newest, COLUMNS))
    assert sorted(
        tuple(one) for one in found.select("shard_id", "sequence_number", "sub_sequence_number").collect()
    ) == [
        ("a", "1", 0),
        ("a", "2", 0),
        ("a", "2", 1),
        ("a", "3", 0),
        ("b", "1", 0),
        ("b", "2", 0),
    ]


def test_before_the_second_application_has_stored_anything_all_records_come_from_the_first(
    spark: SparkSession,
) -> None:
    stored = spark.createDataFrame([row("a", "1", 1)], COLUMNS)
    assert each_click_once()(stored, spark.createDataFrame([], COLUMNS)).count() == 1
