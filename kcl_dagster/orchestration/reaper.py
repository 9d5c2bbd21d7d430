"""Ends everything that a process started once that process is gone, whatever way it went.

`python -m kcl_dagster.orchestration.reaper PID [NAME=value]` runs detached beside `dagster dev` (or the demo).
A killed `dagster dev` leaves its webserver, daemon, code server and runs behind; nobody but an outsider can
end those. The optional marker finds, by their environment, processes whose parents died before we saw them.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable

from kcl_dagster.orchestration import detached, processes
from kcl_dagster.orchestration.processes import Process

LOOK_SECONDS = 0.25  # how soon the end of the root is noticed
SNAPSHOT_SECONDS = 1.0  # how often the family is written down; workers live much longer than that
DRAIN_SECONDS = 4.0  # workers notice by themselves, commit, and release their leases
TERMINATE_SECONDS = 2.0  # between SIGTERM and SIGKILL; all in all well under ten seconds


def start(root: int, marker: str | None = None) -> int:
    """Start a detached reaper for `root`. Returns its process id; it ends by itself with the last relative."""
    command = [sys.executable, "-m", "kcl_dagster.orchestration.reaper", str(root), *([marker] if marker else [])]
    return detached.start(command)


def reap(root: int, marker: str | None = None) -> None:
    """Watch `root`; when it is gone, let its family drain, then terminate, then kill. Blocks until all are gone."""
    family = _watch(root, marker)
    for signal_number, patience in (
        (None, DRAIN_SECONDS),
        (signal.SIGTERM, TERMINATE_SECONDS),
        (signal.SIGKILL, 1),
    ):
        if signal_number is not None:
            _send(signal_number, _survivors(family, marker).values())
        deadline = time.monotonic() + patience
        while family := _survivors(family, marker):
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_SECONDS)


def _watch(root: int, marker: str | None) -> dict[int, Process]:
    family: dict[int, Process] = {}
    process = processes.find(root)
    next_snapshot = 0.0
    while process is not None and process.is_alive():
        if time.monotonic() >= next_snapshot:
            everyone = processes.snapshot()
            # A child of a dead relative hangs below init; its own children are still found below it.
            relatives = {root: process, **{p: f for p, f in family.items() if _same(everyone.get(p), f)}}
            family = {pid: found for r in relatives for pid, found in processes.descendants(r, everyone).items()}
            family |= {pid: found for pid, found in relatives.items() if pid != root}
            family |= _marked(everyone, marker)
            next_snapshot = time.monotonic() + SNAPSHOT_SECONDS
        time.sleep(LOOK_SECONDS)
    family.pop(root, None)
    return family


def _survivors(family: dict[int, Process], marker: str | None) -> dict[int, Process]:
    """Who is left of the family, with what it started meanwhile. Never this process itself."""
    everyone = processes.snapshot()
    left = {pid: known for pid, known in family.items() if _same(everyone.get(pid), known)}
    for pid in list(left):
        left |= processes.descendants(pid, everyone)
    left |= _marked(everyone, marker)
    left.pop(os.getpid(), None)
    return left


def _marked(everyone: dict[int, Process], marker: str | None) -> dict[int, Process]:
    if marker is None:
        return {}
    return {pid: process for pid, process in everyone.items() if processes.carries(pid, marker)}


def _same(now: Process | None, then: Process) -> bool:
    return now is not None and now.started == then.started


def _send(signal_number: int, family: Iterable[Process]) -> None:
    for process in family:
        if process.is_alive():
            try:
                os.kill(process.pid, signal_number)
            except ProcessLookupError:
                continue


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    reap(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)


if __name__ == "__main__":
    main()
