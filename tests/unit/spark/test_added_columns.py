"""Columns that the sink adds to an Iceberg table, or widens, before a batch is staged."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from kcl_dagster.errors import SinkError
from kcl_dagster.spark.sinks.table_sink import TableSink
from kcl_dagster.spark.transform import unchanged
from tests.unit.spark.chained_lakes import IDENTIFIER, IcebergLake

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    return IcebergLake(tmp_path, ())


def made(lake: IcebergLake, *fields: NestedField, **more: Any) -> None:
    catalog = lake.catalog_table().catalog
    catalog.create_namespace_if_not_exists("lake")
    catalog.create_table(IDENTIFIER, Schema(*fields, **more))


def evolve(lake: IcebergLake, output: pa.Schema) -> None:
    """As the sink does before it stages a batch."""
    rules = lake.format.rules()
    assert rules is not None
    found = TableSink(lake.format, unchanged, evolve="add")._evolved(output, rules)
    assert found.target is not None
    found.target.check(output)


def optional(number: int, name: str, kind: IcebergType) -> NestedField:
    return NestedField(number, name, kind, required=False)


def decimals(digits: int, scale: int, *values: str) -> pa.RecordBatch:
    kind = pa.decimal128(digits, scale)
    return pa.record_batch({"amount": pa.array([Decimal(value) for value in values], kind)})


def nested(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {
        "struct": pa.struct([("a", kind)]),
        "list": pa.list_(kind),
        "map": pa.map_(pa.string(), pa.struct([("a", kind)])),
    }


def test_the_scale_of_a_decimal_is_never_changed(lake: IcebergLake) -> None:
    lake.write(decimals(9, 2, "12.34"))
    with pytest.raises(SinkError, match=r"amount is of type decimal128\(12, 4\) in the output"):
        evolve(lake, decimals(12, 4).schema)
    assert lake.table().schema().find_type("amount") == DecimalType(9, 2)


@pytest.mark.parametrize("place", ["struct", "list", "map"])
def test_the_scale_of_a_nested_decimal_is_never_changed(lake: IcebergLake, place: str) -> None:
    lake.write(pa.record_batch([pa.nulls(1, nested(pa.decimal128(9, 2))[place])], ["of"]))
    before = lake.table().schema()
    with pytest.raises(SinkError, match=r"column of.*Iceberg widens int to bigint"):
        evolve(lake, pa.schema([("of", nested(pa.decimal128(12, 4))[place])]))
    assert lake.table().schema() == before
    evolve(lake, pa.schema([("of", nested(pa.decimal128(12, 2))[place])]))
    assert "decimal(12, 2)" in str(lake.table().schema())


@pytest.mark.parametrize(
    ("output", "digits"),
    [((12, 2), 12), ((12, 1), 13), ((9, 1), 10), ((38, 2), 38)],
)
def test_a_decimal_gets_the_digits_that_the_output_needs(
    lake: IcebergLake, output: tuple[int, int], digits: int
) -> None:
    lake.write(decimals(9, 2, "12.34"))
    evolve(lake, decimals(*output).schema)
    assert lake.table().schema().find_type("amount") == DecimalType(digits, 2)
    lake.write(decimals(*output, "56.7"))
    assert sorted(lake.read()["amount"].to_pylist()) == [Decimal("12.34"), Decimal("56.70")]


def test_types_that_the_format_does_not_widen_remain(lake: IcebergLake) -> None:
    lake.write(pa.record_batch({"text": ["a"], "bytes": [b"\xff"]}))
    before = lake.table().schema()
    for name, kind in (("text", pa.binary()), ("bytes", pa.string())):
        with pytest.raises(SinkError, match=f"column {name} is of type"):
            evolve(lake, pa.schema([(name, kind)]))
    assert lake.table().schema() == before


def test_a_widened_column_still_allows_no_nulls(lake: IcebergLake) -> None:
    made(
        lake,
        NestedField(1, "n", IntegerType(), required=True),
        NestedField(2, "of", StructType(NestedField(3, "a", FloatType(), required=True)), required=True),
        optional(4, "all", ListType(5, IntegerType(), element_required=True)),
        optional(6, "by", MapType(7, StringType(), 8, IntegerType(), value_required=True)),
        identifier_field_ids=[1],
    )
    evolve(
        lake,
        pa.schema(
            [
                ("n", pa.int64()),
                ("of", pa.struct([pa.field("a", pa.float64(), nullable=False), ("b", pa.string())])),
                ("all", pa.list_(pa.field("element", pa.int64(), nullable=False))),
                ("by", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
                pa.field("new", pa.string(), nullable=False),
            ]
        ),
    )
    schema = lake.table().schema()
    assert {name: (schema.find_type(name), schema.find_field(name).required) for name in schema.column_names} == {
        "n": (LongType(), True),
        "of": (schema.find_type("of"), True),
        "of.a": (DoubleType(), True),
        "of.b": (StringType(), False),
        "all": (schema.find_type("all"), False),
        "all.element": (LongType(), True),
        "by": (schema.find_type("by"), False),
        "by.key": (StringType(), True),
        "by.value": (LongType(), True),
        "new": (StringType(), False),
    }
    assert schema.identifier_field_ids == [1]


def of(name: str) -> pa.DataType:
    return pa.struct([("id", pa.int64()), (name, pa.string())])


@pytest.mark.parametrize("place", ["s", "s.element", "s.value"])
def test_a_nested_name_that_differs_from_one_of_the_table_in_case_only_is_refused_before_it_is_added(
    lake: IcebergLake, place: str
) -> None:
    def kind(name: str) -> pa.DataType:
        return {"s": of(name), "s.element": pa.list_(of(name)), "s.value": pa.map_(pa.string(), of(name))}[place]

    lake.write(pa.record_batch([pa.nulls(1, kind("a"))], ["s"]))
    before = lake.table().schema()
    with pytest.raises(SinkError, match=re.escape(f"column {place}.A of the output differs from {place}.a in")):
        evolve(lake, pa.schema([("s", kind("A"))]))
    assert lake.table().schema() == before


@pytest.mark.parametrize(
    "new",
    [
        [("Note", pa.string()), ("note", pa.string())],
        [("s", pa.struct([("Note", pa.string()), ("note", pa.string())]))],
        [("s", pa.list_(pa.map_(pa.string(), pa.struct([("Note", pa.string()), ("note", pa.string())]))))],
    ],
)
def test_two_new_columns_that_differ_in_case_only_are_refused_before_a_table_has_them(
    lake: IcebergLake, new: list[tuple[str, pa.DataType]]
) -> None:
    output = pa.schema([("n", pa.int64()), *new])
    with pytest.raises(SinkError, match=r"note of the output differs from .*Note in case only"):
        lake.format.first_rules(output)
    assert lake.format.rules() is None
    lake.write(pa.record_batch({"n": [1]}))
    with pytest.raises(SinkError, match=r"note of the output differs from .*Note in case only"):
        evolve(lake, output)
    assert lake.table().schema().column_names == ["n"]


def test_columns_of_a_table_that_differ_in_case_only_are_written_as_before(lake: IcebergLake) -> None:
    made(lake, optional(1, "note", StringType()), optional(2, "Note", StringType()))
    evolve(lake, pa.schema([("Note", pa.string()), ("note", pa.string()), ("n", pa.int64())]))
    lake.write(pa.record_batch({"note": ["a"], "Note": ["b"], "n": [1]}))
    assert lake.read().to_pylist() == [{"note": "a", "Note": "b", "n": 1}]


@pytest.mark.parametrize("name", ["_file", "_Pos", "_partition"])
def test_names_of_columns_that_engines_add_are_refused_before_a_table_has_them(
    lake: IcebergLake, name: str
) -> None:
    output = pa.schema([("n", pa.int64()), (name, pa.string())])
    with pytest.raises(SinkError, match="engines have columns of their own"):
        lake.format.first_rules(output)
    assert lake.format.rules() is None
    lake.write(pa.record_batch({"n": [1]}))
    with pytest.raises(SinkError, match="engines have columns of their own"):
        evolve(lake, output)
    assert lake.table().schema().column_names == ["n"]
