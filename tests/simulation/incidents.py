"""Incidents: what platforms, operators and user code do to a fleet, beside the faults of machines and services.

They are drawn last and from randomness of their own, so a seed has the same other faults with and without them.
Their numbers begin at FIRST.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

from kcl_dagster.application import Position
from kcl_dagster.model.lease_durations import LONGEST_BELIEVED
from kcl_dagster.tables.attributes import PENDING
from tests.simulation.consumer import Change
from tests.simulation.faults import Fault, FaultKind

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

FIRST: Final = 3000
SHARE: Final = 0.6
LONG_SHARE: Final = 0.3
DEPLOYS_SHARE: Final = 0.25
PAUSES_SHARE: Final = 0.2
STALLS_SHARE: Final = 0.3
DELAYS_SHARE: Final = 0.4
PARTIAL_SHARE: Final = 0.3
DURATIONS_SHARE: Final = 0.3
LENGTHENED_SHARE: Final = 0.25
# Before stretching. By the long ones, leases are renewed each 15.8 or 31.6 s with three renewals per duration, and
# each 9.3 or 18.6 s with five: in most cases more rarely than a short lease lasts.
SHORT_LEASE: Final = 10.0
LONG_LEASES: Final = (45.0, 90.0)
# Before stretching. A pod may wait for its node; Spark takes 8 s on a good machine.
POD_SECONDS: Final = (0.0, 0.0, 5.0, 45.0)
SPARK_SECONDS: Final = (0.0, 8.0, 30.0, 90.0)
# What a paused call is about; the others name an attribute that the call is about to write.
CREATES_LEASE: Final = "creates a lease"
RELEASES_LOCK: Final = "releases the leader lock"
DAY_SECONDS: Final = 24 * 3600
HOUR_SECONDS: Final = 3600
QUIET_SECONDS: Final = 12 * 3600
MOST_WORKERS: Final = 4
SLOW_WRITES: Final = 8  # one after the other, of the longest, while calls are slow
# A role without these rights may lead, and its leader can do nothing, or not everything.
RIGHTS: Final = ("scan", "scan", "scan", "transact_write_items", "update_item", "put_item")

_Draw = Callable[[Random, "Scenario", int], tuple["Scenario", list[Fault]]]


def with_incidents(random: Random, scenario: "Scenario") -> "Scenario":
    """The scenario with a few incidents, or as it is."""
    if random.random() >= SHARE:
        return scenario
    scenario = replace(
        scenario,
        pod_seconds=scenario.stretch * random.choice(POD_SECONDS),
        spark_seconds=scenario.stretch * random.choice(SPARK_SECONDS),
    )
    faults = list(scenario.faults)
    for _ in range(random.choice([1, 2, 4])):
        draw = random.choice(_INCIDENTS)
        scenario, more = draw(random, scenario, FIRST + len(faults))
        faults += more
    return replace(scenario, faults=tuple(sorted(faults, key=lambda fault: (fault.at, fault.id))))


def with_long_incidents(random: Random, scenario: "Scenario") -> "Scenario":
    """The scenario with one incident that lasts, or as it is. Drawn after all others, so that these stay."""
    if scenario.java or scenario.application.policy.name == "kcl" or random.random() >= LONG_SHARE:
        return scenario
    scenario, more = random.choice(_LONG)(random, scenario, 2 * FIRST)
    faults = sorted([*scenario.faults, *more], key=lambda fault: (fault.at, fault.id))
    return replace(scenario, faults=tuple(faults))


def with_deploys(random: Random, scenario: "Scenario") -> "Scenario":
    """The scenario with some deploys of the consumer's code, or as it is. Drawn after all other incidents.

    Before each deploy the sink stores batches and raises an error, so that the next version repeats batches that
    the former one has stored. The last deploy mends what the others have broken.
    """
    if scenario.java or random.random() >= DEPLOYS_SHARE:
        return scenario
    sound = [change for change in Change if change.is_sound]
    count = random.choice([1, 2, 3])
    faults = list(scenario.faults)
    for place in range(count):
        changes = sound if place == count - 1 else list(Change)
        at = scenario.active * (random.uniform(0.1, 0.8) + place) / count
        lies = _lease(scenario) * random.choice([0.3, 1.0])
        number = 3 * FIRST + 2 * place
        faults += [
            Fault(id=number, kind=FaultKind.SINK_LIES, at=max(0.0, at - lies), target="", seconds=lies * 1.5),
            Fault(
                id=number + 1,
                kind=FaultKind.DEPLOYED,
                at=at,
                target="",
                number=list(Change).index(random.choice(changes)),
                seconds=_lease(scenario) * random.choice([0.0, 0.0, 0.3]),
            ),
        ]
    return replace(scenario, faults=tuple(sorted(faults, key=lambda fault: (fault.at, fault.id))))


def with_pauses(random: Random, scenario: "Scenario") -> "Scenario":
    """The scenario with some workers that pause between the pin of a batch and its write, for longer than a lease
    is theirs, or as it is. Drawn after everything else."""
    if random.random() >= PAUSES_SHARE:
        return scenario
    pauses = [
        Fault(
            id=4 * FIRST + place,
            kind=FaultKind.PAUSE_AFTER_CALL,
            at=_at(random, scenario),
            target="worker",
            number=4 * random.randrange(3),
            seconds=_lease(scenario) * random.uniform(1.1, 2.5),
            operation=PENDING,
        )
        for place in range(random.choice([1, 2, 4]))
    ]
    return replace(scenario, faults=tuple(sorted([*scenario.faults, *pauses], key=lambda one: (one.at, one.id))))


def with_stalls(random: Random, scenario: "Scenario") -> "Scenario":
    """The scenario with some workers that are suspended until their leases have just expired, and go on while their
    successors begin. Drawn after everything else."""
    if random.random() >= STALLS_SHARE:
        return scenario
    stalls = [
        Fault(
            id=5 * FIRST + place,
            kind=FaultKind.SUSPEND,
            at=_at(random, scenario),
            target="worker",
            number=random.randrange(8),
            seconds=_lease(scenario) * random.uniform(1.0, 2.0),
        )
        for place in range(random.choice([2, 4, 8]))
    ]
    return replace(scenario, faults=tuple(sorted([*scenario.faults, *stalls], key=lambda one: (one.at, one.id))))


def with_delays(random: Random, scenario: "Scenario") -> "Scenario":
    """The scenario with a worker that does not get on while its leases move or are written, or with batches that
    are begun and not finished when an operator resets the application; or as it is. Drawn at the very end. What
    needs an undisturbed fleet comes after all other faults."""
    if scenario.java or random.random() >= DELAYS_SHARE:
        return scenario
    draw = random.choice([_slow_writes, _returning_leases, _reset_of_begun_batches])
    scenario, faults = draw(random, scenario, 6 * FIRST)
    ordered = sorted([*scenario.faults, *faults], key=lambda fault: (fault.at, fault.id))
    return replace(scenario, faults=tuple(ordered))


def with_partial_answers(random: Random, scenario: "Scenario") -> "Scenario":
    """The scenario with some times in which answers arrive in part or byte by byte, or as it is. Drawn after
    everything else."""
    if random.random() >= PARTIAL_SHARE:
        return scenario
    partial = [
        Fault(
            id=7 * FIRST + place,
            kind=random.choice([FaultKind.CUT_OFF, FaultKind.DRIPS]),
            at=_at(random, scenario),
            target=random.choice(["worker", "daemon", "any"]),
            number=random.randrange(8),
            seconds=_lease(scenario) * random.choice([0.5, 2.0, 5.0]),
            share=random.choice([0.05, 0.3]),
            service=random.choice(["dynamodb", "dynamodb", "kinesis"]),
        )
        for place in range(random.choice([1, 2, 4]))
    ]
    return replace(scenario, faults=tuple(sorted([*scenario.faults, *partial], key=lambda one: (one.at, one.id))))


def with_lease_durations(random: Random, scenario: "Scenario") -> "Scenario":
    """The scenario with another lease duration that is deployed while workers run and before there is no leader for
    a while, or as it is. Drawn after everything else, and comes after all other faults. Java workers need the
    former duration. Leaders and workers believe at most an hour of what another worker's row says, so longer
    durations are not changed."""
    if scenario.java or scenario.schedule is not None or random.random() >= DURATIONS_SHARE:
        return scenario
    short, long = (scenario.stretch * seconds for seconds in (SHORT_LEASE, random.choice(LONG_LEASES)))
    if long > LONGEST_BELIEVED:
        return scenario
    application = scenario.application
    fleet = application.fleet.model_copy(
        update={"min_workers": 2, "max_workers": max(3, application.fleet.max_workers)}
    )
    timings = application.timings.model_copy(update={"lease_duration": long})
    application = application.model_copy(update={"fleet": fleet, "timings": timings})
    changed = replace(
        scenario,
        application=application,
        lease_durations=(short, long) if random.random() < LENGTHENED_SHARE else (long, short),
    )
    fault = Fault(
        id=8 * FIRST,
        kind=FaultKind.LEASE_DURATION,
        at=scenario.active + 2 * long,
        target="",
        number=random.randrange(8),
        seconds=timings.leaderless + 4 * long,
    )
    ends = fault.at + changed.replacing_seconds + fault.seconds
    return replace(changed, faults=(*scenario.faults, fault), active=ends + long)


def _slow_writes(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    """Writes of a worker to DynamoDB are long under way, some for longer than a lease is its own, as where
    credentials are fetched anew or a name is resolved. Each thread of the worker waits for its own writes."""
    seconds = min(_lease(scenario) * 1.5 * SLOW_WRITES, scenario.active * 0.7)
    slow = Fault(
        id=number,
        kind=FaultKind.WRITES_SLOW,
        target="any",
        at=random.uniform(scenario.active * 0.05, scenario.active * 0.95 - seconds),
        number=random.randrange(8),
        seconds=seconds,
        share=random.choice([0.2, 0.4]),
        service="dynamodb",
        operation="update_item",
    )
    return scenario, [slow]


def _returning_leases(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    """User code hangs in one of several workers, which is cut off for longer than its leases are its own. The
    workers that take them read on and end, so the leases return before the code does."""
    fleet = scenario.application.fleet
    fleet = fleet.model_copy(update={"min_workers": 2, "max_workers": max(2, fleet.max_workers)})
    lease = _lease(scenario)
    at, seconds = scenario.active + 2 * lease, 8 * lease
    fault = Fault(id=number, kind=FaultKind.CODE_HANGS_APART, at=at, number=random.randrange(8), seconds=seconds)
    application = scenario.application.model_copy(update={"fleet": fleet})
    return replace(scenario, application=application, active=at + 1.5 * seconds), [fault]


def _reset_of_begun_batches(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    """The sink refuses batches, or stores them and raises an error, while an operator resets the application: the
    leases that are reset have a pin."""
    if any(fault.kind is FaultKind.TABLE_LOST for fault in scenario.faults):
        return scenario, []
    lease = _lease(scenario)
    at = scenario.active + 2 * lease
    scenario, resets = _reset(random, scenario, number)
    if not resets:
        return scenario, []
    refuses = Fault(
        id=number + 1,
        kind=random.choice([FaultKind.SINK_REFUSES, FaultKind.SINK_LIES]),
        at=at - lease,
        target="any",
        seconds=6 * lease,
    )
    reset = replace(resets[0], at=at, seconds=6 * lease)
    return replace(scenario, active=at + 7 * lease), [refuses, reset]


def _at(random: Random, scenario: "Scenario", latest: float = 0.9) -> float:
    return scenario.active * random.uniform(0.05, latest)


def _lease(scenario: "Scenario") -> float:
    return scenario.application.timings.lease_duration


def _transaction_conflicts(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    fault = Fault(
        id=number,
        kind=FaultKind.TRANSACTION_CONFLICT,
        at=_at(random, scenario),
        target=random.choice(["any", "daemon", "worker"]),
        number=random.randrange(8),
        seconds=_lease(scenario) * random.choice([0.5, 2.0, 5.0]),
        share=random.choice([0.1, 0.5, 1.0]),
        service="dynamodb",
    )
    return scenario, [fault]


def _half_rights(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    """A leader that cannot work releases the lock. It pauses before it does, and another one takes the lock. First
    one deployment loses the right and later the other, because only the one that leads has a lock to release."""
    scenario = replace(scenario, deployments=2, daemons=1)
    faults: list[Fault] = []
    for deployment in random.sample(range(2), 2):
        denied = Fault(
            id=number + len(faults),
            kind=FaultKind.HALF_RIGHTS,
            at=scenario.active * random.uniform(0.1, 0.4) + scenario.active * 0.2 * len(faults),
            target="",
            number=deployment,
            seconds=_lease(scenario) * random.choice([5.0, 20.0]),
            service="dynamodb",
            operation=random.choice(RIGHTS),
        )
        paused = Fault(
            id=denied.id + 1,
            kind=FaultKind.PAUSE_AT_CALL,
            at=denied.at,
            target="daemon",
            number=deployment,
            seconds=scenario.application.timings.leader_lock * random.choice([0.5, 1.5, 4.0]),
            operation=RELEASES_LOCK,
        )
        faults += [denied, paused]
    return scenario, faults


def _first_leases(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    """A leader pauses while it makes the first leases, for so long that another one makes them, and that those of
    closed shards are read, finished and deleted. The other one pauses for a moment, in case it comes first. Each
    stream began with one shard, so that the first lease is of a closed shard with records."""
    if scenario.application.streams[0].start.position is not Position.TRIM_HORIZON:
        return scenario, []  # it reads no closed shards
    if scenario.deployments * scenario.daemons == 1:
        scenario = replace(scenario, daemons=2)
    history = scenario.history or random.choice([2, 4])
    fault = Fault(
        id=number,
        kind=FaultKind.PAUSE_AT_CALL,
        at=0.0,
        target="daemon",
        number=4 * random.choice([0, 0, 1, 2]) + 2 * random.randrange(2),
        seconds=scenario.active * random.choice([0.6, 0.8]),
        operation=CREATES_LEASE,
    )
    other = replace(fault, id=number + 1, number=fault.number + 1, seconds=_lease(scenario) * 0.5)
    shards = (1,) * len(scenario.shards)
    return replace(scenario, history=history, shards=shards, counts=False), [fault, other]


def _code(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    hangs = random.random() < 0.5
    fault = Fault(
        id=number,
        kind=FaultKind.CODE_HANGS if hangs else FaultKind.CODE_FAILS,
        at=_at(random, scenario),
        target="worker" if hangs else "",
        number=random.randrange(8),
        seconds=_lease(scenario) * random.choice([2.0, 5.0, 15.0] if hangs else [0.5, 3.0]),
        share=random.choice([0.2, 1.0]),
    )
    return scenario, [fault]


def _storage(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    kinds = (FaultKind.STORAGE_SLOW, FaultKind.STORAGE_HANGS, FaultKind.STORAGE_RAISES)
    fault = Fault(
        id=number,
        kind=random.choice(kinds),
        at=_at(random, scenario),
        target="",
        number=random.randrange(scenario.deployments),
        seconds=_lease(scenario) * random.choice([0.8, 3.0, 10.0]),
    )
    return scenario, [fault]


def _fleet_drained(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    return scenario, [Fault(id=number, kind=FaultKind.FLEET_DRAINED, at=_at(random, scenario), target="")]


def _reset(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    """Only where all records are wanted from the beginning, and where our leader alone decides."""
    start = scenario.application.streams[0].start.position
    if start is not Position.TRIM_HORIZON or scenario.java or scenario.application.policy.name == "kcl":
        return scenario, []
    fault = Fault(
        id=number,
        kind=FaultKind.RESET,
        at=_at(random, scenario, 0.6),
        target="",
        seconds=scenario.active * 0.3,
    )
    return scenario, [fault]


def _start_expires(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    """A stream is quiet for half a day. Records come in while the sink refuses them, so their batch is begun, and
    the fleet is down until the record before it leaves the stream. Its own records are there, and have to be
    read."""
    if any(fault.kind is FaultKind.OUTAGE for fault in scenario.faults):
        return scenario, []
    if scenario.application.streams[0].start.position is not Position.TRIM_HORIZON:
        return scenario, []
    lease, at = _lease(scenario), scenario.active * 0.97
    settled, awake = at + 4 * lease, 6 * lease
    woken = settled + QUIET_SECONDS
    again = woken + awake
    down = DAY_SECONDS - QUIET_SECONDS + HOUR_SECONDS

    def fault(kind: FaultKind, at: float, until: float) -> Fault:
        return Fault(id=number, kind=kind, at=at, target="", seconds=until - at, share=1.0)

    faults = [
        fault(FaultKind.QUIET, at, woken),
        fault(FaultKind.OUTAGE, settled, woken),
        fault(FaultKind.SINK_REFUSES, woken - 1.0, again + down),
        fault(FaultKind.QUIET, again - awake * random.uniform(0.2, 0.4), again + down),
        fault(FaultKind.OUTAGE, again, again + down),
    ]
    numbered = [replace(one, id=number + place) for place, one in enumerate(faults)]
    return replace(scenario, retention_hours=DAY_SECONDS // HOUR_SECONDS, active=again + down + 4 * lease), numbered


def _late_children(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    """A worker pauses when it is about to make the leases of the children, for so long that others finish the
    shard, read the children to their end, and delete their leases."""
    lease, at = _lease(scenario), scenario.active * random.uniform(0.1, 0.45)
    sleep = Fault(
        id=number,
        kind=FaultKind.PAUSE_AT_CALL,
        at=at - 0.1,
        target="worker",
        seconds=scenario.active * random.uniform(0.3, 0.45),
        operation=CREATES_LEASE,
    )
    workers = range(MOST_WORKERS)  # only one of them owns the shard
    asleep = [replace(sleep, id=number + place, number=place) for place in workers]
    # The others are not to pause when they have taken the shard.
    awake = [replace(one, id=one.id + MOST_WORKERS, at=at + 0.9 * lease, seconds=0.0) for one in asleep]
    split = Fault(id=number + 2 * MOST_WORKERS, kind=FaultKind.DOUBLE_SPLIT, at=at, target="")
    return replace(scenario, counts=False), [*asleep, split, *awake]


def _table_lost(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    """Only where all records are wanted from the beginning, and no operator works on the table."""
    start = scenario.application.streams[0].start.position
    if start is not Position.TRIM_HORIZON or any(fault.kind is FaultKind.RESET for fault in scenario.faults):
        return scenario, []
    return scenario, [Fault(id=number, kind=FaultKind.TABLE_LOST, at=_at(random, scenario, 0.8), target="")]


def _foreign_queue(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    """One of two deployments has a queue that does not move for most of the run."""
    fault = Fault(
        id=number,
        kind=FaultKind.FOREIGN_QUEUE,
        at=_at(random, scenario, 0.3),
        target="",
        number=random.randrange(2),
        seconds=scenario.active * random.choice([0.3, 0.6]),
    )
    return replace(scenario, deployments=2, daemons=1), [fault]


def _rights_missing(random: Random, scenario: "Scenario", number: int) -> tuple["Scenario", list[Fault]]:
    """The leaders of a deployment lack a right for most of the run."""
    fault = Fault(
        id=number,
        kind=FaultKind.HALF_RIGHTS,
        at=_at(random, scenario, 0.3),
        target="",
        number=random.randrange(scenario.deployments),
        seconds=scenario.active * random.choice([0.3, 0.6]),
        service="dynamodb",
        operation=random.choice(RIGHTS),
    )
    return scenario, [fault]


_LONG: Final[tuple[_Draw, ...]] = (
    _start_expires,
    _start_expires,
    _late_children,
    _late_children,
    _table_lost,
    _foreign_queue,
    _rights_missing,
)
_INCIDENTS: Final[tuple[_Draw, ...]] = (
    _transaction_conflicts,
    _half_rights,
    _first_leases,
    _first_leases,
    _code,
    _code,
    _fleet_drained,
    _reset,
    _storage,
    _storage,
)
