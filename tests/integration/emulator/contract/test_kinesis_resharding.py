"""Splits, merges, scaling: who inherits which keys, and where readers are sent."""

from __future__ import annotations

import pytest
from mypy_boto3_kinesis import KinesisClient

from tests.integration.emulator.contract.server import unique
from tests.integration.emulator.contract.streams import (
    KEYS,
    TestStream,
    covers_all_keys,
    hash_range,
    ids,
    refused,
)

pytestmark = pytest.mark.server

S0, S1, S2, S3, S4 = (f"shardId-{index:012d}" for index in range(5))
HALF = KEYS // 2


def test_a_split_closes_the_parent_and_opens_two_children(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    stream.split(S0, at=HALF)
    parent, lower, upper = stream.shards()
    assert "EndingSequenceNumber" in parent["SequenceNumberRange"]
    assert [lower["ParentShardId"], upper["ParentShardId"]] == [S0, S0]
    assert [hash_range(lower), hash_range(upper)] == [(0, HALF - 1), (HALF, KEYS - 1)]
    assert stream.summary()["OpenShardCount"] == 2


def test_children_start_above_everything_in_their_parents(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=2)
    last = max(int(number) for number in stream.put(b"1", b"2"))
    stream.split(S0, at=KEYS // 4)
    stream.merge(S2, S3)
    by_id = {shard["ShardId"]: shard["SequenceNumberRange"] for shard in stream.shards()}
    assert last < int(by_id[S0]["EndingSequenceNumber"])
    for parents, child in (((S0,), S2), ((S0,), S3), ((S2, S3), S4)):
        ends = [int(by_id[parent]["EndingSequenceNumber"]) for parent in parents]
        assert max(ends) < int(by_id[child]["StartingSequenceNumber"])


def test_records_after_a_split_go_to_the_children(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    stream.put(b"before", at=HALF)
    stream.split(S0, at=HALF)
    stream.put(b"low", at=HALF - 1)
    stream.put(b"high", at=HALF)
    assert [stream.read(shard_id) for shard_id in (S0, S1, S2)] == [[b"before"], [b"low"], [b"high"]]


def test_the_end_of_a_split_shard_names_both_children(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    stream.put(b"1", b"2")
    stream.split(S0, at=HALF)
    data, last = stream.read_to_the_end(S0)
    assert data == [b"1", b"2"]
    assert last["MillisBehindLatest"] == 0
    children = sorted(last["ChildShards"], key=lambda child: child["ShardId"])
    assert [(child["ShardId"], child["ParentShards"]) for child in children] == [(S1, [S0]), (S2, [S0])]
    assert children[0]["HashKeyRange"] == {"StartingHashKey": "0", "EndingHashKey": str(HALF - 1)}


def test_an_open_shard_names_no_children(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    page = kinesis.get_records(ShardIterator=stream.iterator(S0))
    assert page["NextShardIterator"]
    assert not page.get("ChildShards")


def test_an_iterator_from_before_the_split_reads_on_to_the_end(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    stream.put(b"1")
    page = kinesis.get_records(ShardIterator=stream.iterator(S0))
    stream.put(b"2")
    stream.split(S0, at=HALF)
    page = kinesis.get_records(ShardIterator=page["NextShardIterator"])
    assert [record["Data"] for record in page["Records"]] == [b"2"]


def test_the_tip_of_a_closed_shard_is_its_end(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    stream.put(b"1")
    stream.split(S0, at=HALF)
    page = kinesis.get_records(ShardIterator=stream.iterator(S0, "LATEST"))
    assert page["Records"] == []
    assert page.get("NextShardIterator") is None
    assert len(page["ChildShards"]) == 2


@pytest.mark.parametrize("named", [(S0, S1), (S1, S0)], ids=["lower first", "upper first"])
def test_a_merge_closes_two_parents_and_opens_their_child(kinesis: KinesisClient, named: tuple[str, str]) -> None:
    stream = TestStream.create(kinesis, shards=2)
    stream.put(b"low", at=0)
    stream.put(b"high", at=KEYS - 1)
    stream.merge(*named)
    child = stream.shards()[2]
    assert {child["ParentShardId"], child["AdjacentParentShardId"]} == {S0, S1}
    assert hash_range(child) == (0, KEYS - 1)
    assert stream.read(S2) == []
    stream.put(b"after", at=0)
    assert stream.read(S2) == [b"after"]
    for parent, data in ((S0, [b"low"]), (S1, [b"high"])):
        read, last = stream.read_to_the_end(parent)
        assert read == data
        assert [(c["ShardId"], sorted(c["ParentShards"])) for c in last["ChildShards"]] == [(S2, [S0, S1])]


@pytest.mark.parametrize("targets", [(4, 2), (3,), (4, 3), (4, 2, 3, 2, 1)])
def test_scaling_reaches_the_count_and_covers_all_keys(kinesis: KinesisClient, targets: tuple[int, ...]) -> None:
    stream = TestStream.create(kinesis, shards=2)
    for target in targets:
        current = len(stream.open_shards())
        reply = kinesis.update_shard_count(
            StreamName=stream.name, TargetShardCount=target, ScalingType="UNIFORM_SCALING"
        )
        assert (reply["CurrentShardCount"], reply["TargetShardCount"]) == (current, target)
        stream.wait()
        assert len(stream.open_shards()) == target
        assert covers_all_keys(stream.open_shards())


def test_scaling_is_uniform_even_when_no_doubling_leads_there(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=2)
    kinesis.update_shard_count(StreamName=stream.name, TargetShardCount=3, ScalingType="UNIFORM_SCALING")
    stream.wait()
    sizes = [end - start for start, end in map(hash_range, stream.open_shards())]
    assert max(sizes) - min(sizes) <= 3


def test_every_shard_but_the_first_ones_descends_from_closed_shards(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=2)
    kinesis.update_shard_count(StreamName=stream.name, TargetShardCount=3, ScalingType="UNIFORM_SCALING")
    stream.wait()
    by_id = {shard["ShardId"]: shard for shard in stream.shards()}
    for shard in stream.shards()[2:]:
        parent = by_id[shard["ParentShardId"]]
        assert "EndingSequenceNumber" in parent["SequenceNumberRange"]


def test_scaling_beyond_double_or_below_half_is_refused(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=4)
    for target in (1, 9):
        with refused("LimitExceededException", "InvalidArgumentException"):
            kinesis.update_shard_count(
                StreamName=stream.name, TargetShardCount=target, ScalingType="UNIFORM_SCALING"
            )


def test_a_closed_shard_is_neither_split_nor_merged(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=2)
    stream.split(S0, at=KEYS // 4)
    with refused("InvalidArgumentException"):
        stream.split(S0, at=KEYS // 8)
    with refused("InvalidArgumentException"):
        stream.merge(S0, S1)


@pytest.mark.parametrize("key", [0, 1, KEYS - 1])
def test_a_split_needs_a_key_inside_the_shard(kinesis: KinesisClient, key: int) -> None:
    stream = TestStream.create(kinesis)
    with refused("InvalidArgumentException"):
        stream.split(S0, at=key)


def test_only_neighbours_merge(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=3)
    with refused("InvalidArgumentException"):
        stream.merge(S0, S2)


def test_a_missing_shard_is_not_split(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis)
    with refused("ResourceNotFoundException"):
        stream.split("shardId-000000000077", at=HALF)


def test_on_demand_streams_are_not_resharded_by_hand(kinesis: KinesisClient) -> None:
    name = unique("stream")
    kinesis.create_stream(StreamName=name, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    stream = TestStream(kinesis, name)
    stream.wait()
    with refused("ValidationException"):
        kinesis.update_shard_count(StreamName=name, TargetShardCount=8, ScalingType="UNIFORM_SCALING")


def test_shard_numbers_go_on_across_generations(kinesis: KinesisClient) -> None:
    stream = TestStream.create(kinesis, shards=2)
    stream.split(S0, at=KEYS // 4)
    stream.merge(S2, S3)
    assert ids(stream.shards()) == [S0, S1, S2, S3, S4]
