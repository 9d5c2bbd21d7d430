"""Sequence numbers carry what AWS puts into them, and order as AWS orders them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.emulator.kinesis import sequence
from kcl_dagster.emulator.kinesis.sequence import SequenceNumber
from tests.unit.emulator.kit import KEYS, Engine

# A sequence number that AWS gave out for shard 0.
FROM_AWS = "49587497311274533994574834252742144236107130636007899138"

SECONDS = st.integers(1_400_000_000, 4_000_000_000)
FACTS = st.builds(
    SequenceNumber,
    opened=SECONDS,
    number=st.integers(0, sequence.END_OF_SHARD),
    written=SECONDS,
    shard=st.integers(0, 2**31 - 1),
)


def test_a_number_from_aws_reads_as_its_shard_and_time() -> None:
    facts = sequence.parse(FROM_AWS)
    assert (facts.shard, facts.opened, facts.written) == (0, 1534814192, 1536689385)
    assert str(facts) == FROM_AWS


@pytest.mark.parametrize(
    "text",
    [
        "74107425965128755728308386687147091174006956590945533954",  # another mark
        "4958538998331216244379665794487200811415489956897252969",  # too short
        "495874973112745339945748342527421442361071306360078991381",  # too long
        str(int(FROM_AWS) + 1),  # another version
        "0",
        "",
        "-1",
        "abc",
        "٤٩",
    ],
)
def test_what_is_no_sequence_number_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a"):
        sequence.parse(text)


@given(FACTS)
def test_reading_a_number_gives_back_what_went_into_it(facts: SequenceNumber) -> None:
    assert sequence.parse(str(facts)) == facts
    assert len(str(facts)) == 56


@given(FACTS, FACTS)
def test_numbers_order_by_shard_birth_first(one: SequenceNumber, other: SequenceNumber) -> None:
    if one.opened < other.opened:
        assert int(one) < int(other)


@given(FACTS, st.integers(0, 10_000))
def test_numbers_of_one_shard_grow_with_its_records_whatever_the_time(facts: SequenceNumber, later: int) -> None:
    if facts.number == sequence.END_OF_SHARD:
        return
    following = SequenceNumber(facts.opened, facts.number + 1, facts.written - later, facts.shard)
    assert int(following) > int(facts)


def test_children_of_children_stay_above_even_within_one_second() -> None:
    engine = Engine()
    for index in range(0, 12, 2):
        engine.put(b"x")
        engine.split(f"shardId-{index:012d}" if index == 0 else f"shardId-{index - 1:012d}", at=KEYS >> index + 1)
    by_id = {shard["ShardId"]: shard["SequenceNumberRange"] for shard in engine.shards()}
    generations = 0
    for shard in engine.shards():
        if "ParentShardId" in shard:
            end = int(by_id[shard["ParentShardId"]]["EndingSequenceNumber"])
            assert int(shard["SequenceNumberRange"]["StartingSequenceNumber"]) > end
            generations += 1
    assert generations == 12
