"""Is another process still there?"""

from __future__ import annotations

from typing import Final

import psutil

# The kernel gives the start in ticks since boot; processes that compute the boot time apart may differ by a second.
START_TOLERANCE_SECONDS: Final = 2.0


def find(pid: int, started: float | None = None) -> psutil.Process | None:
    """The living process with this id; None if it did not start at `started`, where that is given."""
    try:
        process = psutil.Process(pid)
        is_it = started is None or abs(process.create_time() - started) <= START_TOLERANCE_SECONDS
    except psutil.NoSuchProcess:
        return None
    return process if is_it and lives(process) else None


def lives(process: psutil.Process) -> bool:
    """False for a process that is gone, or dead and only waiting for its parent to notice. Another process that
    got its id meanwhile is not taken for it."""
    try:
        return bool(process.is_running()) and process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return False


def is_alive(pid: int, started: float | None = None) -> bool:
    """Whether `find` finds it."""
    return find(pid, started) is not None


def started(pid: int) -> float | None:
    """When the process started, in epoch seconds; None if it is gone."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None
