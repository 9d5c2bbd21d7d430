"""Listing shards and describing streams."""

from typing import Any

import pytest

from kcl_dagster.errors import StreamNotFound
from kcl_dagster.model.shard import MAX_HASH_KEY
from kcl_dagster.streams import listing
from kcl_dagster.streams.listing import describe, list_shards, refuse_missing
from tests.unit.streams.conftest import SHARD, STREAM, World
from tests.unit.streams.test_polling import refused


@pytest.fixture
def resharded(world: World) -> World:
    world.kinesis.split_shard(StreamName=STREAM, ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
    world.kinesis.merge_shards(
        StreamName=STREAM, ShardToMerge="shardId-000000000001", AdjacentShardToMerge="shardId-000000000002"
    )
    return world


def test_closed_shards_and_their_descent_are_listed(resharded: World) -> None:
    shards = {shard.id[-1]: shard for shard in list_shards(resharded.kinesis, STREAM, runtime=resharded.runtime)}
    assert sorted(shards) == ["0", "1", "2", "3"]
    assert [shards[key].is_open for key in "0123"] == [False, False, False, True]
    assert shards["1"].parents == (SHARD,)
    assert [parent[-1] for parent in shards["3"].parents] == ["1", "2"]
    assert (shards["1"].hash_range.end + 1, shards["2"].hash_range.end) == (2**127, MAX_HASH_KEY)
    assert int(shards["3"].starting_sequence) > int(shards["1"].ending_sequence or 0)


def test_a_filter_is_passed_on(resharded: World) -> None:
    only_open = list_shards(
        resharded.kinesis, STREAM, shard_filter={"Type": "AT_LATEST"}, runtime=resharded.runtime
    )
    assert [shard.id for shard in only_open] == ["shardId-000000000003"]


def test_pages_are_joined_and_throttling_is_waited_out(resharded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE_SHARDS", 1)
    faulty = Faulty(resharded, ["LimitExceededException", None, "LimitExceededException", None, None])
    shards = list_shards(faulty, STREAM, runtime=resharded.runtime)
    assert [shard.id[-1] for shard in shards] == ["0", "1", "2", "3"]


def test_a_token_that_expires_starts_the_listing_over(resharded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE_SHARDS", 2)
    faulty = Faulty(resharded, [None, "ExpiredNextTokenException"])
    shards = list_shards(faulty, STREAM, runtime=resharded.runtime)
    assert [shard.id[-1] for shard in shards] == ["0", "1", "2", "3"]


class Faulty:
    """The stream's client, with some listings refused."""

    def __init__(self, world: World, faults: list[str | None]) -> None:
        self._kinesis = world.kinesis
        self._faults = faults

    def list_shards(self, **parameters: Any) -> Any:
        fault = self._faults.pop(0) if self._faults else None
        if fault is not None:
            raise refused(fault)
        return self._kinesis.list_shards(**parameters)


def test_a_stream_is_described(world: World) -> None:
    found = describe(world.kinesis, STREAM, runtime=world.runtime)
    assert (found.name, found.status, found.mode, found.open_shards) == (STREAM, "ACTIVE", "PROVISIONED", 1)
    assert found.retention_hours == 24
    assert found.created == world.clock.now()
    assert found.arn == f"arn:aws:kinesis:{found.region}:{found.account}:stream/{STREAM}"


@pytest.mark.parametrize("ask", [describe, list_shards])
def test_a_missing_stream_is_named(world: World, ask: Any) -> None:
    with pytest.raises(StreamNotFound, match="stream nope does not exist"):
        ask(world.kinesis, "nope", runtime=world.runtime)


def test_streams_are_missing_only_if_none_of_them_exists(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StreamNotFound, match="stream clickz does not exist"):
        refuse_missing(world.kinesis, ["clickz", "other"], world.runtime)
    refuse_missing(world.kinesis, ["clickz", STREAM], world.runtime)
    refuse_missing(world.kinesis, [], world.runtime)

    def denied(**_: Any) -> Any:
        raise refused("AccessDeniedException")

    monkeypatch.setattr(world.kinesis, "describe_stream_summary", denied)
    refuse_missing(world.kinesis, ["clickz"], world.runtime)
