"""What a seed decides."""

import itertools

import pytest

from tests.chaos import aws_faults
from tests.chaos.faults import Faults
from tests.chaos.schedule import LONGEST_GAP, SHORTEST_GAP, Fault, schedule

TWO_MINUTES = 120.0


def test_a_seed_always_plans_the_same() -> None:
    assert schedule(7, TWO_MINUTES) == schedule(7, TWO_MINUTES)
    assert schedule(7, TWO_MINUTES) != schedule(8, TWO_MINUTES)


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    short, long = schedule(7, TWO_MINUTES), schedule(7, 5 * TWO_MINUTES)
    assert long[: len(short)] == short
    assert len(long) > 4 * len(short)


@pytest.mark.parametrize("seed", range(5))
def test_every_fault_comes_up_before_any_comes_up_again(seed: int) -> None:
    planned = [entry.fault for entry in schedule(seed, 1_000.0)]
    assert set(planned[: len(Fault)]) == set(Fault)
    assert set(planned[len(Fault) : 2 * len(Fault)]) == set(Fault)


def test_a_choice_of_faults_is_all_there_is() -> None:
    only = (Fault.SPLIT, Fault.KILL_JVM)
    assert {entry.fault for entry in schedule(1, TWO_MINUTES, only)} == set(only)


def test_faults_leave_time_between_them() -> None:
    gaps = [b.at - a.at for a, b in itertools.pairwise(schedule(3, 1_000.0))]
    assert all(SHORTEST_GAP <= gap <= LONGEST_GAP for gap in gaps)


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
def test_every_fault_can_be_carried_out_in_one_way(fault: Fault) -> None:
    assert bool(aws_faults.rules(fault)) != (fault in Faults.ACTIONS)


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
def test_no_fault_makes_the_producer_repeat_what_is_stored(fault: Fault) -> None:
    puts = [rule for rule in aws_faults.rules(fault) if rule.concerns("kinesis", "PutRecords", b"")]
    assert not any(rule.applied or rule.drop for rule in puts)
