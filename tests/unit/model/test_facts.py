"""Facts keep their word for any value: order, text forms, and what other people write."""

import contextlib
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcl_dagster.model.checkpoint import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.lease_taking import Candidate, TakingRules, plan_taking
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange
from kcl_dagster.model.stream import StreamIdentifier
from tests.conformance.rules.sequence import SequenceOrigin, belongs_to
from tests.conformance.rules.stream_arn import StreamArn

numbers = st.integers(0, 2**190)
checkpoints = st.one_of(
    st.sampled_from([AT_TIMESTAMP, TRIM_HORIZON, LATEST, SHARD_END]),
    st.builds(lambda number, sub: Checkpoint(str(number), sub), numbers, st.integers(0, 5)),
)
stream_names = st.text(st.sampled_from("abz-_.09"), min_size=1, max_size=20)
accounts = st.from_regex(r"[0-9]{12}", fullmatch=True)


@given(checkpoints, checkpoints, checkpoints)
def test_checkpoints_are_in_one_order(a: Checkpoint, b: Checkpoint, c: Checkpoint) -> None:
    assert a.compare(b) == -b.compare(a)
    assert (a < b) + (b < a) + (a.compare(b) == 0) == 1
    if a <= b <= c:
        assert a.compare(c) <= 0
    if a == b:
        assert a.compare(b) == 0


@given(numbers, numbers, st.integers(0, 9))
def test_numbers_are_compared_by_value_whatever_their_text(a: int, b: int, zeros: int) -> None:
    padded = Checkpoint("0" * zeros + str(a))
    assert padded.compare(Checkpoint(str(b))) == (a > b) - (a < b)
    assert LATEST < padded < SHARD_END


@given(st.text(), st.integers())
@example("٣", 0)
@example("1", -1)
def test_what_is_no_checkpoint_is_refused(text: str, sub: int) -> None:
    try:
        assert Checkpoint(text, sub).sequence == text
    except ValueError:
        assert sub < 0 or not (text.isascii() and text.isdigit())


@given(st.integers(-1, MAX_HASH_KEY + 1), st.integers(-1, MAX_HASH_KEY + 1), st.integers(0, MAX_HASH_KEY))
def test_a_hash_range_holds_what_lies_between_its_ends(start: int, end: int, key: int) -> None:
    if 0 <= start <= end <= MAX_HASH_KEY:
        assert (key in HashRange(start, end)) == (start <= key <= end)
    else:
        with pytest.raises(ValueError, match="is not within"):
            HashRange(start, end)


@given(accounts, stream_names, st.integers(1, 2**40))
def test_a_stream_identifier_reads_back_as_it_was_written(account: str, name: str, epoch: int) -> None:
    stream = StreamIdentifier(name, account, epoch)
    assert StreamIdentifier.parse(str(stream)) == stream
    assert stream.lease_key("shardId-1") == f"{account}:{name}:{epoch}:shardId-1"


@given(st.text(st.sampled_from("0123456789:abc\n٣-"), max_size=40))
@example("123456789012:clicks:0")
@example("123456789012:clicks:17\n")
def test_what_is_no_stream_identifier_is_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert str(StreamIdentifier.parse(text)) == text or text.rpartition(":")[2].startswith("0")


@given(st.sampled_from(["aws", "aws-cn", "aws-us-gov"]), accounts, stream_names)
def test_an_arn_reads_back_as_it_was_written(partition: str, account: str, name: str) -> None:
    arn = StreamArn("eu-central-1", account, name, partition)
    assert StreamArn.parse(str(arn)) == arn


@given(st.text(max_size=60) | st.text(max_size=20).map(lambda end: f"arn:aws:kinesis:eu-central-1:{end}"))
def test_what_is_no_arn_is_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert str(StreamArn.parse(text)) == text


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**140), st.integers(0, 15))
def test_a_number_of_version_2_tells_its_shard(shard: int, rest: int, flags: int) -> None:
    number = str((2 << 184) | (rest << 36) | (shard << 4) | flags)
    assert SequenceOrigin.of(number) == SequenceOrigin(2, f"shardId-{shard:012d}")
    assert belongs_to(number, f"shardId-{shard:012d}") is True
    assert belongs_to(number, "shardId-x") is False


@given(st.integers(0, 2**185 - 1) | st.integers(2**186, 2**200))
def test_a_number_of_another_layout_tells_nothing(number: int) -> None:
    assert SequenceOrigin.of(str(number)) is None


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    owners = [WorkerId("me"), WorkerId("a"), WorkerId("b"), None]
    return [
        Candidate.of(
            LeaseKey(f"s{index}"),
            draw(st.sampled_from(owners)),
            draw(st.floats(0, 100)),
            is_new=draw(st.booleans()),
        )
        for index in range(draw(st.integers(0, 12)))
    ]


@given(candidates(), st.integers(0, 2**32))
def test_a_taker_takes_only_what_nobody_serves_or_the_most_loaded_can_spare(
    given_: list[Candidate], seed: int
) -> None:
    rules = TakingRules(lease_duration=10.0)
    me = WorkerId("me")
    taking = plan_taking(given_, me, rules, Random(seed))
    by_key = {candidate.key: candidate for candidate in given_}
    chosen = [*taking.take, *taking.steal]
    assert len(set(chosen)) == len(chosen)
    assert all(by_key[key].owner != me or by_key[key].unchanged_for > rules.lease_duration for key in chosen)
    assert all(by_key[key].owner not in (None, me) for key in taking.steal)
    assert not (taking.take and taking.steal)
    assert plan_taking(given_, me, rules, Random(seed)) == taking
