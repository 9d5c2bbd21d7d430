"""The process that leads, by a name that a later process of the same machine can judge.

Without `DAGSTER_HOME`, each `dagster dev` is a new deployment with a new name. Its leader would wait for the lock
of the former one to expire, although that process is gone.
"""

from kcl_dagster.machine import this_machine
from kcl_dagster.orchestration import processes
from kcl_dagster.tables.lock import LockProcess


def lock_process(machine: str | None = None) -> LockProcess:
    """This process. `machine`: a name that only processes share which can see each other."""
    here = machine or this_machine()

    def is_dead(name: str) -> bool:
        place, _, process = name.partition("/")
        if place != here:
            return False
        try:
            return processes.parse(process) is None
        except ValueError:
            return False

    return LockProcess(f"{here}/{processes.current().identity}", is_dead)
