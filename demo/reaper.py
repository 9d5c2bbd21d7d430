"""Ends everything that a process started once that process is gone, whatever way it went.

`python -m demo.reaper PID@STARTED [NAME=value]` runs detached beside the demo. A killed `dagster dev` leaves its
webserver, daemon, code server and runs behind; only a process outside of that family can end them. The optional
marker finds, by their environment, processes whose parents died before the reaper saw them. It has to be unique to
the family.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from kcl_dagster.orchestration import processes
from kcl_dagster.orchestration.processes import Process

LOOK_SECONDS = 0.25  # how soon the end of the root is noticed
SNAPSHOT_SECONDS = 1.0  # how often the family is written down; workers live much longer than that
DRAIN_SECONDS = 4.0  # workers notice by themselves, commit, and release their leases
TERMINATE_SECONDS = 2.0  # between SIGTERM and SIGKILL; all in all well under ten seconds


def start(root: Process, marker: str | None = None) -> int:
    """Start a detached reaper for `root`. Returns its process id; it ends by itself with the last relative."""
    process = subprocess.Popen(
        [sys.executable, "-m", "demo.reaper", root.identity, *([marker] if marker else [])],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    process.returncode = 0  # prevents Python's warning about a process that is never waited for
    return process.pid


def reap(root: Process | None, marker: str | None = None) -> None:
    """Watch `root`; when it is gone, let its family drain, then terminate, then kill. Blocks until all are gone.

    `root` None: it was gone before the reaper could look. Only what carries the marker is ended then.
    """
    family = _watch(root, marker) if root is not None else {}
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


def _watch(root: Process, marker: str | None) -> dict[int, Process]:
    family: dict[int, Process] = {}
    next_snapshot = 0.0
    while root.is_alive():
        if time.monotonic() >= next_snapshot:
            everyone = processes.snapshot()
            # A child of a dead relative hangs below init; its own children are still found below it.
            relatives = {root.pid: root, **{p: f for p, f in family.items() if f.is_same(everyone.get(p))}}
            if root.is_same(everyone.get(root.pid)):
                family = {
                    pid: found for r in relatives for pid, found in processes.descendants(r, everyone).items()
                }
                family |= {pid: found for pid, found in relatives.items() if pid != root.pid}
                family |= _marked(everyone, marker)
            next_snapshot = time.monotonic() + SNAPSHOT_SECONDS
        time.sleep(LOOK_SECONDS)
    family.pop(root.pid, None)
    return family


def _survivors(family: dict[int, Process], marker: str | None) -> dict[int, Process]:
    """The living of the family, and what they started meanwhile. Never this process itself."""
    everyone = processes.snapshot()
    left = {pid: known for pid, known in family.items() if known.is_same(everyone.get(pid))}
    for pid in list(left):
        left |= processes.descendants(pid, everyone)
    left |= _marked(everyone, marker)
    left.pop(os.getpid(), None)
    return left


def _marked(everyone: dict[int, Process], marker: str | None) -> dict[int, Process]:
    if marker is None:
        return {}
    return {pid: process for pid, process in everyone.items() if processes.carries(pid, marker)}


def _send(signal_number: int, family: Iterable[Process]) -> None:
    for process in family:
        process.send(signal_number)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    reap(processes.parse(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)


if __name__ == "__main__":
    main()
