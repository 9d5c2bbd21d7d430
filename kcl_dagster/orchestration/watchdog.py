"""Why a worker should stop although nobody told it.

Stopping Dagster does not stop the runs it launched: only a terminal's Ctrl-C reaches them. A worker whose code
server, run record or `dagster dev` is gone would go on renewing its leases for ever. The worker asks these every
few seconds, on the thread that also writes its heartbeat, so none of them waits for an answer.
"""

import os

from dagster import DagsterInstance, DagsterRunStatus

from kcl_dagster.orchestration import processes
from kcl_dagster.worker.latest import Latest, Start, on_a_thread
from kcl_dagster.worker.surroundings import Watch


def watches(instance: DagsterInstance, run_id: str) -> tuple[Watch, ...]:
    """All of them. Call in the worker's process, before anything can have gone."""
    return (parent_is_gone(), dev_is_gone(), run_is_over(instance, run_id))


def parent_is_gone() -> Watch:
    """The code server that started this process died."""
    parent = os.getppid()
    return lambda: None if os.getppid() == parent else f"the code server (pid {parent}) is gone"


def dev_is_gone() -> Watch:
    """The `dagster dev` or `dg dev` above this process died; never in production."""
    root = processes.dev_root() if os.environ.get("DAGSTER_IS_DEV_CLI") else None

    def check() -> str | None:
        return f"dagster dev (pid {root.pid}) is gone" if root is not None and not root.is_alive() else None

    return check


def run_is_over(instance: DagsterInstance, run_id: str, start: Start = on_a_thread) -> Watch:
    """Dagster no longer counts the run as going on: canceled by force, failed by the monitor, or deleted.

    The run is looked up in the background, as Dagster's storage may hang: what the watch returns is the answer to
    the look-up before, and while there is no answer the run is taken to go on.
    """

    def look_up() -> str | None:
        run = instance.get_run_by_id(run_id)
        if run is None:
            return f"run {run_id} was deleted"
        if run.status is not DagsterRunStatus.STARTED:
            return f"run {run_id} is {run.status.value}"
        return None

    return Latest(look_up, start).ask
