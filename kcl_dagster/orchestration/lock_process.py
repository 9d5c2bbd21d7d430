"""The name of the leading process. The leader lock contains it. With it, another process of the same machine can
check whether the leading process still runs.

If `DAGSTER_HOME` is not set, each `dagster dev` is a new deployment, and its leader has a new name. Without the
check, this leader would wait until the lock of the former deployment expires, even if the former process has ended.
"""

from kcl_dagster.machine import this_machine
from kcl_dagster.orchestration import processes
from kcl_dagster.tables.lock import LockProcess


def lock_process(machine: str | None = None) -> LockProcess:
    """The name of this process, with a function that returns whether another process has ended. `machine`: a name
    that only processes on the same machine share."""
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
