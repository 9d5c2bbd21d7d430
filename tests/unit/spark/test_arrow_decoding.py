"""Payloads as columns of Arrow tables: a row for each record, whatever its payload is."""

import gzip
import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, cast, get_args

import fastavro
import msgspec
import pyarrow as pa
import pytest

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.arrow_decoding import ROWS_AT_ONCE, decode_column, decode_json, decode_table
from kcl_dagster.spark.avro_decoding import avro, registered_avro
from kcl_dagster.spark.confluent_registry import ConfluentRegistry
from kcl_dagster.spark.payload_decoding import Malformed, UnknownSchema, protobuf, with_decoded, with_json
from kcl_dagster.spark.payload_splitting import split_lines, split_log_events
from tests.docs.protobuf import CLICK_DESCRIPTOR
from tests.doubles.registries import confluent_server

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())])


def records(*payloads: bytes) -> pa.Table:
    return pa.table({"data": pa.array(payloads, pa.binary())})


def test_fields_become_columns() -> None:
    found = decode_json(records(b'{"id": 1, "name": "a", "more": [1]}', b'{"price": 2, "id": null}'), SCHEMA)
    assert found.schema == SCHEMA
    assert found.to_pylist() == [
        {"id": 1, "name": "a", "price": None},
        {"id": None, "name": None, "price": 2.0},
    ]


def test_values_of_all_types() -> None:
    schema = pa.schema(
        [
            ("yes no", pa.bool_()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("amount", pa.decimal128(10, 2)),
            ("raw", pa.binary()),
            ("tags", pa.list_(pa.string())),
            ("inside", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.struct([("z", pa.int8())])))])),
        ]
    )
    payload = (
        b'{"yes no": true, "at": "2026-11-23T01:00:00+01:00", "day": "2026-11-23", "amount": "1.50", "raw": "aGk=",'
        b' "tags": ["a", null], "inside": {"x": 1, "y": [{"z": 2}, {}]}}'
    )
    [row] = decode_json(records(payload), schema).to_pylist()
    assert row == {
        "yes no": True,
        "at": datetime(2026, 11, 23, tzinfo=UTC),
        "day": date(2026, 11, 23),
        "amount": Decimal("1.50"),
        "raw": b"hi",
        "tags": ["a", None],
        "inside": {"x": 1, "y": [{"z": 2}, {"z": None}]},
    }
    with pytest.raises(ConfigurationError, match="time64"):
        decode_json(records(), pa.schema([("t", pa.time64("us"))]))


MALFORMED = [
    b"",
    b"no JSON",
    b"[1]",
    b'{"id": "text"}',
    b'{"id": 1}{"id": 2}',
    b'{"name": "\xff"}',
    b'{"id": 1',
    b"[" * 100_000,
]


def test_each_record_has_its_row_however_many_are_decoded_at_once() -> None:
    malformed = {0, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 7}
    wanted = [None if number in malformed else number for number in range(2 * ROWS_AT_ONCE + 8)]
    payloads = [b"{" if number is None else b'{"number": %d}' % number for number in wanted]
    found = decode_json(pa.table({"data": payloads}), pa.schema([("number", pa.int64())]))
    assert found.column("number").to_pylist() == wanted


def test_a_schema_as_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"must be a pyarrow\.Schema, as .*, and not str"):
        decode_json(pa.table({"data": [b"{}"]}), cast("Any", "user string"))


@pytest.mark.parametrize(
    "schema",
    [pa.schema([]), pa.schema([("n", pa.int64()), ("n", pa.int64())]), pa.schema([('say "n"', pa.int64())])],
)
def test_a_schema_that_json_cannot_have_is_refused(schema: pa.Schema) -> None:
    with pytest.raises(ConfigurationError, match="decode_json"):
        decode_json(records(b"{}"), schema)


def test_a_record_without_a_payload_is_malformed() -> None:
    given = pa.table({"data": pa.array([None, b'{"id": 7}'], pa.binary())})
    assert decode_json(given, SCHEMA).column("id").to_pylist() == [None, 7]
    with pytest.raises(TypeError):
        decode_json(given, SCHEMA, malformed="fail")


def test_a_malformed_payload_is_null_and_moves_no_other() -> None:
    payloads = [json.dumps({"id": n}).encode() for n in range(len(MALFORMED))]
    mixed = [payload for pair in zip(payloads, MALFORMED, strict=True) for payload in pair]
    found = decode_json(records(*mixed), SCHEMA)
    assert found["id"].to_pylist()[::2] == list(range(len(MALFORMED)))
    assert set(found["id"].to_pylist()[1::2]) == {None}
    assert found["name"].null_count == len(mixed)


@pytest.mark.parametrize("payload", MALFORMED)
def test_a_malformed_payload_may_fail_the_batch(payload: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, UnicodeError, RecursionError)):
        decode_json(records(b"{}", payload), SCHEMA, malformed="fail")


@pytest.mark.parametrize("malformed", ["Fail", "raise", "error", None, True])
def test_a_value_of_malformed_that_is_not_known_is_refused(malformed: Any) -> None:
    ways: list[Callable[[], object]] = [
        lambda: with_json(None, "id long", malformed=malformed),  # type: ignore[arg-type]
        lambda: with_json(None, "id long", malformed=malformed, compression="auto"),  # type: ignore[arg-type]
        lambda: with_decoded(None, avro(CLICK), "id long", malformed=malformed),  # type: ignore[arg-type]
        lambda: split_lines(records(b"a"), malformed=malformed),
        lambda: split_log_events(records(b"a"), malformed=malformed),
        lambda: decode_json(records(b"{}"), SCHEMA, malformed=malformed),
        lambda: decode_table(records(b"{}"), avro(CLICK), SCHEMA, malformed=malformed),
    ]
    for decode in ways:
        with pytest.raises(ConfigurationError, match="is neither 'null' nor 'fail'"):
            decode()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), "99999999999999999999"),
        (pa.int16(), "99999"),
        (pa.uint8(), "-1"),
        (pa.float32(), "1e300"),
        (pa.decimal128(9, 2), "12.345"),
        (pa.struct([("n", pa.int8())]), '{"n": 300}'),
        (pa.list_(pa.int8()), "[1, 300]"),
    ],
)
def test_a_value_that_its_column_cannot_hold_makes_the_payload_malformed(kind: pa.DataType, value: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", kind), ("name", pa.string())])
    given = records(b'{"id": 1, "name": "a"}', f'{{"id": 2, "v": {value}, "name": "b"}}'.encode(), b'{"id": 3}')
    expected = {"id": [1, None, 3], "v": [None] * 3, "name": ["a", None, None]}
    assert decode_json(given, schema).to_pydict() == expected
    assert decode_table(given, lambda: json.loads, schema).to_pydict() == expected
    with pytest.raises(ValueError, match="column v"):
        decode_json(given, schema, malformed="fail")


def test_avro_is_decoded_as_in_frames() -> None:
    schema: dict[str, Any] = {"type": "record", "name": "Click", "fields": [{"name": "id", "type": "long"}]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"id": 7})
    decoder = avro(schema)
    kind = pa.struct([("id", pa.int64())])
    assert decode_column(records(out.getvalue(), b""), decoder, kind).to_pylist() == [{"id": 7}, None]
    with pytest.raises(EOFError):
        decode_column(records(b""), decoder, kind, malformed="fail")


CLICK: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
MOMENT = datetime(2026, 11, 23, 1, 2, 3, 4, UTC)


def encoded(value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, CLICK, value)
    return out.getvalue()


def test_avro_becomes_columns_with_and_without_a_registry() -> None:
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.string())),
            ("user", pa.string()),
        ]
    )
    more = schema.append(pa.field("no", pa.int8()))
    body = encoded({"user": "ann", "at": MOMENT, "tags": ["a", "b"]})
    expected = [{"at": MOMENT, "tags": ["a", "b"], "user": "ann"}, dict.fromkeys(schema.names)]
    found = decode_table(records(body, b"?"), avro(CLICK), schema)
    assert found.schema == schema
    assert found.to_pylist() == expected
    prefix = b"\x00\x00\x00\x00\x07"
    with confluent_server() as server:
        server.register(7, "clicks-value", 1, CLICK)
        decoder = registered_avro(ConfluentRegistry(server.url))
        given = records(gzip.compress(prefix + body), body)
        for _ in range(2):
            assert decode_table(given, decoder, more, compression="auto").to_pylist() == [
                one | {"no": None} for one in expected
            ]
        assert server.asked == ["/schemas/ids/7"]
        with pytest.raises(UnknownSchema, match="schema 8"):
            decode_table(records(b"\x00\x00\x00\x00\x08" + body), decoder, schema)


def test_protobuf_becomes_columns() -> None:
    schema = pa.schema([("page", pa.string()), ("user", pa.string())])
    decoder = protobuf(CLICK_DESCRIPTOR, "shop.Click")
    given = records(b"\x0a\x03ann\x12\x01/", b"", b"\xff")
    assert decode_table(given, decoder, schema).to_pylist() == [
        {"page": "/", "user": "ann"},
        {"page": "", "user": ""},
        {"page": None, "user": None},
    ]
    with pytest.raises(Exception, match="parsing"):
        decode_table(given, decoder, schema, malformed="fail")


NESTED: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "click", "type": ["null", CLICK]},
        {"name": "clicks", "type": {"type": "array", "items": "Click"}},
        {"name": "named", "type": {"type": "map", "values": "shop.Click"}},
    ],
}


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (pa.schema([("usr", pa.string())]), "the column usr .* are click, clicks, named"),
        (pa.schema([("click", pa.struct([("usr", pa.string())]))]), r"the column click\.usr .* are user, at, tags"),
        (pa.schema([("clicks", pa.list_(pa.struct([("usr", pa.string())])))]), r"the column clicks\.usr"),
        (pa.schema([("named", pa.map_(pa.string(), pa.struct([("usr", pa.string())])))]), r"the column named\.usr"),
    ],
)
def test_a_column_without_a_field_in_the_schema_is_refused(columns: pa.Schema, told: str) -> None:
    for decoder in (avro(NESTED), registered_avro({}, reader=NESTED)):
        for malformed in get_args(Malformed):
            with pytest.raises(ConfigurationError, match=told):
                decode_table(records(b""), decoder, columns, malformed=malformed)
    user = pa.struct([("user", pa.string())])
    known = pa.schema([("click", user), ("clicks", pa.list_(user)), ("named", pa.map_(pa.string(), user))])
    assert decode_table(records(b""), avro(NESTED), known).num_rows == 1
    # The schemas of a mapping can have different fields.
    assert decode_table(records(b""), registered_avro({1: NESTED}), columns).num_rows == 1


def test_a_column_without_a_field_in_the_message_is_refused() -> None:
    click = protobuf(CLICK_DESCRIPTOR, "shop.Click")
    with pytest.raises(ConfigurationError, match="the column usr has no field in the schema of the payloads"):
        decode_table(records(b""), click, pa.schema([("usr", pa.string())]))
    assert decode_table(records(b""), click, pa.schema([("user", pa.string())])).num_rows == 1


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: registered_avro(cast("Any", "http://registry:8081")),
            r"registered_avro\(ConfluentRegistry\(url\)\)",
        ),
        (lambda: registered_avro({7: json.dumps(CLICK)}), r"json\.loads\(text\)"),
        (lambda: registered_avro({7: CLICK}, reader=json.dumps(CLICK)), r"json\.loads\(text\)"),
        (lambda: avro(json.dumps(CLICK)), r"json\.loads\(text\)"),
        (lambda: avro(json.dumps(CLICK).encode()), r"json\.loads\(text\)"),
        (lambda: avro("click.avsc"), r"json\.loads\(Path\(path\)\.read_text\(\)\)"),
        (lambda: avro(Path("click.avsc")), r"read_text\(\)"),
        (lambda: protobuf(cast("Any", "click.desc"), "shop.Click"), r"Path\(path\)\.read_bytes\(\)"),
    ],
)
def test_a_text_instead_of_a_schema_is_refused_with_what_to_say(call: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        call()


def test_a_time_of_day_becomes_a_text_or_a_time() -> None:
    types = {"a": "int-time-millis", "b": "long-time-micros", "c": "long-time-micros"}
    fields = [
        {"name": name, "type": {"type": one.partition("-")[0], "logicalType": one.partition("-")[2]}}
        for name, one in types.items()
    ]
    fields[2]["type"] = {"type": "map", "values": {"type": "array", "items": fields[2]["type"]}}
    schema = {"type": "record", "name": "Times", "fields": [*fields, {"name": "id", "type": "long"}]}
    named = pa.map_(pa.string(), pa.list_(pa.string()))
    columns = pa.schema([("a", pa.string()), ("b", pa.time64("ns")), ("c", named), ("id", pa.int8())])
    out = io.BytesIO()
    noon, later = time(12), time(23, 59, 59, 999_999)
    for id_ in (1, 2**40):
        fastavro.schemaless_writer(out, schema, {"a": noon, "b": later, "c": {"x": [noon, later]}, "id": id_})
    size = len(out.getvalue()) // 2 - 2  # the second number has five more bytes
    payloads = out.getvalue()[:size], out.getvalue()[size:]
    # A payload that does not fit leaves the others as they are.
    found = decode_table(records(*payloads, payloads[0]), avro(schema), columns).to_pylist()
    row = {"a": "12:00:00", "b": later, "c": [("x", ["12:00:00", "23:59:59.999999"])], "id": 1}
    assert found == [row, dict.fromkeys(columns.names), row]


def test_a_value_that_does_not_fit_its_column_makes_its_payload_null_alone() -> None:
    schema = pa.schema([("user", pa.int64()), ("tags", pa.list_(pa.string()))])
    body = encoded({"user": "ann", "at": MOMENT, "tags": []})
    assert decode_table(records(body), avro(CLICK), schema).to_pylist() == [{"user": None, "tags": None}]
    with pytest.raises(pa.ArrowException):
        decode_table(records(body), avro(CLICK), schema, malformed="fail")


def test_compressed_payloads_are_opened_before() -> None:
    mixed = records(gzip.compress(b'{"id": 1}'), b'{"id": 2}', gzip.compress(b'{"id": 3}')[:-1])
    assert decode_json(mixed, SCHEMA, compression="auto")["id"].to_pylist() == [1, 2, None]
    assert decode_json(mixed, SCHEMA, compression="gzip")["id"].to_pylist() == [1, None, None]
    assert decode_json(mixed, SCHEMA)["id"].to_pylist() == [None, 2, None]
    with pytest.raises(ValueError, match="cut off"):
        decode_json(mixed, SCHEMA, compression="auto", malformed="fail")
    found = decode_column(mixed, lambda: len, pa.int64(), compression="gzip")
    assert found.to_pylist() == [9, None, None]
    with pytest.raises(ConfigurationError, match="'brotli'"):
        decode_json(mixed, SCHEMA, compression="brotli")  # type: ignore[arg-type]


def test_a_record_batch_is_decoded_as_a_table_is() -> None:
    batch = pa.record_batch({"data": [b"\x02x", b"\x02y"]})
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    found = decode_table(batch, avro(schema), pa.schema([("a", pa.string())]))
    assert found["a"].to_pylist() == ["x", "y"]
