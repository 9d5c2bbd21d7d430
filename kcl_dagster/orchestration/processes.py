"""Which processes live, and whose children they are. Read-only; from /proc, or from ps where there is none."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")

# The command whose end means that its user is done: a script called `dagster` or `dg`, or the module.
_DEV_COMMAND = re.compile(r"(^|/| -m )(dagster|dg) dev( |$)")


@dataclass(frozen=True, slots=True)
class Process:
    """A process that is neither gone nor a zombie. `started` tells a pid from its reuse."""

    pid: int
    parent: int
    started: str
    command: str

    def is_alive(self) -> bool:
        now = find(self.pid)
        return now is not None and now.started == self.started


def find(pid: int) -> Process | None:
    """The living process with this id. A zombie does not count: an unreaped parent would keep it for ever."""
    return _from_proc(pid) if PROC.is_dir() else _from_ps().get(pid)


def snapshot() -> dict[int, Process]:
    """Every living process we may see, by id."""
    if not PROC.is_dir():
        return _from_ps()
    found = (_from_proc(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return {process.pid: process for process in found if process is not None}


def descendants(root: int, processes: Mapping[int, Process]) -> dict[int, Process]:
    """Children of `root`, their children and so on; without `root`."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: dict[int, Process] = {}
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in found and child.pid != root:
                found[child.pid] = child
                waiting.append(child.pid)
    return found


def ancestors(pid: int, processes: Mapping[int, Process]) -> list[Process]:
    """The parent, its parent and so on, nearest first."""
    found: list[Process] = []
    seen = {pid}
    current = processes.get(pid)
    while current is not None and current.parent not in seen:
        seen.add(current.parent)
        current = processes.get(current.parent)
        if current is not None:
            found.append(current)
    return found


def dev_root(pid: int | None = None) -> Process | None:
    """The outermost `dagster dev` or `dg dev` above a process (ours by default), or None in production."""
    above = ancestors(os.getpid() if pid is None else pid, snapshot())
    commands = [process for process in above if is_dev_command(process.command)]
    return commands[-1] if commands else None


def is_dev_command(command: str) -> bool:
    """Whether a command line is `dagster dev` or `dg dev`, however it was started."""
    return _DEV_COMMAND.search(command) is not None


def carries(pid: int, marker: str) -> bool:
    """Whether the process was started with `marker` (NAME=value) in its environment. Linux only; else False."""
    try:
        return marker.encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _from_proc(pid: int) -> Process | None:
    directory = PROC / str(pid)
    try:
        stat = (directory / "stat").read_text()
        command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    # The second field is the name in brackets and may itself hold brackets and spaces.
    fields = stat[stat.rindex(")") + 2 :].split()
    state, parent, started = fields[0], int(fields[1]), fields[19]
    return None if state in "ZX" else Process(pid, parent, started, command)


def _from_ps() -> dict[int, Process]:
    listing = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,stat=,lstart=,command="], capture_output=True, text=True, check=False
    )
    found = {}
    for line in listing.stdout.splitlines():
        pid, parent, state, *rest = line.split(None, 8)
        if "Z" not in state:
            *started, command = rest if len(rest) > 5 else [*rest, ""]
            found[int(pid)] = Process(int(pid), int(parent), " ".join(started), command)
    return found
