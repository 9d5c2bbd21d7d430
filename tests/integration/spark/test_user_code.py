"""What user code is given beside the DataFrame: decoders, and functions that store."""

import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from importlib import import_module
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from dagster import EnvVar
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.errors import ConfigurationError, PackageMissing, RecordRefused, Unavailable
from kcl_dagster.spark import avro_decoding, payload_compression, payload_decoding
from kcl_dagster.spark.avro_decoding import avro, registered_avro
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.confluent_registry import ConfluentRegistry
from kcl_dagster.spark.decoded_columns import as_arrow
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.payload_decoding import protobuf, with_decoded, with_json
from kcl_dagster.spark.payload_splitting import split_lines, split_log_events
from kcl_dagster.spark.sinks.foreach_batch import ForeachBatchSink
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.error_class import class_of
from kcl_dagster.worker.error_text import full
from tests.doubles.registries import confluent_server
from tests.integration.spark import test_sinks
from tests.integration.spark.test_sinks import batch, part, records

# Untyped packages.
descriptor_pb2: Any = import_module("google.protobuf.descriptor_pb2")
descriptor_pool: Any = import_module("google.protobuf.descriptor_pool")
message_factory: Any = import_module("google.protobuf.message_factory")
fastavro: Any = import_module("fastavro")

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def _send_this_module() -> None:
    """Executors do not have the tests."""

    by_value: Any = cloudpickle.register_pickle_by_value
    by_value(sys.modules[__name__])
    by_value(test_sinks)


def payloads(spark: SparkSession, *data: bytes | None) -> DataFrame:
    return spark.createDataFrame([(value,) for value in data], "data binary")


# Decoding


def test_json_becomes_a_struct_and_what_is_not_json_becomes_null(spark: SparkSession) -> None:
    frame = payloads(spark, b'{"id": 1, "name": "a"}', b'{"id": 2}', b"{oops", b"", None, b'{"id": "x"}', b"[1]")
    values = [row.value for row in with_json(frame, "id long, name string").collect()]
    assert [None if value is None else value.asDict() for value in values[:2]] == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": None},
    ]
    assert values[2:6] == [None] * 4


NOT_ONE_OBJECT = [
    b'{"id": 1}{"id": 2}',
    b'{"id": 1} {"id": 2}',
    b'{"id": 1}\n{"id": 2}',
    b'{"id": 1}, {"id": 2}',
    b'{"id": 3} trailing',
    b'{"id": 1}]',
    b'{"id": 1}, "name": "a"',
    b'{"id": 1',
    b'{"id": "text"}',
    b'{"id": 7.5}',
    b'[{"id": 5}, {"id": 6}]',
    b'[{"id": 5}]',
    b"null",
    b"5",
    b"",
    b" \n",
]


def test_json_with_a_rest_or_without_content_is_malformed(spark: SparkSession) -> None:
    frame = payloads(spark, b' {"id": 9, "more": {"x": [1]}} \n', b"{}", None, *NOT_ONE_OBJECT)
    values = [row.value for row in with_json(frame, "id long, name string").collect()]
    assert values == [(9, None), (None, None), None, *(None for _ in NOT_ONE_OBJECT)]
    strict = with_json(frame, "id long, name string", malformed="fail")
    assert [row.value for row in strict.limit(3).collect()] == values[:3]
    for payload in (b'{"id": 1}{"id": 2}', b""):
        one = with_json(frame.where(F.col("data") == F.lit(payload)), "id long, name string", malformed="fail")
        with pytest.raises(RecordRefused, match="not exactly one JSON object"), write_failures("lake"):
            one.select("value.id").collect()


def test_malformed_json_is_an_error_that_names_the_record_and_none_of_its_values(spark: SparkSession) -> None:
    frame = payloads(spark, b'{"id": "anna"}').selectExpr(
        "data", "'shardId-000000000007' as shard_id", "'49590338271490256608559692538361571095' as sequence_number"
    )
    with pytest.raises(RecordRefused) as refused, write_failures("lake"):
        with_json(frame, "id long", malformed="fail").collect()
    assert str(refused.value) == (
        "lake: with_json: a payload is not exactly one JSON object with the types of the schema (shard_id "
        "shardId-000000000007, sequence_number 49590338271490256608559692538361571095). With malformed='null', the "
        "value of such a payload is null"
    )
    assert full(refused.value).startswith(f"RecordRefused: {refused.value}")


def descriptors() -> bytes:
    """What protoc says of a small message."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="click.proto", package="shop", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="VIEW", number=0)
    kind.value.add(name="BUY", number=1)
    item = file.message_type.add(name="Item")
    item.field.add(name="sku", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    click = file.message_type.add(name="Click")
    click.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    click.field.add(name="kind", number=2, type=field.TYPE_ENUM, type_name=".shop.Kind", label=field.LABEL_OPTIONAL)
    click.field.add(
        name="items", number=3, type=field.TYPE_MESSAGE, type_name=".shop.Item", label=field.LABEL_REPEATED
    )
    click.field.add(
        name="first", number=4, type=field.TYPE_MESSAGE, type_name=".shop.Item", label=field.LABEL_OPTIONAL
    )
    entry = click.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    click.field.add(
        name="counts",
        number=5,
        type=field.TYPE_MESSAGE,
        type_name=".shop.Click.CountsEntry",
        label=field.LABEL_REPEATED,
    )
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def test_protobuf_becomes_a_struct(spark: SparkSession) -> None:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    click = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Click"))
    message = click(id=2**60, kind=1, items=[{"sku": "a"}, {"sku": "b"}], counts={"x": 3})
    schema = (
        "id long, kind string, items array<struct<sku string>>, first struct<sku string>, counts map<string,int>"
    )
    frame = payloads(spark, message.SerializeToString(), b"", b"\xff", None)
    full, empty, broken, missing = (
        row.value for row in with_decoded(frame, protobuf(descriptors(), "shop.Click"), schema).collect()
    )
    assert full.asDict(recursive=True) == {
        "id": 2**60,
        "kind": "BUY",
        "items": [{"sku": "a"}, {"sku": "b"}],
        "first": None,
        "counts": {"x": 3},
    }
    assert empty.asDict(recursive=True) == {"id": 0, "kind": "VIEW", "items": [], "first": None, "counts": {}}
    assert broken is None
    assert missing is None


def test_a_wrong_message_name_is_an_error_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"shop\.Nothing"):
        protobuf(descriptors(), "shop.Nothing")
    with pytest.raises(ConfigurationError):
        protobuf(b"not descriptors", "shop.Click")


def test_a_decoder_that_fails_can_fail_the_batch(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="DecodeError"):
        with_decoded(
            payloads(spark, b"\xff"), protobuf(descriptors(), "shop.Click"), "id long", malformed="fail"
        ).collect()


class Registry:
    """A decoder that learns schemas as it goes, like a registry's client."""

    def __call__(self) -> Callable[[bytes], Any]:
        known: dict[int, str] = {}

        def decode(payload: bytes) -> Any:
            schema = known.setdefault(payload[0], f"schema {payload[0]}")
            return {"schema": schema, "text": payload[1:].decode()}

        return decode


def test_any_decoder_can_be_plugged_in(spark: SparkSession) -> None:
    frame = with_decoded(
        payloads(spark, b"\x07abc", b"\x08\xff"), Registry(), "schema string, text string", into="v"
    )
    assert [row.v for row in frame.collect()] == [("schema 7", "abc"), None]


CLICK = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}


def test_avro_is_decoded(spark: SparkSession) -> None:
    frame = payloads(spark, b"##\x02\x02\x02a", b"##\x04\x00", b"##short", b"")
    found = with_decoded(frame, avro(CLICK, skip_bytes=2), "id long, name string").collect()
    assert [row.value for row in found] == [(1, "a"), (2, None), None, None]


# The same fields in another order: what was written with one reads as the other, and is wrong.
SWAPPED: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "page", "type": "string"}, {"name": "user", "type": "string"}],
}
USERS: dict[str, Any] = {**SWAPPED, "fields": list(reversed(SWAPPED["fields"]))}


def framed(id_: int, body: bytes) -> bytes:
    return b"\x00" + id_.to_bytes(4, "big") + body


@pytest.mark.audit("A9")
@pytest.mark.parametrize("skip_bytes", [5, 18])
def test_one_schema_for_a_prefix_that_names_the_schema_is_refused(skip_bytes: int) -> None:
    with pytest.raises(ConfigurationError, match=r"registered_avro\(\{id: schema\}"):
        avro(USERS, skip_bytes=skip_bytes)


@pytest.mark.audit("A9")
@pytest.mark.parametrize("by_function", [False, True])
def test_each_record_is_read_with_the_schema_it_was_written_with(spark: SparkSession, by_function: bool) -> None:
    schemas = {7: USERS, 8: SWAPPED}
    frame = payloads(
        spark, framed(7, b"\x06ann\x02/"), framed(8, b"\x02/\x06bob"), b"\x01\x00\x00\x00\x07", b"", None
    )
    decoder = registered_avro(schemas.__getitem__ if by_function else schemas)
    found = [row.value for row in with_decoded(frame, decoder, "user string, page string").collect()]
    assert found == [("ann", "/"), ("bob", "/"), None, None, None]


@pytest.mark.audit("A9")
@pytest.mark.parametrize("by_function", [False, True])
def test_a_schema_that_is_not_known_fails_the_batch_even_where_malformed_payloads_become_null(
    spark: SparkSession, by_function: bool
) -> None:
    schemas = {7: USERS}
    frame = payloads(spark, framed(7, b"\x06ann\x02/"), framed(9, b"\x02/\x06bob"))
    decoder = registered_avro(schemas.__getitem__ if by_function else schemas)
    with pytest.raises(Exception, match=r"UnknownSchema: .*9"):
        with_decoded(frame, decoder, "user string, page string", malformed="null").collect()


def test_a_registry_is_asked_in_the_executors_and_its_outage_is_none_of_the_code(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_TOKEN", "s3cret")
    with confluent_server() as server:
        server.authorization = "Bearer s3cret"
        server.register(7, "clicks-value", 1, USERS)
        registry = ConfluentRegistry(server.url, token=EnvVar("REGISTRY_TOKEN"))
        decoder = registered_avro(registry)
        frame = with_decoded(payloads(spark, framed(7, b"\x06ann\x02/")), decoder, "user string, page string")
        assert [row.value for row in frame.collect()] == [("ann", "/")]
        assert "s3cret" not in str(frame._jdf.queryExecution())
        monkeypatch.setenv("REGISTRY_TOKEN", "another-s3cret")
        unknown = with_decoded(payloads(spark, framed(8, b"")), decoder, "user string, page string")
        with pytest.raises(Unavailable, match="does not accept the credentials") as away, write_failures("lake"):
            unknown.collect()
        assert "s3cret" not in str(away.value)
    assert class_of(away.value).is_outage


@pytest.mark.audit("A9")
def test_the_glue_registry_is_understood_and_its_compressed_values_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    id_ = UUID(int=5)
    decode = registered_avro({str(id_): USERS}, framing="glue")()
    body = b"\x06ann\x02/"
    for compression, value in ((0, body), (5, zlib.compress(body))):
        assert decode(bytes([3, compression]) + id_.bytes + value) == {"user": "ann", "page": "/"}
    monkeypatch.setattr(payload_compression, "MOST_DECOMPRESSED_BYTES", 1000)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        decode(bytes([3, 5]) + id_.bytes + zlib.compress(bytes(10_000)))
    with pytest.raises(ValueError, match="frames it"):
        decode(bytes([3, 1]) + id_.bytes + body)
    with pytest.raises(ConfigurationError, match="azure"):
        registered_avro({}, framing="azure")  # type: ignore[arg-type]


@pytest.mark.audit("A9")
def test_a_readers_schema_fills_in_what_an_older_one_did_not_have() -> None:
    newer = {**USERS, "fields": [*USERS["fields"], {"name": "shop", "type": "string", "default": "main"}]}
    decode = registered_avro({1: USERS}, reader=newer)()
    assert decode(framed(1, b"\x06ann\x02/")) == {"user": "ann", "page": "/", "shop": "main"}


@pytest.mark.audit("E5")
def test_decoded_values_become_arrow_columns_batch_by_batch(spark: SparkSession) -> None:
    schema = {
        "type": "record",
        "name": "All",
        "fields": [
            {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "tags", "type": {"type": "map", "values": "long"}},
            {"name": "raw", "type": {"type": "array", "items": "bytes"}},
            {"name": "opens", "type": {"type": "int", "logicalType": "time-millis"}},
        ],
    }
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    value: dict[str, Any] = {
        "id": UUID(int=7),
        "at": moment,
        "day": date(2026, 1, 2),
        "price": Decimal("12.34"),
        "tags": {"a": 2**60},
        "raw": [b"\xff", b""],
        "opens": time(8, 30),
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    columns = "id string, at timestamp, day date, price decimal(9,2), tags map<string,bigint>, raw array<binary>"
    columns += ", opens string"
    frame = payloads(spark, out.getvalue(), b"?").withColumn("value", F.lit("replaced"))
    decoded = with_decoded(frame, avro(schema), columns)
    assert decoded.columns == ["data", "value"]
    assert "MapInArrow" in str(decoded._jdf.queryExecution())
    found, broken = [row.value for row in decoded.select("value", F.unix_micros("value.at").alias("us")).collect()]
    assert broken is None
    assert found.asDict() | {"at": None} == value | {"at": None, "id": str(UUID(int=7)), "opens": "08:30:00"}
    (micros, _) = [row.us for row in decoded.select(F.unix_micros("value.at").alias("us")).collect()]
    assert micros == round(moment.timestamp() * 1e6)


@pytest.mark.audit("E5")
def test_a_value_that_does_not_fit_its_column_is_null_alone() -> None:
    kind = pa.struct([("id", pa.int32())])
    values = [{"id": 1}, {"id": 2**40}, None, {"id": "x"}, {"other": 1}]
    found = as_arrow(values, kind, is_strict=False)
    assert found.to_pylist() == [{"id": 1}, None, None, None, {"id": None}]
    with pytest.raises((pa.ArrowException, OverflowError)):
        as_arrow(values, kind, is_strict=True)


def test_one_value_instead_of_a_struct_can_be_decoded(spark: SparkSession) -> None:
    found = with_decoded(payloads(spark, b"abc"), lambda: len, "int", into="size").collect()
    assert [row["size"] for row in found] == [3]


def test_compressed_payloads_are_opened_and_split(spark: SparkSession) -> None:
    frame = payloads(spark, gzip.compress(b'{"id": 1}\n{"id": 2}'), b'{"id": 3}', gzip.compress(b"x")[:-1])
    frame = frame.withColumn("at", F.current_timestamp())
    whole = with_json(frame, "id long", compression="auto")
    assert whole.columns == ["data", "at", "value"]
    assert [row.value for row in with_json(frame.where("data like '{%'"), "id long", compression="auto").collect()]
    lines = with_json(split_lines(frame, compression="auto"), "id long")
    assert [row.id for row in lines.select("value.id").collect()] == [1, 2, 3, None]
    assert split_lines(frame).schema == frame.schema


def test_log_events_of_cloudwatch_become_rows(spark: SparkSession) -> None:
    event = {"id": "1", "timestamp": 1_510_109_208_016, "message": "first"}
    told = {"messageType": "DATA_MESSAGE", "logGroup": "shop", "logEvents": [event, {**event, "message": "2nd"}]}
    frame = payloads(spark, gzip.compress(json.dumps(told).encode()), b"text")
    found = split_log_events(frame).withColumn("ms", F.unix_millis("log_timestamp"))
    assert [(bytes(row.data), row.log_group, row.ms) for row in found.collect()] == [
        (b"first", "shop", 1_510_109_208_016),
        (b"2nd", "shop", 1_510_109_208_016),
        (b"text", None, None),
    ]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    for module in (avro_decoding, payload_decoding):
        monkeypatch.setattr(module, "import_module", missing)
    with pytest.raises(PackageMissing, match="pip install fastavro"):
        avro({"type": "long"})()
    with pytest.raises(PackageMissing, match="pip install protobuf"):
        protobuf(descriptors(), "shop.Click")


# Functions that store


def test_a_function_is_given_the_records_and_their_identity(spark: SparkSession) -> None:
    seen: list[tuple[int, Any]] = []

    def store(frame: DataFrame, batch: Batch) -> None:
        identity = [(part.lease, part.number, str(part.after), str(part.through)) for part in batch.parts]
        seen.append((frame.count(), identity))

    whole = batch(part(1, 1000, 1004, 7), part(2, 2001, 2002, 9))
    ForeachBatchSink(store, transform=lambda frame: frame.where("sequence_number != '2001'")).write(
        Records.of(records(spark, whole)), whole
    )
    lease = "shardId-00000000000"
    assert seen == [(6, [(f"{lease}1", 7, "TRIM_HORIZON", "1004"), (f"{lease}2", 9, "2000", "2002")])]


def test_what_a_function_raises_is_the_users(spark: SparkSession) -> None:
    def store(frame: DataFrame, batch: Batch) -> None:
        raise KeyError("mine")

    whole = batch(part(1, 1000, 1004, 7))
    with pytest.raises(KeyError, match="mine"):
        ForeachBatchSink(store).write(Records.of(records(spark, whole)), whole)
