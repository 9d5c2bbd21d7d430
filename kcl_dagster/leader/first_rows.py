"""The wait for the rows of workers that were launched together.

If a tick came between their rows, the workers with a row would get their leases at once, and the others a tick
later, or from the first ones by handoffs.
"""

from typing import Final

from kcl_dagster.errors import KclError
from kcl_dagster.leader.observation import Sight
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.workers import WorkerTable

# From its launch to its row, a worker takes three seconds.
FIRST_ROWS_SECONDS: Final = 4.0
JUST_LAUNCHED_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 0.5
MOST_FIRST_ROWS: Final = 20  # the reads of more single rows would cost more than the next tick


def wait_for_first_rows(sight: Sight, runs: RunView, workers: WorkerTable, clock: Clock, deadline: float) -> bool:
    """If leases wait and no worker reads yet, wait for the rows of runs that were launched at most
    JUST_LAUNCHED_SECONDS ago, at most until `deadline` (monotonic). Returns whether a row has come."""
    if not sight.unserved or any(seen.alive and seen.ready for seen in sight.workers):
        return False
    since = clock.now() - JUST_LAUNCHED_SECONDS
    started = [run for run in runs.slots.values() if run.status in {"starting", "running"}]
    missing = {run.worker_id for run in started if run.started_at >= since} - {seen.id for seen in sight.workers}
    wanted = len(missing)
    until = min(clock.monotonic() + FIRST_ROWS_SECONDS, deadline)
    while missing and wanted <= MOST_FIRST_ROWS and clock.monotonic() < until:
        clock.sleep(LOOK_SECONDS)
        try:
            missing = {worker for worker in missing if workers.get(worker) is None}
        except KclError:  # the rows come with a later tick
            break
    return len(missing) < wanted
