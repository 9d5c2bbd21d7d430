"""Applications whose workers decide their batches in chains: how their sink is, and what goes wrong there.

Drawn last and from randomness of its own, as incidents are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, Final

from kcl_dagster.chains.entry import FIRST
from kcl_dagster.tables.attributes import CHAIN
from tests.simulation.faults import Fault, FaultKind

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

FIRST_NUMBER: Final = 24_000  # of the faults
SECOND: Final = "second"
"""The name of the second destination of a sink that has two."""

ROOTS: Final[Mapping[str, str]] = {FIRST: "", SECOND: "second/"}
"""Where the destinations are in the bucket."""

# What a call of the store is about, for faults that choose a call.
MAKES_ENTRY: Final = "makes an entry"
PLANS_COMMIT: Final = "plans a commit"
PUBLISHES: Final = "publishes a file"
COMMITS: Final = "commits to the table"
DELETES: Final = "deletes files"
# What an operator does, see `Remade`.
REMAKES: Final = "makes a table anew"
TABLE_SHARE: Final = 0.5
# Seconds between two commits, before stretching.
COMMIT_SECONDS: Final = (10.0, 30.0)
TASKS: Final = (1, 2, 3)
# Kinds of which each strikes the way to the store.
WAYS: Final = (
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
    FaultKind.DENIED,
)
_DENIABLE: Final = ("put_object", "get_object", "copy_object", "delete_objects", "list_objects_v2")
UPGRADED_SHARE: Final = 0.3
LATE_SHARE: Final = 0.4
# A pause that may be longer than chains are kept which no lease names. See docs/track-record.md for tables.
_LONG_SECONDS: Final = 40_000.0
_DAY_SECONDS: Final = (80_000.0, 100_000.0)
_PROCESS: Final = (FaultKind.PAUSE_AT_CALL, FaultKind.PAUSE_AFTER_CALL, FaultKind.KILL_AT_CALL)
# Of the applications with two destinations. In some of them, an operator makes a destination anew.
REMADE_SHARE: Final = 0.6
# Faults that strike between the publications in two destinations, or the way to one of them.
_FAULTS_BETWEEN: Final = (0, 3, 6)
_FOLDER_CALLS: Final = (MAKES_ENTRY, MAKES_ENTRY, MAKES_ENTRY, PUBLISHES, PUBLISHES, DELETES, CHAIN)
_TABLE_CALLS: Final = (MAKES_ENTRY, MAKES_ENTRY, PLANS_COMMIT, COMMITS, COMMITS, DELETES, CHAIN)


class Remade(StrEnum):
    """What an operator makes anew, or removes, while no worker runs."""

    FIRST = "the first destination, with its chains and plans"
    SECOND = "the second destination"
    PLANS = "the plans beside a folder"


@dataclass(frozen=True, slots=True)
class Chained:
    """Batches are decided in chains. `is_table`: the sink is a table, with so many `commit_seconds` between two
    commits; otherwise it is a folder. `tasks`: of the executors, for each batch. `is_upgraded`: the first workers
    are of a former version, which decided batches in leases. `second`: whether the second destination of the sink
    is a table; None: there is only one."""

    is_table: bool
    commit_seconds: float
    tasks: int
    is_upgraded: bool = False
    second: bool | None = None

    @property
    def tables(self) -> dict[str, bool]:
        """Whether each destination is a table, by name."""
        return {FIRST: self.is_table} | ({} if self.second is None else {SECOND: self.second})


def _late_entries(random: Random, scenario: "Scenario") -> list[Fault]:
    """Requests to make an entry or a plan get no answer and arrive late, while workers leave and others come: what
    another request has made, and what was deleted since, may be made again."""
    lease = scenario.application.timings.lease_duration
    seconds = min(lease * random.choice([6.0, 12.0, 24.0]), scenario.active * 0.8)
    at = random.uniform(scenario.active * 0.05, scenario.active * 0.95 - seconds)
    late = Fault(
        id=FIRST_NUMBER + 200,
        kind=FaultKind.LATE,
        at=at,
        target="any",
        seconds=seconds,
        share=random.choice([0.3, 0.6]),
        service="s3",
        operation="put_object",
    )
    return [
        late,
        *(
            Fault(id=FIRST_NUMBER + 201 + place, kind=FaultKind.FLEET_DRAINED, at=at + place * 3 * lease, target="")
            for place in range(1, int(seconds / (3 * lease)) + 1)
        ),
    ]


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
                [FaultKind.PAUSE_AT_CALL, FaultKind.PAUSE_AFTER_CALL, FaultKind.KILL_AT_CALL, *WAYS]
            ),
            at=scenario.active * random.uniform(0.05, 0.9),
            target="worker",
            number=random.randrange(8),
        )
        if fault.kind in WAYS:
            way = replace(
                fault,
                target=random.choice(["worker", "any"]),
                service="s3",
                seconds=lease * random.choice([0.2, 0.8, 2.0, 5.0]),
                share=1.0 if fault.kind is FaultKind.CUT else random.choice([0.05, 0.3, 1.0]),
            )
            if fault.kind is FaultKind.CUT:
                way = replace(way, target="worker")
            elif fault.kind is FaultKind.DENIED:
                way = replace(way, operation=random.choice(_DENIABLE))
            faults.append(way)
        elif fault.kind is FaultKind.KILL_AT_CALL:
            faults.append(replace(fault, operation=random.choice(calls), seconds=float(random.randrange(4))))
        else:
            seconds = lease * random.choice([0.9, 1.5, 1.5, 4.0, 20.0])
            if seconds >= _LONG_SECONDS and not chained.is_table:
                seconds = random.uniform(*_DAY_SECONDS)
            faults.append(replace(fault, operation=random.choice(calls), seconds=seconds))
    if not scenario.java and random.random() < UPGRADED_SHARE:
        chained = replace(chained, is_upgraded=True)
        upgrade = Fault(
            id=FIRST_NUMBER + 100,
            kind=FaultKind.UPGRADED,
            at=scenario.active * random.uniform(0.1, 0.9),
            target="",
            seconds=lease * random.choice([0.0, 0.0, 0.3, 2.0]),
        )
        faults.append(upgrade)
    if random.random() < LATE_SHARE:
        faults += _late_entries(random, scenario)
    ordered = sorted([*scenario.faults, *faults], key=lambda one: (one.at, one.id))
    return replace(scenario, chained=chained, faults=tuple(ordered))


def with_two_destinations(random: Random, scenario: "Scenario") -> "Scenario":
    """The scenario with a second destination of the sink, and with what goes wrong between the two."""
    assert scenario.chained is not None
    chained = replace(scenario.chained, second=random.random() < TABLE_SHARE)
    operations = {
        operation
        for is_table in chained.tables.values()
        for operation in ((COMMITS, PLANS_COMMIT, "write_log") if is_table else (PUBLISHES, "copy_object"))
    }
    calls = sorted(operations & {COMMITS, PLANS_COMMIT, PUBLISHES})
    ways = sorted(operations & {"write_log", "copy_object"})
    lease = scenario.application.timings.lease_duration
    faults = [_shortened(fault) if any(chained.tables.values()) else fault for fault in scenario.faults]
    for number in range(random.choice(_FAULTS_BETWEEN)):
        fault = Fault(
            id=FIRST_NUMBER + 300 + number,
            kind=random.choice([*_PROCESS, FaultKind.BROKEN, FaultKind.DENIED, FaultKind.ANSWER_LOST]),
            at=scenario.active * random.uniform(0.05, 0.9),
            target="worker",
            number=random.randrange(8),
            operation=random.choice(calls),
        )
        if fault.kind is FaultKind.KILL_AT_CALL:
            fault = replace(fault, seconds=float(random.randrange(4)))
        elif fault.kind in _PROCESS:
            fault = replace(fault, seconds=lease * random.choice([0.9, 1.5, 4.0]))
        else:
            fault = replace(
                fault,
                target=random.choice(["worker", "any"]),
                service="s3",
                seconds=lease * random.choice([0.2, 0.8, 2.0]),
                share=random.choice([0.3, 0.6]),
                operation=random.choice(ways),
            )
        faults.append(fault)
    if random.random() < REMADE_SHARE and _can_stop(replace(scenario, chained=chained)):
        # No request may be under way any more when the operator works.
        faults = [fault for fault in faults if not (fault.kind is FaultKind.LATE and fault.service in ("", "s3"))]
        remade = Fault(
            id=FIRST_NUMBER + 400,
            kind=FaultKind.TABLE_REMADE,
            at=scenario.active * random.uniform(0.2, 0.7),
            target="",
            number=random.randrange(len(Remade)),
            seconds=scenario.active * 0.3,
            operation=REMAKES,
        )
        faults.append(remade)
    ordered = sorted(faults, key=lambda one: (one.at, one.id))
    return replace(scenario, chained=chained, faults=tuple(ordered))


def _can_stop(scenario: "Scenario") -> bool:
    """Whether there are tables, and an operator can stop all workers in an orderly way."""
    assert scenario.chained is not None
    is_foreign = bool(scenario.java) or scenario.application.policy.name == "kcl"
    return any(scenario.chained.tables.values()) and not (is_foreign or scenario.chained.is_upgraded)


def _shortened(fault: Fault) -> Fault:
    """No pause before an entry is made may be longer than a day where a table is. See docs/track-record.md."""
    is_too_long = fault.id >= FIRST_NUMBER and fault.kind in _PROCESS and fault.seconds >= min(_DAY_SECONDS)
    return replace(fault, seconds=_LONG_SECONDS) if is_too_long else fault
