"""Batches for tables that are decided in chains, in Spark: what the table says of its rows holds for each."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import ArrayType, PrimitiveType, StructType
from pyarrow import parquet
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.aws import client
from kcl_dagster.chains.entry import FIRST, PublishingEntry
from kcl_dagster.emulator import Emulator, Endpoint
from kcl_dagster.errors import ConfigurationError, SinkError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.spark.sinks.delta import DeltaSink
from kcl_dagster.spark.sinks.delta_log import delta_options
from kcl_dagster.spark.sinks.iceberg import IcebergSink
from kcl_dagster.spark.sinks.table_columns import decoded_schema
from kcl_dagster.spark.sinks.table_sink import TableSink
from kcl_dagster.spark.storage import S3Options
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.error_class import ErrorClass, class_of
from kcl_dagster.worker.staging import StagedBatch
from kcl_dagster.worker.table_committer import ChainedTable
from tests.integration.spark.conftest import GENEROUS, batch_of, new_engine, new_stream

pytestmark = pytest.mark.spark

APPLICATION = "app"
CHAIN = ChainId("app-1234~w1-1")
SHARDS, RECORDS = 16, 320


@pytest.fixture(scope="module")
def fetched(aws: Emulator, spark: SparkSession, connection: Connection) -> Iterator[tuple[Batch, Any]]:
    """A batch of many shards, which may be stored as often as one likes."""
    with new_stream(aws, SHARDS) as stream, new_engine(spark, connection) as engine:
        stream.produce(RECORDS)
        read = engine.fetch(stream.ranges(), GENEROUS)
        while sum(progress.records for progress in read.progress.values()) < RECORDS:  # on a busy machine
            read.release()
            read = engine.fetch(stream.ranges(), GENEROUS)
        yield batch_of(list(read.progress.values())), read
        read.release()


KINDS = ["delta", "iceberg"]


def catalog(path: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": str(path)}


def sink_of(kind: str, path: Path, **settings: Any) -> TableSink:
    if kind == "delta":
        return DeltaSink(str(path), **settings)
    return IcebergSink("lake.clicks", catalog(path), **settings)


def stage(sink: TableSink, fetched: tuple[Batch, Any], number: int = 1) -> StagedBatch:
    batch, read = fetched
    return sink.stage(read.data([part.lease for part in batch.parts]), batch, CHAIN, number)


def table_of(sink: TableSink) -> ChainedTable:
    commits = sink.destinations[FIRST].commits
    assert commits is not None
    return commits.table


def commit(sink: TableSink, number: int, *batches: StagedBatch) -> None:
    entries = [PublishingEntry("1", batch.files, (), rules=batch.rules) for batch in batches]
    table_of(sink).commit(APPLICATION, number, entries, WrittenThrough(1_700_000_000))


def rows(path: Path, kind: str = "delta") -> pa.Table:
    if kind == "delta":
        return pa.table(DeltaTable(str(path)).to_pyarrow_table())
    return CatalogTable("lake.clicks", catalog(path)).catalog.load_table("lake.clicks").scan().to_arrow()


def stored(batch: StagedBatch) -> list[str]:
    """The columns of a batch that is not in the table yet."""
    assert batch.rules is not None
    return list(decoded_schema(batch.rules.schema).names)


def numbered(records: DataFrame) -> DataFrame:
    """Not deterministic, and its rows do not say which lease they are of."""
    return records.select(
        F.substring(F.col("data").cast("string"), 1, 8).cast("int").alias("n"),
        F.rand().alias("chance"),
        F.current_timestamp().alias("at"),
        F.when(F.rand() < 0.5, "a").otherwise("b").alias("kind"),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_stored_as_they_were_read(fetched: tuple[Batch, Any], tmp_path: Path, kind: str) -> None:
    sink = sink_of(kind, tmp_path)
    first, second = stage(sink, fetched), stage(sink, fetched, 2)
    assert 1 <= len(first.files) <= 2, "a file for each task, whatever the shards"
    assert rows(tmp_path, kind).num_rows == 0
    commit(sink, 1, first)
    commit(sink, 1, first)  # once more, as by another worker
    found = rows(tmp_path, kind)
    assert Counter(int(data[:8]) for data in found["data"].to_pylist()) == Counter(range(RECORDS))
    commit(sink, 2, second)
    assert rows(tmp_path, kind).num_rows == 2 * RECORDS


@pytest.mark.parametrize("kind", KINDS)
def test_the_transform_may_be_any_function_and_partitions_have_their_values(
    fetched: tuple[Batch, Any], tmp_path: Path, kind: str
) -> None:
    sink = sink_of(kind, tmp_path, transform=numbered, partition_by=["kind", "day(at)"])
    for number in (1, 2):
        batch = stage(sink, fetched, number)
        assert 2 <= len(batch.files) <= 8
        commit(sink, number, batch)
    found = rows(tmp_path, kind)
    assert Counter(found["n"].to_pylist()) == Counter([*range(RECORDS)] * 2)
    assert set(found["kind"].to_pylist()) == {"a", "b"}
    if kind == "iceberg":
        return  # partitions of its own spec have no columns
    days = {f"{datetime.now(UTC):%Y-%m-%d}"} | {str(at.date()) for at in found["at"].to_pylist()}
    assert set(map(str, found["at_day"].to_pylist())) <= days
    table = DeltaTable(str(tmp_path))
    assert table.metadata().partition_columns == ["kind", "at_day"]
    sizes = pa.table(table.get_add_actions(flatten=True))["num_records"].to_pylist()
    assert sum(sizes) == 2 * RECORDS


def test_rows_that_violate_a_constraint_are_the_failure_of_their_batch_before_the_decision(
    fetched: tuple[Batch, Any], tmp_path: Path
) -> None:
    sink = DeltaSink(str(tmp_path), transform=numbered)
    commit(sink, 1, stage(sink, fetched))
    DeltaTable(str(tmp_path)).alter.add_constraint({"small": f"n < {RECORDS}"})
    held = stage(sink, fetched, 2)
    assert held.rules is not None
    assert set(held.rules.conditions) == {"small"}
    commit(sink, 2, held)
    strict = DeltaSink(str(tmp_path), transform=lambda records: numbered(records).withColumn("n", F.lit(10**6)))
    with pytest.raises(Exception, match="violates the constraint small") as caught:
        stage(strict, fetched, 3)
    assert class_of(caught.value) is ErrorClass.CODE
    assert rows(tmp_path).num_rows == 2 * RECORDS


def with_generated(path: Path, field: Field) -> None:
    DeltaTable.create(str(path), Schema([Field("n", PrimitiveType("integer")), field]))


NESTED = ArrayType(StructType([Field("user-agent", PrimitiveType("string"))]), contains_null=True)
REQUIRED = StructType([Field("y", ArrayType(PrimitiveType("long"), contains_null=False), nullable=False)])


@pytest.mark.parametrize(
    ("name", "kind", "sql"),
    [
        ("agents", NESTED, "array(named_struct('user-agent', cast(n as string)))"),
        ("s", REQUIRED, "named_struct('y', array(coalesce(n, 0)))"),
        ("a`b", PrimitiveType("long"), "cast(n as bigint)"),
        ("amount", PrimitiveType("decimal(20,3)"), "cast(n as decimal(20,3))"),
        ("at", PrimitiveType("timestamp_ntz"), "cast(date_add(date'2026-01-01', n) as timestamp_ntz)"),
    ],
)
def test_a_generated_column_of_any_type_and_name_is_computed_and_compared(
    fetched: tuple[Batch, Any], tmp_path: Path, name: str, kind: Any, sql: str
) -> None:
    with_generated(tmp_path, Field(name, kind, metadata={"delta.generationExpression": sql}))
    lacking = sink_of("delta", tmp_path, transform=lambda records: numbered(records).select("n"))
    commit(lacking, 1, stage(lacking, fetched))
    given = numbered(fetched[1].data([part.lease for part in fetched[0].parts]).frame).selectExpr(
        "n", f"{sql} as c"
    )
    expected = {row["n"]: row["c"] for row in given.toArrow().to_pylist()}
    assert {row["n"]: row[name] for row in rows(tmp_path).to_pylist()} == expected

    def other(records: DataFrame) -> DataFrame:
        return numbered(records).selectExpr("n").withColumn(name, F.expr(f"if(n = 7, null, {sql})"))

    strange = sink_of("delta", tmp_path, transform=other)
    with pytest.raises(Exception, match="violates the constraint"):
        stage(strange, fetched, 2)


def test_a_generated_column_that_can_be_null_where_its_type_is_not_is_refused_by_its_name(
    fetched: tuple[Batch, Any], tmp_path: Path
) -> None:
    with_generated(
        tmp_path, Field("s", REQUIRED, metadata={"delta.generationExpression": "named_struct('y', array(n))"})
    )
    lacking = sink_of("delta", tmp_path, transform=lambda records: numbered(records).select("n"))
    with pytest.raises(SinkError, match=r"do not fit: s \("):
        stage(lacking, fetched)


def test_columns_that_the_table_does_not_have_are_refused_before_the_decision(
    fetched: tuple[Batch, Any], tmp_path: Path
) -> None:
    sink = DeltaSink(str(tmp_path), transform=numbered)
    commit(sink, 1, stage(sink, fetched))
    wider = DeltaSink(str(tmp_path), transform=lambda records: numbered(records).withColumn("more", F.lit(1)))
    with pytest.raises(SinkError, match=r"more \(not in the table\)"):
        stage(wider, fetched, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_added_or_left_out_as_the_sink_says(
    fetched: tuple[Batch, Any], tmp_path: Path, kind: str
) -> None:
    def wider(records: DataFrame) -> DataFrame:
        return numbered(records).withColumn("more", F.struct(F.lit(1).alias("x"), F.array(F.lit("y")).alias("ys")))

    first = stage(sink_of(kind, tmp_path, transform=numbered), fetched)  # it is decided, and not in the table yet
    assert "more" not in stored(stage(sink_of(kind, tmp_path, transform=wider, evolve="ignore"), fetched, 2))
    sink = sink_of(kind, tmp_path, transform=wider, evolve="add")
    second, third = stage(sink, fetched, 3), stage(sink, fetched, 4)
    commit(sink, 1, first, second)
    commit(sink, 2, third)
    found = rows(tmp_path, kind)["more"].to_pylist()
    assert found.count(None) == RECORDS, "of the batch that was decided before the column was there"
    assert found.count({"x": 1, "ys": ["y"]}) == 2 * RECORDS


@pytest.mark.parametrize("kind", KINDS)
def test_columns_without_a_type_are_left_out_until_they_have_one(
    fetched: tuple[Batch, Any], tmp_path: Path, kind: str
) -> None:
    """Delta made a column from which all typed values were refused, and Iceberg refused the batch."""

    def noted(note: str) -> Any:
        return lambda records: numbered(records).withColumn("a.note", F.expr(note))

    sink = sink_of(kind, tmp_path, transform=noted("null"))
    first, second = stage(sink, fetched), stage(sink, fetched, 2)
    assert stored(first) == stored(second) == ["n", "chance", "at", "kind"]
    commit(sink, 1, first, second)
    with pytest.raises(SinkError, match=r"\['a.note'\] leave open what is in them"):
        stage(sink_of(kind, tmp_path, transform=noted("array(null)"), evolve="add"), fetched, 3)
    commit(sink, 2, stage(sink_of(kind, tmp_path, transform=noted("'x'"), evolve="add"), fetched, 4))
    assert stored(stage(sink, fetched, 5)) == ["n", "chance", "at", "kind", "a.note"], "the table has the column"
    assert Counter(rows(tmp_path, kind)["a.note"].to_pylist()) == {None: 2 * RECORDS, "x": RECORDS}


@pytest.mark.parametrize("key", ["key", "n"])
def test_a_key_without_a_type_is_refused_before_the_decision(
    fetched: tuple[Batch, Any], tmp_path: Path, key: str
) -> None:
    sink = merging(tmp_path, transform=lambda records: changes(records).withColumn(key, F.lit(None)))
    with pytest.raises(SinkError, match=rf"names \[?'{key}'\]?, which has no type"):
        stage(sink, fetched)


def test_a_name_with_a_dot_is_the_column_of_this_name(fetched: tuple[Batch, Any], tmp_path: Path) -> None:
    """Without quotes, it was an error, or the field of a struct was stored."""
    DeltaTable.create(str(tmp_path), pa.schema([("n", pa.int64()), ("a.b", pa.string())]))

    def dotted(records: DataFrame) -> DataFrame:
        nested = F.struct(F.lit("of the struct").alias("b")).alias("a")
        return numbered(records).select("n", F.lit("of the column").alias("a.b"), nested)

    sink = DeltaSink(str(tmp_path), transform=dotted, evolve="ignore")
    commit(sink, 1, stage(sink, fetched))
    assert set(rows(tmp_path)["a.b"].to_pylist()) == {"of the column"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_that_the_table_cannot_hold_is_refused_or_widened(
    fetched: tuple[Batch, Any], tmp_path: Path, kind: str
) -> None:
    def typed(sql: str) -> Any:
        return lambda records: numbered(records).select(F.expr(sql))

    sink = sink_of(kind, tmp_path, transform=typed("cast(n as int) as n"))
    commit(sink, 1, stage(sink, fetched))
    long = sink_of(kind, tmp_path, transform=typed("cast(n as bigint) + 5000000000 as n"), evolve="add")
    if kind == "delta":  # delta-rs widens no column
        with pytest.raises(SinkError, match=r"n \(int64, and int32 in the table\)"):
            stage(long, fetched, 2)
    else:
        commit(long, 2, stage(long, fetched, 2))
        assert sorted(rows(tmp_path, kind)["n"].to_pylist())[RECORDS:] == [*range(5 * 10**9, 5 * 10**9 + RECORDS)]
    strange = sink_of(kind, tmp_path, transform=typed("cast(n as string) as n"), evolve="add")
    with pytest.raises(SinkError, match="string"):
        stage(strange, fetched, 3)


@pytest.mark.parametrize("evolve", ["add", "ignore"])
def test_a_column_that_differs_in_case_only_is_refused(
    fetched: tuple[Batch, Any], tmp_path: Path, evolve: str
) -> None:
    def named(name: str) -> Any:
        return lambda records: numbered(records).select(F.col("n").alias(name), F.lit(1).alias("other"))

    sink = sink_of("delta", tmp_path, transform=named("n"))
    commit(sink, 1, stage(sink, fetched))
    strange = sink_of("delta", tmp_path, transform=named("N"), evolve=evolve)
    with pytest.raises(SinkError, match="column N of the output differs from n of the table in case only"):
        stage(strange, fetched, 2)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("merge_on", [(), ("n",)])
@pytest.mark.parametrize("kind", KINDS)
def test_two_names_that_differ_in_case_only_are_refused_before_there_is_a_table(
    fetched: tuple[Batch, Any], tmp_path: Path, kind: str, merge_on: tuple[str, ...], nested: bool
) -> None:
    def named(records: DataFrame) -> DataFrame:
        twins = [F.lit("a").alias("Note"), F.lit("b").alias("note")]
        return numbered(records).select("n", *([F.struct(*twins).alias("s")] if nested else twins))

    sink = sink_of(kind, tmp_path, transform=named, merge_on=merge_on)
    place = "s." if nested else ""
    with pytest.raises(SinkError, match=rf"column {place}note of the output differs from {place}Note in case only"):
        stage(sink, fetched)
    assert table_of(sink).committed(APPLICATION) == 0
    assert files_below(tmp_path) == []
    assert not list(tmp_path.rglob("*metadata.json")) + list(tmp_path.rglob("_delta_log"))


def test_files_of_an_iceberg_table_are_sorted_by_its_order(fetched: tuple[Batch, Any], tmp_path: Path) -> None:
    sink = sink_of("iceberg", tmp_path, transform=numbered, partition_by=["kind"])
    commit(sink, 1, stage(sink, fetched))
    lake = CatalogTable("lake.clicks", catalog(tmp_path)).catalog
    with lake.load_table("lake.clicks").update_sort_order() as order:
        order.desc("n", IdentityTransform(), NullOrder.NULLS_LAST)
    commit(sink, 2, stage(sink, fetched, 2))
    files = lake.load_table("lake.clicks").inspect.files().to_pylist()
    assert Counter(file["sort_order_id"] for file in files).keys() == {None, 1}
    for file in files:
        numbers = parquet.read_table(file["file_path"].removeprefix("file://"))["n"].to_pylist()
        assert (numbers == sorted(numbers, reverse=True)) == (file["sort_order_id"] == 1)
    assert Counter(rows(tmp_path, "iceberg")["n"].to_pylist()) == Counter([*range(RECORDS)] * 2)


def test_a_batch_without_rows_makes_no_table(fetched: tuple[Batch, Any], tmp_path: Path) -> None:
    path = tmp_path / "table"
    sink = DeltaSink(str(path), transform=lambda records: numbered(records).where("n < 0"))
    batch = stage(sink, fetched)
    assert (batch.files, batch.rules) == ((), None)
    assert not DeltaTable.is_deltatable(str(path))
    assert table_of(sink).committed(APPLICATION) == 0


def files_below(path: Path) -> list[Path]:
    return sorted(path.rglob("*.parquet"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_is_not_what_was_read_leaves_no_files(
    fetched: tuple[Batch, Any], tmp_path: Path, kind: str
) -> None:
    batch, read = fetched
    sink = sink_of(kind, tmp_path)
    fewer = replace(batch, parts=tuple(replace(part, records=part.records + 1) for part in batch.parts))
    with pytest.raises(SinkError, match="would be stored in 320 rows"):
        sink.stage(read.data([part.lease for part in batch.parts]), fewer, CHAIN, 1)
    assert files_below(tmp_path) == []


def changes(records: DataFrame) -> DataFrame:
    """Sixteen keys, whose last change is the one with the highest `n`. Every third one of these deletes."""
    numbers = records.select(F.substring(F.col("data").cast("string"), 1, 8).cast("int").alias("n"))
    key = (F.col("n") % 16).cast("long").alias("key")
    deletes = (F.col("n") % 16 % 3 == 0) & (F.col("n") >= RECORDS - 16)
    name = F.when(~deletes, F.concat(F.lit("name "), F.col("n").cast("string"))).alias("name")
    return numbers.select(key, "n", name, F.when(deletes, "D").alias("op"), F.lit("x").alias("kind"))


def merging(path: Path, kind: str = "delta", **more: Any) -> TableSink:
    settings = {"transform": changes, "merge_on": ["key"], "delete_when": "op = 'D'", "order_by": "n", **more}
    return sink_of(kind, path, **settings)


def current(path: Path, kind: str = "delta") -> dict[int, tuple[int, str]]:
    return {row["key"]: (row["n"], row["name"]) for row in rows(path, kind).to_pylist()}


LAST = {n % 16: (n, f"name {n}") for n in range(RECORDS - 16, RECORDS) if n % 16 % 3}


@pytest.mark.parametrize("kind", KINDS)
def test_change_rows_update_insert_and_delete(fetched: tuple[Batch, Any], tmp_path: Path, kind: str) -> None:
    sink = merging(tmp_path, kind, partition_by=["kind"])
    first, second = stage(sink, fetched), stage(sink, fetched, 2)
    assert all(file.path.startswith("_staged/") for file in first.files)
    for number, batch in ((1, first), (1, first), (2, second)):
        commit(sink, number, batch)
        assert current(tmp_path, kind) == LAST
    assert rows(tmp_path, kind).num_rows == len(LAST)
    [folder] = {path.parent.name for path in files_below(tmp_path)} - {"_staged"}
    assert folder == "kind=x"


def test_change_rows_are_applied_on_s3(fetched: tuple[Batch, Any], sidecar: Endpoint) -> None:
    bucket = f"bucket-{random.getrandbits(40):x}"
    s3 = S3Options("us-east-1", sidecar.url, access_key="test", secret_key="test")
    requests = client("s3", region="us-east-1", endpoint_url=sidecar.url, access_key="test", secret_key="test")
    requests.create_bucket(Bucket=bucket)
    root = f"s3://{bucket}/some/table"
    sink = DeltaSink(root, s3=s3, transform=changes, merge_on=["key"], delete_when="op = 'D'", order_by="n")
    for number in (1, 2):
        commit(sink, number, stage(sink, fetched, number))
        found = DeltaTable(root, storage_options=delta_options(s3)).to_pyarrow_table().to_pylist()
        assert {row["key"]: (row["n"], row["name"]) for row in found} == LAST
    assert [file.path for file in sink.stores_into[0].files("_staged/", hidden=True)] == []


def test_change_rows_fulfil_the_rules_of_a_table_unless_they_delete(
    fetched: tuple[Batch, Any], tmp_path: Path
) -> None:
    fields = [("key", pa.int64()), ("n", pa.int32()), pa.field("name", pa.string(), nullable=False)]
    DeltaTable.create(str(tmp_path), pa.schema(fields)).alter.add_constraint({"named": "name > 'a'"})
    sink = merging(tmp_path, evolve="ignore")  # op and kind are left out, and the predicate sees them
    commit(sink, 1, stage(sink, fetched))
    assert current(tmp_path) == LAST
    nameless = merging(tmp_path, evolve="ignore", delete_when=None)
    with pytest.raises(Exception, match="violates the constraint") as caught:
        stage(nameless, fetched, 2)
    assert class_of(caught.value) is ErrorClass.CODE


def test_change_rows_fulfil_the_rules_of_an_iceberg_table(fetched: tuple[Batch, Any], tmp_path: Path) -> None:
    lake = CatalogTable("lake.clicks", catalog(tmp_path)).catalog
    lake.create_namespace("lake")
    fields = [("key", pa.int64()), ("n", pa.int32()), pa.field("name", pa.string(), nullable=False)]
    lake.create_table("lake.clicks", pa.schema(fields))
    sink = merging(tmp_path, "iceberg", evolve="ignore")
    commit(sink, 1, stage(sink, fetched))
    assert current(tmp_path, "iceberg") == LAST
    nameless = merging(tmp_path, "iceberg", evolve="ignore", delete_when=None)
    with pytest.raises(Exception, match="violates the constraint name NOT NULL") as caught:
        stage(nameless, fetched, 2)
    assert class_of(caught.value) is ErrorClass.CODE


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_change_rows_are_added_to_the_table(
    fetched: tuple[Batch, Any], tmp_path: Path, kind: str
) -> None:
    sink = merging(tmp_path, kind)
    commit(sink, 1, stage(sink, fetched))
    more = {"evolve": "add", "transform": lambda records: changes(records).withColumn("more", F.lit(1))}
    wider = merging(tmp_path, kind, **more)
    commit(wider, 2, stage(wider, fetched, 2))
    assert rows(tmp_path, kind)["more"].to_pylist() == [1] * len(LAST)


@pytest.mark.parametrize("kind", KINDS)
def test_change_rows_without_a_key_are_refused_before_the_decision(
    fetched: tuple[Batch, Any], tmp_path: Path, kind: str
) -> None:
    with pytest.raises(Exception, match=r"null in \['key'\], which merge_on does not allow") as caught:
        stage(
            merging(
                tmp_path, kind, transform=lambda records: changes(records).withColumn("key", F.expr("nullif(n, 7)"))
            ),
            fetched,
        )
    assert class_of(caught.value) is ErrorClass.RECORD
    other = tmp_path / "other"  # where no table lacks the column as well
    other.mkdir()
    with pytest.raises(ConfigurationError, match=rf"{kind}.*: merge_on names \['id'\], which"):
        stage(merging(other, kind, merge_on=["id"]), fetched)
    with pytest.raises(ConfigurationError, match=rf"{kind}.*: order_by names 'version', which"):
        stage(merging(other, kind, order_by="version"), fetched)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("condition", ["opp = 'd'", "op = ", "n", "op", "op = 5", "n = 'D'"])
def test_a_condition_that_cannot_be_evaluated_is_named_in_one_line(
    fetched: tuple[Batch, Any], tmp_path: Path, kind: str, condition: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"{kind}.*: delete_when=.*{condition}.* cannot be") as caught:
        stage(merging(tmp_path, kind, delete_when=condition), fetched)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("merge_on", [(), ("key",)])
@pytest.mark.parametrize("column", ["n", "op"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_day_of_a_column_without_times_is_no_failure_of_records(
    fetched: tuple[Batch, Any], tmp_path: Path, kind: str, column: str, merge_on: tuple[str, ...]
) -> None:
    sink = sink_of(kind, tmp_path, transform=changes, partition_by=[f"day({column})"], merge_on=merge_on)
    with pytest.raises(ConfigurationError, match=rf"partition_by has day.*{column} is of type"):
        stage(sink, fetched)
