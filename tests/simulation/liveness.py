"""What must have come true some time after the faults stopped (L1 to L4)."""

from typing import TYPE_CHECKING, Final

from kcl_dagster.leader.scan_pace import LONGEST_PART
from kcl_dagster.leader.start_watch import REST_TICKS, STUCK_SECONDS
from kcl_dagster.leader.tick_report import TickReport
from tests.simulation.java.fleet import LOCK, REPORT
from tests.simulation.properties import Violations

if TYPE_CHECKING:
    from tests.simulation.fleet import Simulation


def check(simulation: "Simulation") -> None:
    """At the end of a run without other findings."""
    _check_owners(simulation)
    _check_handoffs(simulation)
    _check_lag(simulation)
    _check_rest(simulation)


# A worker that is wanted is asked for at the next tick, queued, started, and found: not counted by L1 itself.
LAUNCH_SECONDS: Final = 30.0


STAGES: Final = frozenset({"lead", "observe", "sync", "fleet", "assign", "clean", "report"})


def check_stages(violations: Violations, daemon: str, report: TickReport) -> None:
    """Of one tick (L5): every stage had its turn, whatever became of the ones before it."""
    if report.leading and not report.skipped:
        left_out = STAGES - {stage.name for stage in report.stages}
        if left_out:
            violations.add("L5", f"a tick of {daemon} left {', '.join(sorted(left_out))} out: {report.stages}")


def leader_rest(simulation: "Simulation") -> float:
    """For how long a leader that missed one start leaves the lead to others, where its ticks are minutes apart."""
    tick = simulation.scenario.application.timings.tick_interval
    return REST_TICKS * tick if tick > STUCK_SECONDS else 0.0


def _check_owners(simulation: "Simulation") -> None:
    if may_rest(simulation) and not simulation.living():
        return  # whether records are left is looked at by L3
    timings = simulation.scenario.application.timings
    tick = timings.tick_interval + 1.0
    patience = timings.lease_duration + 2 * tick + LAUNCH_SECONDS + simulation.scenario.start_seconds + tick
    ended = {str(worker.run.worker): worker.ended_at for worker in simulation.workers}
    living = {str(worker.run.worker) for worker in simulation.living()}
    living |= {java.name for java in simulation.java.living() if not java.is_stopping}
    patience += java_seconds(simulation) + leader_rest(simulation)
    if simulation.scenario.page_seconds:
        patience += timings.lease_duration * LONGEST_PART  # reads of the tables may be left out for that long
    for lease in simulation.ledger.leases.values():
        owner = str(lease.actual)
        if lease.is_finished or owner in living or simulation.is_former(lease.stream):
            continue
        since = max(simulation.scenario.active, simulation.ledger.changed_at(lease.key), ended.get(owner, 0.0))
        if may_rest(simulation):
            since = _woken_after(simulation, since)
        waited = simulation.kernel.now - since
        if waited > patience:
            simulation.violations.add("L1", f"{lease.key} belongs to {lease.actual} and waits since {waited:.0f} s")


def _woken_after(simulation: "Simulation", since: float) -> float:
    """When the first worker started after a lease was given up. A fleet that rests has nobody to own it."""
    starts = (worker.run.started_at or 0.0 for worker in simulation.workers)
    return min((start for start in starts if start > since), default=since)


def _check_handoffs(simulation: "Simulation") -> None:
    timings = simulation.scenario.application.timings
    patience = timings.handoff_timeout + timings.lease_duration + 3 * (timings.tick_interval + 1)
    patience += java_seconds(simulation) + leader_rest(simulation)
    for lease in simulation.ledger.leases.values():
        waited = simulation.ledger.handed_for(lease.key)
        if waited is not None and waited > patience:
            simulation.violations.add("L2", f"{lease} has waited for {waited:.0f} s")


def _check_lag(simulation: "Simulation") -> None:
    missing = simulation.lake.missing()
    if missing:
        simulation.violations.add("L3", f"not stored: {missing}")
    for worker in simulation.living():
        since = max(simulation.scenario.active, worker.run.started_at or 0.0)
        if worker.bound is not None and simulation.kernel.now - since > simulation.reading.patience:
            simulation.violations.add("L3", f"{worker.run.worker} goes on, and everything is stored")
    owners = {str(lease.actual) for lease in simulation.ledger.leases.values()}
    refused = [what for worker, what in simulation.lake.refused.values() if worker in owners]
    if refused and not missing:
        simulation.violations.add("L3", f"refused by the sink, and nothing stored since: {refused}")


def _check_rest(simulation: "Simulation") -> None:
    """In a fleet that did not change for long, nothing moves. The KCL's own rules do not promise that."""
    scenario = simulation.scenario
    if scenario.application.policy.name == "kcl" or simulation.java.living():
        return
    timings = scenario.application.timings
    settling = 3 * timings.lease_duration + timings.handoff_timeout + 60.0 * scenario.stretch
    # A worker is given leases when it can read, which may be long after its start.
    opened = max((worker.opened_at for worker in simulation.living()), default=0.0)
    since = max(simulation.fleet_changed, opened, scenario.active) + settling
    late = [move for at, move in simulation.ledger.moves if at > since]
    if late and not any(worker.run.is_over for worker in simulation.living()):
        simulation.violations.add("L4", f"leases still move: {late[:6]}")


def may_rest(simulation: "Simulation") -> bool:
    """Whether the application may have no worker for a while."""
    scenario = simulation.scenario
    return scenario.application.fleet.min_workers == 0 or scenario.schedule is not None


def java_seconds(simulation: "Simulation") -> float:
    """What a Java leader may take longer: its lock, the age of a worker's row, two passes and a discovery."""
    if not simulation.java.workers:
        return 0.0
    timings = simulation.scenario.application.timings
    return (LOCK + 2 * REPORT) * simulation.scenario.stretch + 5 * timings.lease_duration
