"""Watches that stop a worker whose code server, run record or `dagster dev` no longer exists.

If Dagster is stopped, the runs that it launched continue, except if it is stopped by Ctrl-C in a terminal. Without
the watches, the worker of such a run would renew its leases for ever. The worker calls these watches every few
seconds, on the thread that also writes its heartbeat, so none of them waits for a response.
"""

import os

from dagster import DagsterInstance, DagsterRunStatus

from kcl_dagster.orchestration import processes
from kcl_dagster.worker.background_calls import Latest, Start, on_a_thread
from kcl_dagster.worker.surroundings import Watch


def watches(instance: DagsterInstance, run_id: str) -> tuple[Watch, ...]:
    """All watches. Called in the worker's process at its start, while everything that they watch exists."""
    return (parent_is_gone(), dev_is_gone(), run_is_over(instance, run_id))


def parent_is_gone() -> Watch:
    """Watches whether the code server that started this process has ended."""
    parent = os.getppid()
    return lambda: None if os.getppid() == parent else f"the code server (pid {parent}) is gone"


def dev_is_gone() -> Watch:
    """Watches whether the `dagster dev` or `dg dev` that started this process has ended. There is none in
    production."""
    root = processes.dev_root() if os.environ.get("DAGSTER_IS_DEV_CLI") else None

    def check() -> str | None:
        return f"dagster dev (pid {root.pid}) is gone" if root is not None and not root.is_alive() else None

    return check


def run_is_over(instance: DagsterInstance, run_id: str, start: Start = on_a_thread) -> Watch:
    """Watches whether Dagster no longer counts the run as active, because the run was canceled by force, marked as
    failed by Dagster's monitoring, or deleted.

    The run is looked up in the background, because Dagster's storage can hang. The watch returns the result of the
    previous look-up. Until there is one, the run counts as active.
    """

    def look_up() -> str | None:
        run = instance.get_run_by_id(run_id)
        if run is None:
            return f"run {run_id} was deleted"
        if run.status is not DagsterRunStatus.STARTED:
            return f"run {run_id} is {run.status.value}"
        return None

    return Latest(look_up, start).ask
