"""Whether another process is still running."""

from __future__ import annotations

from typing import Final

import psutil

# The kernel reports the start in ticks since boot. Processes that compute the boot time separately may differ by a
# second.
START_TOLERANCE_SECONDS: Final = 2.0


def find(pid: int, started: float | None = None) -> psutil.Process | None:
    """The running process with this id. None if it has ended, or if `started` is given and the process did not
    start then."""
    try:
        process = psutil.Process(pid)
        is_it = started is None or abs(process.create_time() - started) <= START_TOLERANCE_SECONDS
    except psutil.NoSuchProcess:
        return None
    return process if is_it and lives(process) else None


def lives(process: psutil.Process) -> bool:
    """Whether the process is running. False for a zombie, and if another process has got its id meanwhile."""
    try:
        return bool(process.is_running()) and process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return False


def is_alive(pid: int, started: float | None = None) -> bool:
    """Whether `find` returns a process."""
    return find(pid, started) is not None


def started(pid: int) -> float | None:
    """When the process started, in epoch seconds; None if it has ended."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None
