"""The process that leads, by a name that a later process of the same machine can judge.

Without `DAGSTER_HOME`, each `dagster dev` is a new deployment with a new name. Its leader would wait for the lock
of the former one to expire, although that process is gone.
"""

import hashlib
import os
import socket
from contextlib import suppress
from pathlib import Path

from kcl_dagster.orchestration import processes
from kcl_dagster.tables.lock import LockProcess

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")  # containers of one machine cannot see each other's processes


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


def this_machine() -> str:
    """This machine since it was booted, this container of it, and this user, who may not see others' processes."""
    parts = [socket.gethostname(), str(getattr(os, "getuid", int)())]
    with suppress(OSError):  # not on Linux
        parts += [_BOOT.read_text().strip(), str(_NAMESPACE.readlink())]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:12]
