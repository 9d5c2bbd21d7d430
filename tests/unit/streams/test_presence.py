"""Whether a record is still in its shard: asked with few requests, in a short time."""

from typing import Any

import pytest

from kcl_dagster.streams.presence import CHECK_SECONDS, MOST_REQUESTS, Presence
from tests.unit.streams.conftest import SHARD, STREAM, World
from tests.unit.streams.test_polling import DAY, refused


def presence(world: World) -> Presence:
    return Presence(world, STREAM, SHARD, world.runtime)


def nothing_yet(world: World) -> dict[str, Any]:
    """An empty answer far from the tip."""
    place = world.kinesis.get_shard_iterator(StreamName=STREAM, ShardId=SHARD, ShardIteratorType="TRIM_HORIZON")
    return {"Records": [], "MillisBehindLatest": 1000, "NextShardIterator": place["ShardIterator"]}


def test_a_record_is_there_until_it_leaves_the_stream(world: World) -> None:
    first, second = world.put(b"a", b"b", pause=60.0)
    assert presence(world).has(first) is True
    world.clock.advance(DAY - 90)
    assert (presence(world).has(first), presence(world).has(second)) == (False, True)
    world.clock.advance(DAY)
    assert presence(world).has(second) is False


def test_a_shard_that_answers_at_last_is_believed(world: World) -> None:
    [first] = world.put(b"a")
    world.answers = [refused("ProvisionedThroughputExceededException"), nothing_yet(world)]
    assert presence(world).has(first) is True


@pytest.mark.parametrize("answer", ["empty", "ProvisionedThroughputExceededException"])
def test_what_a_few_requests_do_not_tell_is_not_known(world: World, answer: str) -> None:
    [first] = world.put(b"a")
    world.answers = [nothing_yet(world) if answer == "empty" else refused(answer)] * 1000
    began = world.clock.monotonic()
    assert presence(world).has(first) is None
    assert world.calls.count("get_records") == MOST_REQUESTS
    assert world.clock.monotonic() - began <= CHECK_SECONDS


def test_a_right_that_is_missing_leaves_it_unknown_at_once(world: World) -> None:
    [first] = world.put(b"a")
    world.answers = [refused("AccessDeniedException")] * 1000
    assert presence(world).has(first) is None
    assert world.calls.count("get_records") == 1
