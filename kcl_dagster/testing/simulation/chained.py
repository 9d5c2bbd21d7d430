"""Applications whose workers decide their batches in chains: how their sink is, and what goes wrong there.

Drawn last and from randomness of its own, as incidents are.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final

from kcl_dagster.tables.attributes import CHAIN
from kcl_dagster.testing.simulation.faults import Fault, FaultKind

if TYPE_CHECKING:
    from kcl_dagster.testing.simulation.scenario import Scenario

FIRST_NUMBER: Final = 24_000  # of the faults
# What a call of the store is about, for faults that choose a call.
MAKES_ENTRY: Final = "makes an entry"
PLANS_COMMIT: Final = "plans a commit"
PUBLISHES: Final = "publishes a file"
COMMITS: Final = "commits to the table"
DELETES: Final = "deletes files"
TABLE_SHARE: Final = 0.5
# Seconds between two commits, before stretching.
COMMIT_SECONDS: Final = (10.0, 30.0)
TASKS: Final = (1, 2, 3)
# Kinds of which each strikes the way to the store.
_WAY: Final = (
    FaultKind.THROTTLED,
    FaultKind.BROKEN,
    FaultKind.UNREACHABLE,
    FaultKind.REQUEST_LOST,
    FaultKind.ANSWER_LOST,
    FaultKind.ANSWER_LOST,
    FaultKind.LATE,
    FaultKind.LATE,
    FaultKind.CUT_OFF,
    FaultKind.DRIPS,
    FaultKind.CUT,
)
_PROCESS: Final = (FaultKind.PAUSE_AT_CALL, FaultKind.PAUSE_AFTER_CALL, FaultKind.KILL_AT_CALL)
_FOLDER_CALLS: Final = (MAKES_ENTRY, MAKES_ENTRY, MAKES_ENTRY, PUBLISHES, PUBLISHES, DELETES, CHAIN)
_TABLE_CALLS: Final = (MAKES_ENTRY, MAKES_ENTRY, PLANS_COMMIT, COMMITS, COMMITS, DELETES, CHAIN)


@dataclass(frozen=True, slots=True)
class Chained:
    """Batches are decided in chains. `is_table`: the sink is a table, with so many `commit_seconds` between two
    commits; otherwise it is a folder. `tasks`: of the executors, for each batch."""

    is_table: bool
    commit_seconds: float
    tasks: int


def with_chains(random: Random, scenario: "Scenario") -> "Scenario":
    """The scenario with a sink in chains, and with what goes wrong there."""
    chained = Chained(
        is_table=random.random() < TABLE_SHARE,
        commit_seconds=scenario.stretch * random.choice(COMMIT_SECONDS),
        tasks=random.choice(TASKS),
    )
    calls = _TABLE_CALLS if chained.is_table else _FOLDER_CALLS
    lease = scenario.application.timings.lease_duration
    faults = []
    for number in range(random.choice([0, 4, 10])):
        fault = Fault(
            id=FIRST_NUMBER + number,
            kind=random.choice(
                [FaultKind.PAUSE_AT_CALL, FaultKind.PAUSE_AFTER_CALL, FaultKind.KILL_AT_CALL, *_WAY]
            ),
            at=scenario.active * random.uniform(0.05, 0.9),
            target="worker",
            number=random.randrange(8),
        )
        if fault.kind in _WAY:
            way = replace(
                fault,
                target=random.choice(["worker", "any"]),
                service="s3",
                seconds=lease * random.choice([0.2, 0.8, 2.0, 5.0]),
                share=1.0 if fault.kind is FaultKind.CUT else random.choice([0.05, 0.3, 1.0]),
            )
            faults.append(replace(way, target="worker") if fault.kind is FaultKind.CUT else way)
        elif fault.kind is FaultKind.KILL_AT_CALL:
            faults.append(replace(fault, operation=random.choice(calls), seconds=float(random.randrange(4))))
        else:
            seconds = lease * random.choice([0.9, 1.5, 1.5, 4.0, 20.0])
            faults.append(replace(fault, operation=random.choice(calls), seconds=seconds))
    ordered = sorted([*scenario.faults, *faults], key=lambda one: (one.at, one.id))
    return replace(scenario, chained=chained, faults=tuple(ordered))
