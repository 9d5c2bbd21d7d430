"""Which requests meet a fault."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kcl_dagster.emulator.faults import FaultRule, Faults


def _strikes(faults: Faults, requests: int, service: str = "kinesis", operation: str = "GetRecords") -> list[int]:
    return [i for i in range(requests) if faults.draw(service, operation, b"") is not None]


@pytest.mark.parametrize(
    ("rule", "service", "operation", "body", "struck"),
    [
        ({}, "kinesis", "GetRecords", b"", True),
        ({"service": "kinesis"}, "kinesis", "GetRecords", b"", True),
        ({"service": "kinesis"}, "dynamodb", "GetItem", b"", False),
        ({"operation": "GetItem"}, "dynamodb", "GetItem", b"", True),
        ({"operation": "GetItem"}, "dynamodb", "PutItem", b"", False),
        ({"service": "s3", "operation": "PUT"}, "s3", "PUT", b"", True),
        ({"containing": "worker-1"}, "dynamodb", "UpdateItem", b'{":w":{"S":"worker-1"}}', True),
        ({"containing": "worker-1"}, "dynamodb", "UpdateItem", b'{":w":{"S":"worker-2"}}', False),
    ],
)
def test_a_rule_strikes_the_requests_that_it_describes(
    rule: dict[str, Any], service: str, operation: str, body: bytes, struck: bool
) -> None:
    faults = Faults()
    faults.add(FaultRule(drop=True, **rule))
    assert (faults.draw(service, operation, body) is not None) is struck


def test_a_rule_with_a_count_is_used_up() -> None:
    faults = Faults()
    faults.add(FaultRule(error="Oops", times=2))
    assert _strikes(faults, 5) == [0, 1]
    assert faults.rules == []
    assert faults.struck == 2


def test_the_first_rule_that_strikes_wins_and_later_ones_follow() -> None:
    faults = Faults()
    first, second = FaultRule(error="First", times=1), FaultRule(error="Second", times=1)
    faults.add(first, second)
    assert [faults.draw("kinesis", "PutRecord", b"") for _ in range(3)] == [first, second, None]


def test_the_same_seed_strikes_the_same_requests() -> None:
    def run(seed: int) -> list[int]:
        faults = Faults(seed)
        faults.add(FaultRule(drop=True, probability=0.3))
        return _strikes(faults, 200)

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert 30 < len(run(1)) < 90


def test_cleared_rules_do_not_strike() -> None:
    faults = Faults()
    faults.add(FaultRule(drop=True))
    faults.clear()
    assert _strikes(faults, 3) == []


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"error": "Oops", "drop": True},
        {"latency_seconds": 1, "applied": True},
        {"latency_seconds": -1},
        {"drop": True, "probability": 0},
        {"drop": True, "probability": 1.5},
        {"drop": True, "times": 0},
        {"error": "Oops", "status": 200},
        {"drop": True, "service": "sqs"},
        {"drop": True, "typo": 1},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FaultRule(**bad)
