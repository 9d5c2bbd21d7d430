"""Reading one shard: everything in order, within the limits, whatever Kinesis answers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from kcl_dagster.emulator import Limits
from kcl_dagster.errors import AccessDenied, DataLoss, EndpointUnreachable, StreamNotFound, Throttled
from kcl_dagster.model.checkpoint import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.streams.cutting import MOST_TIPS
from kcl_dagster.streams.pacing import Allowance, ReadDeadline, ShardLimits
from kcl_dagster.streams.position import Bounds
from tests.unit.streams.conftest import SHARD, STREAM, WHOLE, World, after, payloads

MEGABYTE = 1024 * 1024


def refused(code: str, status: int = 400) -> ClientError:
    answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "GetRecords")  # type: ignore[arg-type]  # botocore fills in the rest


# Where a range begins


def test_a_range_begins_after_its_checkpoint(world: World) -> None:
    sequences = world.put(b"a", b"b", b"c", b"d")
    reader = world.reader(after(sequences[1]))
    # The checkpoint's own record comes along: it proves that nothing after it has been trimmed.
    assert payloads(world.read(reader)) == [b"b", b"c", b"d"]
    assert not reader.is_start_trimmed


def test_a_range_can_begin_at_the_trim_horizon_the_tip_or_a_time(world: World) -> None:
    world.put(b"a", b"b", pause=10)
    moment = round(world.clock.now() * 1000)
    world.put(b"c", b"d", pause=10)
    assert payloads(world.read(world.reader(WHOLE))) == [b"a", b"b", b"c", b"d"]
    assert payloads(world.read(world.reader(Bounds(LATEST)))) == []
    assert payloads(world.read(world.reader(Bounds(AT_TIMESTAMP, timestamp_ms=moment)))) == [b"c", b"d"]
    assert payloads(world.read(world.reader(Bounds(LATEST, timestamp_ms=moment)))) == [b"c", b"d"]


def test_a_time_is_exact_although_boto3_sends_whole_seconds(world: World) -> None:
    world.put(b"a", pause=0.4)
    moment = round(world.clock.now() * 1000)
    world.put(b"b")
    original = world.kinesis.call

    def in_whole_seconds(operation: str, request: dict[str, Any]) -> Any:
        if "Timestamp" in request:
            request = {**request, "Timestamp": int(request["Timestamp"])}
        return original(operation, request)

    world.kinesis.call = in_whole_seconds
    assert payloads(world.read(world.reader(Bounds(AT_TIMESTAMP, timestamp_ms=moment)))) == [b"b"]


def test_a_small_budget_gets_behind_the_records_that_are_dated_before_a_time(world: World) -> None:
    """AT_TIMESTAMP begins up to a second early, which may be many pages."""
    world.put(*(b"early" for _ in range(20)))
    world.clock.advance(0.5)
    moment = round(world.clock.now() * 1000)
    world.put(b"late")
    original = world.kinesis.call

    def a_second_early(operation: str, request: dict[str, Any]) -> Any:
        if "Timestamp" in request:
            request = {**request, "Timestamp": request["Timestamp"] - 1}
        return original(operation, request)

    world.kinesis.call = a_second_early
    reader = world.reader(Bounds(LATEST, timestamp_ms=moment))
    assert payloads(world.read(reader, seconds=0.5, records=1)) == [b"late"]


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (lambda: Bounds(SHARD_END), "nothing to read after SHARD_END"),
        (lambda: Bounds(TRIM_HORIZON, through=SHARD_END), "ends at a record"),
        (lambda: Bounds(AT_TIMESTAMP).starting_point(), "needs one"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(bounds: Callable[[], object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        bounds()


def test_a_checkpoint_that_left_the_stream_is_noticed(world: World) -> None:
    old = world.put(b"old")[0]
    world.clock.advance(30 * 3600)
    world.put(b"new")
    reader = world.reader(after(old))
    assert payloads(world.read(reader)) == [b"new"]
    assert reader.is_start_trimmed


def closed_and_emptied(world: World) -> str:
    """A shard that is closed and listed, and whose records are all gone; its first one."""
    first = world.put(b"read", b"unread")[0]
    world.clock.advance(23 * 3600)
    world.kinesis.split_shard(StreamName=STREAM, ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
    world.clock.advance(7 * 3600)
    return first


def test_a_closed_shard_whose_last_records_left_the_stream_is_noticed(world: World) -> None:
    reader = world.reader(after(closed_and_emptied(world)))
    assert world.read(reader) == []
    assert (reader.is_ended, reader.is_gone, reader.is_start_trimmed) == (True, False, True)


def test_a_closed_shard_that_was_read_to_its_end_has_lost_nothing(world: World) -> None:
    last = world.put(b"a", b"b")[1]
    world.kinesis.split_shard(StreamName=STREAM, ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
    reader = world.reader(after(last))
    world.read(reader)
    assert (reader.is_ended, reader.is_start_trimmed) == (True, False)


# Budgets


def test_reading_goes_on_at_the_tip_until_time_is_up(world: World) -> None:
    world.put(b"a")
    world.clock.call_in(1.5, lambda: world.produce(b"b"))
    began = world.clock.monotonic()
    reader = world.reader()
    assert payloads(world.read(reader, seconds=3.0)) == [b"a", b"b"]
    assert 2.0 <= world.clock.monotonic() - began <= 3.0
    assert reader.millis_behind == 0


def test_reading_stops_when_the_records_are_spent(world: World) -> None:
    world.put(*[b"x"] * 100)
    assert len(world.read(world.reader(), records=30)) == 30


def test_reading_stops_when_the_bytes_are_spent(world: World) -> None:
    world.put(*[b"x" * 100_000] * 20, pause=0.2)
    records = world.read(world.reader(), seconds=60, bytes_=500_000)
    assert [len(record) for record in payloads(records)] == [100_000] * 4  # a fifth, with its key, has no room


def test_a_shard_is_asked_once_even_when_there_is_no_time(world: World) -> None:
    world.put(b"a")
    assert payloads(world.read(world.reader(), seconds=0.0, records=0)) == [b"a"]


def test_a_range_makes_progress_although_others_have_spent_the_budget(world: World) -> None:
    sequences = world.put(b"a", b"b", b"c", pause=1.0)
    # Asked for one record, the shard gives the checkpoint's own, which is nothing new.
    reader = world.reader(after(sequences[0]))
    assert payloads(world.read(reader, seconds=0.0, records=0)) == [b"a", b"b"]


@pytest.mark.parametrize("begins", ["at the horizon", "at a checkpoint"])
@pytest.mark.parametrize(
    "cut",
    [
        *({"records": records} for records in range(12)),
        *({"bytes_": 100 * records} for records in range(12)),
        *({"seconds": seconds, "readers": 1000} for seconds in (0.0, 0.3, 1.0, 2.0, 60.0)),
    ],
    ids=str,
)
def test_a_range_that_was_cut_says_it_is_behind(world: World, cut: dict[str, Any], begins: str) -> None:
    """To be at the tip is noted on the lease, and means that nothing lies behind the checkpoint."""
    sequences = world.put(*[b"x" * 100] * 10, pause=1.0)
    reader = world.reader(WHOLE if begins == "at the horizon" else after(sequences[0]))
    allowance = Allowance(cut.get("records", 10**6), cut.get("bytes_", 10**9), cut.get("readers", 1))
    pages = reader.pages(allowance, ReadDeadline(world.clock.monotonic() + cut.get("seconds", 60.0), world.clock))
    last = [record["SequenceNumber"] for page in pages for record in page][-1]
    assert (reader.millis_behind == 0) == (last == sequences[-1])


def test_a_reader_stops_when_told(world: World) -> None:
    world.put(b"a")
    reader = world.reader()
    assert (
        list(reader.pages(Allowance(1, 1, 1), ReadDeadline(world.clock.monotonic() + 9, world.clock), lambda: True))
        == []
    )


# Limits


def test_a_full_shard_is_read_without_ever_being_throttled(world: World) -> None:
    for _ in range(40):
        world.put(b"x" * (MEGABYTE // 2), pause=0.6)
    began = world.clock.monotonic()
    throttled = Throttling(world)
    records = world.read(world.reader(), seconds=60)
    assert len(records) == 40
    assert throttled.count == 0
    # 20 MiB at 2 MiB/s, less the last page, whose debt nobody waits for.
    assert world.clock.monotonic() - began > 5


class Throttling:
    """Counts how often the service refuses a read."""

    def __init__(self, world: World) -> None:
        self.count = 0
        original = world.kinesis.call

        def counting(operation: str, request: dict[str, Any]) -> Any:
            try:
                return original(operation, request)
            except ClientError as error:
                self.count += error.response["Error"]["Code"] == "ProvisionedThroughputExceededException"
                raise

        world.kinesis.call = counting


def test_a_busy_shard_is_read_four_times_a_second(world: World) -> None:
    def produce() -> None:
        world.put(b"x")
        world.clock.call_in(0.05, produce)

    produce()
    world.read(world.reader(), seconds=5)
    assert world.calls.count("get_records") in range(19, 22)


def test_an_idle_shard_is_read_every_five_seconds_and_at_the_end_of_the_batch(world: World) -> None:
    world.read(world.reader(), seconds=12)
    assert world.calls.count("get_records") == 4


def test_an_idle_shard_is_read_once_a_second_where_its_first_records_end_the_batch(world: World) -> None:
    deadline = ReadDeadline(world.clock.monotonic() + 10, world.clock, linger=0.05)
    deadline.sleep = world.clock.sleep  # type: ignore[method-assign]  # it would wait in real time
    assert not list(world.reader().pages(Allowance(1, MEGABYTE, 1), deadline))
    assert world.calls.count("get_records") == 11


def test_an_idle_shard_is_read_once_in_a_batch_of_five_seconds(world: World) -> None:
    bookmark, batches = None, 20
    for number in range(batches):
        reader = world.reader(bookmark=bookmark)
        if number == batches - 1:
            world.clock.call_in(4.8, lambda: world.produce(b"late"))
        records = world.read(reader, seconds=5.0)
        bookmark = reader.bookmark
    assert payloads(records) == [b"late"]
    assert world.calls.count("get_records") <= batches + 1


def test_a_batch_that_others_fill_does_not_wait_for_an_idle_shard(world: World) -> None:
    reader = world.reader()
    world.read(reader, seconds=5.0)
    began, allowance = world.clock.monotonic(), Allowance(10, MEGABYTE, 2)
    world.clock.call_in(1.5, lambda: allowance.spend(10, MEGABYTE))
    idle = world.reader(bookmark=reader.bookmark)
    assert not list(idle.pages(allowance, ReadDeadline(began + 60, world.clock)))
    assert world.clock.monotonic() - began < 3


def test_a_shard_that_is_throttled_at_the_end_of_a_batch_is_asked_again(world: World) -> None:
    reader = world.reader()
    world.read(reader, seconds=5.0)
    world.put(b"a")
    world.answers = [refused("ProvisionedThroughputExceededException")] * 2
    assert payloads(world.read(world.reader(bookmark=reader.bookmark), seconds=5.0)) == [b"a"]


@pytest.mark.parametrize("seconds", [0.6, 1.2, 3.5, 5.0])
def test_what_arrives_in_the_last_moments_of_a_batch_is_in_it(world: World, seconds: float) -> None:
    reader = world.reader()

    def put() -> None:
        world.put(b"late")

    world.clock.call_in(seconds - 0.1, put)
    assert payloads(world.read(reader, seconds)) == [b"late"]


def test_the_last_reads_of_many_shards_are_spread() -> None:
    moments = {Allowance(1, 1, 100).last_read_seconds(chance / 10) for chance in range(11)}
    assert min(moments) < 0.1
    assert max(moments) > 0.5
    assert Allowance(1, 1, 2).last_read_seconds(1.0) < 0.1


def test_a_shard_is_left_alone_between_two_batches_that_read_it_to_its_tip(world: World) -> None:
    """The last read of a batch may be a moment before the first one of the next batch."""
    began, throttled = world.clock.monotonic(), Throttling(world)
    bookmark = None
    for _ in range(20):
        reader = world.reader(bookmark=bookmark)
        world.read(reader, seconds=0.3)
        bookmark = reader.bookmark
    assert throttled.count == 0
    assert world.calls.count("get_records") <= 4 * (world.clock.monotonic() - began) + 1


def test_empty_pages_far_from_the_tip_are_passed_quickly(world: World) -> None:
    world.put(b"a")
    iterator = world.kinesis.get_shard_iterator(StreamName=STREAM, ShardId=SHARD, ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    empty = {"Records": [], "NextShardIterator": iterator, "MillisBehindLatest": 60_000}
    world.answers = [empty] * 10
    assert payloads(world.read(world.reader(), seconds=4.0)) == [b"a"]


# What goes wrong


def test_throttling_is_waited_out_and_loses_nothing(world: World) -> None:
    world.put(b"a", b"b")
    world.answers = [refused("ProvisionedThroughputExceededException")] * 3
    assert payloads(world.read(world.reader(), seconds=30)) == [b"a", b"b"]
    pauses = [pause for pause in world.clock.slept if pause > 0][:3]
    assert pauses[0] <= 0.25 < pauses[2] <= 1.0
    # The iterator is still good: it is not asked for again.
    assert world.calls.count("get_shard_iterator") == 1


def test_two_readers_that_were_throttled_do_not_come_back_together() -> None:
    pauses = set()
    for seed in range(5):
        world = World(seed=seed)
        world.answers = [refused("LimitExceededException")]
        world.read(world.reader(), seconds=1)
        pauses.add(world.clock.slept[0])
    assert len(pauses) == 5


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (refused("ProvisionedThroughputExceededException"), Throttled),
        (EndpointConnectionError(endpoint_url="http://x"), EndpointUnreachable),
    ],
)
def test_a_shard_that_never_answers_is_an_error(world: World, fault: Exception, expected: type[Exception]) -> None:
    world.answers = [fault] * 1000
    with pytest.raises(expected):
        world.read(world.reader())
    assert world.clock.monotonic() < 1000 + 60


def test_a_lost_answer_is_asked_for_again(world: World) -> None:
    world.put(b"a", b"b")
    world.answers = [ReadTimeoutError(endpoint_url="http://x"), refused("InternalFailure", 500)]
    assert payloads(world.read(world.reader(), seconds=9)) == [b"a", b"b"]


def test_an_answer_without_records_in_it_is_not_an_empty_page(world: World) -> None:
    world.put(b"a")
    world.answers = [{"message": "a body that was cut off"}]
    assert payloads(world.read(world.reader(), seconds=9)) == [b"a"]


def test_what_retries_cannot_cure_is_raised_at_once(world: World) -> None:
    world.answers = [refused("AccessDeniedException")]
    with pytest.raises(AccessDenied):
        world.read(world.reader())
    assert world.clock.slept == []


def test_an_expired_iterator_is_renewed_after_the_last_record(world: World) -> None:
    world.put(b"a", b"b")
    world.answers = [None, refused("ExpiredIteratorException")]
    world.clock.call_in(2, lambda: world.produce(b"c"))
    assert payloads(world.read(world.reader(), seconds=9)) == [b"a", b"b", b"c"]


def test_iterators_that_are_refused_however_young_are_not_asked_for_in_a_hurry(world: World) -> None:
    world.put(b"a")
    world.answers = [refused("ExpiredIteratorException")] * 4
    assert payloads(world.read(world.reader(), seconds=9)) == [b"a"]
    assert sum(world.clock.slept) > 1.0


def test_a_pause_longer_than_an_iterator_lives_loses_and_repeats_nothing(world: World) -> None:
    sequences = world.put(b"a")
    first = world.reader()
    world.read(first)
    world.put(b"b")
    world.clock.advance(600)
    second = world.reader(after(sequences[0]), bookmark=first.bookmark)
    assert payloads(world.read(second)) == [b"a", b"b"]
    assert not second.is_start_trimmed


def test_an_iterator_of_another_service_is_not_fatal(world: World) -> None:
    sequences = world.put(b"a", b"b")
    first = world.reader()
    world.read(first)
    assert first.bookmark is not None
    foreign = replace(first.bookmark, iterator="AAAA" + "x" * 100)
    assert payloads(world.read(world.reader(after(sequences[0]), bookmark=foreign))) == [b"a", b"b"]


def test_a_bookmark_goes_on_without_reading_the_checkpoint_again(world: World) -> None:
    sequences = world.put(b"a")
    first = world.reader()
    world.read(first)
    world.put(b"b")
    world.calls.clear()
    second = world.reader(after(sequences[0]), bookmark=first.bookmark)
    assert payloads(world.read(second)) == [b"b"]
    assert "get_shard_iterator" not in world.calls


def test_the_debt_of_a_large_page_is_carried_to_the_next_reader(world: World) -> None:
    for _ in range(10):
        world.put(b"x" * (MEGABYTE - 100), pause=1.1)
    throttled = Throttling(world)
    first = world.reader()
    read = world.read(first, seconds=0.1)
    assert first.bookmark is not None
    assert first.bookmark.wait_seconds > 0
    world.read(world.reader(after(read[-1]["SequenceNumber"]), bookmark=first.bookmark), seconds=20)
    assert throttled.count == 0


def test_a_record_of_ten_mebibytes_is_read() -> None:
    world = World(limits=Limits.none())
    world.kinesis.update_max_record_size(
        StreamARN=world.kinesis.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"],
        MaxRecordSizeInKiB=10240,
    )
    large = b"x" * (10 * MEGABYTE - 1024)
    world.put(b"a", large, b"b")
    assert [len(data) for data in payloads(world.read(world.reader(), seconds=60))] == [1, len(large), 1]


# The end of a shard


def test_the_end_of_a_closed_shard_names_its_children(world: World) -> None:
    world.put(b"a", b"b")
    world.kinesis.split_shard(StreamName=STREAM, ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
    world.clock.advance(1)
    reader = world.reader()
    assert payloads(world.read(reader)) == [b"a", b"b"]
    assert reader.is_ended
    assert not reader.is_gone
    assert [child.id for child in reader.children] == ["shardId-000000000001", "shardId-000000000002"]
    assert [child.hash_range.start for child in reader.children] == [0, 2**127]
    assert {child.parents for child in reader.children} == {(SHARD,)}
    assert reader.bookmark is None


def test_a_shard_that_expired_is_gone_but_a_missing_stream_is_an_error(world: World) -> None:
    reader = world.reader(shard="shardId-000000000099")
    assert world.read(reader) == []
    assert reader.is_gone
    assert reader.is_ended
    world.kinesis.delete_stream(StreamName=STREAM)
    with pytest.raises(StreamNotFound, match="clicks"):
        world.read(world.reader())


# Pinned ranges


def pinned(first: str, last: str, start: Checkpoint = TRIM_HORIZON) -> Bounds:
    return Bounds(start, through=Checkpoint(last), first=first if start == TRIM_HORIZON else None)


def test_a_pinned_range_is_read_through_its_end_whatever_the_budget_says(world: World) -> None:
    sequences = world.put(*[b"%d" % i for i in range(50)])
    reader = world.reader(pinned(sequences[10], sequences[39]))
    read = world.read(reader, seconds=0.0, records=1, bytes_=1)
    assert payloads(read) == [b"%d" % i for i in range(10, 40)]
    assert not reader.is_ended


def test_a_pinned_range_that_ends_before_the_tip_is_behind_it(world: World) -> None:
    sequences = world.put(b"a", b"b", pause=2.0)
    reader = world.reader(pinned(sequences[0], sequences[0]))
    assert payloads(world.read(reader)) == [b"a"]
    assert reader.millis_behind == 2000
    whole = world.reader(pinned(sequences[0], sequences[1]))
    assert payloads(world.read(whole)) == [b"a", b"b"]
    assert whole.millis_behind == 0


def test_a_pinned_range_at_the_end_of_a_shard_ends_it(world: World) -> None:
    sequences = world.put(b"a", b"b")
    world.kinesis.split_shard(StreamName=STREAM, ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
    world.clock.advance(1)
    reader = world.reader(pinned(sequences[0], sequences[1]))
    assert payloads(world.read(reader)) == [b"a", b"b"]


def test_a_pinned_range_waits_out_long_throttling(world: World) -> None:
    sequences = world.put(b"a", b"b")
    world.answers = [refused("ProvisionedThroughputExceededException")] * 12
    assert payloads(world.read(world.reader(pinned(sequences[0], sequences[1])), seconds=1.0)) == [b"a", b"b"]


def test_a_pinned_range_whose_beginning_was_trimmed_is_data_loss(world: World) -> None:
    sequences = world.put(b"a", b"b")
    world.clock.advance(30 * 3600)
    world.put(b"c")
    with pytest.raises(DataLoss, match="now begins at"):
        world.read(world.reader(pinned(sequences[0], sequences[1])))


def test_a_pinned_range_of_a_shard_that_was_quiet_is_read_although_its_checkpoint_was_trimmed(world: World) -> None:
    [processed] = world.put(b"long ago")
    world.clock.advance(30 * 3600)
    sequences = world.put(b"a", b"b")
    bounds = Bounds(Checkpoint(processed), through=Checkpoint(sequences[1]), first=sequences[0])
    assert payloads(world.read(world.reader(bounds))) == [b"a", b"b"]


def test_a_pinned_range_whose_end_is_missing_is_data_loss(world: World) -> None:
    sequences = world.put(b"a", b"b")
    between = str((int(sequences[0]) + int(sequences[1])) // 2)
    with pytest.raises(DataLoss, match="is gone now"):
        world.read(world.reader(pinned(sequences[0], between)))


def test_a_pinned_range_beyond_the_end_of_the_shard_is_data_loss(world: World) -> None:
    sequences = world.put(b"a", b"b")
    world.kinesis.split_shard(StreamName=STREAM, ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
    world.clock.advance(1)
    with pytest.raises(DataLoss, match="the shard ends at"):
        world.read(world.reader(pinned(sequences[0], str(int(sequences[1]) + 1))))


@pytest.mark.timeout(10)
def test_a_pinned_range_of_which_a_quiet_shard_has_nothing_left_is_data_loss(world: World) -> None:
    sequences = world.put(b"a", b"b")
    world.clock.advance(30 * 3600)
    with pytest.raises(DataLoss, match="has none of its records"):
        world.read(world.reader(pinned(sequences[0], sequences[1])))


@pytest.mark.timeout(10)
def test_a_pinned_range_is_not_lost_with_one_answer_that_nothing_follows(world: World) -> None:
    sequences = world.put(b"a", b"b")
    place = world.kinesis.get_shard_iterator(StreamName=STREAM, ShardId=SHARD, ShardIteratorType="TRIM_HORIZON")
    empty = {"Records": [], "MillisBehindLatest": 0, "NextShardIterator": place["ShardIterator"]}
    world.answers = [empty] * (MOST_TIPS - 1)
    assert payloads(world.read(world.reader(pinned(sequences[0], sequences[1])))) == [b"a", b"b"]


def test_without_limits_nothing_is_waited_for(world: World) -> None:
    world = World(limits=Limits.none())
    world.put(*[b"x"] * 30)
    began = world.clock.monotonic()
    read = world.read(world.reader(limits=ShardLimits.unlimited()), records=30, seconds=100)
    assert len(read) == 30
    assert world.clock.monotonic() - began < 0.1


DAY = 24 * 3600


@pytest.mark.parametrize("age", [23 * 3600, DAY - 60])
def test_what_leaves_the_stream_between_two_ranges_is_noticed(world: World, age: int) -> None:
    """An iterator would skip it in silence. Within a day nothing leaves a stream, and iterators do."""
    sequences = world.put(*[b"%d" % number for number in range(6)], pause=40.0)
    world.clock.advance(age - 6 * 40)
    first = world.reader()
    assert payloads(world.read(first, records=1)) == [b"0"]
    world.clock.advance(120)
    second = world.reader(after(sequences[0]), bookmark=first.bookmark)
    found = payloads(world.read(second, records=1))
    if age < DAY - 600:
        assert (found, second.is_start_trimmed) == ([b"1"], False)
        assert world.calls.count("get_shard_iterator") == 1
    else:
        assert second.is_start_trimmed
        assert found[0] != b"1"


def one_at_a_time(world: World, pause: float) -> None:
    """Let Kinesis answer with one record each time, and time pass after the first answer."""
    original, answered = world.kinesis.call, list[float]()

    def call(operation: str, request: dict[str, Any]) -> Any:
        if operation != "GetRecords":
            return original(operation, request)
        answer = original(operation, {**request, "Limit": 1})
        if not answered:
            world.clock.advance(pause)
        answered.append(pause)
        return answer

    world.kinesis.call = call


@pytest.mark.parametrize("leaves", [False, True])
def test_a_record_that_leaves_the_stream_between_two_answers_is_noticed(world: World, leaves: bool) -> None:
    """The first answer has nothing but the record at which the range begins, so another one is asked for."""
    sequences = world.put(*[b"%d" % number for number in range(6)], pause=10.0)
    world.clock.advance(DAY - 90)
    one_at_a_time(world, 55.0 if leaves else 5.0)
    reader = world.reader(after(sequences[0]))
    found = payloads(world.read(reader, records=1))
    assert found == ([b"0", b"3"] if leaves else [b"0", b"1"])
    assert reader.is_start_trimmed is leaves


def test_records_that_leave_the_stream_before_its_tip_is_reached_are_noticed(world: World) -> None:
    """Nothing follows them, and an iterator that was kept would never tell."""
    sequences = world.put(b"0", b"1", pause=10.0)
    world.clock.advance(DAY - 30)
    one_at_a_time(world, 60.0)
    reader = world.reader(after(sequences[0]))
    assert payloads(world.read(reader)) == [b"0"]
    assert reader.millis_behind == 0
    assert reader.is_start_trimmed


def test_a_batch_that_is_read_again_while_its_records_leave_the_stream_is_data_loss(world: World) -> None:
    sequences = world.put(*[b"%d" % number for number in range(6)], pause=10.0)
    world.clock.advance(DAY - 90)
    one_at_a_time(world, 55.0)
    with pytest.raises(DataLoss, match="may have left the stream while they were read again"):
        world.read(world.reader(pinned(sequences[0], sequences[5])))


def test_a_shard_that_is_not_far_behind_is_not_asked_again(world: World) -> None:
    sequences = world.put(*[b"%d" % number for number in range(3)])
    one_at_a_time(world, 1.0)
    assert payloads(world.read(world.reader(after(sequences[0])))) == [b"0", b"1", b"2"]
    assert world.calls.count("get_shard_iterator") == 1


def test_a_range_that_is_far_behind_ends_with_its_first_records(world: World) -> None:
    sequences = world.put(*[b"%d" % number for number in range(6)])
    world.clock.advance(DAY - 60)
    reader = world.reader(after(sequences[0]))
    assert payloads(world.read(reader, records=1)) == [b"0", b"1"]
    assert world.calls.count("get_records") == 1


def test_a_shard_that_never_answers_fails_although_others_close_each_batch_soon(world: World) -> None:
    def read_on() -> None:
        bookmark = None
        for _ in range(40):
            world.answers = [refused("ProvisionedThroughputExceededException")]
            deadline = ReadDeadline(world.clock.monotonic() + 5, world.clock, linger=0.0)
            deadline.records_came()
            reader = world.reader(bookmark=bookmark)
            assert not list(reader.pages(Allowance(1000, MEGABYTE, 1), deadline))
            world.clock.advance(0.5)
            bookmark = reader.bookmark
            if bookmark is not None:
                left = max(0.0, bookmark.wait_seconds - 0.5)
                bookmark = replace(bookmark, wait_seconds=left, failing_seconds=bookmark.failing_seconds + 0.5)

    with pytest.raises(Throttled):
        read_on()
