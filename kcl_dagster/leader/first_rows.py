"""The wait for the rows of workers that were launched together.

Without this wait, a tick can find the rows of only some of these workers. The tick then assigns leases to the
workers with a row. The other workers get leases a tick later, or by handoffs from the first workers.
"""

from typing import Final

from kcl_dagster.errors import KclError
from kcl_dagster.leader.observation import Sight
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.workers import WorkerTable

# A worker writes its row three seconds after its launch.
FIRST_ROWS_SECONDS: Final = 4.0
JUST_LAUNCHED_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 0.5
MOST_FIRST_ROWS: Final = 20  # the reads of more single rows would cost more than the next tick


def wait_for_first_rows(sight: Sight, runs: RunView, workers: WorkerTable, clock: Clock, deadline: float) -> bool:
    """Wait for the rows of workers whose runs began at most JUST_LAUNCHED_SECONDS ago. Returns whether a row has
    come.

    Waits for at most FIRST_ROWS_SECONDS, and not beyond `deadline` (monotonic). Does not wait at all if

    - every lease is served,
    - a living worker can already read, or
    - more than MOST_FIRST_ROWS rows are missing.
    """
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
