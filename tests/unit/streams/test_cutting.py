"""However a shard's records are cut into pages, a range gets the same ones; and answers of any shape are borne."""

import base64
import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcl_dagster.errors import DataLoss
from kcl_dagster.model.checkpoint import LATEST, TRIM_HORIZON, Checkpoint
from kcl_dagster.streams.cutting import Gap, RangeCut
from kcl_dagster.streams.pacing import Allowance, ShardLimits
from kcl_dagster.streams.parsing import parse_get_records
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord
from kcl_dagster.streams.unpacking import Columns, Unpacker
from tests.doubles.aggregation import UserRecord, aggregate

FIRST, LAST = 10, 29
aggregated = st.dictionaries(st.integers(FIRST, LAST), st.integers(0, 4), max_size=5)
page_sizes = st.lists(st.integers(0, 5), min_size=1, max_size=8)


def shard(parts: dict[int, int]) -> list[StreamRecord]:
    """Records FIRST to LAST; some of them aggregates of so many parts."""
    return [
        {
            "SequenceNumber": str(number),
            "Data": _payload(number, parts.get(number)),
            "PartitionKey": "k",
            "ApproximateArrivalTimestamp": float(number),
        }
        for number in range(FIRST, LAST + 1)
    ]


def _payload(number: int, parts: int | None) -> bytes:
    if not parts:
        return b"%d" % number
    return aggregate([UserRecord("k", b"%d/%d" % (number, part)) for part in range(parts)])


def pages(records: list[StreamRecord], sizes: list[int]) -> list[list[StreamRecord]]:
    """Cut into pages of these sizes, again and again; an empty page for a 0."""
    cut: list[list[StreamRecord]] = []
    sizes = [*sizes, 3]
    while records:
        for size in sizes:
            cut.append(records[:size])
            records = records[size:]
    return cut


def read(bounds: Bounds, found: list[list[StreamRecord]]) -> tuple[list[tuple[int, int]], RangeCut, Unpacker]:
    cut, unpacker, columns = RangeCut(bounds, "a shard", goes_on=False), Unpacker(bounds, None), Columns()
    for page in found:
        if cut.is_complete:
            break
        mine = cut.keep(page)
        if mine:
            unpacker.unpack(mine, columns)
    sequences = map(int, columns.sequence_number)
    return list(zip(sequences, columns.sub_sequence_number, strict=True)), cut, unpacker


def every(parts: dict[int, int]) -> list[tuple[int, int]]:
    return [(number, part) for number in range(FIRST, LAST + 1) for part in range(parts.get(number) or 1)]


@given(aggregated, st.integers(FIRST, LAST), st.integers(0, 4), page_sizes)
def test_an_open_range_holds_what_follows_its_checkpoint(
    parts: dict[int, int], after: int, sub: int, sizes: list[int]
) -> None:
    bounds = Bounds(Checkpoint(str(after), sub))
    records = [record for record in shard(parts) if int(record["SequenceNumber"]) >= after]  # AT_SEQUENCE_NUMBER
    found, cut, unpacker = read(bounds, pages(records, sizes))
    assert found == [place for place in every(parts) if place > (after, sub)]
    assert not cut.is_start_trimmed
    assert unpacker.records == len(found)


@given(aggregated, st.integers(FIRST, LAST), st.integers(FIRST, LAST), page_sizes)
def test_a_pinned_range_ends_where_it_has_to(parts: dict[int, int], one: int, other: int, sizes: list[int]) -> None:
    after, through = sorted((one, other))
    end = Checkpoint(str(through), max((parts.get(through) or 1) - 1, 0))
    begin = Checkpoint(str(after), max((parts.get(after) or 1) - 1, 0)) if after < through else TRIM_HORIZON
    records = [r for r in shard(parts) if begin == TRIM_HORIZON or int(r["SequenceNumber"]) >= after]
    found, cut, unpacker = read(Bounds(begin, through=end), pages(records, sizes))
    assert cut.is_complete
    wanted = [p for p in every(parts) if p[0] <= through and (begin == TRIM_HORIZON or p[0] > after)]
    assert found == wanted
    assert unpacker.through == end


@given(st.integers(FIRST, LAST - 1), st.integers(1, LAST - FIRST), page_sizes, st.booleans())
def test_records_that_left_the_stream_are_noticed(after: int, lost: int, sizes: list[int], pinned: bool) -> None:
    left = [record for record in shard({}) if int(record["SequenceNumber"]) >= after + lost]
    through = Checkpoint(str(LAST)) if pinned else None
    bounds = Bounds(Checkpoint(str(after)), through=through)
    if pinned and left:
        with pytest.raises(DataLoss):
            read(bounds, pages(left, sizes))
        return
    _, cut, _ = read(bounds, pages(left, sizes))
    cut.reached_end()
    assert cut.is_start_trimmed


@given(st.sampled_from([TRIM_HORIZON, LATEST]), page_sizes)
def test_an_initial_position_misses_nothing(start: Checkpoint, sizes: list[int]) -> None:
    found, cut, _ = read(Bounds(start), pages(shard({}), sizes))
    cut.reached_end()
    assert len(found) == LAST - FIRST + 1
    assert not cut.is_start_trimmed


@pytest.mark.parametrize("is_certain", [False, True])
def test_a_range_without_a_record_goes_on_over_a_gap(is_certain: bool) -> None:
    """It would make no progress otherwise. What is missing lies behind its beginning."""
    records, allowance = shard({}), Allowance(100, 1 << 20, 1)
    anchor = str(FIRST)
    cut = RangeCut(Bounds(Checkpoint(anchor)), "a shard", goes_on=False)
    cut.claim(cut.keep(records[:1]), allowance)
    assert not cut.ends_before(Gap(anchor, is_certain))
    assert cut.is_start_trimmed is is_certain
    cut.claim(cut.keep(records[2:3]), allowance)
    assert cut.ends_before(Gap(anchor, is_certain=True))  # looked for again, if it was not known
    assert cut.is_start_trimmed


@pytest.mark.parametrize("is_certain", [False, True])
def test_a_range_ends_before_a_gap_that_follows_its_records(is_certain: bool) -> None:
    records = shard({})
    cut = RangeCut(Bounds(TRIM_HORIZON), "a shard", goes_on=False)
    cut.claim(cut.keep(records[:2]), Allowance(100, 1 << 20, 1))
    assert not cut.ends_before(None)
    assert cut.ends_before(Gap(records[1]["SequenceNumber"], is_certain))
    assert not cut.is_start_trimmed


# Budgets


@given(st.integers(0, 10**6), st.integers(0, 10**9), st.integers(0, 50), st.floats(0, 1e9), st.integers(1, 10_000))
def test_a_page_is_never_empty_and_never_above_what_is_allowed(
    records: int, bytes_: int, readers: int, size: float, most: int
) -> None:
    allowance = Allowance(records, bytes_, readers)
    limit = allowance.page_limit(size, most)
    assert 1 <= limit <= max(1, min(most, records))
    allowance.spend(max(records, 1), 0)
    assert allowance.is_spent


@given(st.integers(0, 10 * 2**20), st.integers(0, 10 * 2**20), st.booleans())
def test_a_larger_page_is_never_waited_for_less(one: int, other: int, at_tip: bool) -> None:
    limits = ShardLimits()
    small, large = sorted((one, other))
    assert 0 < limits.wait_after(small, is_at_tip=at_tip) <= limits.wait_after(large, is_at_tip=at_tip)


# Answers from outside

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = ["Records", "NextShardIterator", "MillisBehindLatest", "ChildShards", "SequenceNumber", "Data"]


@given(st.binary(max_size=200))
@example(b'{"Records":[]}')
@example(b'{"Records":null}')
@example(b'{"Records":[{"SequenceNumber":"1","Data":"!","PartitionKey":"k"}]}')
def test_any_body_is_an_answer_or_refused(body: bytes) -> None:
    with contextlib.suppress(msgspec.MsgspecError):
        assert isinstance(parse_get_records(body)["Records"], list)


@given(st.dictionaries(st.sampled_from(NAMES), json_values))
def test_an_answer_of_any_shape_is_understood_or_refused(answer: dict[str, Any]) -> None:
    try:
        parsed = parse_get_records(json.dumps(answer).encode())
    except msgspec.MsgspecError:
        return
    assert all(isinstance(record["Data"], bytes) for record in parsed["Records"])
    assert parsed.get("NextShardIterator", "") is not None


@given(st.lists(st.tuples(st.integers(0, 2**186), st.binary(max_size=50), st.text(min_size=1, max_size=9))))
def test_what_the_service_sent_is_what_is_read(sent: list[tuple[int, bytes, str]]) -> None:
    records = [
        {
            "SequenceNumber": str(number),
            "Data": base64.b64encode(data).decode(),
            "PartitionKey": key,
            "ApproximateArrivalTimestamp": 1.5,
        }
        for number, data, key in sent
    ]
    body = json.dumps({"Records": records, "NextShardIterator": None, "MillisBehindLatest": 0})
    parsed = parse_get_records(body.encode())
    assert [(int(r["SequenceNumber"]), r["Data"], r["PartitionKey"]) for r in parsed["Records"]] == sent
    assert "NextShardIterator" not in parsed
