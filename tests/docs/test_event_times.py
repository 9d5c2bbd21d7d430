"""The time that the page on windows takes from a record."""

from pyspark.sql import SparkSession

from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/windows.md"


def test_a_text_that_is_no_time_does_not_fail_the_batch(spark: SparkSession) -> None:
    """Spark casts in ANSI mode: a failed cast raises an error, and with it the record keeps its shard back."""
    lines = [line.strip() for block in blocks(PAGE) for line in block.text.splitlines()]
    [line] = [line for line in lines if line.startswith("at = ")]
    texts = ['{"at": "2026-11-22T10:00:00"}', '{"at": "yesterday"}', '{"at": "1795412933000"}', "{}", "no JSON"]
    records = spark.createDataFrame([(bytearray(text, "utf-8"),) for text in texts], "data binary")
    times = [row["at"] for row in records.selectExpr(line.split('"')[1]).collect()]
    assert [time and time.isoformat() for time in times] == ["2026-11-22T10:00:00", None, None, None, None]
