"""What remains of chains when a run is over (L10).

While workers run, they delete chains that no lease has named for a day. In the end all workers are killed, and one
process treats all chains as a worker would a day later: everything that was decided is visible then, and nothing is
left beside the data.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

from kcl_dagster.chains.deletion import MIN_AGE_SECONDS, delete_chains
from kcl_dagster.chains.entry import FIRST
from kcl_dagster.chains.publication import FolderPublisher, Publisher
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import KclError
from kcl_dagster.worker.chain_protocol import DELETION_SECONDS
from kcl_dagster.worker.table_committer import TableCommitter
from tests.simulation.bucket import store_of
from tests.simulation.chained_lake import ChainedLake
from tests.simulation.chained_sink import LATE_SECONDS, CommittedTable
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
    left = [*lake.bucket.below("_chains/"), *lake.bucket.below("_staged/")]
    if left:
        simulation.violations.add("L10", f"{len(left)} files are left, such as {left[:NAMED_AT_MOST]}")


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
    for key in [*lake.bucket.below("_staged/"), *lake.bucket.below("_chains/")]:
        last[key.split("/")[1]] = lake.bucket.objects[key].modified.timestamp()
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


def _sweep(simulation: "Simulation", lake: ChainedLake) -> None:
    name, kernel = simulation.scenario.application.name, simulation.kernel
    process = simulation.process("sweep")
    runtime, line = runtime_of(process, simulation.random("sweep")), simulation.line(process, "s3")
    entries = Entries(store_of(line, runtime))
    publisher: Publisher = FolderPublisher(entries.files)
    if lake.is_table:
        table = CommittedTable(line, entries.files, simulation.active_faults.sink, runtime.random.random)
        publisher = TableCommitter(entries, {FIRST: table}, name, runtime.new_id, runtime.clock)

    def work() -> None:
        kernel.sleep(LATE_SECONDS)  # executors write what they have begun
        try:
            for _ in range(MOST_ROUNDS):
                delete_chains(entries, name, (), EPOCH + kernel.now, "sweep", runtime.new_id, publisher)
                if not (lake.bucket.below("_chains/") or lake.bucket.below("_staged/")):
                    break
        except KclError as error:
            simulation.violations.add("X1", f"the sweep failed: {error}")
        process.end()

    kernel.spawn(process, "main", work)
    until = kernel.now + SWEEP_SECONDS
    while process.is_alive and kernel.now < until and not simulation.violations.found:
        kernel.run(kernel.now + LOOK_SECONDS, simulation.violations.found)
