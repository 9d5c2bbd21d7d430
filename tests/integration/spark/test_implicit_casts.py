"""Spark casts texts in some conditions that contain no cast. Such conditions are found, in a session with the
objects of the JVM and in one of Spark Connect."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from kcl_dagster.spark.implicit_casts import ImplicitCast, first_implicit_cast

pytestmark = pytest.mark.spark

COLUMNS = """id bigint, op string, tags array<string>, s struct<x: string, n: int>, day date, at timestamp,
    ok boolean, amount decimal(9,2), b binary, `a b` string, m map<string, string>"""

# What is cast, and to which type.
OF_COLUMNS = {
    "op = 5": ("op", "bigint"),
    "5 <=> op": ("op", "bigint"),
    "id = op": ("op", "bigint"),
    "op in (5, 6)": ("op", "bigint"),
    "ok and op = true": ("op", "boolean"),
    "op > 1.5": ("op", "double"),
    "op < current_timestamp()": ("op", "timestamp"),
    "year(op) = 2026": ("op", "date"),
    "op = 'd' or op + 1 > 3": ("op", "bigint"),
    "case op when 5 then true else false end": ("op", "bigint"),
    "`a b` = 5": ("`a b`", "bigint"),
    "cast(op as int) = 5 and op = 5": ("op", "bigint"),
    "int(`a b`) = 5 and op = 5": ("op", "bigint"),
    "date(`a b`) < current_date() and year(op) = 2026": ("op", "date"),
}
OF_LONGER_EXPRESSIONS = {
    "op between 1 and 5": (None, "bigint"),
    "substring(op, 1, 1) = 5": (None, "bigint"),
    "exists(tags, tag -> tag = 5)": (None, "bigint"),
    "s.x = 5": ("s.`x`", "bigint"),
    "int(op) = substring(op, 1, 1)": (None, "bigint"),
    "int(id) = op || ''": (None, "bigint"),
    "decode(b, 'utf-8') = 5": (None, "bigint"),
    "if(ok, op, '5') = 5": (None, "bigint"),
    "s in (named_struct('x', 1, 'n', 2))": (None, "bigint"),
    "coalesce(tags, array(5))[0] = 5": (None, "bigint"),
    "coalesce(m, map('k', 5))['k'] = 5": (None, "bigint"),
    "coalesce(array(s), array(named_struct('x', 1, 'n', 2)))[0].n = 5": (None, "bigint"),
}
OF_CONSTANTS = {
    "id = 'abc'": ("'abc'", "bigint"),
    "op = 'd' and day > 'soon'": ("'soon'", "date"),
    "day = concat('2026', '-13-01')": ("concat('2026', '-13-01')", "date"),
    "array(id) in (array('abc'))": ("array('abc')", "array<bigint>"),
}
NONE = [
    "op = '5'",
    "op like 'd%'",
    "op is null",
    "op = null",
    "op || 5 = 'd5'",
    "length(op) > 3",
    "sha2(op, 256) = 'd'",
    "b = 'd' and op = X'64'",
    "cast(op as int) = 5",
    "op::int = 5",
    "try_cast(op as int) = 5",
    "to_date(op) < current_date()",
    "int(op) = 5",
    "BIGINT ( op ) > 1 and ok",
    "double(op) > 1",
    "decimal(op) > 1",
    "boolean(op)",
    "date(op) < current_date()",
    "timestamp(op) < current_timestamp()",
    "int(`a b`) = 5",
    "date_format(at, 'yyyyMMdd') = 20260101",
    "cast(id as string) = 5",
    "if(ok, '1', '0') = 1",
    "if(op = 'd', '1', '0') = 1",
    "cast(length(op) as string) = 5",
    "cast(s.n as string) = 5",
    "left('5', 1) = id",
    "day = concat('2026', '-01-01')",
    "at > '2026-01-01' || ' 00:00:00'",
    "id = cast(null as string)",
    "day < cast(current_date() as string)",
    "array(id) in (array('5'))",
    "coalesce(tags, array('5'))[0] = '5'",
    "s in (named_struct('x', '5', 'n', 2L))",
    "id = 5 and amount = 5 and id < 1.5 and amount > id",
    "id = '5' and day = '2026-01-01' and at > '2026-01-01' and ok = 'yes' and amount = '1.5'",
]


@pytest.fixture
def output(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], COLUMNS)


@pytest.fixture
def without_ansi(spark: SparkSession) -> Iterator[None]:
    before = str(spark.conf.get("spark.sql.ansi.enabled"))
    spark.conf.set("spark.sql.ansi.enabled", "false")
    yield
    spark.conf.set("spark.sql.ansi.enabled", before)


@pytest.mark.parametrize("condition", [*OF_COLUMNS, *OF_LONGER_EXPRESSIONS])
def test_a_text_that_spark_casts_by_itself_is_found(output: DataFrame, condition: str) -> None:
    cast = {**OF_COLUMNS, **OF_LONGER_EXPRESSIONS}[condition]
    assert first_implicit_cast(output, condition) == ImplicitCast(*cast)


@pytest.mark.parametrize(("condition", "cast"), OF_CONSTANTS.items())
def test_a_constant_that_has_no_value_of_its_type_is_found(
    output: DataFrame, condition: str, cast: tuple[str, str]
) -> None:
    assert first_implicit_cast(output, condition) == ImplicitCast(*cast, is_constant=True)


@pytest.mark.parametrize("condition", NONE)
def test_casts_that_are_written_or_cannot_fail_are_no_mistake(output: DataFrame, condition: str) -> None:
    assert first_implicit_cast(output, condition) is None


def test_casts_of_the_function_itself_are_no_mistake_of_the_condition(output: DataFrame) -> None:
    assert first_implicit_cast(output.where("op = 5").selectExpr("op + 1 as n", "op"), "n = 3") is None


@pytest.mark.usefixtures("without_ansi")
def test_texts_that_become_null_are_found_as_well(output: DataFrame) -> None:
    assert first_implicit_cast(output, "op = 5") == ImplicitCast("op", "int")
    assert first_implicit_cast(output, "id = 'abc'") == ImplicitCast("'abc'", "bigint", is_constant=True)
    assert first_implicit_cast(output, "op in (5, 6)") is None  # then Spark compares texts


CONNECT = """
import sys
from pyspark.sql import SparkSession
from kcl_dagster.spark.implicit_casts import first_implicit_cast
session = SparkSession.builder.remote("local[1]").getOrCreate()
output = session.createDataFrame([], sys.argv[1]).selectExpr("*", "cast(op as int) as n")
for condition in sys.argv[2:]:
    print(condition, "|", first_implicit_cast(output, condition))
"""


def test_spark_connect_shows_casts_of_columns(tmp_path: Path) -> None:
    found = [*OF_COLUMNS]
    command = [sys.executable, "-c", CONNECT, COLUMNS, *found, *NONE]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr[-4000:]
    told = dict(line.split(" | ") for line in answer.stdout.splitlines() if " | " in line)
    assert {condition for condition in found if told[condition] == "None"} == set()
    assert {condition for condition in NONE if told[condition] != "None"} == set()
