"""The rules by which workers of KCL 2.x take leases for themselves."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.lease_taking import (
    VERY_OLD,
    Candidate,
    Taking,
    TakingRules,
    is_available,
    plan_taking,
)

RULES = TakingRules(lease_duration=10)
ME = WorkerId("me")


def leases(**owners: str | None) -> list[Candidate]:
    """`k1="bar"`: served by bar; `k1="bar!"`: bar has stopped; `k1="bar!!"`: long ago; None: unowned."""
    made = []
    for key, owner in owners.items():
        age = {0: 1.0, 1: 11.0, 2: 31.0}[owner.count("!")] if owner else math.inf
        made.append(Candidate(LeaseKey(key), WorkerId(owner.strip("!")) if owner else None, age))
    return made


def plan(candidates: list[Candidate], rules: TakingRules = RULES, seed: int = 1) -> Taking:
    return plan_taking(candidates, ME, rules, random.Random(seed))


def test_up_to_a_fair_share_of_what_nobody_serves() -> None:
    taking = plan(leases(a="bar", b="bar", c="bar", d="baz!", e="baz!", f="baz!", g="baz!"))
    assert taking.target == 4
    assert set(taking.take) == {"d", "e", "f", "g"}
    taking = plan(leases(a="bar", b="baz", c="baz", d="me", e="me", f="qux!"))
    assert (taking.target, taking.take) == (2, ())


def test_what_nobody_served_for_long_is_taken_whatever_the_share() -> None:
    candidates = leases(a="bar", b=None, c=None, d="dead!!", e="late!")
    assert set(plan(candidates).take) == {"b", "c", "d"}
    capped = plan(candidates, TakingRules(10, max_leases=2))
    assert len(capped.take) == 2
    assert capped.spillover == 1
    fair_only = plan(candidates, TakingRules(10, takes_very_old_first=False))
    assert len(fair_only.take) == fair_only.target == 3


def test_with_nothing_to_take_one_is_stolen_from_the_most_loaded() -> None:
    candidates = leases(a="bar", b="baz", c="baz", d="baz", e="baz", f="baz")
    taking = plan(candidates)
    assert taking.take == ()
    assert len(taking.steal) == 1
    assert set(taking.steal) <= set("bcdef")
    assert len(plan(candidates, TakingRules(10, max_steals=5)).steal) == 2  # a fair share, no more


def test_nothing_is_stolen_from_a_worker_with_less_than_its_share() -> None:
    assert plan(leases(a="bar", b="baz")).steal == ()
    assert plan(leases(a="me", b="bar", c="baz", d="bar", e="baz")).steal == ()


def test_a_worker_alone_steals_from_nobody() -> None:
    assert plan(leases(a="me", b="me")) == Taking(target=2)


@pytest.mark.parametrize(("age", "available"), [(10.0, False), (10.1, True)])
def test_a_lease_is_available_after_its_duration(age: float, available: bool) -> None:
    assert is_available(Candidate(LeaseKey("a"), WorkerId("bar"), age), RULES) is available


@pytest.mark.parametrize(("age", "taken"), [(45.0, False), (45.1, True), (135.1, True)])
def test_a_lease_with_a_duration_of_its_own_is_available_after_that(age: float, taken: bool) -> None:
    served = leases(a="me", b="me", c="me", e="foo")
    lease = Candidate(LeaseKey("d"), WorkerId("bar"), age, duration=45)
    assert is_available(lease, RULES) is taken
    assert bool(plan([*served, lease]).take) is (age > VERY_OLD * 45)  # our share is full before
    assert bool(plan([lease]).take) is taken


@given(
    st.dictionaries(
        st.text("abcdefghij", min_size=1, max_size=2),
        st.sampled_from([None, "me", "bar", "baz", "bar!", "baz!", "qux!!"]),
        max_size=12,
    ),
    st.one_of(st.none(), st.integers(1, 5)),
    st.integers(0, 99),
)
def test_no_plan_takes_what_is_served_or_more_than_allowed(
    owners: dict[str, str | None], most: int | None, seed: int
) -> None:
    candidates = leases(**owners)
    rules = TakingRules(10, max_leases=most)
    taking = plan(candidates, rules, seed)
    by_key = {c.key: c for c in candidates}
    assert all(is_available(by_key[key], rules) for key in taking.take)
    assert all(not is_available(by_key[key], rules) and by_key[key].owner != ME for key in taking.steal)
    mine = sum(1 for c in candidates if c.owner == ME and not is_available(c, rules))
    assert most is None or not taking.take or mine + len(taking.take) <= most
    assert not (taking.take and taking.steal)
