"""What the worker's rules promise holds for any input."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kcl_dagster.application import FailurePolicy
from kcl_dagster.errors import Throttled
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker_row import WorkerRow, WorkerState
from kcl_dagster.worker.batch import Progress, Range
from kcl_dagster.worker.batch_retries import Failures
from kcl_dagster.worker.lag import Lag
from kcl_dagster.worker.parents import parent_keys, sibling_key
from kcl_dagster.worker.pins import Pin, pin_of
from kcl_dagster.worker.ranges import Planner, next_range
from kcl_dagster.worker.report import LeaseReport, Outcome
from kcl_dagster.worker.retention import loss_in
from kcl_dagster.worker.successors import SuccessorRules, choose_successors
from kcl_dagster.worker.throughput import Throughput
from tests.doubles.clock import FakeClock

pytestmark = pytest.mark.slow

FIRST = 1_700_000_000_000
KEY = LeaseKey("s0")
STREAM = StreamIdentifier.single("clicks")
KEYS = [LeaseKey(f"s{index}") for index in range(6)]
numbers = st.integers(0, 1000)
checkpoints = st.just(TRIM_HORIZON) | st.builds(lambda n, sub: Checkpoint(str(n), sub), numbers, st.integers(0, 3))
pins = st.builds(Pin, st.integers(0, 99), st.none() | numbers.map(str), losses=st.integers(0, 1000))


# Pins and ranges


def pinned(pin: Pin, checkpoint: Checkpoint, through: Checkpoint) -> Lease:
    return Lease(
        KEY, "s0", checkpoint=checkpoint, pending_checkpoint=through, pending_state=pin.to_state(), batch=pin.number
    )


@given(pins, checkpoints)
def test_a_pin_is_read_as_it_was_written_and_only_under_its_own_number(pin: Pin, through: Checkpoint) -> None:
    lease = pinned(pin, TRIM_HORIZON, through)
    assert pin_of(lease) == (pin if through > TRIM_HORIZON else None)
    assert pin_of(replace(lease, checkpoint=through)) is None
    assert pin_of(replace(lease, batch=pin.number + 1)) is None
    assert pin_of(replace(lease, pending_checkpoint=None)) is None


@given(st.none() | st.binary(max_size=60) | st.text(max_size=60).map(str.encode), st.integers(0, 3))
def test_whatever_others_left_pending_is_no_pin_of_ours(state: bytes | None, batch: int) -> None:
    found = pin_of(Lease(KEY, "s0", pending_checkpoint=Checkpoint("7"), pending_state=state, batch=batch))
    assert found is None or (state is not None and b"kcl_dagster" in state and found.number == batch)


@given(pins, checkpoints, checkpoints, st.none() | checkpoints)
def test_a_pinned_batch_is_planned_exactly_whatever_the_wish(
    pin: Pin, checkpoint: Checkpoint, through: Checkpoint, until: Checkpoint | None
) -> None:
    assume(checkpoint < through)
    plan = Planner(STREAM, lambda _: None, lambda: FIRST).plan(pinned(pin, checkpoint, through), until)
    assert (plan.after, plan.through, plan.number, plan.first) == (checkpoint, through, pin.number, pin.first)


@given(checkpoints, st.none() | checkpoints, st.integers(0, 99))
def test_an_open_range_has_the_next_number_and_never_ends_before_it_begins(
    checkpoint: Checkpoint, until: Checkpoint | None, batch: int
) -> None:
    plan = Planner(STREAM, lambda _: 17, lambda: FIRST).plan(
        Lease(KEY, "s0", checkpoint=checkpoint, batch=batch), until
    )
    assert plan.number == (batch + 1 if batch else FIRST)
    assert plan.through is None or (plan.through == until and plan.after < plan.through)
    following = next_range(Progress(plan, through=Checkpoint("2000"), records=1))
    assert following is not None
    assert (following.after, following.number, following.through) == (Checkpoint("2000"), plan.number + 1, None)
    assert next_range(Progress(plan, ended=True)) is None


@given(st.sets(st.sampled_from([f"s{index}" for index in range(6)])), st.booleans())
def test_parents_are_looked_for_in_the_leases_own_stream(parents: set[str], is_multi: bool) -> None:
    stream = StreamIdentifier("clicks", "123456789012", 17) if is_multi else None
    lease = Lease(KEY, "s9", parents=frozenset(parents), stream=stream)
    prefix = "123456789012:clicks:17:" if is_multi else ""
    assert parent_keys(lease) == sorted(f"{prefix}{parent}" for parent in parents)
    assert sibling_key(lease, "s1") == f"{prefix}s1"


# Loss


@given(st.floats(0, 1e6), st.none() | st.floats(1e4, 1e6), st.none() | st.floats(0, 1e6), st.booleans())
def test_the_longer_a_shard_was_not_read_the_more_it_may_have_lost(
    age: float, retention: float | None, longer: float | None, gone: bool
) -> None:
    """Before its first reading. Where nobody knows when it was empty, or for how long records are kept, nothing is
    told; but of a shard that is gone."""
    now, begun = 2e9, Progress(Range(KEY, STREAM, "s0", TRIM_HORIZON, 1), gone=gone)
    lost = loss_in(begun, now - age, now, lambda: retention) is not None
    if gone or (lost and longer is not None):
        assert loss_in(begun, now - age - (longer or 0.0), now, lambda: retention) is not None
    if not gone:
        assert loss_in(begun, None, now, lambda: retention) is None
        assert loss_in(begun, now - age, now) is None


@given(checkpoints, st.booleans(), st.booleans(), st.none() | st.floats(0, 2e5), st.floats(1e9, 2e9), st.booleans())
def test_a_loss_is_told_exactly_where_the_checkpoints_record_is_gone_and_the_tip_was_not_seen_lately(
    after: Checkpoint, trimmed: bool, gone: bool, tip_age: float | None, now: float, is_empty: bool
) -> None:
    """Of an open shard that is empty, and of which no tip is known, nothing is told."""
    first = None if is_empty else "999"
    progress = Progress(Range(KEY, STREAM, "s0", after, 1), start_trimmed=trimmed, gone=gone, first=first)
    loss = loss_in(progress, None if tip_age is None else now - tip_age, now)
    seen_lately = tip_age is not None and tip_age < 23 * 3600
    seen_long_ago = tip_age is None or tip_age > 24 * 3600
    if gone:
        assert loss is not None
    elif after.is_initial_position or not trimmed or seen_lately or (is_empty and tip_age is None):
        assert loss is None
    elif seen_long_ago:
        assert loss is not None


# Measures


@given(st.none() | st.floats(0, 1e6), st.lists(st.tuples(st.integers(0, 10**7), st.floats(0.1, 20)), max_size=10))
def test_a_moving_average_stays_between_what_was_measured(
    stored: float | None, windows: list[tuple[int, float]]
) -> None:
    clock = FakeClock()
    meter = Throughput(clock.monotonic, window_seconds=3.0)
    meter.start(KEY, stored)
    rates = [stored] if stored is not None else []
    delivered, began = 0, clock.monotonic()
    for bytes_, passed in windows:
        meter.record(KEY, bytes_)
        delivered += bytes_
        clock.advance(passed)
        elapsed = clock.monotonic() - began
        if elapsed >= 3.0:
            if rates or delivered:
                rates.append(delivered / 1024 / elapsed)
                delivered = 0
            began = clock.monotonic()
        published = meter.publish(KEY)
        if not rates:
            assert published is None
        else:
            assert published is not None
            assert min(rates) * (1 - 1e-9) - 1e-9 <= published <= max(rates) * (1 + 1e-9) + 1e-9
    meter.stop(KEY)
    assert meter.publish(KEY) is None


def reported(key: LeaseKey, outcome: Outcome, millis: int | None) -> LeaseReport:
    return LeaseReport(key, STREAM, str(key), outcome, 1, TRIM_HORIZON, millis_behind=millis)


behind = st.none() | st.integers(0, 10**6)


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(Outcome), behind, st.floats(0, 99)), max_size=12))
def test_the_lag_is_that_of_the_shard_furthest_behind_and_only_of_those_held(
    rounds: list[tuple[LeaseKey, Outcome, int | None, float]],
) -> None:
    clock = FakeClock()
    lag = Lag(clock, patience=30.0)
    for key, outcome, millis, passed in rounds:
        clock.advance(passed)
        lag.see([reported(key, outcome, millis)], set(KEYS[:4]))
        told = lag.measure(set(KEYS[:4]) - {key} if outcome is Outcome.FINISHED else set(KEYS[:4]))
        assert set(told) <= set(KEYS[:4])
        assert list(told.values()) == sorted(told.values(), reverse=True)
        assert outcome is not Outcome.FINISHED or key not in told
    assert lag.measure(set()) == {}


# Failures


def user_mistake() -> Exception:
    return ValueError("of the user's")


def trouble_with_aws() -> Exception:
    return Throttled("for now")


@given(
    st.lists(
        st.tuples(
            st.sets(st.sampled_from(KEYS), min_size=1),
            st.sampled_from([user_mistake, trouble_with_aws, None]),
            st.floats(0, 30),
        ),
        max_size=15,
    )
)
def test_leases_in_trouble_rest_for_a_minute_at_most_and_suspects_are_tried_alone(
    rounds: list[tuple[set[LeaseKey], Callable[[], Exception] | None, float]],
) -> None:
    clock = FakeClock()
    failures = Failures(FailurePolicy(), clock, Random(1))
    suspects: set[LeaseKey] = set()
    for keys, error, passed in rounds:
        clock.advance(passed)
        if error is None:
            for key in keys:
                failures.succeeded(key, SHARD_END)
            suspects -= keys
        else:
            failures.failed(sorted(keys), error())
            suspects |= keys if error is user_mistake else set()
        group = failures.next_group(KEYS)
        assert set(group) <= set(KEYS)
        assert len(group) == 1 or not suspects & set(group)
    clock.advance(61.0)
    tried: set[LeaseKey] = set()
    for _ in range(4 * len(KEYS)):
        group = failures.next_group(KEYS)
        tried |= set(group)
        failures.failed(group, trouble_with_aws())
        clock.advance(61.0)
    assert tried == set(KEYS)


# Successors


@st.composite
def stopping_fleets(draw: st.DrawFn) -> tuple[list[Lease], list[WorkerRow]]:
    ids = [WorkerId(name) for name in ("me", "a", "b", "c")]
    rows = [
        WorkerRow(
            worker,
            1000 - draw(st.sampled_from([0, 5, 500])),
            slot=draw(st.sampled_from(["worker-000", "worker-000", None])),
            state=draw(st.sampled_from(WorkerState)),
            drain_requested=draw(st.sampled_from([False, False, True])),
        )
        for worker in draw(st.lists(st.sampled_from(ids), unique=True))
    ]
    leases = [
        Lease(
            key,
            str(key),
            owner=draw(st.sampled_from([None, *ids])),
            checkpoint=draw(st.sampled_from([TRIM_HORIZON, SHARD_END])),
            throughput_kbps=draw(st.sampled_from([None, 0.0, 10.0, 300.0])),
        )
        for key in KEYS
    ]
    return leases, rows


@given(stopping_fleets(), st.sets(st.sampled_from(KEYS)), st.none() | st.integers(1, 3), st.none() | st.just(310.0))
def test_heirs_are_alive_and_are_not_overloaded(
    fleet: tuple[list[Lease], list[WorkerRow]],
    leaving: set[LeaseKey],
    most: int | None,
    kbps: float | None,
) -> None:
    leases, rows = fleet
    rules = SuccessorRules(fresh_seconds=25.0, max_leases=most, max_kbps=kbps)
    successors = choose_successors(leaving, leases, rows, WorkerId("me"), 1000.0, rules)
    by_key = {lease.key: lease for lease in leases}
    by_id = {row.id: row for row in rows}
    assert successors.keys() <= leaving
    assert not any(by_key[key].is_finished for key in successors)
    for worker in set(successors.values()):
        row = by_id[worker]
        assert worker != "me"
        assert row.slot is not None
        assert row.last_update is not None
        assert row.last_update > 900
        assert row.state is not WorkerState.DRAINING
        assert not row.drain_requested
        new = [key for key, successor in successors.items() if successor == worker]
        held = [lease for lease in leases if lease.owner == worker and not lease.is_finished]
        if most is not None:
            assert len(new) + len(held) <= max(most, len(held))
