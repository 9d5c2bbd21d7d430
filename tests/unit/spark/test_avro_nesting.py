"""Payloads of recursive Avro schemas: however deeply they are nested, the process goes on."""

import io
import random
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from fastavro.utils import generate_many

from kcl_dagster.spark.arrow_decoding import decode_table
from kcl_dagster.spark.avro_decoding import avro, registered_avro
from kcl_dagster.spark.avro_nesting import MOST_LEVELS, nesting_check
from kcl_dagster.spark.payload_decoding import UnknownSchema

NODE: dict[str, Any] = {
    "type": "record",
    "name": "shop.Node",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
TREE: dict[str, Any] = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "children", "type": {"type": "array", "items": "Tree"}}],
}
MAPS: dict[str, Any] = {
    "type": "record",
    "name": "Maps",
    "fields": [{"name": "by_name", "type": {"type": "map", "values": ["null", "Maps"]}}],
}


def nodes(levels: int) -> bytes:
    return b"\x02\x02" * (levels - 1) + b"\x02\x00"


def trees(levels: int) -> bytes:
    """An array in each record."""
    return b"\x02" * (levels // 2 - 1) + b"\x00" * (levels // 2)


def maps(levels: int) -> bytes:
    """A map in each record."""
    return b"\x02\x00\x02" * (levels // 2 - 1) + b"\x00" * (levels // 2)


CASES: list[Any] = [(NODE, nodes), (TREE, trees), (MAPS, maps)]


@pytest.mark.parametrize(("schema", "nested"), CASES)
@pytest.mark.parametrize("reader", [False, True])
def test_a_value_with_too_many_levels_is_malformed(schema: Any, nested: Any, reader: bool) -> None:
    decode = registered_avro({7: schema}, reader=schema if reader else None)()
    for make, prefix in ((avro(schema)(), b""), (decode, b"\x00\x00\x00\x00\x07")):
        assert make(prefix + nested(MOST_LEVELS))
        for levels in (MOST_LEVELS + 2, 5_000, 1_000_000):
            with pytest.raises(ValueError, match="more than 500 levels"):
                make(prefix + nested(levels))


def test_a_malformed_payload_is_null_and_moves_no_other() -> None:
    columns = pa.schema([("v", pa.int64()), ("next", pa.struct([("v", pa.int64())]))])
    data = pa.table({"data": pa.array([nodes(2), nodes(10_000), nodes(1), b"", b"\x02\x04"], pa.binary())})
    assert decode_table(data, avro(NODE), columns).to_pylist() == [
        {"v": 1, "next": {"v": 1}},
        {"v": None, "next": None},
        {"v": 1, "next": None},
        {"v": None, "next": None},
        {"v": None, "next": None},
    ]


def test_a_record_that_directly_contains_itself_is_malformed() -> None:
    endless = {"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}
    with pytest.raises(ValueError, match="levels"):
        avro(endless)()(b"")


def test_a_schema_that_is_itself_too_deep_is_no_schema() -> None:
    deep: Any = "int"
    for _ in range(2_000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(UnknownSchema, match="no Avro schema"):
        registered_avro({7: deep})()(b"\x00\x00\x00\x00\x07\x00")


ALL: dict[str, Any] = {
    "type": "record",
    "name": "a.All",
    "fields": [
        {"name": "n", "type": "null"},
        {"name": "b", "type": "boolean"},
        {"name": "i", "type": "int"},
        {"name": "l", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "s", "type": "string"},
        {"name": "y", "type": "bytes"},
        {"name": "x", "type": {"type": "fixed", "name": "b.F", "size": 3}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["one", "two"]}},
        {"name": "u", "type": ["string", "E", "b.F", {"type": "array", "items": "E"}]},
        {"name": "a", "type": {"type": "array", "items": ["null", "All"]}},
        {"name": "m", "type": {"type": "map", "values": "long"}},
    ],
}


def test_the_check_walks_over_values_of_all_types() -> None:
    schema = fastavro.parse_schema(ALL)
    check = nesting_check(schema)
    assert check is not None
    random.seed(16)
    plain = fastavro.parse_schema({**ALL, "fields": [field for field in ALL["fields"] if field["name"] != "a"]})
    for inner in generate_many(plain, 50):
        value = {**inner, "a": [None, {**inner, "a": []}, {**inner, "a": [{**inner, "a": []}]}]}
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, value)
        check(b"???" + out.getvalue(), 3)
        # The last field is a map. If the check arrived at another place, it would not need the last byte.
        with pytest.raises(IndexError):
            check(out.getvalue()[:-1], 0)


def test_blocks_with_a_size_are_read() -> None:
    check = nesting_check(fastavro.parse_schema(TREE))
    assert check is not None
    payload = b"\x03\x04\x00\x00\x00"  # minus two items in two bytes
    assert avro(TREE)()(payload) == {"children": [{"children": []}, {"children": []}]}


@pytest.mark.parametrize("schema", ["int", ["null", "string"], {**ALL, "fields": ALL["fields"][:-2]}])
def test_other_schemas_are_not_checked(schema: Any) -> None:
    assert nesting_check(fastavro.parse_schema(schema)) is None


EMPTY: list[Any] = [
    "null",
    {"type": "record", "name": "Nothing", "fields": [{"name": "none", "type": "null"}]},
    {"type": "fixed", "name": "NoBytes", "size": 0},
]


@pytest.mark.parametrize("items", EMPTY)
def test_items_that_take_no_bytes_do_not_fill_the_memory(items: Any) -> None:
    """A few bytes are an array of millions of them."""
    decode = avro({"type": "array", "items": items})()
    with pytest.raises(ValueError, match="more items than bytes"):
        decode(number(2_000_000) + b"\x00")
    blocks = number(600) * 2 + b"\x00"
    with pytest.raises(ValueError, match="more items than bytes"):
        decode(blocks)
    assert len(decode(number(600) + b"\x00")) == 600


def test_items_that_take_bytes_are_not_counted() -> None:
    assert nesting_check(fastavro.parse_schema({"type": "array", "items": ["null", "long"]})) is None


def number(value: int) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, "long", value)
    return body.getvalue()
