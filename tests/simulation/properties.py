"""What must hold, by the names of the design: S1 to S21 and L1 to L10."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

MEANING: Final = {
    "S1": "no record is lost",
    "S2": "order is kept within a shard",
    "S3": "only the owner writes a lease",
    "S4": "checkpoints never go back",
    "S5": "counters only grow",
    "S6": "parents are read first",
    "S7": "the hash keys are covered",
    "S8": "nothing is taken without consent before its time",
    "S9": "ticks and memories may be lost or repeated",
    "S10": "two processes of one slot cannot both write",
    "S11": "every row can be read by the KCL, and rows of others stay as they are",
    "S12": "an exactly-once sink holds each record once",
    "S13": "no number and no file name stands for two contents",
    "S14": "a batch is called lost only if records of it left the stream",
    "S16": "what arrived before the moment through which the application is complete is stored",
    "S17": "the rows that a lease counts are those that are stored",
    "S18": "an entry names only leases whose rows name its chain",
    "S19": "only what was decided becomes visible, and once",
    "S20": "no checkpoint runs ahead of what readers see",
    "S21": "what is replayed is visible once",
    "L1": "every unfinished lease is owned",
    "L2": "every handoff ends",
    "L3": "the lag goes to zero",
    "L4": "the leases are balanced and stay where they are",
    "L5": "a failing stage does not stop the others",
    "L6": "a dead leader stops no worker",
    "L7": "every shard is read, and again soon after a launch or a handoff",
    "L8": "no thread that keeps leases waits for Dagster",
    "L9": "events and log lines per hour are bounded",
    "L10": "entries, chains and staged files are removed when nothing needs them",
    "X1": "no step fails with an unexpected error",
}


@dataclass(frozen=True, slots=True)
class Violation:
    name: str
    at: float
    what: str

    def __str__(self) -> str:
        return f"{self.name} ({MEANING[self.name]}) at {self.at:.3f}: {self.what}"


@dataclass(slots=True)
class Violations:
    """All violations that were found. The run ends with the first."""

    now: Callable[[], float]
    found: list[Violation] = field(default_factory=list)

    def add(self, name: str, what: str) -> None:
        self.found.append(Violation(name, self.now(), what))
