"""How requests and replies are spelled."""

from __future__ import annotations

import zlib
from typing import Any

import cbor2
import msgspec
import pytest
from botocore.eventstream import EventStreamBuffer

from kcl_dagster.emulator.kinesis import KinesisError
from kcl_dagster.emulator.wire import cbor, eventstream, json
from tests.unit.emulator.kit import START, STREAM, Engine


def test_json_blobs_are_base64_both_ways() -> None:
    request = json.decode("PutRecord", b'{"Data":"AP8=","PartitionKey":"k"}')
    assert request == {"Data": b"\x00\xff", "PartitionKey": "k"}
    many = json.decode("PutRecords", b'{"Records":[{"Data":"AP8=","PartitionKey":"k"}]}')
    assert many["Records"][0]["Data"] == b"\x00\xff"


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"Data":"?"}', b'{"Data":1}', b'"x"'])
def test_what_is_not_a_json_request_is_refused(body: bytes) -> None:
    with pytest.raises(KinesisError, match="SerializationException"):
        json.decode("PutRecord", body)


def test_a_page_reads_the_same_in_json_in_cbor_and_in_process() -> None:
    engine = Engine()
    engine.put(b"1", b"2", b"3")
    page = engine.service.execute("GetRecords", {"ShardIterator": engine.iterator()})
    from_json = msgspec.json.decode(json.encode(page))
    from_cbor = cbor2.loads(cbor.encode(page), semantic_decoders={1: lambda value, _: value})
    assert [record["Data"] for record in from_json["Records"]] == ["MQ==", "Mg==", "Mw=="]
    assert [record["Data"] for record in from_cbor["Records"]] == [b"1", b"2", b"3"]
    assert from_json["NextShardIterator"] == from_cbor["NextShardIterator"]
    assert from_json["Records"][0]["ApproximateArrivalTimestamp"] == START
    assert from_cbor["Records"][0]["ApproximateArrivalTimestamp"] == START * 1000


@pytest.mark.parametrize("records", [0, 1, 2])
def test_pages_of_any_length_are_json(records: int) -> None:
    engine = Engine()
    engine.put(*[b"x"] * records)
    page = engine.service.execute("GetRecords", {"ShardIterator": engine.iterator()})
    decoded = msgspec.json.decode(json.encode(page))
    assert len(decoded["Records"]) == records
    assert decoded["MillisBehindLatest"] == 0


def test_cbor_timestamps_are_tagged_milliseconds_both_ways() -> None:
    body = cbor2.dumps({"Timestamp": cbor2.CBORTag(1, 1_700_000_000_123)})
    assert cbor.decode("GetShardIterator", body) == {"Timestamp": 1_700_000_000.123}
    engine = Engine()
    summary = cbor.encode(engine.call("DescribeStreamSummary", StreamName=STREAM))
    assert cbor2.dumps(cbor2.CBORTag(1, int(START * 1000))) in summary


def test_cbor_of_undefined_length_is_read() -> None:
    # The Java SDK does not say beforehand how long its maps and lists are.
    body = b"\xbfjStreamNamefclicksgRecords\x9f\xbfdDataAxlPartitionKeyak\xff\xff\xff"
    decoded = cbor.decode("PutRecords", body)
    assert decoded == {"StreamName": "clicks", "Records": [{"Data": b"x", "PartitionKey": "k"}]}


@pytest.mark.parametrize("body", [b"\xff", cbor2.dumps([1]), b"\xa1"])
def test_what_is_not_a_cbor_request_is_refused(body: bytes) -> None:
    with pytest.raises(KinesisError, match="SerializationException"):
        cbor.decode("PutRecord", body)


def test_frames_are_what_event_stream_readers_expect() -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(eventstream.event("initial-response", json.CONTENT_TYPE, b"{}"))
    buffer.add_data(eventstream.exception("ResourceInUseException", json.CONTENT_TYPE, b'{"message":"m"}'))
    messages: Any = list(buffer)
    first, second = messages
    assert first.headers == {
        ":message-type": "event",
        ":event-type": "initial-response",
        ":content-type": json.CONTENT_TYPE,
    }
    assert first.payload == b"{}"
    assert second.headers[":exception-type"] == "ResourceInUseException"


def test_frames_carry_both_checksums() -> None:
    frame = eventstream.event("x", json.CONTENT_TYPE, b"{}")
    assert int.from_bytes(frame[8:12]) == zlib.crc32(frame[:8])
    assert int.from_bytes(frame[-4:]) == zlib.crc32(frame[:-4])
