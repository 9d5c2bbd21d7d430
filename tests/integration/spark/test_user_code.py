"""What user code is given beside the DataFrame: decoders, and functions that store."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from kcl_dagster.errors import ConfigurationError, PackageMissing
from kcl_dagster.spark import decoding
from kcl_dagster.spark.decoding import avro, protobuf, with_decoded, with_json
from kcl_dagster.spark.sinks.foreach_batch import ForeachBatchSink
from kcl_dagster.worker.batch import Batch
from tests.integration.spark import test_sinks
from tests.integration.spark.test_sinks import batch, part, records

# Untyped packages.
descriptor_pb2: Any = import_module("google.protobuf.descriptor_pb2")
descriptor_pool: Any = import_module("google.protobuf.descriptor_pool")
message_factory: Any = import_module("google.protobuf.message_factory")

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


def test_json_that_does_not_fit_can_fail_the_batch(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING"):
        with_json(payloads(spark, b"{oops"), "id long", malformed="fail").collect()


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


def test_avro_is_decoded(spark: SparkSession) -> None:
    schema = {
        "type": "record",
        "name": "Click",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
    }
    frame = payloads(spark, b"\x00\x00\x00\x00\x01\x02\x02\x02a", b"\x00\x00\x00\x00\x01\x04\x00", b"short")
    found = with_decoded(frame, avro(schema, skip_bytes=5), "id long, name string").collect()
    assert [row.value for row in found] == [(1, "a"), (2, None), None]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(decoding, "import_module", missing)
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
        records(spark, whole), whole
    )
    lease = "shardId-00000000000"
    assert seen == [(6, [(f"{lease}1", 7, "TRIM_HORIZON", "1004"), (f"{lease}2", 9, "2000", "2002")])]


def test_what_a_function_raises_is_the_users(spark: SparkSession) -> None:
    def store(frame: DataFrame, batch: Batch) -> None:
        raise KeyError("mine")

    whole = batch(part(1, 1000, 1004, 7))
    with pytest.raises(KeyError, match="mine"):
        ForeachBatchSink(store).write(records(spark, whole), whole)
