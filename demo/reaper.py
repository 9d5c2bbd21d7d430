"""Ends the family of a process (everything that it has started) when the process has ended, for whatever reason.

`python -m demo.reaper PID@STARTED [NAME=value]` runs detached beside the demo. A killed `dagster dev` leaves its
webserver, daemon, code server and runs behind, and only a process outside of this family can end them. The optional
argument NAME=value, the marker, is in the environment of all processes of the family, and of no others. By it, the
reaper finds processes whose parents ended before the reaper observed them.
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

LOOK_SECONDS = 0.25  # the interval at which the reaper checks whether the root has ended
SNAPSHOT_SECONDS = 1.0  # the interval at which the family is recorded; workers live much longer
DRAIN_SECONDS = 4.0  # workers detect the end by themselves, commit, and release their leases
TERMINATE_SECONDS = 2.0  # between SIGTERM and SIGKILL; all steps together take less than ten seconds


def start(root: Process, marker: str | None = None) -> int:
    """Start a detached reaper for `root`. Returns the process id of the reaper. The reaper ends when no process of
    the family is left."""
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
    """Wait until `root` has ended, and then until its family has drained. Send SIGTERM to the processes that are
    left after `DRAIN_SECONDS`, and SIGKILL to those that are left after `TERMINATE_SECONDS` more. Returns as soon
    as no process of the family is left, or one second after SIGKILL.

    If `root` is None, it had ended before the reaper started. Then only processes with the marker are ended.
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
            # If a process of the family has ended, its children are children of init now. So descendants are looked
            # up from each known process.
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
    """The living processes of the family, and those that they have started meanwhile, without this process."""
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
