"""Identifies this machine and its processes, by names that later processes can check."""

import hashlib
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/pid")  # containers of one machine cannot see each other's processes

_START_IN_STAT: Final = 19  # index of the start time among the fields after the name; field 22 of the whole line

# The kernel reports the start of a process in ticks since boot. A process that converts this to epoch seconds has
# to calculate the time of the boot. The results of two processes may differ by a second.
START_TOLERANCE_SECONDS: Final = 2.0


def this_machine() -> str:
    """Return a digest that identifies this machine since its boot, this container, and this user. The user is
    included because processes of other users can be invisible."""
    parts = [socket.gethostname(), str(getattr(os, "getuid", int)())]
    with suppress(OSError):  # not on Linux
        parts += [_BOOT.read_text().strip(), str(_NAMESPACE.readlink())]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:12]


def started_after_boot(pid: int) -> float | None:
    """Return how many seconds after the boot of the machine the process started. None if the process has ended, or
    if the system does not record the start. Unlike a start in epoch seconds, the result does not change if the
    clock is set."""
    try:
        # The program's name comes before the fields, in brackets, and may contain any characters.
        facts = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(facts[_START_IN_STAT]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def is_alive(pid: int, started: float) -> bool:
    """Whether the process `pid` of this machine that started at `started` (epoch seconds) exists and is no zombie.
    True if that cannot be found out."""
    try:
        process = psutil.Process(pid)
        if process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
            return False
        return abs(process.create_time() - started) <= START_TOLERANCE_SECONDS
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False
    except psutil.Error:
        return True
