"""Opening KPL aggregates: every record of ours, none of others, and no silence about what is broken."""

from hashlib import md5
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.errors import BrokenAggregate
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange
from kcl_dagster.streams.deaggregation import MAGIC, deaggregate, hash_key, is_aggregate
from tests.doubles.aggregation import UserRecord, aggregate, sealed

LOW, HIGH = HashRange(0, 2**127 - 1), HashRange(2**127, MAX_HASH_KEY)

# Written by hand from the format's definition, so that writer and reader do not agree on a mistake.
GOLDEN = (
    b"\xf3\x89\x9a\xc2"
    b"\x0a\x01a"  # partition key table: "a"
    b"\x0a\x02bc"  # and "bc"
    b"\x12\x0242"  # explicit hash key table: "42"
    b"\x1a\x07\x08\x00\x1a\x03one"  # key 0, data "one"
    b"\x1a\x09\x08\x01\x10\x00\x1a\x03two"  # key 1, hash key 0, data "two"
)
GOLDEN += md5(GOLDEN[4:]).digest()


def keyed(explicit: int, data: bytes = b"x") -> UserRecord:
    return UserRecord("k", data, str(explicit))


def test_an_aggregate_gives_its_records_with_their_places() -> None:
    opened = deaggregate(GOLDEN)
    assert opened is not None
    assert [tuple(record) for record in opened.records] == [(0, "a", None, b"one"), (1, "bc", "42", b"two")]
    assert (opened.last_index, opened.misplaced) == (1, 0)


def test_the_writer_writes_what_the_format_says() -> None:
    assert aggregate([UserRecord("a", b"one"), UserRecord("bc", b"two", "42")]) == GOLDEN


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        b"hello",
        MAGIC,
        MAGIC + b"x" * 16,  # a digest and nothing to digest
        GOLDEN[:-1] + b"!",  # wrong digest
        b"x" + GOLDEN,
        GOLDEN + b"x",
    ],
)
def test_anything_else_is_a_plain_record(plain: bytes) -> None:
    assert not is_aggregate(plain)
    assert deaggregate(plain) is None


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"\x0a\x05abc", "runs past the end"),
        (b"\x0a", "does not end"),
        (b"\x1a\x02\x08\x00", "has no data"),
        (b"\x0a\x01k\x1a\x03\x1a\x01x", "has no partition key"),
        (b"\x0a\x01\xff\x1a\x05\x08\x00\x1a\x01x", "not UTF-8"),
        (b"\x0b\x01", "wire type 3"),
        (b"\x02\x01", "field number 0"),
        (b"\x0a\x01k\x1a\x05\x08\x07\x1a\x01x", "partition key 7 of 1"),
        (b"\x0a\x01k\x1a\x07\x08\x00\x10\x03\x1a\x01x", "hash key 3 of 0"),
        (b"\x0a\x01k\x12\x02no\x1a\x07\x08\x00\x10\x00\x1a\x01x", "hash key 'no'"),
        (b"\x08" + b"\xff" * 11, "does not end"),
        (b"\x1a\x04\x1a\x09xx", "runs past the end"),
    ],
)
def test_a_good_digest_over_a_bad_message_is_an_error_that_names_its_cause(message: bytes, problem: str) -> None:
    with pytest.raises(BrokenAggregate, match=problem):
        deaggregate(sealed(message))


def test_fields_of_later_versions_and_tags_are_passed_over() -> None:
    tags = b"\x22\x04\x0a\x02ab"  # field 4 of a record
    record = b"\x08\x00\x1a\x01x" + tags
    message = (
        b"\x0a\x01k" + b"\x1a" + bytes([len(record)]) + record + b"\x20\x05" + b"\x29" + b"8bytes!!" + b"\x2d4444"
    )
    opened = deaggregate(sealed(message))
    assert opened is not None
    assert [tuple(found) for found in opened.records] == [(0, "k", None, b"x")]


def test_an_aggregate_without_records_holds_none() -> None:
    opened = deaggregate(sealed(b"\x0a\x01k"))
    assert opened is not None
    assert (list(opened.records), opened.last_index) == ([], 0)


# The shard's hash range


def test_records_of_another_shard_are_left_out_alone() -> None:
    body = aggregate([keyed(1, b"low"), keyed(2**127, b"high"), keyed(2, b"low too")])
    low, high = deaggregate(body, LOW), deaggregate(body, HIGH)
    assert low is not None
    assert high is not None
    assert [(record.sub_sequence, record.data) for record in low.records] == [(0, b"low"), (2, b"low too")]
    assert [(record.sub_sequence, record.data) for record in high.records] == [(1, b"high")]
    assert (low.misplaced, high.misplaced) == (1, 2)
    assert low.last_index == high.last_index == 2


def test_without_an_explicit_hash_key_the_partition_key_decides() -> None:
    low = next(key for i in range(99) if hash_key(key := f"k{i}") in LOW)
    body = aggregate([UserRecord(low, b"x")])
    assert [len(opened.records) for r in (LOW, HIGH) if (opened := deaggregate(body, r))] == [1, 0]


@pytest.mark.parametrize("digits", ["1" * 40, "1" * 5000, str(2**128)])
def test_a_hash_key_beyond_all_shards_belongs_to_none(digits: str) -> None:
    """Python refuses to read numbers of more than 4,300 digits, and any producer may write one."""
    body = aggregate([UserRecord("k", b"far", digits), UserRecord("k", b"near", "0" * 5000 + "1")])
    opened = deaggregate(body, LOW)
    assert opened is not None
    assert [record.data for record in opened.records] == [b"near"]
    assert opened.misplaced == 1


def test_every_record_belongs_to_exactly_one_of_two_children() -> None:
    body = aggregate([UserRecord(f"key-{i}", b"%d" % i) for i in range(200)])
    parts = [deaggregate(body, child) for child in (LOW, HIGH)]
    indexes = sorted(record.sub_sequence for part in parts if part for record in part.records)
    assert indexes == list(range(200))


# As the KCL does it


def test_the_kcl_drops_an_aggregate_with_one_record_of_another_shard() -> None:
    body = aggregate([keyed(1), keyed(2**127)])
    assert [tuple(opened.records) for r in (LOW, HIGH) if (opened := deaggregate(body, r, kcl=True))] == [(), ()]


def test_the_kcl_takes_an_unreadable_message_for_a_plain_record() -> None:
    assert deaggregate(sealed(b"\x0a\x05abc"), kcl=True) is None


def test_the_kcl_delivers_what_comes_before_a_bad_index() -> None:
    body = sealed(
        b"\x0a\x01k" + b"\x1a\x05\x08\x00\x1a\x01x" + b"\x1a\x05\x08\x09\x1a\x01y" + b"\x1a\x05\x08\x00\x1a\x01z"
    )
    opened = deaggregate(body, kcl=True)
    assert opened is not None
    assert [record.data for record in opened.records] == [b"x"]


# Anything at all

records = st.lists(
    st.builds(
        UserRecord,
        st.text(min_size=1, max_size=20),
        st.binary(max_size=200),
        st.none() | st.integers(0, MAX_HASH_KEY).map(str),
    ),
    max_size=20,
)


@given(records)
def test_what_was_aggregated_comes_out_again(given: list[UserRecord]) -> None:
    opened = deaggregate(aggregate(given))
    if not given:
        assert opened is None
        return
    assert opened is not None
    assert [UserRecord(r.partition_key, r.data, r.explicit_hash_key) for r in opened.records] == given
    assert [record.sub_sequence for record in opened.records] == list(range(len(given)))


def varint(value: int, padding: int) -> bytes:
    """Longer than it has to be by some bytes, as the format allows."""
    digits = [value & 0x7F]
    while value := value >> 7:
        digits.append(value & 0x7F)
    digits += [0] * padding
    return bytes([digit | 0x80 for digit in digits[:-1]] + digits[-1:])


@given(records.filter(bool), st.data())
def test_a_record_may_be_written_in_any_form(given: list[UserRecord], draw: Any) -> None:
    """Numbers of any length, fields in any order, twice, or unknown: mixed with records as producers write them."""
    keys = [record.partition_key for record in given]
    hash_keys = [record.explicit_hash_key or "" for record in given]
    message = b"".join(
        tag + varint(len(text.encode()), 0) + text.encode()
        for tag, texts in ((b"\x0a", keys), (b"\x12", hash_keys))
        for text in texts
    )
    for index, record in enumerate(given):
        padding = draw.draw(st.integers(0, 2))
        fields = [b"\x08" + varint(index, padding), b"\x1a" + varint(len(record.data), padding) + record.data]
        if record.explicit_hash_key is not None:
            fields.insert(1, b"\x10" + varint(index, padding))
        if draw.draw(st.booleans()):
            fields = draw.draw(st.permutations([*fields, b"\x20\x05", fields[0]]))
        body = b"".join(fields)
        message += b"\x1a" + varint(len(body), draw.draw(st.integers(0, 2))) + body
    opened = deaggregate(sealed(message))
    assert opened is not None
    assert [UserRecord(r.partition_key, r.data, r.explicit_hash_key) for r in opened.records] == given


@given(records.filter(bool), st.integers(0, MAX_HASH_KEY))
def test_a_split_anywhere_shares_the_records_out_without_loss(given: list[UserRecord], at: int) -> None:
    body = aggregate(given)
    ranges = [HashRange(0, at)] + ([HashRange(at + 1, MAX_HASH_KEY)] if at < MAX_HASH_KEY else [])
    parts = [deaggregate(body, range_) for range_ in ranges]
    found = sorted(record.sub_sequence for part in parts if part for record in part.records)
    assert found == list(range(len(given)))


@given(st.binary(max_size=300))
def test_no_message_does_anything_but_open_or_complain(message: bytes) -> None:
    for kcl in (False, True):
        try:
            deaggregate(sealed(message), LOW, kcl=kcl)
        except BrokenAggregate:
            assert not kcl


@given(records.filter(bool), st.data())
def test_a_damaged_message_never_gives_records_that_were_not_there(given: list[UserRecord], data: Any) -> None:
    body = aggregate(given)[4:-16]
    cut = data.draw(st.integers(0, len(body) - 1))
    try:
        opened = deaggregate(sealed(body[:cut]))
    except BrokenAggregate:
        return
    if opened is not None:
        whole = deaggregate(aggregate(given))
        assert whole is not None
        assert list(opened.records) == list(whole.records)[: len(opened.records)]
