"""Standing: what may be believed about how long a version stood."""

import json
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_dagster.model.standing import MOST_ENTRIES, Standing

KEY = "shardId-000000000000"


def test_a_first_sight_says_nothing_about_the_past() -> None:
    standing = Standing()
    standing.observe(KEY, "7", 100.0, 100.5)
    assert standing.stood_for(KEY, "7") == 0.0


def test_time_counts_from_the_end_of_the_first_read_to_the_start_of_the_latest() -> None:
    standing = Standing()
    standing.observe(KEY, "7", 100.0, 103.0)
    standing.observe(KEY, "7", 110.0, 119.0)
    assert standing.stood_for(KEY, "7") == 7.0


def test_a_new_version_starts_again() -> None:
    standing = Standing()
    standing.observe(KEY, "7", 100.0, 100.0)
    standing.observe(KEY, "8", 120.0, 120.0)
    standing.observe(KEY, "8", 125.0, 125.0)
    assert standing.stood_for(KEY, "8") == 5.0
    assert standing.stood_for(KEY, "7") == 0.0


def test_the_next_process_goes_on_where_the_last_one_stopped() -> None:
    first = Standing()
    first.observe(KEY, "7", 100.0, 100.0)
    first.observe(KEY, "7", 112.0, 112.0)
    second = Standing.from_document(json.loads(json.dumps(first.to_document(at_least=1.0))), at=5.0)
    assert second.stood_for(KEY, "7") == 0.0, "believed without having been seen"
    second.observe(KEY, "7", 6.0, 6.5)
    assert second.stood_for(KEY, "7") == 13.0
    second.observe(KEY, "7", 9.0, 9.5)
    assert second.stood_for(KEY, "7") == 16.0


def test_what_another_observer_saw_at_the_same_time_is_not_counted_twice() -> None:
    here, there = Standing(), Standing()
    for observer in (here, there):
        observer.observe(KEY, "7", 100.0, 100.0)
        observer.observe(KEY, "7", 120.0, 120.0)
    here.absorb(there.to_document(at_least=0.0), at=121.0)
    here.observe(KEY, "7", 122.0, 122.0)
    assert here.stood_for(KEY, "7") == 22.0


def test_an_old_document_does_not_outlive_the_version_it_speaks_of() -> None:
    first = Standing()
    first.observe(KEY, "7", 0.0, 0.0)
    first.observe(KEY, "7", 50.0, 50.0)
    replayed = first.to_document(at_least=0.0)
    standing = Standing()
    standing.observe(KEY, "8", 100.0, 100.0)
    standing.absorb(replayed, at=101.0)
    standing.observe(KEY, "8", 102.0, 102.0)
    assert standing.stood_for(KEY, "8") == 2.0


def test_observers_that_never_live_long_still_come_to_a_conclusion() -> None:
    document: dict[str, list[object]] = {}
    for _ in range(10):
        standing = Standing.from_document(document, at=0.0)
        standing.observe(KEY, "7", 0.1, 0.2)
        standing.observe(KEY, "7", 3.2, 3.3)
        document = standing.to_document(at_least=1.0)
    standing = Standing.from_document(document, at=0.0)
    standing.observe(KEY, "7", 0.1, 0.2)
    assert standing.stood_for(KEY, "7") >= 30.0


def test_healthy_leases_are_not_written_down() -> None:
    standing = Standing()
    for second in range(100):
        standing.observe("healthy", str(second // 10), float(second), float(second))
        standing.observe("dead", "4", float(second), float(second))
    assert standing.to_document(at_least=15.0) == {"dead": ["4", 99.0]}


def test_the_document_is_bounded_and_keeps_the_longest() -> None:
    standing = Standing()
    for index in range(MOST_ENTRIES + 10):
        standing.observe(f"lease-{index}", "1", float(index), float(index))
        standing.observe(f"lease-{index}", "1", 10_000.0, 10_000.0)
    document = standing.to_document(at_least=0.0)
    assert len(document) == MOST_ENTRIES
    assert "lease-0" in document
    assert f"lease-{MOST_ENTRIES + 9}" not in document


def test_keys_that_are_gone_are_forgotten() -> None:
    standing = Standing()
    standing.observe("gone", "1", 0.0, 0.0)
    standing.observe("here", "1", 0.0, 0.0)
    standing.keep({"here"}.__contains__)
    standing.observe("gone", "1", 9.0, 9.0)
    standing.observe("here", "1", 9.0, 9.0)
    assert (standing.stood_for("gone", "1"), standing.stood_for("here", "1")) == (0.0, 9.0)


@pytest.mark.parametrize(
    "entry",
    [None, 5, "7", [], ["7"], ["7", "9"], [7, 9.0], ["7", -1.0], ["7", math.nan], ["7", math.inf], ["7", True]],
)
def test_an_unreadable_entry_costs_time_only(entry: object) -> None:
    standing = Standing.from_document({KEY: entry, "other": ["1", 5.0]}, at=0.0)
    standing.observe(KEY, "7", 1.0, 1.0)
    standing.observe("other", "1", 1.0, 1.0)
    assert standing.stood_for(KEY, "7") == 0.0
    assert standing.stood_for("other", "1") == 6.0


@dataclass
class _Observer:
    """A process with a monotonic clock of its own."""

    offset: float
    standing: Standing = field(default_factory=Standing)


_STEP = st.tuples(
    st.sampled_from(["wait", "change", "read", "save", "load", "replay", "lose", "restart"]),
    st.integers(0, 1),  # which observer
    st.floats(0.0, 20.0, allow_nan=False),
    st.floats(0.0, 5.0, allow_nan=False),
)


@settings(max_examples=300)
@given(st.lists(_STEP, max_size=60), st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=2))
def test_never_more_than_the_truth(steps: list[tuple[str, int, float, float]], offsets: list[float]) -> None:
    """Whatever is lost, duplicated, replayed or restarted, and with two observers of one row."""
    now, changed_at, version = 0.0, 0.0, 0
    observers = [_Observer(offset) for offset in offsets]
    row: dict[str, list[object]] = {}
    history: list[dict[str, list[object]]] = [{}]
    for action, which, amount, latency in steps:
        observer = observers[which]
        if action == "wait":
            now += amount
        elif action == "change":
            version, changed_at = version + 1, now
        elif action == "read":
            started = now
            now += amount / 10
            seen = version  # the moment of truth lies somewhere between the request and its answer
            now += latency
            observer.standing.observe(KEY, str(seen), started + observer.offset, now + observer.offset)
        elif action == "save":
            row = observer.standing.to_document(at_least=amount / 4)
            history.append(row)
        elif action == "load":
            observer.standing.absorb(row, now + observer.offset)
        elif action == "replay":
            row = history[int(amount * 1000) % len(history)]
        elif action == "lose":
            row = {}
        else:
            observers[which] = _Observer(
                observer.offset + amount - 10, Standing.from_document(row, now + observer.offset + amount - 10)
            )
        truth = now - changed_at
        for each in observers:
            # Sums of floats may differ in the last digits; a lease duration is whole seconds.
            assert each.standing.stood_for(KEY, str(version)) <= truth + 1e-6
