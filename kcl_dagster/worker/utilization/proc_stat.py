"""The CPU use of the whole machine, from the first line of /proc/stat.

By the KCL's definition, waiting for I/O counts as busy, and interrupts and stolen time are ignored.
"""

from dataclasses import dataclass

from kcl_dagster.worker.utilization.probe import FULL, ReadText, Unmeasurable, read_file

PATH = "/proc/stat"
_FIELDS = 5  # user, nice, system, idle, iowait


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Clock ticks since the machine started."""

    total: int
    idle: int


def parse(text: str) -> CpuTimes:
    """Parse the file. Raises Unmeasurable."""
    words = text.split("\n", 1)[0].split()
    try:
        if words[0] != "cpu":
            raise ValueError(words[0])
        user, nice, system, idle, iowait = (int(word) for word in words[1 : _FIELDS + 1])
    except (IndexError, ValueError) as error:
        raise Unmeasurable(f"{PATH} begins with {words[:6]}") from error
    return CpuTimes(user + nice + system + idle + iowait, idle)


def percent(before: CpuTimes, now: CpuTimes) -> float:
    total, idle = abs(now.total - before.total), abs(now.idle - before.idle)
    if total == 0 or total < idle:  # iowait can go backwards
        return 0.0
    return (total - idle) / total * FULL


class ProcStatProbe:
    def __init__(self, read: ReadText = read_file) -> None:
        self._read = read
        self._last: CpuTimes | None = None

    def percent(self) -> float:
        try:
            now = parse(self._read(PATH))
        except OSError as error:
            raise Unmeasurable(str(error)) from error
        before, self._last = self._last, now
        return 0.0 if before is None else percent(before, now)
