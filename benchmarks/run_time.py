"""The cost of a run that reads a stream."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

MB = 1_000_000


@dataclass(frozen=True)
class Cost:
    """The cost of a run. `records`: the number of user records. `bytes`: the size of their payloads. `cpu`: the CPU
    seconds of all processes that were involved."""

    records: int
    bytes: int
    seconds: float
    cpu: float

    @property
    def mb_per_second(self) -> float:
        return self.bytes / MB / self.seconds

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds

    @property
    def records_per_cpu(self) -> float:
        return self.records / self.cpu

    @property
    def cpu_per_gb(self) -> float:
        return self.cpu / (self.bytes / (1000 * MB))


def typical(runs: Sequence[Cost]) -> Cost:
    """The typical cost of several equal runs. The time is that of the fastest run, because the other work of the
    machine only makes runs slower. The CPU is the median, because the system counts the CPU of a process in
    hundredths of a second, so that the lowest value can be too low."""
    return replace(min(runs, key=lambda run: run.seconds), cpu=median(run.cpu for run in runs))
