"""What user code is given beside the DataFrame: decoders, processors, functions that store."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.errors import ConfigurationError, PackageMissing, SinkError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.spark import decoding
from kcl_dagster.spark.decoding import avro, protobuf, with_decoded, with_json
from kcl_dagster.spark.processors import Checkpointer, ProcessorSink, Record
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
    pytest.importorskip("fastavro")
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


# Record processors


class Journal:
    """A processor in the style of the KCL's examples: it buffers, and flushes when asked to stop."""

    folder = ""

    def initialize(self, initialize_input: Any) -> None:
        self._shard = initialize_input.shard_id
        self._lines = [f"initialize {initialize_input.sequence_number}"]

    def process_records(self, process_records_input: Any) -> None:
        for record in process_records_input.records:
            self._lines.append(
                f"{record.sequence_number}/{record.sub_sequence_number} {record.binary_data.decode()}"
            )
        middle = process_records_input.records[0]
        process_records_input.checkpointer.checkpoint(middle.sequence_number, middle.sub_sequence_number)

    def lease_lost(self, lease_lost_input: Any) -> None:
        raise AssertionError

    def shard_ended(self, shard_ended_input: Any) -> None:
        raise AssertionError

    def shutdown_requested(self, shutdown_requested_input: Any) -> None:
        shutdown_requested_input.checkpointer.checkpoint()
        with Path(self.folder, self._shard).open("a") as file:
            file.write("\n".join([*self._lines, "flushed", ""]))


def test_a_processor_gets_its_shard_in_order_and_is_asked_to_flush(spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def make() -> Journal:
        journal = Journal()
        journal.folder = folder
        return journal

    whole = batch(part(1, 1000, 1003, 1), part(2, 2001, 2002, 5))
    ProcessorSink(make).write(records(spark, whole), whole)
    assert (tmp_path / "shardId-000000000001").read_text().splitlines() == [
        "initialize TRIM_HORIZON",
        *[f"{sequence}/0 payload" for sequence in range(1000, 1004)],
        "flushed",
    ]
    assert (tmp_path / "shardId-000000000002").read_text().splitlines()[0] == "initialize 2000"


def test_what_a_processor_raises_fails_the_batch_as_user_code(spark: SparkSession) -> None:
    class Broken(Journal):
        def process_records(self, process_records_input: Any) -> None:
            raise ValueError("poison")

    whole = batch(part(1, 1000, 1003, 1))
    with pytest.raises(Exception, match="poison") as caught:
        ProcessorSink(Broken).write(records(spark, whole), whole)
    assert not isinstance(caught.value, SinkError)


def test_records_that_never_reached_a_processor_are_noticed(spark: SparkSession, tmp_path: Path) -> None:
    whole = batch(part(1, 1000, 1003, 1), part(2, 2000, 2002, 1))
    folder = str(tmp_path)

    def make() -> Journal:
        journal = Journal()
        journal.folder = folder
        return journal

    with pytest.raises(SinkError, match="3 of 4 records"):
        ProcessorSink(make).write(records(spark, whole).where(F.col("sequence_number") != "1003"), whole)


@pytest.mark.parametrize(
    ("place", "is_allowed"),
    [((None, None), True), (("12", 0), True), (("15", 3), True), (("15", 4), False), (("9", 0), False)],
)
def test_a_processor_may_checkpoint_what_it_was_given(place: tuple[Any, Any], is_allowed: bool) -> None:
    checkpointer = Checkpointer(Checkpoint("10"))
    row = {"data": b"x", "partition_key": "k", "sequence_number": "15", "sub_sequence_number": 3}
    checkpointer.delivered(Record(row | {"arrival_timestamp": None}))
    if is_allowed:
        checkpointer.checkpoint(*place)
        assert checkpointer.last == (Checkpoint(*place) if place[0] else Checkpoint("15", 3))
    else:
        with pytest.raises(ValueError, match="is not between"):
            checkpointer.checkpoint(*place)


def test_a_record_reads_like_the_kcls() -> None:
    row = {"data": b"hello", "partition_key": "k", "sequence_number": "1", "sub_sequence_number": 2}
    record = Record(row | {"arrival_timestamp": None})
    assert (record.data, record.binary_data, record.partition_key) == ("aGVsbG8=", b"hello", "k")
