"""Pieces of a window are the same at every reading, and windows that touch share nothing and miss nothing."""

import itertools
import random
from collections.abc import Sequence

import pytest

from kcl_dagster.emulator import Limits
from kcl_dagster.errors import DataLoss, Throttled
from kcl_dagster.model.checkpoint import AT_TIMESTAMP, Checkpoint
from kcl_dagster.streams.pacing import FIRST_PAGE_RECORDS, Allowance, ReadDeadline, ShardLimits
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord
from kcl_dagster.streams.window import Window, WindowReader
from tests.unit.streams.conftest import SHARD, STREAM, World, payloads

UNBOUNDED = Allowance(1 << 40, 1 << 40, 1)
PATIENCE = 900.0


@pytest.fixture
def world() -> World:
    return World(limits=Limits.none())


def reader_of(world: World, bounds: Bounds, window: Window, limits: ShardLimits | None = None) -> WindowReader:
    return WindowReader(
        world, STREAM, SHARD, bounds, window, runtime=world.runtime, limits=limits or ShardLimits(1.0, 400_000)
    )


def pieces(
    world: World, start_ms: int, until_ms: int, most_bytes: int = 1 << 30, limits: ShardLimits | None = None
) -> list[list[bytes]]:
    """All of a window, as a replay reads it."""
    found: list[list[bytes]] = []
    bounds = Bounds(AT_TIMESTAMP, timestamp_ms=start_ms)
    while True:
        reader = reader_of(world, bounds, Window(until_ms, most_bytes), limits)
        if piece := read(world, reader):
            found.append(payloads(piece))
            bounds = Bounds(Checkpoint(piece[-1]["SequenceNumber"], 0))
        if reader.is_ended:
            return found


def read(world: World, reader: WindowReader, seconds: float = PATIENCE) -> list[StreamRecord]:
    deadline = ReadDeadline(world.clock.monotonic() + seconds, world.clock)
    return [record for page in reader.pages(UNBOUNDED, deadline) for record in page]


def now_ms(world: World) -> int:
    return round(world.clock.now() * 1000)


def flat(found: Sequence[Sequence[bytes]]) -> list[bytes]:
    return [payload for piece in found for payload in piece]


def test_a_window_ends_before_what_arrived_at_its_end(world: World) -> None:
    start = now_ms(world)
    world.put(b"a", b"b", pause=10)
    middle = now_ms(world)
    world.put(b"c", b"d", pause=10)
    end = now_ms(world)
    world.put(b"e")
    assert pieces(world, start, middle) == [[b"a", b"b"]]
    assert pieces(world, middle, end) == [[b"c", b"d"]]


def test_windows_that_touch_hold_every_record_once(world: World) -> None:
    chance = random.Random(7)
    start, all_of_them = now_ms(world), []
    for number in range(300):
        payload = b"%03d" % number + b"." * chance.randrange(200)
        all_of_them += [payload]
        world.put(payload, pause=chance.choice((0.0, 0.001, 0.25, 3.0)))
    end = now_ms(world)
    edges = [start, *sorted(chance.randrange(start, end) for _ in range(20)), end + 1]
    found = [pieces(world, a, b, most_bytes=500) for a, b in itertools.pairwise(edges)]
    assert flat([flat(window) for window in found]) == all_of_them


def test_pieces_do_not_depend_on_how_they_are_read(world: World) -> None:
    chance = random.Random(11)
    start = now_ms(world)
    for _ in range(200):
        world.put(bytes(chance.randrange(1, 400)), pause=0.5)
    end = now_ms(world)
    slow, quick = ShardLimits(0.5, 2_000), ShardLimits.unlimited()
    first = pieces(world, start, end, 3_000, slow)
    assert len(first) > 5
    world.put(b"later", pause=100)
    assert pieces(world, start, end, 3_000, quick) == first


def test_an_empty_window_is_over_at_once(world: World) -> None:
    start = now_ms(world)
    world.clock.advance(60)
    end = now_ms(world)
    assert pieces(world, start, end) == []
    world.put(b"later")
    assert pieces(world, start, end) == []


def test_a_closed_shard_is_read_to_its_end(world: World) -> None:
    start = now_ms(world)
    world.put(b"a", b"b", pause=1)
    world.kinesis.split_shard(StreamName=STREAM, ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
    world.put(b"child's", pause=1)
    assert pieces(world, start, now_ms(world)) == [[b"a", b"b"]]


def test_one_record_larger_than_a_piece_is_a_piece(world: World) -> None:
    start = now_ms(world)
    world.put(b"x" * 100, b"y" * 100, b"z", pause=1)
    assert [len(piece) for piece in pieces(world, start, now_ms(world), most_bytes=10)] == [1, 1, 1]


def test_others_keep_their_part_of_the_shard() -> None:
    """With AWS's limits and a live reader that takes its four reads a second, nobody is throttled."""
    world = World()
    start = now_ms(world)
    for _ in range(40):
        world.put(bytes(20_000), pause=0.1)
    end = now_ms(world)
    world.clock.advance(60)
    began, before = world.clock.monotonic(), world.calls.count("get_records")
    pieces(world, start, end, limits=ShardLimits(reads_per_second=1.0, bytes_per_second=200_000))
    seconds, reads = world.clock.monotonic() - began, world.calls.count("get_records") - before
    assert reads <= seconds + 2
    assert 40 * 20_000 / seconds <= 1.5 * 200_000


def test_the_first_page_is_small_whatever_a_record_weighs(world: World) -> None:
    start = now_ms(world)
    world.put(*[bytes(100_000)] * 30, pause=0.01)
    asked: list[int] = []
    real = world.kinesis.call

    def noted(operation: str, request: dict[str, object]) -> object:
        if operation == "GetRecords":
            asked.append(int(str(request["Limit"])))
        return real(operation, request)

    world.kinesis.call = noted
    pieces(world, start, now_ms(world), limits=ShardLimits(1.0, 400_000))
    assert asked[0] == FIRST_PAGE_RECORDS
    assert max(asked[1:]) <= 4  # of a hundred kilobytes each, for four hundred a second


def test_records_that_left_the_stream_meanwhile_are_said(world: World) -> None:
    sequences = world.put(b"a", b"b", pause=60)
    bounds = Bounds(Checkpoint(sequences[0], 0))
    world.clock.advance(24 * 3600 - 90)  # the first is gone, the second is not
    with pytest.raises(DataLoss, match="left the stream while the window was read"):
        read(world, reader_of(world, bounds, Window(now_ms(world), 1 << 30)))


def test_a_window_of_some_days_ago_is_read_whole(world: World) -> None:
    world.kinesis.increase_stream_retention_period(StreamName=STREAM, RetentionPeriodHours=168)
    start = now_ms(world)
    world.put(*[b"x" * 1000] * 200, pause=0.01)
    end = now_ms(world)
    world.clock.advance(3 * 24 * 3600)
    assert len(flat(pieces(world, start, end, limits=ShardLimits(1.0, 20_000)))) == 200


def test_records_that_leave_the_stream_between_two_pages_of_a_window_are_said(world: World) -> None:
    start = now_ms(world)
    world.put(*[b"x" * 1000] * 200, pause=1.0)
    end = now_ms(world)
    world.clock.advance(24 * 3600 - 201)
    reader = reader_of(
        world, Bounds(AT_TIMESTAMP, timestamp_ms=start), Window(end, 1 << 30), ShardLimits(1.0, 20_000)
    )
    pages = reader.pages(UNBOUNDED, ReadDeadline(world.clock.monotonic() + PATIENCE, world.clock))
    assert next(pages)
    world.clock.advance(60 + FIRST_PAGE_RECORDS)
    with pytest.raises(DataLoss, match="left the stream while the window was read"):
        list(pages)


def test_a_piece_that_is_not_complete_in_time_is_no_piece(world: World) -> None:
    start = now_ms(world)
    world.put(*[b"x" * 1000] * 200, pause=0.01)
    bounds = Bounds(AT_TIMESTAMP, timestamp_ms=start)
    reader = reader_of(world, bounds, Window(now_ms(world), 1 << 30), ShardLimits(1.0, 2_000))
    with pytest.raises(Throttled, match="did not give its records in time"):
        read(world, reader, seconds=5.0)
    assert not reader.is_ended
