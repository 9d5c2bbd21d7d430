"""How often the leader reads the tables."""

import math

import pytest

from kcl_dagster.leader.observation import Sight
from kcl_dagster.leader.scan_pace import ScanPace, is_settled
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId

KNOWN, CHANGED = {"worker-000": "running"}, {"worker-000": "running", "worker-001": "queued"}


def noted(took: float, soonest: float = math.inf) -> ScanPace:
    """After a read that began at 100 s and showed nothing to do."""
    pace = ScanPace(lease_duration=30.0)
    pace.note(100.0, 100.0 + took, KNOWN, soonest)
    return pace


def test_a_leader_that_has_not_read_yet_reads() -> None:
    assert ScanPace(30.0).is_due(0.0, KNOWN)


@pytest.mark.parametrize(
    ("took", "soonest", "pause"),
    [
        (0.25, 20.0, 1.0),  # shorter than a tick: every tick reads
        (3.0, 20.0, 12.0),  # reads take a quarter of the time
        (8.0, 20.0, 15.0),  # half of the lease duration
        (8.0, 6.5, 6.5),  # then the first lease can be expired
        (8.0, 0.0, 0.0),
    ],
)
def test_reads_are_apart(took: float, soonest: float, pause: float) -> None:
    pace = noted(took, soonest)
    assert pace.is_due(100.0 + pause, KNOWN)
    assert pause == 0.0 or not pace.is_due(99.9 + pause, KNOWN)


def test_a_change_of_what_is_known_without_a_read_is_a_reason_to_read() -> None:
    pace = noted(3.0)
    assert not pace.is_due(105.0, KNOWN)
    assert pace.is_due(105.0, CHANGED)


def test_after_a_tick_with_work_the_next_one_reads() -> None:
    pace = noted(3.0)
    pace.reset()
    assert pace.is_due(105.0, KNOWN)


SHARD, ANNA, BERT = LeaseKey("shard-0"), WorkerId("anna"), WorkerId("bert")
READ = Lease(SHARD, SHARD, owner=ANNA)
HANDED_OVER = Lease(SHARD, SHARD, owner=BERT, checkpoint_owner=ANNA)


def sight(lease: Lease = READ, *, unserved: bool = False, unbegun: bool = False) -> Sight:
    return Sight(
        leases=(lease,),
        workers=(),
        unserved={SHARD: "its worker has ended"} if unserved else {},
        overdue=frozenset(),
        ages={SHARD: 0.0},
        unbegun=frozenset({SHARD} if unbegun else ()),
    )


def test_nothing_is_left_to_do_if_owners_read_their_leases() -> None:
    assert is_settled(sight(), ())


@pytest.mark.parametrize(
    "busy", [sight(unserved=True), sight(unbegun=True), sight(HANDED_OVER)], ids=["unserved", "unbegun", "handoff"]
)
def test_a_lease_that_waits_for_a_worker_is_left_to_do(busy: Sight) -> None:
    assert not is_settled(busy, ())


def test_a_paused_lease_waits_for_nothing() -> None:
    assert is_settled(sight(unserved=True), {SHARD})
