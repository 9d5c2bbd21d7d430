"""Measures the CPU and the memory of process trees, with the data in /proc. A tree is a process and all its
descendants."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path

MEMORY_LOOK_SECONDS = 0.2
BYTES_OF_MEGABYTE = 1_000_000  # /proc counts in units of 1024 bytes


def tree(root: int) -> list[int]:
    """The ids of the process `root` and of all its descendants."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            parents.setdefault(parent, []).append(int(folder.name))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += parents.get(found[-1], [])
    return found


def cpu_times(root: int, without: int | None = None) -> dict[int, float]:
    """The CPU seconds that each process in the tree of `root` has used so far, by process id. Leaves out the tree
    of `without`."""
    excluded = set(tree(without)) if without is not None else set()
    times = {}
    for pid in tree(root):
        if pid not in excluded:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            times[pid] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return times


def cpu_between(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """The CPU seconds that processes used between two calls of `cpu_times`. Only processes that run at the second
    call count. Spark ends Python workers that have been idle, and the CPU that they used is then not known."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def cpu_total(root: int) -> float:
    """The CPU seconds that the tree of `root` has used so far, with processes that have ended. The system adds the
    time of an ended process to its parent when the parent waits for it, as Spark's Python daemon does."""
    total = 0
    for pid in tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


class PeakMemory:
    """Measures the peak of the memory of a process tree, in total and by kind of process, until it is closed.

    If several processes share a page of memory, as forked Python workers do, each process counts an equal part of
    the page. So the sum is the memory that a container would be charged for. `root`: the root of the tree; this
    process if None. `without`: the root of a tree that does not count.
    """

    def __init__(self, without: int | None = None, root: int | None = None) -> None:
        self._without = without
        self._root = os.getpid() if root is None else root
        self._closed = threading.Event()
        self.megabytes = {"driver": 0.0, "jvm": 0.0, "python workers": 0.0}
        self.together = 0.0
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(MEMORY_LOOK_SECONDS):
            looked = self._look()
            self.together = max(self.together, sum(looked.values()))
            for kind, now in looked.items():
                self.megabytes[kind] = max(self.megabytes[kind], now)

    def _look(self) -> dict[str, float]:
        excluded = set() if self._without is None else set(tree(self._without))
        found = dict.fromkeys(self.megabytes, 0.0)
        for pid in tree(self._root):
            if pid in excluded:
                continue
            try:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                command = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
            share = next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
            kind = "driver" if pid == self._root else "jvm" if command == "java" else "python workers"
            found[kind] += share * 1024 / BYTES_OF_MEGABYTE
        return found
