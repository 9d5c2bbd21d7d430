"""The producer puts every click once, in the order of its user, into the real thing: the embedded AWS."""

import io
import threading
from collections import Counter
from random import Random
from typing import Any

import pytest

from demo import producer
from demo.ledger import Ledger
from kcl_dagster.aws import TOTAL_SECONDS
from kcl_dagster.emulator import Emulator, FaultRule

pytestmark = pytest.mark.slow


def stored(kinesis: Any) -> list[Any]:
    """The records of the first shard."""
    iterator = kinesis.get_shard_iterator(
        StreamName="clicks", ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    records: list[Any] = kinesis.get_records(ShardIterator=iterator)["Records"]
    return records


def test_refused_clicks_are_put_again_and_none_twice() -> None:
    with Emulator() as aws:
        kinesis = aws.client("kinesis")
        kinesis.create_stream(StreamName="clicks", ShardCount=1)
        aws.faults.add(FaultRule(operation="PutRecords", error="InternalFailure", status=500, times=2))
        written = io.StringIO()
        clicks = next(producer.rounds(20, Random(1)))
        producer.put(kinesis, "clicks", clicks, Ledger(written), threading.Event())
        found = stored(kinesis)
    assert [r["PartitionKey"] for r in found] == [c.user for c in clicks]
    acknowledged = [line.split()[1] for line in written.getvalue().splitlines()]
    assert acknowledged == [r["SequenceNumber"] for r in found]


def test_a_late_answer_is_waited_for_and_no_click_is_put_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator() as aws:
        for name, value in aws.environment().items():
            monkeypatch.setenv(name, value)
        kinesis = aws.client("kinesis")
        kinesis.create_stream(StreamName="clicks", ShardCount=1)
        aws.faults.add(FaultRule(operation="PutRecords", latency_seconds=TOTAL_SECONDS + 1, times=1))
        clicks = next(producer.rounds(5, Random(1)))
        patient = producer.patient_client("us-east-1", aws.endpoint_url)
        sent: list[str] = []
        patient.meta.events.register("before-send.kinesis", lambda event_name, **_: sent.append(event_name))
        producer.put(patient, "clicks", clicks, Ledger(io.StringIO()), threading.Event())
        assert sent == ["before-send.kinesis.PutRecords"]
        assert len(stored(kinesis)) == len(clicks)


def test_it_stops_when_told_though_the_stream_refuses_everything() -> None:
    with Emulator() as aws:
        stop = threading.Event()
        written = io.StringIO()
        kinesis = aws.client("kinesis")  # without the stream
        clicks = next(producer.rounds(3, Random(1)))
        thread = threading.Thread(target=producer.put, args=(kinesis, "clicks", clicks, Ledger(written), stop))
        thread.start()
        stop.set()
        thread.join(10)
    assert not thread.is_alive()
    assert written.getvalue() == ""


def test_no_user_clicks_twice_in_a_round() -> None:
    rounds = producer.rounds(50, Random(1))
    for number in range(3):
        clicks = next(rounds)
        assert set(Counter(c.user for c in clicks).values()) == {1}
        assert {c.number for c in clicks} == {number}
