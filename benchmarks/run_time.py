"""What a run over a stream took."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

MB = 1_000_000


@dataclass(frozen=True)
class Cost:
    """`records` are user records, `bytes` their payload, `cpu` seconds of all processes that had a part in it."""

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
    """Of several runs of the same: the time of the quickest, as the machine has other things to do, and the CPU of
    the middle one, as it is counted in hundredths of a second for each process, which is coarse."""
    return replace(min(runs, key=lambda run: run.seconds), cpu=median(run.cpu for run in runs))
