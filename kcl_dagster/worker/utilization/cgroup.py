"""The CPU use of a container, from its control group, version 1 or 2.

The files are read again for every sample, so a resized container is measured against its new limit.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kcl_dagster.worker.utilization.probe import ReadText, Unmeasurable, busy_percent, read_file

ROOT = "/sys/fs/cgroup"
_NANOSECONDS = 1e9
_MICROSECONDS = 1e6
_UNLIMITED_V1 = -1
_UNLIMITED_V2 = "max"


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU seconds used since the container started, and how many cores it can use."""

    seconds: float
    cores: float


def cpus_in(cpuset: str) -> int:
    """The number of CPUs in a list such as `0-4,6,8-10`."""
    count = 0
    for part in cpuset.strip().split(","):
        first, dash, last = part.partition("-")
        count += int(last) - int(first) + 1 if dash else len([int(first)])
    return count


def parse_v1(usage: str, quota: str, period: str, cpuset: str) -> CpuUse:
    """Parse `cpuacct.usage`, `cpu.cfs_quota_us`, `cpu.cfs_period_us` and `cpuset.effective_cpus`."""
    limited = int(quota) != _UNLIMITED_V1
    return CpuUse(int(usage) / _NANOSECONDS, int(quota) / int(period) if limited else cpus_in(cpuset))


def parse_v2(cpu_stat: str, cpu_max: str, cpuset: str) -> CpuUse:
    name, usage = cpu_stat.split("\n", 1)[0].split()
    if name != "usage_usec":
        raise ValueError(name)
    quota, period = cpu_max.split()
    limited = quota != _UNLIMITED_V2
    return CpuUse(int(usage) / _MICROSECONDS, int(quota) / int(period) if limited else cpus_in(cpuset))


def percent(before: CpuUse, now: CpuUse, elapsed: float) -> float:
    """The CPU use in percent of the cores that the container can use. `elapsed`: seconds between the two readings.
    Raises Unmeasurable."""
    if elapsed <= 0:
        raise Unmeasurable("no time has passed since the last sample")
    return busy_percent((now.seconds - before.seconds) / elapsed, now.cores)


def read_v1(read: ReadText) -> CpuUse:
    return parse_v1(
        read(f"{ROOT}/cpu/cpuacct.usage"),
        read(f"{ROOT}/cpu/cpu.cfs_quota_us"),
        read(f"{ROOT}/cpu/cpu.cfs_period_us"),
        read(f"{ROOT}/cpuset/cpuset.effective_cpus"),
    )


def read_v2(read: ReadText) -> CpuUse:
    return parse_v2(read(f"{ROOT}/cpu.stat"), read(f"{ROOT}/cpu.max"), read(f"{ROOT}/cpuset.cpus.effective"))


class CgroupProbe:
    """`read_use`: `read_v1` or `read_v2`. `monotonic`: returns seconds."""

    def __init__(
        self,
        read_use: Callable[[ReadText], CpuUse],
        monotonic: Callable[[], float],
        read: ReadText = read_file,
    ) -> None:
        self._read_use = read_use
        self._monotonic = monotonic
        self._read = read
        self._last: tuple[CpuUse, float] | None = None

    def percent(self) -> float:
        try:
            now, at = self._read_use(self._read), self._monotonic()
        except (OSError, ValueError, ZeroDivisionError) as error:
            raise Unmeasurable(f"control group: {error}") from error
        before, self._last = self._last, (now, at)
        return 0.0 if before is None else percent(before[0], now, at - before[1])
