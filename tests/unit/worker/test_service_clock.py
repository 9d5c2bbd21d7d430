"""The time by Kinesis' clock: not guessed, and not kept over a sleep."""

from types import SimpleNamespace
from typing import Any

import pytest

from kcl_dagster.worker.service_clock import (
    ASK_AGAIN_SECONDS,
    COMPARE_SECONDS,
    LONGEST_COMPARISON_SECONDS,
    ServiceClock,
)
from tests.doubles.dynamodb.failures import client_error
from tests.unit.streams.conftest import STREAM, World


def test_the_service_s_time_is_not_known_until_the_service_answers() -> None:
    """This machine's clock may be ahead: a shard would count as stored through a moment that is yet to come."""
    world = World()
    kinesis = SimpleNamespace(describe_stream_summary=refuse)
    clock = ServiceClock(kinesis, STREAM, world.runtime)
    assert clock.now() is None
    kinesis.describe_stream_summary = world.kinesis.describe_stream_summary
    assert clock.now() is None
    world.clock.advance(ASK_AGAIN_SECONDS)
    assert clock.now() == pytest.approx(world.clock.now(), abs=1)
    kinesis.describe_stream_summary = refuse
    world.clock.advance(COMPARE_SECONDS)
    assert clock.now() == pytest.approx(world.clock.now(), abs=1)


def test_an_answer_that_was_long_under_way_does_not_tell_the_time() -> None:
    """Batches of a lease that is made again would have numbers that the sink has seen."""
    world = World()

    def slow(**parameters: Any) -> Any:
        answer = world.kinesis.describe_stream_summary(**parameters)
        world.clock.advance(LONGEST_COMPARISON_SECONDS + 1)
        return answer

    kinesis = SimpleNamespace(describe_stream_summary=slow)
    clock = ServiceClock(kinesis, STREAM, world.runtime)
    assert clock.now() is None
    kinesis.describe_stream_summary = world.kinesis.describe_stream_summary
    world.clock.advance(ASK_AGAIN_SECONDS)
    assert clock.now() == pytest.approx(world.clock.now(), abs=1)


def test_after_a_sleep_the_service_is_asked_for_the_time_again() -> None:
    world = World()
    clock = ServiceClock(world.kinesis, STREAM, world.runtime)
    before = clock.now()
    world.clock.jump(40)  # the clock of the wall went on, and the monotonic one did not
    after = clock.now()
    assert before is not None
    assert after == pytest.approx(world.clock.now(), abs=1)


def refuse(**_: Any) -> Any:
    raise client_error("AccessDeniedException", "not yours", "DescribeStreamSummary")
