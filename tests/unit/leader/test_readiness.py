"""By the KCL's own rules, too, leases go to workers that can read."""

from dataclasses import replace
from random import Random
from typing import Final

import hypothesis
import pytest
from hypothesis import strategies as st

from kcl_dagster.application import Application, PolicySettings
from kcl_dagster.leader.assignment.policies import configured
from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, Policy, WorkerLoad
from kcl_dagster.leader.assignment.variance import Variance
from kcl_dagster.model.lease import LeaseKey, WorkerId

READS: Final = WorkerLoad(WorkerId("reads"))
STARTS: Final = WorkerLoad(WorkerId("starts"), ready=False)
SLOW: Final = replace(STARTS, starts_slowly=True)


@pytest.fixture(params=["kcl", "taker"])
def policy(request: pytest.FixtureRequest) -> Policy:
    application = Application(name="app", streams=("clicks",), policy=PolicySettings(name=request.param))
    return configured(application, Random(0))


def leases(number: int, owner: WorkerId | None = None) -> list[LeaseLoad]:
    why = "no worker owns it" if owner is None else None
    return [LeaseLoad(LeaseKey(f"{owner or 'l'}-{n}"), owner, kbps=10.0, unserved=why) for n in range(number)]


def moves_of(decided: Assignment) -> set[tuple[WorkerId, str]]:
    return {(move.to, move.kind) for move in decided.moves}


def test_leases_without_a_worker_go_to_one_that_reads(policy: Policy) -> None:
    decided = policy(leases(4), [STARTS, READS], AssignmentLimits())
    assert (len(decided.moves), moves_of(decided)) == (4, {(READS.id, "unserved")})


def test_where_no_worker_reads_one_that_starts_gets_them(policy: Policy) -> None:
    assert moves_of(policy(leases(4), [STARTS], AssignmentLimits())) == {(STARTS.id, "unserved")}


def test_where_no_worker_that_reads_has_room_one_that_starts_gets_them(policy: Policy) -> None:
    held = [*leases(2, READS.id), *leases(2)]
    assert (STARTS.id, "unserved") in moves_of(policy(held, [READS, STARTS], AssignmentLimits(max_leases=2)))


@pytest.mark.parametrize("limits", [AssignmentLimits(max_kbps=19.0), AssignmentLimits(max_leases=2)])
def test_a_worker_that_reads_and_is_full_gets_no_more(limits: AssignmentLimits) -> None:
    policy = configured(Application(name="app", streams=("clicks",), policy=PolicySettings(name="kcl")), Random(0))
    assert {to for to, _ in moves_of(policy([*leases(2, READS.id), *leases(1)], [READS, STARTS], limits))} == {
        STARTS.id
    }


def test_nothing_is_balanced_to_a_worker_that_starts(policy: Policy) -> None:
    assert policy(leases(6, READS.id), [READS, STARTS], AssignmentLimits()).moves == ()


def test_leases_of_a_worker_that_starts_slowly_are_handed_over(policy: Policy) -> None:
    decided = policy(leases(3, SLOW.id), [READS, SLOW], AssignmentLimits())
    assert (len(decided.moves), moves_of(decided)) == (3, {(READS.id, "drain")})
    assert {move.because for move in decided.moves} == {"starts has not started yet"}
    soon = policy(leases(3, STARTS.id), [READS, STARTS], AssignmentLimits())
    assert "drain" not in {move.kind for move in soon.moves}, "it will read in a moment"


def test_nothing_is_taken_from_a_worker_that_reads_and_is_full(policy: Policy) -> None:
    assert policy(leases(3, READS.id), [READS, SLOW], AssignmentLimits(max_leases=3)).moves == ()


@hypothesis.given(st.integers(0, 2**32))
def test_leases_for_which_readers_have_no_room_are_not_left_without_a_worker(seed: int) -> None:
    """Whatever counts as room: by the KCL's rules, a lease of unknown throughput weighs as much as the others, and
    a worker may get one lease more than fits. So how many leases find room depends on their order."""
    chance = Random(seed)
    readers = [replace(READS, id=WorkerId(f"r{n}")) for n in range(chance.randint(1, 3))]
    fleet = [*readers, *(replace(STARTS, id=WorkerId(f"s{n}")) for n in range(chance.randint(1, 3)))]
    owners = [None, *(worker.id for worker in readers)]
    held = [
        LeaseLoad(
            LeaseKey(f"l{n}"), owner, kbps=chance.choice([None, 10.0, 100.0]), unserved=None if owner else "free"
        )
        for n, owner in enumerate(chance.choices(owners, k=chance.randint(1, 8)))
    ]
    limits = AssignmentLimits(
        max_kbps=chance.choice([None, 80.0]), max_leases=chance.choice([None, 2, 4]), balance=False
    )
    decided = configured_kcl(seed)(held, fleet, limits)
    to = {move.lease: move.to for move in decided.moves}
    after = [replace(one, owner=to[one.key], unserved=None) if one.key in to else one for one in held]
    more = Variance(Random(seed).shuffle)(after, fleet, limits)
    assert {move.lease for move in more.moves}.isdisjoint(decided.unplaced), "a worker has room"


def configured_kcl(seed: int) -> Policy:
    settings = PolicySettings(name="kcl")
    return configured(Application(name="app", streams=("clicks",), policy=settings), Random(seed))


def test_leases_in_handoff_stay(policy: Policy) -> None:
    held = [replace(lease, pinned=True) for lease in leases(3, SLOW.id)]
    assert policy(held, [READS, SLOW], AssignmentLimits()).moves == ()


def test_a_fleet_that_reads_is_assigned_as_the_kcl_does_it() -> None:
    kcl = configured(Application(name="app", streams=("clicks",), policy=PolicySettings(name="kcl")), Random(0))
    fleet = [READS, replace(READS, id=WorkerId("other")), replace(READS, id=WorkerId("leaves"), accepts=False)]
    held = [*leases(9, READS.id), *leases(5)]
    assert kcl(held, fleet, AssignmentLimits()) == Variance(Random(0).shuffle)(held, fleet, AssignmentLimits())
