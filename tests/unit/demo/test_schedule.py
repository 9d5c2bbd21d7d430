"""How long the demo runs, what happens on the way, and how it is reported."""

import pytest

from demo import changes
from demo.schedule import Schedule, Step
from demo.settings import seconds
from kcl_dagster.model.checkpoint import SHARD_END, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("2m", 120), ("1h", 3600), ("45", 45), ("1.5m", 90)])
def test_durations_are_read_as_people_write_them(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "s", "90 parsecs", "-5s", "0s", "1m30s"])
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 90s"):
        seconds(text)


def test_steps_come_one_after_the_other_and_once() -> None:
    schedule = Schedule(90)
    assert schedule.due(10) is None
    assert schedule.due(32) is Step.SPLIT
    assert schedule.due(80) is Step.SPLIT  # the fleet was not ready; the kill waits for the split
    schedule.complete(Step.SPLIT)
    assert schedule.due(80) is Step.KILL
    schedule.complete(Step.KILL)
    assert schedule.due(89) is None
    assert schedule.is_finished


def test_a_long_demo_also_merges() -> None:
    assert Schedule(90).steps == (Step.SPLIT, Step.KILL)
    assert Schedule(600).steps == (Step.SPLIT, Step.KILL, Step.MERGE)


KEY = LeaseKey("shardId-0")
HELD = Lease(KEY, "shardId-0", owner=WorkerId("worker-000:aaaa"), checkpoint=Checkpoint("5"))
TAKEN = Lease(KEY, "shardId-0", owner=WorkerId("worker-001:bbbb"), checkpoint=Checkpoint("5"))
HANDOFF = Lease(KEY, "shardId-0", owner=WorkerId("worker-001:bbbb"), checkpoint_owner=WorkerId("worker-000:aaaa"))
FREE = Lease(KEY, "shardId-0")
DONE = Lease(KEY, "shardId-0", owner=WorkerId("worker-000:aaaa"), checkpoint=SHARD_END)
CHILD = Lease(KEY, "shardId-0", parents=frozenset({"shardId-8", "shardId-9"}))

CHANGES: dict[str, tuple[Lease | None, Lease | None, list[str]]] = {
    "nothing": (HELD, HELD, []),
    "first": (None, FREE, ["lease of shardId-0 created"]),
    "child": (None, CHILD, ["lease of shardId-0 created, child of shardId-8 and shardId-9"]),
    "taken": (FREE, HELD, ["worker-000:aaaa took shardId-0"]),
    "taken over": (HELD, TAKEN, ["worker-001:bbbb took shardId-0 over from worker-000:aaaa"]),
    "a handoff that goes on": (HELD, HANDOFF, []),
    "finished": (HELD, DONE, ["shardId-0 is finished"]),
    "removed": (DONE, None, ["lease of shardId-0 removed: its children are being read"]),
}


@pytest.mark.parametrize("case", CHANGES)
def test_changes_of_leases_are_reported(case: str) -> None:
    before, after, expected = CHANGES[case]
    lines = changes.describe({KEY: before} if before else {}, {KEY: after} if after else {})
    assert list(lines) == expected


def test_the_summary_counts_what_is_left_to_read() -> None:
    assert changes.summary([HELD, FREE, DONE]) == "2 leases: no owner 1, worker-000 1"
    assert changes.summary([]) == "0 leases"
