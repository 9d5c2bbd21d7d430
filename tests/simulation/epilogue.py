"""What is tried out on a fleet that has come to rest: one of five acts, by the seed.

The faults before have shown that the fleet recovers. Here one thing happens to a healthy fleet, so that what
follows has one cause (L5 to L7, S9).
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from kcl_dagster.leader.failure_count import FAILURES_BEFORE_RELEASE
from kcl_dagster.tables.rows import DRAIN
from kcl_dagster.worker.stop import StopReason
from tests.simulation.liveness import LAUNCH_SECONDS, leader_rest, may_rest

if TYPE_CHECKING:
    from tests.simulation.fleet import Simulation

RECORDS: Final = 5
# How often it is looked whether what has to come true is true, before stretching.
LOOK_SECONDS: Final = 15.0
# Parts of a tick that can be broken without breaking the others: service and operation.
BREAKABLE: Final = (
    ("kinesis", ""),  # sync
    ("dynamodb", "delete_item"),  # clean
    ("dynamodb", "put_item"),  # report, and the start position in sync; the lock may be acquired all the same
)


def play(simulation: "Simulation") -> None:
    random = simulation.random("epilogue")
    act = random.choice(ACTS)
    if simulation.java.living():
        return  # the properties of a Java leader are not ours to guarantee
    if simulation.scenario.schedule is not None or (may_rest(simulation) and act in NEED_WORKERS):
        return
    simulation.kernel.note("act", act.__name__.replace("_", " "))
    act(simulation, random)


def without_a_leader(simulation: "Simulation", _random: Random) -> None:
    """L6: records are stored although there is no leader. If a worker ends, others take its leases when they have
    observed no leader for long."""
    timings, stretch = simulation.scenario.application.timings, simulation.scenario.stretch
    for daemon in simulation.daemons:
        daemon.process.kill()
    there = simulation.living()
    simulation.streams.produce(RECORDS)
    patience = timings.leaderless + 5 * timings.lease_duration + 8 * LOOK_SECONDS * stretch
    _wait(simulation, patience, lambda: not simulation.lake.missing())
    leaves = (StopReason.LIFETIME, StopReason.DRAINED)
    for worker in there:
        if not worker.process.is_alive and not any(str(reason) in (worker.run.exit or "") for reason in leaves):
            simulation.violations.add("L6", f"{worker.run.worker} stopped without a leader: {worker.run.exit}")
    if simulation.living() and simulation.lake.missing():
        missing = simulation.lake.missing()
        simulation.violations.add("L6", f"not stored {patience:.0f} s after the leader died: {missing}")


def with_a_broken_stage(simulation: "Simulation", random: Random) -> None:
    """L5: one stage of every tick fails, and a worker dies: its leases find new owners all the same."""
    scenario = simulation.scenario
    timings = scenario.application.timings
    simulation.active_faults.denied_to_daemons = random.choice(BREAKABLE)
    living = simulation.living()
    if living:
        random.choice(living).process.kill()
    tick = timings.tick_interval + 1.0
    patience = 2 * timings.lease_duration + 8 * tick + 2 * scenario.monitor_seconds + 2 * LAUNCH_SECONDS
    patience += 2 * scenario.start_seconds + leader_rest(simulation)

    def is_served() -> bool:
        owners = {str(worker.run.worker) for worker in simulation.living()}
        owners |= {java.name for java in simulation.java.living()}
        # Leases of a stream that was made anew are kept, and no worker reads them any more.
        leases = [row for row in simulation.ledger.leases.values() if not simulation.is_former(row.stream)]
        return all(lease.is_finished or lease.actual in owners for lease in leases)

    if not _wait(simulation, patience, is_served):
        what, operation = simulation.active_faults.denied_to_daemons
        simulation.violations.add(
            "L5", f"leases are not served {patience:.0f} s after a worker died, while {what} {operation} is denied"
        )


def with_repeated_ticks(simulation: "Simulation", random: Random) -> None:
    """S9: what old ticks asked for is asked for again, memories are lost or replaced by older ones, and leaders are
    restarted and doubled. Nothing is taken from anybody, and no slot gets a second worker."""
    timings = simulation.scenario.application.timings
    began, workers = simulation.kernel.now, {worker.run.worker for worker in simulation.living()}
    if random.random() < 0.5:
        simulation.effects.lose_memory()
    else:
        simulation.effects.replay_memory(random.randrange(8))
    for daemon in list(simulation.daemons):
        for launches in daemon.asked:
            daemon.request(launches)
        daemon.process.kill()
    for deployment in range(simulation.scenario.deployments):
        for _ in range(2):
            simulation.restarts += 1
            simulation.start_daemon(deployment, simulation.restarts)
    seconds = 3 * timings.lease_duration + 4 * (timings.tick_interval + 1.0)
    _wait(simulation, seconds, lambda: False)
    for at, key, owner in simulation.ledger.takings:
        if at >= began and owner in workers:
            simulation.violations.add("S9", f"{key} was taken from {owner}, which is well, after a repeated tick")
            return
    slots = [worker.run.slot for worker in simulation.living() if worker.worker is not None]
    if len(slots) != len(set(slots)):
        simulation.violations.add("S9", f"slots have several workers after a repeated tick: {sorted(slots)}")


def with_a_leader_without_rights(simulation: "Simulation", random: Random) -> None:
    """L6: all leaders may hold the lock and not read the leases, and a worker dies. The others take its leases, as
    they do where no leader is there."""
    timings, stretch = simulation.scenario.application.timings, simulation.scenario.stretch
    simulation.active_faults.denied_to_daemons = ("dynamodb", "scan")
    living = simulation.living()
    if len(living) > 1:
        random.choice(living).process.kill()
    simulation.streams.produce(RECORDS)
    ticks = FAILURES_BEFORE_RELEASE * (timings.tick_interval + 1.0)
    patience = timings.leader_lock + ticks + timings.leaderless + 5 * timings.lease_duration
    patience += 8 * LOOK_SECONDS * stretch
    _wait(simulation, patience, lambda: not simulation.lake.missing())
    if simulation.living() and simulation.lake.missing():
        missing = simulation.lake.missing()
        simulation.violations.add("L6", f"not stored {patience:.0f} s after leaders lost a right: {missing}")


def with_a_foreign_leader(simulation: "Simulation", _random: Random) -> None:
    """L7: another deployment leads, whose runs never leave its queue. The workers that are there go on."""
    timings, stretch = simulation.scenario.application.timings, simulation.scenario.stretch
    there = simulation.living()
    if any(
        row.get(DRAIN, {}).get("BOOL")
        for table in simulation.tables.tables.values()
        for row in table.items.values()
    ):
        return  # the former leader is about to replace a worker
    if any(worker.worker is not None and worker.worker.stop.is_requested() for worker in there):
        return  # it has replaced a worker, which has deleted its row
    for daemon in simulation.daemons:
        daemon.process.kill()
    simulation.start_foreign_deployment()
    tick = timings.tick_interval + 1.0
    _wait(simulation, timings.leader_lock + 4 * timings.lease_duration + 8 * tick, lambda: False)
    if any(str(StopReason.LIFETIME) in (worker.run.exit or "") for worker in there):
        return  # it had to be replaced, which the foreign queue does not do
    patience = timings.lease_duration + timings.handoff_timeout + 4 * tick + 2 * LOOK_SECONDS * stretch
    unread = simulation.reading.unread(patience)
    if there and unread:
        simulation.violations.add("L7", f"not read for {patience:.0f} s under a leader of another queue: {unread}")


ACTS: Final[tuple[Callable[["Simulation", Random], None], ...]] = (
    without_a_leader,
    with_a_broken_stage,
    with_repeated_ticks,
    with_a_leader_without_rights,
    with_a_foreign_leader,
)

NEED_WORKERS: Final = (with_a_broken_stage, with_a_foreign_leader)
"""What a fleet without a worker cannot show."""


def _wait(simulation: "Simulation", seconds: float, is_true: Callable[[], bool]) -> bool:
    kernel = simulation.kernel
    until = kernel.now + seconds
    while kernel.now < until and not simulation.violations.found:
        if is_true():
            return True
        kernel.run(min(until, kernel.now + LOOK_SECONDS * simulation.scenario.stretch), simulation.violations.found)
    return is_true()
