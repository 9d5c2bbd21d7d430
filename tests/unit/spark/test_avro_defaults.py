"""Defaults of a reader's schema are the values that they would be in a payload."""

import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from kcl_dagster.errors import ConfigurationError, PackageMissing
from kcl_dagster.spark.arrow_decoding import decode_table
from kcl_dagster.spark.avro_decoding import avro, registered_avro

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
POINT: dict[str, Any] = {
    "type": "record",
    "name": "shop.Point",
    "fields": [
        {"name": "at", "type": MILLIS, "default": 1_000},
        {"name": "raw", "type": "bytes"},
    ],
}
OLD: dict[str, Any] = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
RECORD = b"\x00\x00\x00\x00\x07\x02"


def decoded(kind: pa.DataType, schema: Any, default: Any) -> Any:
    reader = {**OLD, "fields": [*OLD["fields"], {"name": "new", "type": schema, "default": default}]}
    columns = pa.schema([("id", pa.int64()), ("new", kind)])
    # A decoder is made twice from the same schema.
    for decoder in (registered_avro({7: OLD}, reader=reader), registered_avro({7: OLD}, reader=reader)):
        found = decode_table(pa.table({"data": [RECORD]}), decoder, columns, malformed="fail")
    assert found["id"].to_pylist() == [1]
    return found["new"][0].as_py()


@pytest.mark.parametrize(
    ("kind", "schema", "default", "value"),
    [
        (pa.binary(), "bytes", "\u00ff\u0000", b"\xff\x00"),
        (pa.binary(), {"type": "fixed", "name": "F", "size": 2}, "\u0080a", b"\x80a"),
        (pa.binary(), ["null", "bytes"], None, None),
        (pa.binary(), ["bytes", "null"], "\u00e9", b"\xe9"),
        (pa.timestamp("us", "UTC"), MILLIS, 1_500, datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
        (pa.date32(), {"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
        (pa.string(), {"type": "int", "logicalType": "time-millis"}, 1_500, "00:00:01.500000"),
        (pa.decimal128(4, 2), DECIMAL, "\u00ff\u009c", Decimal("-1.00")),
        (pa.decimal128(4, 2), ["null", DECIMAL], "\u0001", Decimal("0.01")),
        (pa.string(), "string", "\u00ff", "\u00ff"),
        (pa.float64(), "double", 1.5, 1.5),
        (pa.int64(), ["boolean", "long"], 7, 7),
        (pa.list_(pa.binary()), {"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        (pa.map_(pa.string(), pa.date32()), {"type": "map", "values": {"type": "int", "logicalType": "date"}},
         {"a": 0}, [("a", date(1970, 1, 1))]),
        (pa.struct([("at", pa.timestamp("us", "UTC")), ("raw", pa.binary())]), POINT, {"raw": "\u00ff"},
         {"at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "raw": b"\xff"}),
        (pa.time64("us"), {"type": "long", "logicalType": "time-micros"}, 1, time(0, 0, 0, 1)),
    ],
)  # fmt: skip
def test_a_default_has_the_type_of_its_field(kind: pa.DataType, schema: Any, default: Any, value: Any) -> None:
    assert decoded(kind, schema, default) == value


@pytest.mark.parametrize("is_list", [False, True])
def test_defaults_of_records_that_are_not_outermost_are_decoded(is_list: bool) -> None:
    def inside(record: Any) -> Any:
        return {"type": "array", "items": record} if is_list else ["null", record]

    at, raw = POINT["fields"]
    more = {"name": "more", "type": "bytes", "default": "\u00ff"}
    old, new = ({"type": "record", "name": "Point", "fields": fields} for fields in ([raw], [at, raw, more]))
    decode = registered_avro({7: inside(old)}, reader=inside(new))()
    value = {"at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "raw": b"a", "more": b"\xff"}
    assert decode(RECORD[:5] + (b"\x02\x02a\x00" if is_list else b"\x02\x02a")) == ([value] if is_list else value)


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ("bytes", "\u0100"),
        ({"type": "fixed", "name": "F", "size": 2}, "a"),
        ({"type": "string", "logicalType": "uuid"}, ""),
        (MILLIS, 10**18),
    ],
)
def test_a_default_that_its_type_does_not_have_is_refused_where_it_is_declared(schema: Any, default: Any) -> None:
    with pytest.raises(ConfigurationError, match="the default of the field new of R is no value of its type"):
        registered_avro({}, reader={**OLD, "fields": [{"name": "new", "type": schema, "default": default}]})


def test_the_readers_schema_remains_unchanged() -> None:
    fields = [*OLD["fields"], {"name": "new", "type": "bytes", "default": "\u00ff"}]
    parsed = fastavro.parse_schema({**OLD, "fields": fields})
    for _ in range(2):  # the second time, the default would be bytes already
        assert registered_avro({7: OLD}, reader=parsed)()(RECORD) == {"id": 1, "new": b"\xff"}


@pytest.mark.parametrize("schema", [5, {"type": "rekord"}, ["null", "Unknown"]])
@pytest.mark.parametrize("declare", [avro, lambda schema: registered_avro({}, reader=schema)])
def test_what_is_no_schema_is_refused_where_it_is_declared(declare: Callable[[Any], Any], schema: Any) -> None:
    with pytest.raises(ConfigurationError, match="no Avro schema"):
        declare(schema)


def test_a_schema_that_is_too_deep_is_refused_as_such() -> None:
    deep: Any = "int"
    for _ in range(2_000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ConfigurationError, match="too many levels"):
        avro(deep)


def test_without_fastavro_a_code_location_may_declare_a_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    declared = registered_avro({}, reader=OLD)
    with pytest.raises(PackageMissing, match="pip install fastavro"):
        declared()
