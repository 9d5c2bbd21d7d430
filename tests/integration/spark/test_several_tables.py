"""A consumer that stores into several tables: each batch in all of them or in none, whatever formats they have."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import kcl_dagster as kcl
from kcl_dagster.errors import BatchError
from kcl_dagster.testing import consume, embedded_aws

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORDS = 900
KINDS = ["good" if number % 9 else "bad" for number in range(RECORDS)]
PAYLOADS = [json.dumps({"n": number, "kind": kind}).encode() for number, kind in enumerate(KINDS)]
FIELDS = "n long, kind string"


class Lake:
    """A Delta table, a folder of Parquet and an Iceberg table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.catalog = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"{path}/warehouse"}
        self.sinks = {
            "orders": kcl.delta(str(path / "orders")),
            "rejects": kcl.parquet(str(path / "rejects")),
            "journal": kcl.iceberg("lake.journal", self.catalog),
        }

    def numbers(self, name: str) -> list[int]:
        """What readers of one table see."""
        if name == "orders":
            is_there = DeltaTable.is_deltatable(str(self.path / name))
            rows = DeltaTable(str(self.path / name)).to_pyarrow_table() if is_there else None
        elif name == "rejects":
            files = list((self.path / name).glob("*.parquet"))
            rows = pa.concat_tables([pq.read_table(file) for file in files]) if files else None
        else:
            rows = SqlCatalog("default", **self.catalog).load_table("lake.journal").scan().to_arrow()
        return [] if rows is None else sorted(rows.column("n").to_pylist())

    def check(self) -> None:
        good, bad = self.numbers("orders"), self.numbers("rejects")
        assert Counter(good + bad) == Counter(range(RECORDS))
        assert all(number % 9 for number in good)
        assert self.numbers("journal") == list(range(RECORDS))


def consumer_of(
    sinks: Mapping[str, kcl.SinkChoice], transform: Callable[[DataFrame], Mapping[str, DataFrame]], **more: Any
) -> kcl.Consumer:
    return kcl.kcl_consumer(application="shop", stream="orders", sink=sinks, **more)(transform)


def by_kind(records: DataFrame) -> dict[str, DataFrame]:
    row = F.from_json(F.col("data").cast("string"), FIELDS).alias("row")
    parsed = records.select("lease_key", row, "arrival_timestamp").select("lease_key", "row.*", "arrival_timestamp")
    return {
        "orders": parsed.where("kind = 'good'"),
        "rejects": parsed.where("kind = 'bad'").drop("kind"),
        "journal": parsed.select("n"),
    }


def test_each_table_gets_its_rows_once(spark: SparkSession, tmp_path: Path) -> None:
    lake, calls = Lake(tmp_path), []

    def shop(records: DataFrame) -> dict[str, DataFrame]:
        calls.append(records)
        return by_kind(records)

    with embedded_aws(streams={"orders": 3}) as aws:
        half = RECORDS // 2
        for payloads in (PAYLOADS[:half], PAYLOADS[half:]):
            aws.put("orders", payloads)
            assert consume(consumer_of(lake.sinks, shop), aws.resource(), spark) == half
    lake.check()
    batches = len({id(records) for records in calls})
    assert len(calls) == batches, "the function runs once for each batch, not for each table"


def test_rows_that_are_divided_by_chance_are_in_one_table_each(spark: SparkSession, tmp_path: Path) -> None:
    """`rand()` has a seed of its own in each batch, which both tables use."""
    sinks = {"orders": kcl.delta(str(tmp_path / "orders")), "rejects": kcl.parquet(str(tmp_path / "rejects"))}

    def shop(records: DataFrame) -> dict[str, DataFrame]:
        drawn = by_kind(records)["journal"].withColumn("drawn", F.rand())
        return {"orders": drawn.where("drawn < 0.5"), "rejects": drawn.where("drawn >= 0.5")}

    with embedded_aws(streams={"orders": 3}) as aws:
        aws.put("orders", PAYLOADS)
        assert consume(consumer_of(sinks, shop), aws.resource(), spark) == RECORDS
    lake = Lake(tmp_path)
    orders, rejects = lake.numbers("orders"), lake.numbers("rejects")
    assert min(len(orders), len(rejects)) > RECORDS // 4
    assert sorted(orders + rejects) == list(range(RECORDS))


def test_rows_that_are_divided_by_the_current_time_are_in_one_table_each(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All tables are written by one job of Spark, which has one `current_timestamp()`."""
    sinks = {"orders": kcl.delta(str(tmp_path / "orders")), "rejects": kcl.parquet(str(tmp_path / "rejects"))}

    def shop(records: DataFrame) -> dict[str, DataFrame]:
        microsecond = (F.unix_micros(F.current_timestamp()) + F.col("n")) % 2
        drawn = by_kind(records)["journal"].withColumn("drawn", microsecond)
        return {"orders": drawn.where("drawn = 0"), "rejects": drawn.where("drawn = 1")}

    lake = Lake(tmp_path)
    with embedded_aws(streams={"orders": 1}) as aws:
        for batch in range(6):  # by jobs of their own, each second batch would be in one table twice
            aws.put("orders", [json.dumps({"n": 2 * batch + odd}).encode() for odd in (0, 1)])
            assert consume(consumer_of(sinks, shop), aws.resource(), spark) == 2
    assert sorted(lake.numbers("orders") + lake.numbers("rejects")) == list(range(12))


def test_the_error_names_the_table_that_refused_a_row(spark: SparkSession, tmp_path: Path) -> None:
    write_deltalake(
        tmp_path / "second",
        pa.table({"n": pa.array([1], pa.int64())}, schema=pa.schema([pa.field("n", pa.int64(), nullable=False)])),
    )
    sinks = {"first": kcl.parquet(str(tmp_path / "first")), "second": kcl.delta(str(tmp_path / "second"))}

    def shop(records: DataFrame) -> dict[str, DataFrame]:
        return {"first": records, "second": records.select(F.lit(None).cast("long").alias("n"))}

    with embedded_aws(streams={"orders": 1}) as aws:
        aws.put("orders", PAYLOADS[:3])
        with pytest.raises(BatchError, match="second") as failed:
            consume(consumer_of(sinks, shop), aws.resource(), spark)
        assert "first" not in str(failed.value)
    assert not list((tmp_path / "first").rglob("*.parquet")), "what was staged for the first table is removed"


def refuses_journal(path: Path, sinks: dict[str, kcl.SinkChoice]) -> None:
    """The last table takes no column `n`."""
    write_deltalake(path / "journal", pa.table({"m": pa.array([], pa.string())}))
    sinks["journal"] = kcl.delta(str(path / "journal"))


def test_what_one_table_refuses_is_in_none_of_them(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    sinks = dict(lake.sinks)
    refuses_journal(tmp_path, sinks)
    with embedded_aws(streams={"orders": 2}) as aws:
        aws.put("orders", PAYLOADS)
        with pytest.raises(BatchError, match="journal"):
            consume(consumer_of(sinks, by_kind), aws.resource(), spark)
        assert lake.numbers("orders") == lake.numbers("rejects") == []
        left = [path for name in ("orders", "rejects") for path in (tmp_path / name).rglob("*.parquet")]
        assert left == [], "what was staged for the tables before it is removed"
        assert consume(consumer_of(lake.sinks, by_kind), aws.resource(), spark) == RECORDS
    lake.check()


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (lambda records: records, "a dict with a DataFrame for each table of the sink: orders, rejects"),
        (lambda records: {"orders": records}, "it has no rejects"),
        (lambda records: {"orders": records, "rejects": records, "others": records}, "the sink has no others"),
        (
            lambda records: {"orders": records, "rejects": None},
            "rejects is of type NoneType. For a batch without rows of a table, return an empty DataFrame",
        ),
    ],
)
def test_a_wrong_output_fails_the_batch_in_one_line(
    output: Callable[[DataFrame], Any], problem: str, spark: SparkSession, tmp_path: Path
) -> None:
    sinks = {name: kcl.parquet(str(tmp_path / name)) for name in ("orders", "rejects")}
    with embedded_aws(streams={"orders": 1}) as aws:
        aws.put("orders", PAYLOADS[:3])
        with pytest.raises(BatchError) as failed:
            consume(consumer_of(sinks, output), aws.resource(), spark)
    assert problem in str(failed.value)
    assert list(tmp_path.rglob("*.parquet")) == []


def test_an_output_without_rows_is_no_file(spark: SparkSession, tmp_path: Path) -> None:
    sinks = {name: kcl.parquet(str(tmp_path / name)) for name in ("orders", "rejects")}

    def shop(records: DataFrame) -> dict[str, DataFrame]:
        return {"orders": records, "rejects": records.where("false")}

    with embedded_aws(streams={"orders": 2}) as aws:
        aws.put("orders", PAYLOADS[:50])
        assert consume(consumer_of(sinks, shop), aws.resource(), spark) == 50
    stored = [pq.read_table(path).num_rows for path in (tmp_path / "orders").glob("*.parquet")]
    assert sum(stored) == 50
    assert list((tmp_path / "rejects").glob("*.parquet")) == []
