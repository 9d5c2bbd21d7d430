"""One worker stores with the data through when the application is complete, and never waits for it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kcl_dagster.model.checkpoint import SHARD_END
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.windows import FixedWindows
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.completeness_writer import WRITE_SECONDS, CompletenessWriter, is_writer
from kcl_dagster.worker.events import EventKind, WorkerEvent
from tests.doubles.clock import FakeClock
from tests.unit.worker.chains import ChainWorld
from tests.unit.worker.test_leaderless import A, B


@dataclass
class Setting:
    """A writer whose threads are run by the test."""

    known: WrittenThrough | None = None
    is_chosen: bool = True
    clock: FakeClock = field(default_factory=FakeClock)
    kept: list[tuple[WrittenThrough, int]] = field(default_factory=list)
    begun: list[Callable[[], None]] = field(default_factory=list)
    events: list[WorkerEvent] = field(default_factory=list)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.writer = CompletenessWriter(
            self.keep_complete,
            "app",
            lambda: self.known,
            lambda: self.is_chosen,
            FixedWindows(3600),
            self.clock,
            self.events.append,
            self.begun.append,
        )

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        assert application == "app"
        if self.error is not None:
            raise self.error
        self.kept.append((known, wanted))

    def step(self, *, finishes: bool = True) -> int:
        """How many moments were stored by this step."""
        before = len(self.kept)
        self.writer.step()
        while finishes and self.begun:
            self.begun.pop()()
        return len(self.kept) - before


def test_a_moment_is_stored_once_a_minute_and_when_it_passes_the_end_of_a_window() -> None:
    setting = Setting()
    assert setting.step() == 0
    setting.known = WrittenThrough(3500)
    assert [setting.step(), setting.step()] == [1, 0]
    setting.known = WrittenThrough(3600)
    assert [setting.step(), setting.step()] == [1, 0]
    setting.known = WrittenThrough(1000, epoch=1)
    assert [setting.step(), setting.step()] == [1, 0]
    setting.clock.advance(WRITE_SECONDS)
    assert [setting.step(), setting.step()] == [1, 0]
    # Of a window that has just become complete, batches are given a minute to store the moment in their commits.
    assert [wanted for _, wanted in setting.kept] == [0, 0, 0, 0]
    setting.known = WrittenThrough(7300, epoch=1)
    assert setting.step() == 1
    setting.clock.advance(WRITE_SECONDS)
    assert setting.step() == 1
    assert [wanted for _, wanted in setting.kept[-2:]] == [0, 7200]


def test_a_worker_that_stores_nothing_writes_every_ten_minutes() -> None:
    setting = Setting(WrittenThrough(7300), clock=FakeClock(7400))
    written = []
    for minute in range(25):
        setting.known = WrittenThrough(7300 + 60 * minute)
        written.append(setting.step())
        setting.clock.advance(WRITE_SECONDS)
    assert [minute for minute, one in enumerate(written) if one] == [0, 1, 11, 21]
    setting.known = WrittenThrough(10_800)
    assert setting.step() == 1, "the end of a window is stored at once"


def test_after_the_last_records_moments_are_stored_until_one_is_later() -> None:
    setting = Setting(WrittenThrough(7300), clock=FakeClock(7400))
    for _ in range(5):
        setting.step()
        setting.clock.advance(WRITE_SECONDS)
    setting.writer.records_were_stored()  # at 7700
    setting.known = WrittenThrough(7670)
    assert setting.step() == 1
    setting.clock.advance(WRITE_SECONDS)
    setting.known = WrittenThrough(7730)
    assert setting.step() == 1, "the former one does not say that these records are stored"
    setting.clock.advance(WRITE_SECONDS)
    assert setting.step() == 0


def test_a_write_that_failed_counts_for_none() -> None:
    setting = Setting(WrittenThrough(3700), error=OSError("full"))
    for _ in range(3):
        setting.step()
        setting.clock.advance(WRITE_SECONDS)
    assert len(setting.events) == 3
    setting.error = None
    assert setting.step() == 1


def test_a_write_that_failed_after_records_is_repeated_in_a_minute() -> None:
    setting = Setting(WrittenThrough(7300), clock=FakeClock(7400))
    for _ in range(3):
        setting.step()
        setting.clock.advance(WRITE_SECONDS)
    setting.writer.records_were_stored()
    setting.known, setting.error = WrittenThrough(7700), OSError("full")
    assert setting.step() == 0
    setting.clock.advance(WRITE_SECONDS)
    setting.error = None
    assert setting.step() == 1


def test_only_the_chosen_worker_writes() -> None:
    setting = Setting(WrittenThrough(3500), is_chosen=False)
    assert setting.step() == 0
    setting.is_chosen = True
    assert setting.step() == 1


def test_a_slow_store_gets_no_second_moment_and_it_is_counted() -> None:
    setting = Setting(WrittenThrough(3500))
    setting.step(finishes=False)
    setting.clock.advance(WRITE_SECONDS)
    assert setting.step(finishes=False) == 0
    assert len(setting.begun) == 1
    assert setting.writer.dropped == 1
    assert [event.kind for event in setting.events] == [EventKind.COMPLETENESS_NOT_STORED]
    setting.clock.advance(WRITE_SECONDS)
    setting.begun.pop()()
    assert setting.step() == 1, "the first one has ended"


def test_a_store_that_fails_is_reported_and_tried_again() -> None:
    setting = Setting(WrittenThrough(3500), error=OSError("full"))
    assert setting.step() == 0
    [event] = setting.events
    assert event.kind is EventKind.COMPLETENESS_NOT_STORED
    assert "full" in event.message
    setting.error = None
    setting.clock.advance(WRITE_SECONDS)
    assert setting.step() == 1


def test_a_machine_without_threads_is_no_failure_of_the_worker() -> None:
    setting = Setting(WrittenThrough(3500))

    def no_thread(_: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    setting.writer._start = no_thread
    assert setting.step() == 0
    assert [event.kind for event in setting.events] == [EventKind.COMPLETENESS_NOT_STORED]
    setting.writer._start = setting.begun.append
    setting.clock.advance(WRITE_SECONDS)
    assert setting.step() == 1


def test_the_owner_of_the_open_lease_at_hash_key_zero_writes() -> None:
    low, high = HashRange(0, 5), HashRange(6, MAX_HASH_KEY)
    lease = Lease(LeaseKey("a"), "a", hash_range=low)
    assert is_writer([replace(lease, hash_range=high), lease], "s")
    assert not is_writer([], "s")
    assert not is_writer([replace(lease, hash_range=high)], "s")
    assert not is_writer([replace(lease, hash_range=None)], "s")
    assert not is_writer([replace(lease, checkpoint=SHARD_END)], "s")
    multi = StreamIdentifier("s", "123456789012", 1)
    assert is_writer([replace(lease, stream=multi)], "s")
    assert not is_writer([replace(lease, stream=multi)], "r")


def test_of_two_workers_one_stores_the_moment() -> None:
    world = ChainWorld(shards=2)
    loaded: dict[str, Any] = {"load_completeness": lambda: WrittenThrough(1234)}
    runs = [world.chain_worker(name, **loaded) for name in "vw"]
    for run, shard in zip(runs, (B, A), strict=True):
        writer = run.worker._completeness_writer
        assert writer is not None
        writer._start = lambda write: write()
        run.worker.start()
        world.assign(run, shard)
        run.until_idle()
        run.worker.step_housekeeping()
    assert [world.sinks[name].kept for name in "vw"] == [[], [WrittenThrough(1234)]]
