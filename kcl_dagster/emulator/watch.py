"""Finds out whether another process is still running."""

from __future__ import annotations

from typing import Final

import psutil

# The kernel reports the start of a process in ticks since the boot. Two processes that compute the time of the boot
# separately may differ by a second.
START_TOLERANCE_SECONDS: Final = 2.0


def find(pid: int, started: float | None = None) -> psutil.Process | None:
    """Return the running process with this id. None if it has ended, or if `started` is given and the process
    started at another time."""
    try:
        process = psutil.Process(pid)
        is_it = started is None or abs(process.create_time() - started) <= START_TOLERANCE_SECONDS
    except psutil.NoSuchProcess:
        return None
    return process if is_it and lives(process) else None


def lives(process: psutil.Process) -> bool:
    """Whether the process is running. False for a zombie, and if another process has the same id now."""
    try:
        return bool(process.is_running()) and process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return False


def is_alive(pid: int, started: float | None = None) -> bool:
    """Whether the process with this id is running; see `find`."""
    return find(pid, started) is not None


def started(pid: int) -> float | None:
    """Return the time at which the process started, in epoch seconds; None if there is no such process."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None
