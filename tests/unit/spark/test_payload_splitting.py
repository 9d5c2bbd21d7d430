"""Payloads that hold several records, as rows of Arrow tables."""

import gzip
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from kcl_dagster.spark import payload_splitting
from kcl_dagster.spark.payload_splitting import split_lines, split_log_events

EVENTS: list[dict[str, Any]] = [
    {"id": "1", "timestamp": 1_510_109_208_016, "message": "first"},
    {"id": "2", "timestamp": 1_510_109_208_017, "message": "zweite: ü", "extractedFields": {"a": "b"}},
]
DATA: dict[str, Any] = {
    "messageType": "DATA_MESSAGE",
    "owner": "123456789012",
    "logGroup": "/aws/lambda/shop",
    "logStream": "2026/11/23/[$LATEST]a",
    "subscriptionFilters": ["all"],
    "logEvents": EVENTS,
}
CONTROL: dict[str, Any] = {
    **DATA,
    "messageType": "CONTROL_MESSAGE",
    "logEvents": [{"id": "", "timestamp": 1, "message": "CWL CONTROL MESSAGE: Checking health of destination"}],
}


def packed(value: Any) -> bytes:
    return gzip.compress(json.dumps(value).encode(), mtime=0)


def records(*payloads: bytes) -> pa.Table:
    keys = [f"key-{place}" for place in range(len(payloads))]
    return pa.table({"partition_key": pa.array(keys, pa.string()), "data": pa.array(payloads, pa.binary())})


def rows(table: pa.Table) -> list[tuple[str, bytes]]:
    return list(zip(table["partition_key"].to_pylist(), table["data"].to_pylist(), strict=True))


def test_a_row_for_each_line_in_their_order() -> None:
    found = split_lines(records(b'{"a": 1}\n{"a": 2}\r\n\n \n{"a": 3}', b"\n", b"", b"alone", b"\xff\n\x00"))
    assert rows(found) == [
        ("key-0", b'{"a": 1}'),
        ("key-0", b'{"a": 2}'),
        ("key-0", b'{"a": 3}'),
        ("key-3", b"alone"),
        ("key-4", b"\xff"),
        ("key-4", b"\x00"),
    ]
    assert found.schema == records().schema
    assert split_lines(records()).num_rows == 0


def test_lines_that_are_compressed_and_what_is_not() -> None:
    whole = gzip.compress(b"a\nb\n")
    given = records(whole, b"c\nd", whole[:-1])
    expected = [("key-0", b"a"), ("key-0", b"b"), ("key-1", b"c"), ("key-1", b"d"), ("key-2", whole[:-1])]
    assert rows(split_lines(given, compression="auto")) == expected
    with pytest.raises(ValueError, match="cut off"):
        split_lines(given, compression="auto", malformed="fail")


def test_large_payloads_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_splitting, "PIECE_ROWS", 3)
    monkeypatch.setattr(payload_splitting, "PIECE_BYTES", 10)
    found = split_lines(records(b"1\n2\n3\n4\n5\n", b"long line\nlong line 2\n6\n"))
    assert [len(piece) for piece in found["data"].chunks] == [3, 3, 1, 1]
    assert [line for _, line in rows(found)] == [b"1", b"2", b"3", b"4", b"5", b"long line", b"long line 2", b"6"]


def test_a_row_for_each_log_event() -> None:
    found = split_log_events(records(packed(DATA), packed(CONTROL), json.dumps(DATA).encode()))
    assert rows(found) == [
        ("key-0", b"first"),
        ("key-0", "zweite: ü".encode()),
        ("key-2", b"first"),
        ("key-2", "zweite: ü".encode()),
    ]
    assert found.slice(1, 1).drop_columns(["data", "partition_key"]).to_pylist() == [
        {
            "log_owner": "123456789012",
            "log_group": "/aws/lambda/shop",
            "log_stream": "2026/11/23/[$LATEST]a",
            "log_subscription_filters": ["all"],
            "log_event_id": "2",
            "log_timestamp": datetime(2017, 11, 8, 2, 46, 48, 17_000, UTC),
        }
    ]
    assert split_log_events(found).schema == found.schema


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"text",
        b"{}",
        gzip.compress(b"[]", mtime=0),
        packed(DATA)[:-5],
        packed({**DATA, "logEvents": [{"id": "1", "timestamp": 2**63, "message": ""}]}),
        packed({**DATA, "logEvents": None}),
    ],
)
def test_a_payload_of_another_form_remains_as_it_is(payload: bytes) -> None:
    [row] = split_log_events(records(payload)).to_pylist()
    assert row.pop("data") == payload
    assert row.pop("partition_key") == "key-0"
    assert set(row.values()) == {None}
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        split_log_events(records(payload), malformed="fail")
