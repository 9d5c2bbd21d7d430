"""A replay stores each record of its window once, whatever it is cut off by, and asks for no lease."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from kcl_dagster.emulator.kinesis import Limits
from kcl_dagster.errors import ConfigurationError, DataLoss, SinkError
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.operations.replay import Replay, ReplayWindow, limits_of, refuse_unreadable, report_of
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.listing import StreamDescription, list_shards
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.worker.batch import Batch, Part
from tests.doubles.clock import FakeClock
from tests.doubles.engine import MemoryEngine, Row
from tests.doubles.kinesis import FakeKinesis

STREAM = "orders"
HOUR = 3600


@dataclass
class Shelf:
    """A sink that keeps each part under its name, and may break before or after it has stored one."""

    parts: dict[Part, list[Row]] = field(default_factory=dict)
    order: list[Row] = field(default_factory=list)
    breaks_at: int | None = None
    stored_first: bool = False

    def open(self) -> bool:
        return False

    def holds(self, _: Part) -> bool:
        """As `RepeatingSink`: it does not know."""
        return False

    def write(self, data: list[Row], batch: Batch) -> None:
        if self.breaks_at is not None:
            self.breaks_at -= 1
            if self.breaks_at < 0 and not self.stored_first:
                raise SinkError("the shelf is full")
        for part in batch.parts:
            self.parts[part] = [row for row in data if row.lease == part.lease]
            self.order += self.parts[part]
        if self.breaks_at is not None and self.breaks_at < 0:
            raise SinkError("the shelf fell down")

    def bodies(self) -> list[bytes]:
        return sorted(row.data for rows in self.parts.values() for row in rows)


class Archive:
    """A stream with records of some hours, on a clock that moves when told."""

    def __init__(self, shards: int = 2) -> None:
        self.clock = FakeClock()
        self.runtime = Runtime(clock=self.clock)
        self.kinesis = FakeKinesis(self.clock, limits=Limits.none())
        self.kinesis.create_stream(StreamName=STREAM, ShardCount=shards)
        self.put_at: list[tuple[int, bytes]] = []

    @property
    def now_ms(self) -> int:
        return round(self.clock.now() * 1000)

    def put(self, count: int, pause: float = 1.0) -> None:
        for _ in range(count):
            body = b"%05d" % len(self.put_at)
            self.put_at.append((self.now_ms, body))
            self.kinesis.put_record(StreamName=STREAM, Data=body, PartitionKey=f"key-{len(self.put_at)}")
            self.clock.advance(pause)

    def within(self, window: ReplayWindow) -> list[bytes]:
        return sorted(body for at, body in self.put_at if window.start_ms <= at < window.end_ms)

    def replay(self, window: ReplayWindow, shelf: Shelf, piece_bytes: int = 40) -> Mapping[str, Any]:
        engine = MemoryEngine(self.kinesis, self.runtime, limits=ShardLimits.unlimited())
        shards = list_shards(self.kinesis, STREAM, runtime=self.runtime)
        stream = StreamIdentifier.single(STREAM)
        return report_of(Replay("orders-app", stream, window, shards, engine, shelf, piece_bytes=piece_bytes).run())


@pytest.fixture
def archive() -> Archive:
    return Archive()


def window_of(archive: Archive, count: int) -> ReplayWindow:
    start = archive.now_ms
    archive.put(count)
    return ReplayWindow("2026-11-20-13:00", start, archive.now_ms)


def test_a_window_is_replayed_and_nothing_beside_it(archive: Archive) -> None:
    archive.put(20)
    window = window_of(archive, 50)
    archive.put(20)
    shelf = Shelf()
    report = archive.replay(window, shelf)
    assert shelf.bodies() == archive.within(window)
    assert report == {"records": 50, "bytes": 250, "pieces": len(shelf.parts), "shards": 2}
    assert len(shelf.parts) > 4


@dataclass
class RememberingShelf(Shelf):
    """As a sink in chains: it says which parts it has, and takes none a second time."""

    def holds(self, part: Part) -> bool:
        return part in self.parts

    def write(self, data: list[Row], batch: Batch) -> None:
        assert not [part for part in batch.parts if self.holds(part)], "a part comes again"
        Shelf.write(self, data, batch)


def test_parts_that_a_sink_says_it_has_are_not_given_to_it_again(archive: Archive) -> None:
    window = window_of(archive, 50)
    shelf = RememberingShelf(breaks_at=2, stored_first=True)
    with pytest.raises(SinkError):
        archive.replay(window, shelf)
    shelf.breaks_at = None
    archive.replay(window, shelf)
    archive.replay(window, shelf)
    assert shelf.bodies() == archive.within(window)


@pytest.mark.parametrize("stored_first", [False, True], ids=["before it stores", "after it has stored"])
@pytest.mark.parametrize("breaks_at", range(4))
def test_a_replay_that_was_cut_off_is_completed_by_the_next(
    archive: Archive, breaks_at: int, stored_first: bool
) -> None:
    window = window_of(archive, 50)
    shelf = Shelf(breaks_at=breaks_at, stored_first=stored_first)
    with pytest.raises(SinkError):
        archive.replay(window, shelf)
    archive.put(10)
    shelf.breaks_at = None
    archive.replay(window, shelf)
    assert shelf.bodies() == archive.within(window)


def test_a_window_that_is_replayed_again_has_the_same_parts(archive: Archive) -> None:
    window = window_of(archive, 50)
    shelf = Shelf()
    archive.replay(window, shelf)
    parts = set(shelf.parts)
    archive.put(30)
    archive.replay(window, shelf)
    assert set(shelf.parts) == parts
    assert shelf.bodies() == archive.within(window)


def test_two_windows_share_no_part_and_number_their_own_from_one(archive: Archive) -> None:
    first, second = window_of(archive, 30), window_of(archive, 30)
    second = ReplayWindow("2026-11-20-14:00", second.start_ms, second.end_ms)
    shelf = Shelf()
    archive.replay(first, shelf)
    archive.replay(second, shelf)
    assert shelf.bodies() == sorted(archive.within(first) + archive.within(second))
    numbers = Counter((part.application, part.shard_id, part.number) for part in shelf.parts)
    assert set(numbers.values()) == {1}
    assert {part.number for part in shelf.parts if part.application.endswith("13:00")} >= {1, 2}


def test_parents_come_before_their_children(archive: Archive) -> None:
    start = archive.now_ms
    archive.put(20)
    for shard in list_shards(archive.kinesis, STREAM, runtime=archive.runtime):
        middle = (shard.hash_range.start + shard.hash_range.end) // 2
        archive.kinesis.split_shard(StreamName=STREAM, ShardToSplit=shard.id, NewStartingHashKey=str(middle))
    archive.put(20)
    window = ReplayWindow("day", start, archive.now_ms)
    shelf = Shelf()
    archive.replay(window, shelf)
    assert shelf.bodies() == archive.within(window)
    of_parents = [index for index, row in enumerate(shelf.order) if row.lease.endswith(("000", "001"))]
    of_children = [index for index, row in enumerate(shelf.order) if index not in of_parents]
    assert of_children
    assert max(of_parents) < min(of_children)


def described(**changes: Any) -> StreamDescription:
    facts: dict[str, Any] = {
        "name": STREAM,
        "arn": "arn:aws:kinesis:us-east-1:123456789012:stream/orders",
        "created": 0.0,
        "retention_hours": 24,
        "mode": "PROVISIONED",
        "status": "ACTIVE",
        "open_shards": 2,
    }
    return StreamDescription(**{**facts, **changes})


NOW = 1_000 * HOUR


def window(begins_hours_ago: float, hours: float = 1.0) -> ReplayWindow:
    start = NOW - begins_hours_ago * HOUR
    return ReplayWindow("w", round(start * 1000), round((start + hours * HOUR) * 1000))


UNREADABLE: dict[str, tuple[ReplayWindow, dict[str, Any], type[Exception], str]] = {
    "not over": (window(0.5), {}, ConfigurationError, "is not over yet: replay it in 30 min"),
    "just over": (window(1.0), {}, ConfigurationError, "is not over yet: replay it in 10 s"),
    "by the service's clock": (window(1.5), {"answered": NOW - HOUR}, ConfigurationError, "not over yet"),
    "gone": (window(30), {}, DataLoss, "keeps records for 24 h: what is left of it is nothing"),
    "half gone": (window(24.5), {}, DataLoss, "what is left of it is from 1970-02-10T16:00:00Z on"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_replayed_is_said_with_what_is_left_of_it(name: str) -> None:
    asked, facts, error, says = UNREADABLE[name]
    with pytest.raises(error, match=says):
        refuse_unreadable(asked, described(**facts), NOW)


@pytest.mark.parametrize(
    ("asked", "facts"),
    [
        (window(2), {}),
        (window(23.9), {}),
        (window(30), {"retention_hours": 48}),
        (window(30), {"created": NOW - 2 * HOUR}),  # younger than its retention: nothing has left it
    ],
)
def test_what_the_stream_has_all_of_can_be_replayed(asked: ReplayWindow, facts: dict[str, Any]) -> None:
    refuse_unreadable(asked, described(**facts), NOW)


def test_by_default_a_replay_takes_the_read_that_live_consumers_leave() -> None:
    live = ShardLimits()
    assert live.reads_per_second + limits_of(0.2).reads_per_second == 5.0
