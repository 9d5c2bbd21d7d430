"""Avro payloads that are decoded field by field become the same columns as those that are decoded one by one."""

import gzip
import io
import math
import re
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcl_dagster.errors import PackageMissing
from kcl_dagster.spark import avro_decoding
from kcl_dagster.spark.arrow_decoding import decode_table
from kcl_dagster.spark.avro_decoding import avro, registered_avro
from kcl_dagster.spark.fetched_schemas import Framing
from kcl_dagster.spark.payload_decoding import Decode, Decoding

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _few_rows_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_decoding, "FEWEST_ROWS", 1)


def one_by_one(make_decoder: Callable[[], Decode]) -> Callable[[], Decode]:
    """The same decoder, without what decodes many payloads at once."""
    return lambda: partial(make_decoder())


def outcome(make_decoder: Callable[[], Decode], payloads: pa.Array, kind: pa.DataType, *, is_strict: bool) -> Any:
    try:
        found = Decoding(make_decoder, is_strict=is_strict).column(payloads, kind)
    except Exception as error:
        return type(error), re.sub(r" object at 0x\w+", "", str(error))
    found.validate(full=True)
    return found.type, repr(found.to_pylist())


WHOLE = st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**31) - 1, 2**31) | st.integers(-300, 300)
MICROS = WHOLE | st.sampled_from([-62135596800000000, -62135596800000001, 253402300799999999, 253402300800000000])
MILLIS = WHOLE | st.sampled_from([-62135596800000, -62135596800001, 253402300799999, 253402300800000])
DAYS = st.integers(-1_000_000, 4_000_000) | st.sampled_from([-719162, -719163, 2932896, 2932897])
TIMES = WHOLE | st.integers(-1, 86_400_000) | st.sampled_from([86_399_999_999, 86_400_000_000, 1_500_000])
TEXTS = st.text(max_size=6) | st.sampled_from(["x" * 64, "x" * 10_000])
UUIDS = st.integers(0, 2**128 - 1).map(lambda number: str(UUID(int=number)))
MAYBE_UUIDS = UUIDS | UUIDS.map(str.upper) | UUIDS.map("{{{}}}".format) | UUIDS.map(lambda one: one + "\n") | TEXTS
STRINGS = [pa.string(), pa.large_string()]
BINARIES = [pa.binary(), pa.large_binary(), pa.binary(3)]
MOMENTS = [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("ms")]
DECIMALS = [pa.decimal128(9, 2), pa.decimal128(4, 2), pa.decimal128(38, 2), pa.decimal128(9, 3)]
INTEGERS = [pa.int64(), pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint64()]
DAY_TIMES = [pa.time64("us"), pa.time64("ns"), pa.string(), pa.int64()]
DIGITS = {"logicalType": "decimal", "precision": 6, "scale": 2}
MANY_DIGITS = {"logicalType": "decimal", "precision": 30, "scale": 2}

# Types of Avro with the values that are written, before their logical type, and types of columns.
LEAVES: list[tuple[Any, st.SearchStrategy[Any], list[pa.DataType]]] = [
    ("null", st.none(), [pa.null(), pa.int64()]),
    ("boolean", st.booleans(), [pa.bool_()]),
    ("int", WHOLE, [*INTEGERS, pa.float64(), pa.bool_()]),
    ("long", WHOLE, [*INTEGERS, pa.string()]),
    ("float", st.floats(width=32), [pa.float32(), pa.float64()]),
    ("double", st.floats() | st.just(1e300), [pa.float32(), pa.float64(), pa.int64()]),
    ("string", TEXTS, STRINGS),
    ("bytes", st.binary(max_size=12), BINARIES),
    ({"type": "enum", "name": "E", "symbols": ["one", "two", "three"]}, st.sampled_from(["one", "three"]), STRINGS),
    ({"type": "fixed", "name": "F", "size": 3}, st.binary(min_size=3, max_size=3), BINARIES),
    ({"type": "fixed", "name": "N", "size": 0}, st.just(b""), BINARIES),
    ({"type": "int", "logicalType": "date"}, DAYS, [pa.date32(), pa.int32()]),
    ({"type": "long", "logicalType": "timestamp-millis"}, MILLIS, MOMENTS),
    ({"type": "long", "logicalType": "timestamp-micros"}, MICROS, MOMENTS),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, MILLIS, MOMENTS),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, MICROS, MOMENTS),
    ({"type": "int", "logicalType": "time-millis"}, TIMES, DAY_TIMES),
    ({"type": "long", "logicalType": "time-micros"}, TIMES, DAY_TIMES),
    ({"type": "long", "logicalType": "of-my-own"}, WHOLE, [pa.int64()]),
    ({"type": "string", "logicalType": "uuid"}, MAYBE_UUIDS, [*STRINGS, pa.binary()]),
    ({"type": "bytes", **DIGITS}, st.binary(max_size=10) | st.binary(min_size=3, max_size=3), DECIMALS),
    ({"type": "bytes", **MANY_DIGITS}, st.binary(max_size=18), DECIMALS),
    ({"type": "fixed", "name": "D", "size": 3, **DIGITS}, st.binary(min_size=3, max_size=3), DECIMALS),
    ({"type": "fixed", "name": "W", "size": 16, **MANY_DIGITS}, st.binary(min_size=16, max_size=16), DECIMALS),
    ({"type": "array", "items": "long"}, st.lists(WHOLE, max_size=2), [pa.list_(pa.int64())]),
]


def plain(schema: Any) -> Any:
    """A schema that writes values of all sizes in the same bytes, unchanged by logical types."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if not isinstance(schema, dict):
        return "long" if schema == "int" else schema
    fields = [{**field, "type": plain(field["type"])} for field in schema.get("fields", ())]
    changed = {"fields": fields, "type": plain(schema["type"])}
    return {name: item for name, item in schema.items() if name != "logicalType"} | changed


@st.composite
def types(draw: st.DrawFn, level: int, used: list[str]) -> tuple[Any, st.SearchStrategy[Any], pa.DataType]:
    if level < 2 and draw(st.integers(0, 5)) == 0:
        return draw(records(level + 1, used))
    schema, values, columns = draw(st.sampled_from(LEAVES[:-1] if draw(st.integers(0, 9)) else LEAVES))
    if isinstance(schema, dict) and "name" in schema:
        if schema["name"] in used:
            schema = schema["name"]
        else:
            used.append(schema["name"])
    return schema, values, draw(st.sampled_from(columns))


@st.composite
def records(draw: st.DrawFn, level: int, used: list[str]) -> tuple[Any, st.SearchStrategy[Any], pa.DataType]:
    name = f"R{len(used)}"
    used.append(name)
    fields, values, columns = [], {}, []
    for number in range(draw(st.integers(0 if level else 1, 4))):
        schema, value, kind = draw(types(level, used))
        match draw(st.integers(0, 3)) if schema != "null" else 3:
            case 0:
                schema, value = ["null", schema], st.none() | value
            case 1:
                schema, value = [schema, "null"], st.none() | value
        fields.append({"name": f"f{number}", "type": schema})
        values[f"f{number}"] = value
        if draw(st.integers(0, 4)):
            columns.append((f"f{number}", kind))
    if draw(st.integers(0, 9)) == 0:
        columns.append(("missing", pa.string()))
    columns = draw(st.permutations(columns))
    schema = {"type": "record", "name": name, "fields": fields}
    return schema, st.fixed_dictionaries(values), pa.struct(columns)


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


@st.composite
def damaged(draw: st.DrawFn, payload: bytes) -> bytes | None:
    place = draw(st.integers(0, len(payload)))
    match draw(st.sampled_from(["whole", "whole", "cut", "longer", "flipped", "inserted", "random", "null"])):
        case "cut":
            return payload[:place]
        case "longer":
            return payload + draw(st.binary(min_size=1, max_size=3))
        case "flipped" if place < len(payload):
            return payload[:place] + bytes([payload[place] ^ (1 << draw(st.integers(0, 7)))]) + payload[place + 1 :]
        case "inserted":
            return (
                payload[:place]
                + draw(st.sampled_from([b"\xff" * 9 + b"\x01", b"\xff" * 10 + b"\x00", b"\x80", b"\xed\xa0\x80"]))
                + payload[place:]
            )
        case "random":
            return draw(st.binary(max_size=20))
        case "null":
            return None
    return payload


@settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data(), is_strict=st.booleans(), skip_bytes=st.sampled_from([0, 2]))
def test_a_column_is_the_same_as_when_its_payloads_are_decoded_one_by_one(
    data: st.DataObject, is_strict: bool, skip_bytes: int
) -> None:
    schema, values, kind = data.draw(records(0, []))
    writer = fastavro.parse_schema(plain(schema))
    payloads = [
        data.draw(damaged(b"##"[:skip_bytes] + encoded(writer, value)))
        for value in data.draw(st.lists(values, max_size=6))
    ]
    # The column begins inside of its buffers.
    column = pa.array([b"before", *payloads], data.draw(st.sampled_from([pa.binary(), pa.large_binary()])))[1:]
    decoder = avro(schema, skip_bytes=skip_bytes)
    assert outcome(decoder, column, kind, is_strict=is_strict) == outcome(
        one_by_one(decoder), column, kind, is_strict=is_strict
    )


def record_of(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def framed_for_confluent(id_: int, body: bytes) -> bytes:
    return b"\x00" + id_.to_bytes(4, "big") + body


def framed_for_glue(id_: int, body: bytes) -> bytes:
    is_compressed = len(body) % 2 == 0
    prefix = bytes([3, 5 if is_compressed else 0]) + UUID(int=id_).bytes
    return prefix + (zlib.compress(body) if is_compressed else body)


@settings(max_examples=200, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data(), is_strict=st.booleans(), framing=st.sampled_from(["confluent", "glue"]))
def test_records_of_several_schemas_become_the_same_column_as_one_by_one(
    data: st.DataObject, is_strict: bool, framing: Framing
) -> None:
    frame = framed_for_confluent if framing == "confluent" else framed_for_glue
    schemas, payloads = {}, []
    for id_ in (7, 8):
        schema, values, kind = data.draw(records(0, []))
        schemas[id_ if framing == "confluent" else str(UUID(int=id_))] = schema
        written = [encoded(plain(schema), value) for value in data.draw(st.lists(values, max_size=4))]
        payloads += [data.draw(damaged(frame(id_, body))) for body in written]
    column = pa.array(data.draw(st.permutations(payloads)), pa.binary())
    reader = data.draw(st.sampled_from([None, *schemas.values()]))
    decoder = registered_avro(schemas, framing=framing, reader=reader)
    assert outcome(decoder, column, kind, is_strict=is_strict) == outcome(
        one_by_one(decoder), column, kind, is_strict=is_strict
    )


# Without the last ones, which are decoded one by one.
ALL: dict[str, Any] = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": f"f{number}", "type": ["null", schema] if number % 3 == 0 and schema != "null" else schema}
        for number, (schema, _, _) in enumerate(LEAVES[:-2])
    ],
}
COLUMNS = pa.struct([(f"f{number}", columns[0]) for number, (_, _, columns) in enumerate(LEAVES[:-2])])
TWICE = [{"name": "all", "type": ALL}, {"name": "again", "type": "All"}]
BOTH = {"type": "record", "name": "Both", "fields": TWICE}
NUMBERS = [None, True, 1, -(2**63), 0.5, 0.1]
CONTENTS = ["é" * 70, b"\xff", "two", b"abc", b""]
TIMED = [20_000, 10**12, 10**15, 10**12, 10**15, 1_500, 86_399_999_999, 3]
OTHERS = [str(UUID(int=5)), b"\xff\x00", b"\x01" * 2, b"\x00\x00\x01"]
USUAL = {f"f{number}": value for number, value in enumerate([*NUMBERS, *CONTENTS, *TIMED, *OTHERS])}


@pytest.fixture
def singles(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The values that are decoded one by one, as they come."""
    found: list[bytes] = []
    usual = avro_decoding._AvroSchema.value

    def value(self: Any, body: io.BytesIO, reader: Any = None) -> Any:
        found.append(body.getvalue()[body.tell() :])
        return usual(self, body, reader)

    monkeypatch.setattr(avro_decoding._AvroSchema, "value", value)
    return found


def test_usual_values_of_all_types_are_decoded_at_once(singles: list[bytes]) -> None:
    sparse = {name: None if name in ("f3", "f6", "f12", "f21") else value for name, value in USUAL.items()}
    whole, other = (encoded(plain(BOTH), {"all": value, "again": USUAL}) for value in (USUAL, sparse))
    values = [whole, other, whole[:-1], other + b"\x00", whole]
    column = pa.array([b"##" + value for value in values], pa.binary())
    kind = pa.struct([("again", COLUMNS), ("all", COLUMNS)])
    assert len(LEAVES) - 2 == len(USUAL)
    decoder = avro(BOTH, skip_bytes=2)
    found = Decoding(decoder, is_strict=False).column(column, kind)
    assert singles == [whole[:-1], other + b"\x00"]
    assert found.is_null().to_pylist() == [False, False, True, True, False]
    assert found == Decoding(one_by_one(decoder), is_strict=False).column(column, kind)


@pytest.mark.parametrize("framing", ["confluent", "glue"])
def test_records_of_one_schema_are_decoded_at_once_if_they_are_many(
    singles: list[bytes], framing: Framing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_decoding, "FEWEST_ROWS", 3)
    frame = framed_for_confluent if framing == "confluent" else framed_for_glue
    id_of = {id_: id_ if framing == "confluent" else str(UUID(int=id_)) for id_ in (7, 8)}
    old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    new = {**old, "fields": [*old["fields"], {"name": "b", "type": "int", "default": 5}]}
    old_values = [encoded(old, {"a": text}) for text in ("xx", "yy", "zz")]
    new_values = [encoded(new, {"a": text, "b": 1}) for text in ("x", "y", "z")]
    old_ones = [frame(7, value) for value in old_values]
    new_ones = [frame(8, value) for value in new_values]
    assert all(payload[1] == 0 for payload in old_ones + new_ones)  # none is compressed
    kind = pa.struct([("b", pa.int32()), ("a", pa.string())])
    given = pa.array([one for pair in zip(old_ones, new_ones, strict=True) for one in pair][:-1], pa.binary())
    schemas = {id_of[7]: old, id_of[8]: new}
    found = Decoding(registered_avro(schemas, framing=framing), is_strict=True).column(given, kind)
    assert [row["a"] for row in found.to_pylist()] == ["xx", "x", "yy", "y", "zz"]
    assert [row["b"] for row in found.to_pylist()] == [None, 1, None, 1, None]
    assert singles == new_values[:2]  # they are too few
    singles.clear()
    decoder = registered_avro(schemas, framing=framing, reader=new)
    assert Decoding(decoder, is_strict=True).column(given, kind)[0].as_py() == {"b": 5, "a": "xx"}
    assert set(singles) == {*old_values, *new_values[:2]}  # values are converted one by one
    singles.clear()
    Decoding(decoder, is_strict=True).column(pa.array(new_ones), kind)
    assert singles == []  # nothing has to be converted


def test_each_record_is_decoded_with_its_own_schema(singles: list[bytes]) -> None:
    """Each value could also be one of the other schema."""
    schemas = {7: record_of(("a", "string"), ("b", "string")), 8: record_of(("b", "string"), ("a", "string"))}
    column = pa.array([framed_for_confluent(id_, b"\x02x\x02y") for id_ in (7, 8, 8, 7)], pa.binary())
    kind = pa.struct([("a", pa.string()), ("b", pa.string())])
    found = Decoding(registered_avro(schemas), is_strict=True).column(column, kind)
    assert [row["a"] for row in found.to_pylist()] == ["x", "y", "y", "x"]
    assert singles == []


def test_few_payloads_are_decoded_one_by_one(singles: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_decoding, "FEWEST_ROWS", 3)
    for number in (2, 3):
        Decoding(avro("long"), is_strict=True).column(pa.array([b"\x02"] * number), pa.int64())
        assert len(singles) == 2


def test_compressed_payloads_are_decoded_one_by_one(singles: list[bytes]) -> None:
    payload = encoded(plain(ALL), USUAL)
    column = pa.array([gzip.compress(payload), payload], pa.binary())
    found = Decoding(avro(ALL), is_strict=True, compression="auto").column(column, COLUMNS)
    assert singles == [payload, payload]
    assert found.null_count == 0


def test_a_schema_that_uses_its_types_many_times_is_read_in_time(singles: list[bytes]) -> None:
    """Written out, this schema would have 10^9 fields."""
    schema: Any = {"type": "record", "name": "L0", "fields": []}
    for level in range(1, 10):
        types = [schema, *[f"L{level - 1}"] * 9]
        fields = [{"name": f"f{number}", "type": ["null", one]} for number, one in enumerate(types)]
        schema = {"type": "record", "name": f"L{level}", "fields": fields}
    column = pa.array([b"\x00" * 10, b"\x02" + b"\x00" * 19], pa.binary())
    kind = pa.struct([("f0", pa.struct([("f1", pa.struct([]))]))])
    found = Decoding(avro(schema), is_strict=True).column(column, kind)
    assert found.to_pylist() == [{"f0": None}, {"f0": {"f1": None}}]
    assert singles == []


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        (record_of(("a", "long"), ("a", "string")), [("a", pa.string())]),
        (record_of(("a", "long"), ("b", "string")), [("b", pa.int64()), ("b", pa.string())]),
        (record_of(("a", ["null", "R"]), ("b", "string")), [("b", pa.string())]),
        (record_of(("a", {"type": "fixed", "name": "F", "size": "3"}), ("b", "string")), [("a", pa.binary())]),
        (record_of(("a", {"type": "fixed", "name": "F", "size": 2**70}), ("b", "string")), [("a", pa.binary())]),
        (record_of(("a", {"type": "fixed", "name": "F", "size": -1}), ("b", "string")), [("a", pa.binary())]),
    ],
)
@pytest.mark.parametrize("is_strict", [False, True])
def test_unusual_schemas_change_nothing(
    schema: Any, columns: list[tuple[str, pa.DataType]], is_strict: bool
) -> None:
    payloads = [b"\x02\x02x", b"\x04\x02y", b"\x00\x02x", b"\x02\x00\x02x\x02y"]
    column, kind = pa.array(payloads, pa.binary()), pa.struct(columns)
    expected = outcome(one_by_one(avro(schema)), column, kind, is_strict=is_strict)
    assert outcome(avro(schema), column, kind, is_strict=is_strict) == expected


@pytest.mark.parametrize("kind", [pa.binary_view(), pa.binary(2)])
def test_payloads_in_columns_of_other_types_are_decoded_as_well(kind: pa.DataType) -> None:
    found = Decoding(avro("string"), is_strict=True).column(pa.array([b"\x02a", None], kind), pa.string())
    assert found.to_pylist() == ["a", None]


def test_a_table_has_any_number_of_chunks() -> None:
    schema = pa.schema([("f6", pa.string())])
    payload = encoded(plain(ALL), USUAL)
    cases: list[list[list[bytes | None]]] = [[], [[]], [[payload], [], [None, payload]]]
    for chunks in cases:
        data = pa.chunked_array(chunks, pa.binary())
        found = decode_table(pa.table({"data": data}), avro(ALL), schema)
        assert found.schema == schema
        assert found["f6"].to_pylist() == [USUAL["f6"] if one else None for one in data.to_pylist()]


def test_a_cut_off_payload_at_the_end_of_the_buffer_is_null() -> None:
    schema = record_of(*((f"f{number}", "long") for number in range(50)))
    column = pa.array([b"\x00" * 50, b""], pa.binary())
    found = Decoding(avro(schema), is_strict=False).column(column, pa.struct([("f49", pa.int64())]))
    assert found.to_pylist() == [{"f49": 0}, None]


@pytest.mark.parametrize("make_decoder", [avro("string"), registered_avro({7: "string"}, framing="confluent")])
def test_a_missing_fastavro_is_named(monkeypatch: pytest.MonkeyPatch, make_decoder: Callable[[], Decode]) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    column = pa.array([b"\x00\x00\x00\x00\x07\x00"])
    with pytest.raises(PackageMissing, match="pip install fastavro"):
        Decoding(make_decoder, is_strict=False).column(column, pa.string())


EDGES: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [False, True],
    "long": sorted(
        {
            edge + step
            for exponent in (7, 8, 15, 16, 31, 32, 63)
            for edge in (2**exponent, -(2**exponent), 86_400_000, 86_400_000_000, 0)
            for step in (-1, 0, 1)
            if -(2**63) <= edge + step < 2**63
        }
        | {bound // unit + step for bound in (-62135596800000000, 253402300800000000) for unit in (1, 1000)
           for step in (-1, 0)}
        | {day + step for day in (-719162, 2932896) for step in (-1, 0, 1)}
    ),
    "float": [0.0, -0.0, math.inf, -math.inf, math.nan, 3e38],
    "double": [0.0, math.inf, math.nan, 3.5e38, -3.5e38, 1e300],
    "string": ["", "é", "x" * 64, str(UUID(int=5)), str(UUID(int=5)).replace("0", "A"), UUID(int=5).hex],
    "bytes": [
        number.to_bytes(size, "big", signed=True)
        for size in (1, 3, 8, 9, 17)
        for digits in (4, 6, 7, 18, 19, 30)
        for number in (10**digits, 10**digits - 1, -(10**digits), 1 - 10**digits, -1)
        if -(2 ** (8 * size - 1)) <= number < 2 ** (8 * size - 1)
    ] + [b"", b"\x00", b"\x80", b"\xff" * 3],
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "kind"), [(schema, kind) for schema, _, kinds in LEAVES[:-1] for kind in kinds], ids=str
)
def test_values_at_the_edges_of_types_and_columns(schema: Any, kind: pa.DataType) -> None:
    written = plain(schema)
    written = written["type"] if isinstance(written, dict) and written["type"] in EDGES else written
    if written == schema or isinstance(written, str):
        payloads = [encoded(written, value) for value in EDGES.get(written, ["one"])]
    elif written["type"] == "enum":
        payloads = [b"\x00", b"\x04", b"\x06", b"\x01"]
    else:
        payloads = [value for value in EDGES["bytes"] if len(value) == written["size"]]
    column = pa.array(payloads, pa.binary())
    expected = outcome(one_by_one(avro(schema)), column, kind, is_strict=False)
    assert outcome(avro(schema), column, kind, is_strict=False) == expected


LONGS = {"type": "record", "name": "R", "fields": [{"name": name, "type": "long"} for name in "ab"]}
TEXTS_OF_BOTH = {"type": "record", "name": "R", "fields": [{"name": name, "type": "string"} for name in "ab"]}


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (LONGS, b"\xff" * 10 + b"\x00"),  # a number of eleven bytes, and not two of ten bytes and one
        (LONGS, b"\x00\x80"),  # a number that is cut off where another payload follows
        (TEXTS_OF_BOTH, b"\x81\x00"),  # a text of -1 bytes, and not two numbers in the same bytes
        (TEXTS_OF_BOTH, b"\x00\x02"),
        (["null", "long"], b"\x04\x00"),
    ],
)
def test_a_malformed_payload_is_null_and_moves_no_other(schema: Any, payload: bytes) -> None:
    whole = b"\x00\x00"
    column = pa.array([whole, payload, whole, payload, None], pa.binary())
    kind = pa.string() if schema is TEXTS_OF_BOTH else pa.int64()
    kind = kind if isinstance(schema, list) else pa.struct([("a", kind), ("b", kind)])
    found = Decoding(avro(schema), is_strict=False).column(column, kind)
    usual = found[0].as_py()
    assert found.to_pylist() == [usual, None, usual, None, None]


def test_a_column_that_arrow_cannot_bring_into_order_is_decoded() -> None:
    """One payload is malformed, so the others are decoded at once, and all are brought into order."""
    kind = pa.struct([("a", pa.string()), ("later", pa.string_view())])
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    given = pa.array([b"\x00\x00\x00\x00\x07\x02x"] * 4 + [b"\x00"])
    found = Decoding(registered_avro({7: schema}), is_strict=False).column(given, kind)
    assert found.to_pylist() == [{"a": "x", "later": None}] * 4 + [None]
