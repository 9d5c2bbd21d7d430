"""What processes use: CPU and memory of whole process trees, as /proc tells it."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path

MEMORY_LOOK_SECONDS = 0.2
KILOBYTES = 1000  # per MB; /proc counts in units of 1024 bytes


def tree(root: int) -> list[int]:
    """`root` and all processes below it."""
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
    """Seconds of CPU that each process of the tree of `root` has had, without the tree of `without`."""
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
    """What the processes that live at the end had meanwhile. One that ended counts nothing: Spark ends Python
    workers that had nothing to do, and nobody is told what they had used."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


class PeakMemory:
    """Watches the resident memory of this process's tree, by kind of process, until it is closed.

    The sum over all processes of a kind at one moment, so pages that forked Python workers share count in each.
    """

    def __init__(self, without: int) -> None:
        self._without = without
        self._closed = threading.Event()
        self.megabytes = {"driver": 0.0, "jvm": 0.0, "python workers": 0.0}
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(MEMORY_LOOK_SECONDS):
            for kind, now in self._look().items():
                self.megabytes[kind] = max(self.megabytes[kind], now)

    def _look(self) -> dict[str, float]:
        excluded, found = set(tree(self._without)), dict.fromkeys(self.megabytes, 0.0)
        for pid in tree(os.getpid()):
            if pid in excluded:
                continue
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                command = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
            resident = next((int(s.split()[1]) for s in status.splitlines() if s.startswith("VmRSS")), 0)
            kind = "driver" if pid == os.getpid() else "jvm" if command == "java" else "python workers"
            found[kind] += resident / KILOBYTES
        return found
