"""Which machine this is, and which of its processes live, for names that later processes can judge."""

import hashlib
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/pid")  # containers of one machine cannot see each other's processes

_START_IN_STAT: Final = 19  # of the fields behind the name: the 22nd of all, in ticks

# The kernel gives the start in ticks since boot; processes that compute the boot time apart may differ by a second.
START_TOLERANCE_SECONDS: Final = 2.0


def this_machine() -> str:
    """This machine since it was booted, this container of it, and this user, who may not see others' processes."""
    parts = [socket.gethostname(), str(getattr(os, "getuid", int)())]
    with suppress(OSError):  # not on Linux
        parts += [_BOOT.read_text().strip(), str(_NAMESPACE.readlink())]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:12]


def started_after_boot(pid: int) -> float | None:
    """How long after the machine was booted the process started, in seconds. None for a process that is gone, and
    on a system that does not keep it. A clock that is set changes nothing here, unlike a start in epoch seconds."""
    try:
        # The name of the program comes before it, in brackets, and may hold anything.
        facts = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(facts[_START_IN_STAT]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def is_alive(pid: int, started: float) -> bool:
    """Whether the process `pid` of this machine that started then (epoch seconds) is there, and no zombie.

    True where that cannot be found out.
    """
    try:
        process = psutil.Process(pid)
        if process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
            return False
        return abs(process.create_time() - started) <= START_TOLERANCE_SECONDS
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False
    except psutil.Error:
        return True
