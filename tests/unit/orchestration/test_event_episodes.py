"""How much of what a worker reports is written to Dagster's event log."""

import pytest

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.orchestration.event_episodes import NAMED, ORDINARY_LINES, Episodes
from kcl_dagster.worker.events import EventKind, WorkerEvent

pytestmark = pytest.mark.slow


class Log:
    def __init__(self) -> None:
        self.now = 0.0
        self.episodes = Episodes()
        self.lines: list[str] = []

    def see(self, kind: EventKind, shard: int | None = 0) -> None:
        key = None if shard is None else LeaseKey(f"shardId-{shard:012d}")
        self.lines += self.episodes.lines(WorkerEvent(kind, "boom", key), f"{shard}: boom", self.now)
        self.look()

    def look(self) -> None:
        self.lines += [line for _, line in self.episodes.due(self.now)]


@pytest.mark.audit("C4")
def test_a_hundred_shards_that_fail_all_day_write_less_than_a_megabyte() -> None:
    log = Log()
    for minute in range(24 * 60):
        log.now = 60.0 * minute
        for shard in range(100):
            log.see(EventKind.BATCH_FAILED, shard)
            log.see(EventKind.FETCH_FAILED, shard)
    assert len(log.lines) < 2 * (NAMED + 30)
    assert sum(len(line) for line in log.lines) < 10_000


def test_an_episode_has_a_beginning_summaries_and_an_end() -> None:
    log = Log()
    for second in range(0, 1000, 10):
        log.now = float(second)
        log.see(EventKind.RENEWAL_FAILED)
    log.now = 1400.0
    log.look()
    assert log.lines == [
        "0: boom",
        "30 times since the last line, the latest: 0: boom",
        "60 times since the last line, the latest: 0: boom",
        "over: 100 times within 990 s",
    ]
    log.now = 1500.0
    log.see(EventKind.RENEWAL_FAILED)
    assert log.lines[-1] == "0: boom"


def test_each_shard_is_named_once_while_there_are_few() -> None:
    log = Log()
    for _ in range(3):
        for shard in (1, 2, None):
            log.see(EventKind.FETCH_FAILED, shard)
    assert log.lines == ["1: boom", "2: boom", "None: boom"]
    log.now = 400.0
    log.look()
    assert log.lines[-1] == "over: 9 times on 2 shards within 0 s"


def test_a_failure_that_happened_once_needs_no_end() -> None:
    log = Log()
    log.see(EventKind.HEARTBEAT_FAILED)
    log.now = 1000.0
    log.look()
    assert log.lines == ["0: boom"]


def test_every_loss_of_data_is_written() -> None:
    log = Log()
    for shard in range(50):
        log.see(EventKind.DATA_LOST, shard)
    assert len(log.lines) == 50


@pytest.mark.audit("C4")
def test_ordinary_events_are_bounded_too() -> None:
    log = Log()
    for second in range(3600):
        log.now = float(second)
        for shard in range(10):
            log.see(EventKind.LEASE_ACQUIRED, shard)
    assert len(log.lines) <= 12 * (ORDINARY_LINES + 1)
    assert f"{3000 - ORDINARY_LINES} more within 300 s" in log.lines
    log.now = 10_000.0
    log.look()
    log.see(EventKind.LEASE_ACQUIRED)
    assert log.lines[-1] == "0: boom"
