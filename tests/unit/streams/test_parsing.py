"""The fast parser says what botocore's own says, and steps aside when it cannot."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kcl_dagster.streams.parsing import install
from tests.doubles.answered_requests import answered, stock_client

RECORD = {
    "SequenceNumber": "49590338271490256608559692538361571095921575989136588898",
    "ApproximateArrivalTimestamp": 1_700_000_000.123,
    "Data": "aGVsbG8=",
    "PartitionKey": "schlüssel",
}
CHILD = {
    "ShardId": "shardId-000000000001",
    "ParentShards": ["shardId-000000000000"],
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)},
}


def client(answer: bytes, status: int = 200, *, fast: bool) -> Any:
    """A client whose every request is answered with these bytes."""
    made = answered(stock_client("kinesis"), "kinesis.GetRecords", answer, status)
    if fast:
        install(made)
    return made


def both(answer: bytes) -> tuple[Any, Any]:
    stock, fast = (client(answer, fast=fast).get_records(ShardIterator="i") for fast in (False, True))
    return stock, fast


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    """Times are the one wanted difference: epoch seconds in place of datetimes."""
    answer = {**answer, "Records": [dict(record) for record in answer["Records"]]}
    for record in answer["Records"]:
        arrival = record.pop("ApproximateArrivalTimestamp", None)
        if arrival is not None:
            seconds = arrival.timestamp() if isinstance(arrival, datetime) else arrival
            record["seconds"] = round(seconds, 3)
    return answer


@pytest.mark.parametrize(
    "answer",
    [
        {"Records": [], "MillisBehindLatest": 0, "NextShardIterator": "n"},
        {"Records": [RECORD], "MillisBehindLatest": 12, "NextShardIterator": "n"},
        {"Records": [RECORD, RECORD], "MillisBehindLatest": 0, "NextShardIterator": None, "ChildShards": [CHILD]},
        {"Records": [RECORD], "MillisBehindLatest": 0, "ChildShards": [CHILD, CHILD]},
        {"Records": [{**RECORD, "EncryptionType": "KMS"}], "NextShardIterator": "n", "ChildShards": None},
        {"Records": [{k: v for k, v in RECORD.items() if k != "ApproximateArrivalTimestamp"}]},
        {"Records": [{**RECORD, "Data": ""}]},
        {"Records": [{**RECORD, "ApproximateArrivalTimestamp": 1_700_000_000}]},
    ],
)
def test_the_answers_are_equal(answer: dict[str, Any]) -> None:
    stock, fast = both(json.dumps(answer).encode())
    assert without_times(fast) == without_times(stock)


def test_times_are_epoch_seconds() -> None:
    stock, fast = both(json.dumps({"Records": [RECORD]}).encode())
    assert fast["Records"][0]["ApproximateArrivalTimestamp"] == 1_700_000_000.123
    assert stock["Records"][0]["ApproximateArrivalTimestamp"].astimezone(UTC) == datetime(
        2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC
    )


@pytest.mark.parametrize(
    "answer",
    [
        {"Records": [{**RECORD, "NewMember": [1, 2]}], "NewMember": {"a": 1}, "NextShardIterator": "n"},
        {"Records": [{**RECORD, "ApproximateArrivalTimestamp": "2023-11-14T22:13:20Z"}]},
        {},
    ],
)
def test_an_answer_it_does_not_know_goes_to_botocore(answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    stock, fast = both(body)
    assert fast.get("NextShardIterator") == stock.get("NextShardIterator")
    assert len(fast.get("Records", ())) == len(stock.get("Records", ()))


def test_errors_are_botocores() -> None:
    body = json.dumps({"__type": "ExpiredIteratorException", "message": "too old"}).encode()
    for fast in (False, True):
        with pytest.raises(ClientError, match="ExpiredIteratorException"):
            client(body, 400, fast=fast).get_records(ShardIterator="i")


def test_an_answer_that_was_cut_off_has_no_records() -> None:
    stock, fast = both(json.dumps({"Records": [RECORD] * 3}).encode()[:-20])
    assert "Records" not in stock
    assert "Records" not in fast


def test_a_stand_in_without_events_is_left_alone() -> None:
    install(object())
