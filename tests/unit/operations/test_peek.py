"""Looking at records."""

import pytest

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.operations.peek import Peeked, peek
from kcl_dagster.streams.deaggregation import MAGIC
from tests.doubles.aggregation import UserRecord, aggregate, sealed
from tests.unit.operations.conftest import STREAM, Shop

SHARD = "shardId-000000000000"


def look(shop: Shop, limit: int = 3, *, first: bool = False) -> list[Peeked]:
    return peek(shop.kinesis, STREAM, SHARD, shop.runtime, limit=limit, first=first)


def test_the_last_records_come_oldest_first(shop: Shop) -> None:
    shop.put(b"1", b"2", b"3", b"4", b"5")
    assert [record.data for record in look(shop)] == [b"3", b"4", b"5"]


def test_the_first_records_are_those_the_stream_still_has(shop: Shop) -> None:
    shop.put(b"1", b"2", b"3", b"4")
    assert [record.data for record in look(shop, first=True)] == [b"1", b"2", b"3"]


def test_old_records_are_found_behind_a_long_silence(shop: Shop) -> None:
    shop.put(b"old", b"older")
    shop.clock.advance(20 * 3600)
    assert [record.data for record in look(shop)] == [b"old", b"older"]


def test_an_empty_shard_has_none(shop: Shop) -> None:
    assert look(shop) == []


def test_aggregates_are_opened(shop: Shop) -> None:
    [sequence] = shop.put(aggregate([UserRecord("a", b"one"), UserRecord("b", b"two", "7")]))
    assert [(r.sequence, r.sub_sequence, r.partition_key, r.explicit_hash_key, r.data) for r in look(shop)] == [
        (sequence, 0, "a", None, b"one"),
        (sequence, 1, "b", "7", b"two"),
    ]


def test_a_broken_aggregate_is_shown_as_it_is(shop: Shop) -> None:
    broken = sealed(b"\xff\xff\xff")
    shop.put(broken)
    [record] = look(shop)
    assert record.data == broken
    assert record.problem
    assert record.data.startswith(MAGIC)
    assert "\\x" in record.to_document()["data"]


def test_a_shard_that_is_not_there_is_refused(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="no shard shardId-9"):
        peek(shop.kinesis, STREAM, "shardId-9", shop.runtime)
