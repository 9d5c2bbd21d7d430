"""What the sink for Delta tables by name does with Spark alone: Delta Lake has no runtime for the newest Spark.
`make lakehouse` runs all of it with Delta."""

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kcl_dagster.chains.entry import PublishingEntry, StagedFile, TableRules
from kcl_dagster.errors import ConfigurationError, SinkError
from kcl_dagster.spark.parquet_file import ParquetFile
from kcl_dagster.spark.sinks.named_delta import NamedDelta
from kcl_dagster.spark.sinks.named_delta_commits import NamedDeltaCommits
from kcl_dagster.spark.sinks.named_delta_rules import NamedDeltaRules
from kcl_dagster.spark.sinks.staging_job import schema_of
from kcl_dagster.spark.sinks.table_columns import encoded_schema
from kcl_dagster.spark.storage import open_store

AT = datetime.fromisoformat("2026-01-02 03:04:05.678901")
EVERYTHING = """
    select id as n, cast(id as string) as text, timestamp'2026-01-02 03:04:05.678901' as at,
        timestamp_ntz'2026-01-02 03:04:05.678901' as local, date'2026-01-02' as day, X'00ff' as raw,
        1.25bd as amount,
        named_struct('x', id, 'near', map('k', array(id, null))) as nested, if(id = 1, null, 1.5d) as ratio
    from range(3)
"""


def entry_of(rows: pa.Table, store: object, path: str) -> PublishingEntry:
    file = ParquetFile(rows.schema)
    for batch in rows.to_batches():
        file.write(batch)
    content = bytes(file.finish())
    store.put(path, content)  # type: ignore[attr-defined]
    rules = TableRules(encoded_schema(rows.schema))
    return PublishingEntry(path, (StagedFile(path, rows.num_rows, len(content)),), (), 1, rules)


def test_a_session_without_delta_lake_is_told_what_it_needs(spark: SparkSession) -> None:
    table = NamedDelta("spark_catalog.default.clicks", session=lambda: spark)
    assert table.rules() is None
    with pytest.raises(ConfigurationError, match=r"no Delta Lake.*io\.delta:delta-spark") as caught, table.errors():
        table.make(pa.schema([("n", pa.int64())]))
    assert "\n" not in str(caught.value)


def test_two_names_that_differ_in_case_only_are_refused_before_the_table_is_made() -> None:
    table = NamedDelta("spark_catalog.default.clicks")
    twins = pa.struct([("Note", pa.string()), ("note", pa.string())])
    with pytest.raises(SinkError, match=r"column s\.note of the output differs from s\.Note in case only"):
        table.make(pa.schema([("n", pa.int64()), ("s", twins)]))


def test_a_catalog_that_the_session_does_not_have_is_named(spark: SparkSession) -> None:
    table = NamedDelta("unity.web.clicks", session=lambda: spark)
    with (
        pytest.raises(ConfigurationError, match=r"^delta table unity\.web\.clicks: .* no such catalog"),
        table.errors(),
    ):
        table.rules()


def test_a_table_of_another_format_is_refused(spark: SparkSession) -> None:
    spark.sql("create table default.plain (n int) using parquet")
    table = NamedDelta("default.plain", session=lambda: spark)
    with pytest.raises(ConfigurationError, match=r"^delta table default\.plain is no Delta table"), table.errors():
        table.rules()


def test_staged_rows_of_all_types_are_read_as_they_were_written(spark: SparkSession, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    frame = spark.sql(EVERYTHING)
    commits = NamedDeltaCommits(NamedDelta("t", session=lambda: spark), store)
    rows = frame.toArrow().cast(schema_of(frame))
    entries = [entry_of(rows, store, f"_staged/c/{number}.parquet") for number in range(3)]
    found = commits._rows(entries)
    assert [one.dataType for one in found.schema] == [one.dataType for one in frame.schema]
    read = found.orderBy("n").collect()
    assert len(read) == 9
    assert read == [row for row in frame.orderBy("n").collect() for _ in entries]
    first = read[0]
    assert (first["at"], first["local"], first["day"]) == (AT, AT, date(2026, 1, 2))
    assert (first["amount"], bytes(first["raw"])) == (Decimal("1.25"), b"\x00\xff")


def test_constraints_are_evaluated_where_the_output_has_their_columns(spark: SparkSession) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), ("day", pa.date32())])
    properties = {"delta.constraints.few": "n < 2", "delta.constraints.new": "day > date'2020-01-01'"}
    rules = NamedDeltaRules("delta table t", schema, properties)

    def ids(records: DataFrame) -> DataFrame:
        return records.selectExpr("nullif(id, 7) as n")

    applied = rules.applied(ids)
    assert [row["n"] for row in applied(spark.range(2)).collect()] == [0, 1]
    with pytest.raises(Exception, match="constraint few of delta table t: n < 2"):
        applied(spark.range(3)).collect()
    with pytest.raises(Exception, match="constraint n NOT NULL"):
        NamedDeltaRules("t", schema, {}).applied(ids)(spark.range(8)).collect()


def test_names_inside_of_columns_that_are_added_need_no_rules(spark: SparkSession) -> None:
    inner = pa.struct([("user-agent", pa.string()), ("a.b`c", pa.map_(pa.string(), pa.list_(pa.int64())))])
    nested = pa.struct([("x y", pa.list_(inner)), ("select", pa.decimal128(9, 2))])
    statements: list[str] = []

    class Session:
        def sql(self, statement: str) -> None:
            statements.append(statement)

    class Table(NamedDelta):
        def rules(self) -> NamedDeltaRules:
            known = pa.schema([("id", pa.int64())])
            return NamedDeltaRules("t", known, {}, (), spark.sql("select 1L as id").schema, True)

    session: Any = Session()
    Table("t", session=lambda: session).add(pa.schema([("id", pa.int64()), ("web-request", nested)]))
    [statement] = statements
    # Spark's own parser reads the columns as a table would get them.
    declared = statement.removeprefix("ALTER TABLE t ADD COLUMNS (").removesuffix(")")
    table = StructType.fromDDL(declared)
    assert isinstance(table, StructType)
    [added] = table.fields
    assert added.name == "web-request"
    assert schema_of(spark.createDataFrame([], StructType([added]))).field(0).type == nested
