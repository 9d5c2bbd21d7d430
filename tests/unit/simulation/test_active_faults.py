"""Faults are carried out when and where the scenario says, and end when it says so."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import pytest

from kcl_dagster.tables.attributes import PENDING, SWITCHES
from tests.simulation.active_faults import ActiveFaults, Fleet
from tests.simulation.dagster import Orchestrator, Run
from tests.simulation.faults import Fault, FaultKind
from tests.simulation.incidents import FIRST
from tests.simulation.kernel import Kernel, Process
from tests.simulation.network import Fate
from tests.simulation.scenario import Scenario, draw

SUSPENDS = 2  # this bit of a pause's number


@dataclass
class OneWorker:
    """The part of a fleet that pauses need."""

    process: Process

    def worker(self, _number: int) -> Process:
        return self.process


@dataclass
class Calls:
    """A process that makes a call every second, and when each of them was made."""

    fault: Fault
    requests: list[dict[str, Any]]
    kernel: Kernel = field(default_factory=Kernel)
    made: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.process = Process(self.kernel, "worker")
        active = ActiveFaults(self.kernel, cast("Fleet", OneWorker(self.process)), seed=1, stretch=1)
        active.schedule((self.fault,))

        def run() -> None:
            for request in self.requests:
                self.kernel.sleep(1.0)
                active.fate(self.process, "dynamodb", "update_item", request)
                self.kernel.sleep(0.0)
                self.made.append(self.kernel.now)
                active.served(self.process, "update_item", request)

        self.kernel.spawn(self.process, "main", run)
        self.kernel.run(100.0)


def pause(number: int, written: str = "") -> Fault:
    return Fault(1, FaultKind.PAUSE_AT_CALL, at=0.5, operation=written, number=number, seconds=30.0)


PROGRESS = {"UpdateExpression": f"SET {PENDING} = :{PENDING}"}
OTHER = {"UpdateExpression": "SET leaseCounter = :one"}


@pytest.mark.parametrize(
    ("fault", "made"),
    [
        (pause(0), [31.0, 32.0, 33.0]),
        (pause(4), [1.0, 32.0, 33.0]),
        (pause(1), [1.0, 31.0, 32.0]),  # its effect is there, its answer is not
        (pause(0, PENDING), [1.0, 32.0, 33.0]),
    ],
    ids=["before the first call", "before the second", "after the first", "before it writes progress"],
)
def test_a_process_pauses_in_the_midst_of_what_it_does(fault: Fault, made: list[float]) -> None:
    assert Calls(fault, [OTHER, PROGRESS, OTHER]).made == pytest.approx(made)


RENEWAL = {"UpdateExpression": "ADD leaseCounter :one"}
PIN = {"UpdateExpression": f"SET {PENDING} = :{PENDING} ADD leaseCounter :one"}
COMMIT = {"UpdateExpression": f"SET checkpoint = :c, {SWITCHES} = :0 REMOVE {PENDING} ADD leaseCounter :one"}
HEARTBEAT = {"UpdateExpression": "SET lut = :lut"}


def test_only_writes_that_keep_a_lease_are_slow_and_none_for_longer_than_the_fault_lasts(kernel: Kernel) -> None:
    process = Process(kernel, "worker")
    active = ActiveFaults(kernel, cast("Fleet", OneWorker(process)), seed=1, stretch=1)
    slow = Fault(1, FaultKind.WRITES_SLOW, at=0.0, seconds=120.0, service="dynamodb", operation="update_item")
    active.schedule((slow,))
    kernel.run(1.0)

    def fates(request: dict[str, Any]) -> list[Fate]:
        return [active.fate(process, "dynamodb", "update_item", request) for _ in range(50)]

    assert {fate.kind for fate in fates(RENEWAL) + fates(PIN)} == {"slow request", "slow answer"}
    assert max(fate.late for fate in fates(PIN)) < max(fate.late for fate in fates(RENEWAL))
    assert {fate.kind for fate in fates(COMMIT) + fates(HEARTBEAT)} == {"served"}
    kernel.run(119.0)
    assert max(fate.late for fate in fates(RENEWAL)) <= 1.0
    kernel.run(121.0)
    assert {fate.kind for fate in fates(RENEWAL)} == {"served"}


def test_a_suspended_machine_does_not_know_that_it_slept() -> None:
    assert Calls(pause(SUSPENDS), [OTHER]).process.suspended == 30.0
    assert Calls(pause(0), [OTHER]).process.suspended == 0.0


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def orchestrator(kernel: Kernel) -> Orchestrator:
    def start(run: Run) -> Process:
        return Process(kernel, run.worker)

    return Orchestrator(kernel, Random(1), start, one_run_per_slot=True, monitor_seconds=5.0)


@pytest.mark.parametrize("end", [Orchestrator.let_go, lambda _orchestrator: None], ids=["when told", "in time"])
def test_a_queue_that_is_held_back_goes_on(
    kernel: Kernel, orchestrator: Orchestrator, end: Callable[[Orchestrator], None]
) -> None:
    orchestrator.hold_back(100.0)
    run = orchestrator.launch("worker-000")
    kernel.run(50.0)
    assert run.started_at is None
    end(orchestrator)
    kernel.run(130.0)
    assert began(run) > (50.0 if end is Orchestrator.let_go else 100.0)


def began(run: Run) -> float:
    assert run.started_at is not None
    return run.started_at


def test_some_resets_are_of_batches_that_were_begun() -> None:
    scenarios = [draw(seed) for seed in range(1, 60)]
    last = [{fault.kind: fault for fault in scenario.faults if fault.id >= 6 * FIRST} for scenario in scenarios]
    with_reset = [faults for faults in last if FaultKind.RESET in faults]
    assert with_reset
    for faults in with_reset:
        reset = faults.pop(FaultKind.RESET)
        [refuses] = [one for kind, one in faults.items() if kind in (FaultKind.SINK_REFUSES, FaultKind.SINK_LIES)]
        assert refuses.at < reset.at < refuses.at + refuses.seconds


def test_hours_of_sleep_are_not_counted() -> None:
    asleep = next(scenario for scenario in map(draw, range(1, 200)) if scenario.asleep)
    assert isinstance(asleep, Scenario)
    assert 0 < asleep.asleep < asleep.until
    assert asleep.without(FaultKind.OUTAGE).asleep == 0
