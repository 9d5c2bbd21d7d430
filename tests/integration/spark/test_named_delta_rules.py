"""Rows that a Delta table would refuse are refused before they are decided. Delta Lake has no runtime for the
newest Spark, so Spark alone evaluates the conditions. `make lakehouse` runs them against Delta."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from kcl_dagster.errors import SinkError
from kcl_dagster.spark.sinks.named_delta_rules import NamedDeltaRules
from kcl_dagster.spark.sinks.staging_job import schema_of

TABLE = "delta table t"


def text_of(declared: str) -> dict[str, Any]:
    return {"__CHAR_VARCHAR_TYPE_STRING": declared}


def generated(sql: str) -> dict[str, Any]:
    return {"delta.generationExpression": sql}


def rules_of(
    spark: SparkSession,
    *columns: t.StructField,
    by: tuple[str, ...] = (),
    properties: dict[str, str] | None = None,
    is_described: bool = True,
) -> NamedDeltaRules:
    kinds = t.StructType(list(columns))
    schema = schema_of(spark.createDataFrame([], kinds))
    fields = [one.with_nullable(known.nullable) for one, known in zip(schema, kinds, strict=True)]
    return NamedDeltaRules(TABLE, pa.schema(fields), properties or {}, by, kinds, is_described)


def column(name: str, kind: str = "string", metadata: dict[str, Any] | None = None, *, null: bool = True) -> Any:
    return t.StructField(name, t.DataType.fromDDL(kind), null, metadata)


def returns(*sql: str) -> Callable[[DataFrame], DataFrame]:
    return lambda records: records.selectExpr(*sql)


def stored(spark: SparkSession, rules: NamedDeltaRules, *sql: str) -> list[Any]:
    return [tuple(row) for row in rules.applied(returns(*sql))(spark.range(1)).collect()]


def refused(spark: SparkSession, rules: NamedDeltaRules, constraint: str, *sql: str) -> None:
    with pytest.raises(Exception, match=f"violates the constraint {constraint} of delta table t"):
        stored(spark, rules, *sql)


def test_texts_longer_than_varchar_and_char_allow_are_refused(
    spark: SparkSession,
) -> None:
    rules = rules_of(
        spark, column("user", metadata=text_of("varchar(4)")), column("c", metadata=text_of("char(2)"))
    )
    assert stored(spark, rules, "'vier' as user") == [("vier",)]
    assert stored(spark, rules, "'vie ' as user", "'äö' as c") == [("vie ", "äö")]
    assert stored(spark, rules, "cast(null as string) as user") == [(None,)]
    refused(spark, rules, r"user varchar\(4\)", "'fuenf' as user")
    refused(spark, rules, r"user varchar\(4\)", "'vier ' as user")
    refused(spark, rules, r"c char\(2\)", "'abc' as c")


def test_texts_in_nested_columns_are_refused_too(spark: SparkSession) -> None:
    declared = "struct<v:varchar(3),many:array<struct<w:varchar(2)>>,near:map<varchar(1),char(1)>>"
    plain = "struct<v:string,many:array<struct<w:string>>,near:map<string,string>>"
    rules = rules_of(spark, column("s", plain, text_of(declared)))
    fits = {"v": "'abc'", "many": "array(named_struct('w', 'ab'), null)", "near": "map('a', 'b')"}

    def struct(**other: str) -> str:
        return "named_struct({}) as s".format(", ".join(f"'{k}', {v}" for k, v in {**fits, **other}.items()))

    assert len(stored(spark, rules, struct())) == 1
    assert stored(spark, rules, f"cast(null as {plain}) as s") == [(None,)]
    assert len(stored(spark, rules, struct(many="cast(null as array<struct<w:string>>)"))) == 1
    for wrong in (
        {"v": "'abcd'"},
        {"many": "array(named_struct('w', 'abc'))"},
        {"near": "map('ab', 'b')"},
        {"near": "map('a', 'bb')"},
    ):
        refused(spark, rules, "s struct.*", struct(**wrong))


def test_partition_values_that_no_folder_can_be_named_after_are_refused(spark: SparkSession) -> None:
    rules = rules_of(spark, column("user"), column("raw", "binary"), column("n", "bigint"), by=("user", "raw", "n"))
    assert stored(spark, rules, "repeat('x', 250) as user", "X'C3BC' as raw", "1L as n")
    assert stored(spark, rules, "'' as user", "cast(null as binary) as raw")
    assert stored(spark, rules, "repeat('/', 83) as user")
    assert stored(spark, rules, "'a/b:c%d' as user", "X'' as raw")
    refused(spark, rules, r"partition value of user \(.*\)", "repeat('x', 251) as user")
    refused(spark, rules, r"partition value of user \(.*\)", "repeat('ü', 126) as user")
    refused(spark, rules, r"partition value of user \(.*\)", "repeat('/', 84) as user")
    refused(spark, rules, r"partition value of user \(.*\)", "'a' || char(0) || 'b' as user")
    refused(spark, rules, r"partition value of raw \(.*\)", "X'FF00' as raw")
    refused(spark, rules, r"partition value of raw \(.*\)", "X'6100' as raw")


def test_an_empty_text_is_null_in_a_required_partition_column(spark: SparkSession) -> None:
    rules = rules_of(spark, column("user", null=False), column("n", "int", null=False), by=("user", "n"))
    assert stored(spark, rules, "'x' as user", "1 as n") == [("x", 1)]
    refused(spark, rules, r"partition value of user \(.*\)", "'' as user", "1 as n")
    refused(spark, rules, "user NOT NULL", "cast(null as string) as user", "1 as n")


def test_a_generated_column_is_computed_before_the_decision(spark: SparkSession) -> None:
    rules = rules_of(
        spark,
        column("user"),
        column("at", "timestamp"),
        column("day", "date", generated("cast(at AS date)"), null=False),
        column("code", "int", generated("cast(user AS int)")),
        column("long", "string", generated("repeat(user, 100)")),
        by=("long",),
    )
    at = "timestamp'2026-01-02 03:04:05' as at"
    assert [one[0] for one in stored(spark, rules, "'12' as user", at)] == ["12"]
    assert stored(spark, rules, "cast(null as string) as user", at)
    refused(spark, rules, "day NOT NULL", "'12' as user", "cast(null as timestamp) as at")
    refused(spark, rules, "day NOT NULL", "'12' as user")
    refused(spark, rules, r"partition value of long \(.*\)", "'123' as user", at)
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        stored(spark, rules, "'x' as user", at)
    assert stored(spark, rules, "'12' as user", at, "12 as code")
    refused(spark, rules, "generated code", "'12' as user", at, "13 as code")


def test_constraints_see_the_columns_that_the_table_adds(spark: SparkSession) -> None:
    invariant = {"delta.invariants": json.dumps({"expression": {"expression": "n > 0"}})}
    rules = rules_of(
        spark,
        column("n", "bigint", invariant),
        column("source", metadata={"CURRENT_DEFAULT": "'web'"}),
        column("id", "bigint", {"delta.identity.start": 1}),
        column("day", "date", generated("date_add(date'2026-01-01', cast(n AS int))")),
        properties={
            "delta.constraints.web": "source = 'web'",
            "delta.constraints.one": "id > 0",
            "delta.constraints.early": "day < date'2026-01-05'",
        },
    )
    assert stored(spark, rules, "3L as n") == [(3,)]
    refused(spark, rules, "n", "0L as n")
    refused(spark, rules, "early", "4L as n")
    refused(spark, rules, "web", "3L as n", "'app' as source")


def test_columns_that_a_session_may_hide_are_refused(spark: SparkSession) -> None:
    def rules(**properties: str) -> NamedDeltaRules:
        columns = column("n", "bigint"), column("day", "date"), column("id", "bigint")
        return rules_of(spark, *columns, properties=properties, is_described=False)

    for properties in ({"delta.minWriterVersion": "4"}, {"delta.feature.generatedColumns": "supported"}):
        with pytest.raises(SinkError, match=r"may compute \['day'\] from other columns.*Spark Connect") as caught:
            stored(spark, rules(**properties), "1L as n")
        assert "\n" not in str(caught.value)
        assert stored(spark, rules(**properties), "1L as n", "date'2026-01-01' as day")
    assert stored(spark, rules(**{"delta.minWriterVersion": "7"}), "1L as n") == [(1,)]


def test_columns_without_a_type_are_left_out_unless_the_table_has_them(spark: SparkSession) -> None:
    rules = rules_of(spark, column("n", "bigint"), column("note"))
    assert stored(spark, rules, "1L as n", "null as note", "null as more") == [(1, None)]
    with pytest.raises(SinkError, match="no column of the output has a type"):
        stored(spark, rules, "null as more")


def test_an_output_without_rules_remains_the_same_frame(spark: SparkSession) -> None:
    records = spark.range(1)
    assert rules_of(spark, column("id", "bigint")).applied(lambda frame: frame)(records) is records
