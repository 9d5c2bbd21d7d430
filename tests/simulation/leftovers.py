"""What remains of chains when a run is over (L10).

While workers run, they delete chains that no lease has named for a day. In the end all workers are killed, and one
process treats all chains as a worker would a day later: everything that was decided is visible then, and nothing is
left beside the data.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

from kcl_dagster.chains.deletion import MIN_AGE_SECONDS, delete_chains
from kcl_dagster.chains.entry import FIRST
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import KclError
from kcl_dagster.worker.chain_protocol import DELETION_SECONDS
from kcl_dagster.worker.publishing import publisher_of
from tests.simulation.chained import ROOTS
from tests.simulation.chained_lake import ChainedLake
from tests.simulation.chained_sink import LATE_SECONDS, destinations_of
from tests.simulation.liveness import may_rest
from tests.simulation.processes import runtime_of
from tests.simulation.scenario import EPOCH

if TYPE_CHECKING:
    from tests.simulation.fleet import Simulation

SWEEP_SECONDS: Final = 6 * 3600.0
LOOK_SECONDS: Final = 10.0
MOST_ROUNDS: Final = 40  # each treats so many chains as one look of a worker
# Looks of workers at the chains until one has had time for all of them.
LOOKS: Final = 3
NAMED_AT_MOST: Final = 3
# Of a chain, after the faults: rows and commits follow within some batches, and the entries of others are deleted.
MOST_ENTRIES: Final = 50


def check(simulation: "Simulation") -> None:
    """At the end of a run without other findings."""
    lake = simulation.lake
    if not isinstance(lake, ChainedLake):
        return
    _check_old(simulation, lake)
    simulation.end_fleet()
    _sweep(simulation, lake)
    if simulation.violations.found:
        return
    undecided = lake.undecided()
    if undecided:
        simulation.violations.add("S1", f"decided and never visible: {undecided[:NAMED_AT_MOST]}")
    left = _beside_data(lake)
    if left:
        simulation.violations.add("L10", f"{len(left)} files are left, such as {left[:NAMED_AT_MOST]}")


def _beside_data(lake: ChainedLake) -> list[str]:
    """The keys of what is staged, and of the entries."""
    staged = [key for name in lake.tables for key in lake.bucket.below(f"{ROOTS[name]}_staged/")]
    return [*staged, *lake.bucket.below("_chains/")]


def _check_old(simulation: "Simulation", lake: ChainedLake) -> None:
    """What has been there for longer than a day, and is not needed, was deleted by the workers. Those that decide
    their batches in leases delete nothing."""
    if not simulation.is_in_chains:
        return
    now, seconds = simulation.kernel.now, LOOKS * DELETION_SECONDS
    reads_since = (worker.opened_at for worker in simulation.living() if worker.opened_at)
    if may_rest(simulation) or now - min(reads_since, default=now) < seconds:
        return
    named = {row.chain for row in simulation.ledger.leases.values()}
    living = {worker.run.worker.replace(":", "-") for worker in simulation.living()}
    last: dict[str, float] = {}
    for key in _beside_data(lake):
        last[_chain_of(key)] = lake.bucket.objects[key].modified.timestamp()
    before = EPOCH + now - MIN_AGE_SECONDS - seconds
    old = [
        chain
        for chain, modified in last.items()
        if modified < before and chain not in named and not any(worker in chain for worker in living)
    ]
    if old:
        simulation.violations.add("L10", f"chains that were closed more than a day ago: {old[:NAMED_AT_MOST]}")
    for chain, count in Counter(key.split("/")[1] for key in lake.bucket.below("_chains/")).items():
        if count > MOST_ENTRIES:
            simulation.violations.add("L10", f"chain {chain} has {count} entries")


def _chain_of(key: str) -> str:
    folder, chain, *_ = key.split("/") if key.startswith("_") else key.split("/")[1:]
    assert folder.startswith("_")
    return chain


def _sweep(simulation: "Simulation", lake: ChainedLake) -> None:
    name, kernel = simulation.scenario.application.name, simulation.kernel
    process = simulation.process("sweep")
    runtime, line = runtime_of(process, simulation.random("sweep")), simulation.line(process, "s3")
    chained, faults = simulation.scenario.chained, simulation.active_faults.sink
    assert chained is not None
    destinations = destinations_of(chained, line, runtime, faults, runtime.random.random)
    entries = Entries(destinations[FIRST].files)
    publisher = publisher_of(entries, destinations, name, runtime)

    def work() -> None:
        kernel.sleep(LATE_SECONDS)  # executors write what they have begun
        try:
            for _ in range(MOST_ROUNDS):
                delete_chains(entries, name, (), EPOCH + kernel.now, "sweep", runtime.new_id, publisher)
                if not _beside_data(lake):
                    break
        except KclError as error:
            simulation.violations.add("X1", f"the sweep failed: {error}")
        process.end()

    kernel.spawn(process, "main", work)
    until = kernel.now + SWEEP_SECONDS
    while process.is_alive and kernel.now < until and not simulation.violations.found:
        kernel.run(kernel.now + LOOK_SECONDS, simulation.violations.found)
