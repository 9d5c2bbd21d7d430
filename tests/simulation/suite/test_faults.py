"""Every kind of fault strikes, alone, and a fleet survives it."""

from collections import deque
from dataclasses import replace
from random import Random

import pytest

from kcl_dagster.worker import shard_end
from kcl_dagster.worker.reading import Reading
from tests.simulation.faults import Fault, FaultKind
from tests.simulation.fleet import Simulation
from tests.simulation.scenario import (
    DENIABLE,
    SHORTEST_RETENTION,
    Scenario,
    draw,
)
from tests.simulation.shrink import run
from tests.simulation.trace import Trace

SEED = 8  # two streams, unstretched
STRETCHED = 1  # 150 times
ACTIVE_SECONDS = 150.0
STRIKES = (40.0, 90.0)
NEEDS_DAYS = {FaultKind.OUTAGE}
SERVICES = {FaultKind.DENIED: "dynamodb", FaultKind.CUT: "kinesis"}


def alone(kind: FaultKind) -> Scenario:
    """A scenario with this fault and no other, twice."""
    scenario = draw(SEED).without_faults()
    random = Random(1)
    faults = tuple(
        Fault(
            id=number,
            kind=kind,
            at=at,
            target="any"
            if kind.value in {"throttled", "broken", "late", "answer lost", "request lost"}
            else "worker",
            number=number,
            seconds=random.choice([12.0, 40.0]),
            share=0.5,
            service=SERVICES.get(kind, "dynamodb"),
            operation=DENIABLE["dynamodb"][number] if kind is FaultKind.DENIED else "",
        )
        for number, at in enumerate(STRIKES)
    )
    lease = scenario.application.timings.lease_duration
    durations = (lease, lease / 3) if kind is FaultKind.LEASE_DURATION else None
    return replace(scenario, faults=faults, active=ACTIVE_SECONDS, lease_durations=durations)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind not in NEEDS_DAYS])
def test_a_fault_strikes_and_is_survived(kind: FaultKind) -> None:
    outcome = run(alone(kind))
    assert outcome.violations == []
    assert outcome.counts["fault"] >= len(STRIKES)
    assert outcome.records > 0


def with_outage(policy: str, *before: Fault) -> Simulation:
    """A fleet that is down for longer than its stream keeps records."""
    base = draw(STRETCHED, incidents=False).without_faults()
    batch = base.application.batch.model_copy(update={"on_data_loss": policy})
    down = Fault(id=0, kind=FaultKind.OUTAGE, at=9000.0, target="", seconds=27 * 3600.0)
    scenario = replace(
        base,
        application=base.application.model_copy(update={"batch": batch}),
        retention_hours=SHORTEST_RETENTION,
        record_seconds=1500.0,
        active=9000.0 + down.seconds + 9000.0,
        faults=(*before, down),
    )
    return Simulation(scenario, Trace(keep=True, lines=deque()))


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_records_that_leave_the_stream_during_an_outage_are_told(policy: str) -> None:
    outcome = with_outage(policy).run()
    assert outcome.violations == []
    assert any("data lost" in line for line in outcome.lines)


SPLIT_BEFORE = Fault(id=1, kind=FaultKind.SPLIT, at=8990.0, target="")


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_what_a_shard_lost_before_anybody_has_read_it_is_told(policy: str) -> None:
    outcome = with_outage(policy, SPLIT_BEFORE).run()
    assert outcome.violations == []
    told = [line for line in outcome.lines if "data lost" in line and "TRIM_HORIZON" in line]
    assert bool(told) == (policy == "continue"), "children wait for a parent that was stopped"


def test_a_loss_before_the_first_reading_that_nobody_tells_of_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_end, "_empty_at", lambda *_: None)
    found = with_outage("continue", SPLIT_BEFORE).run().violations
    assert [violation.name for violation in found] == ["S1"]


def test_leases_are_lost_and_return_while_user_code_hangs() -> None:
    fleet = draw(SEED).application.fleet.model_copy(update={"min_workers": 2, "max_workers": 2})
    base = draw(SEED).without_faults()
    fault = Fault(id=0, kind=FaultKind.CODE_HANGS_APART, at=60.0, number=0, seconds=240.0)
    scenario = replace(
        base,
        application=base.application.model_copy(update={"fleet": fleet}),
        record_seconds=2.0,
        active=400.0,
        faults=(fault,),
    )
    outcome = Simulation(scenario, Trace(keep=True, lines=deque())).run()
    assert outcome.violations == []
    [cut, *_] = [line for line in outcome.lines if "cut hits" in line]
    hung = cut.split()[-1]
    after = [line for line in outcome.lines[outcome.lines.index(cut) :] if hung in line]
    lost = next(place for place, line in enumerate(after) if "lease lost" in line)
    returned = next(place for place, line in enumerate(after) if place > lost and "lease acquired" in line)
    assert any("processing slow" in line for line in after[returned:]), "the code still hangs"


def test_a_loss_that_nobody_tells_of_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reading, "_is_bearable", lambda *_: True)
    assert [violation.name for violation in with_outage("continue").run().violations] == ["S1"]
