"""What a seed means: the application, its surroundings, and everything that will go wrong.

All of it is drawn before the run begins, so a fault can be left out without changing the others: that is what
makes a failing run small.
"""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from kcl_dagster.application import (
    Application,
    BatchSettings,
    FleetSettings,
    PolicySettings,
    Position,
    StartAt,
    StreamSettings,
    TableSettings,
    Timings,
)
from kcl_dagster.tables.attributes import CHECKPOINT_OWNER, PENDING
from tests.simulation.chained import Chained, with_chains, with_two_destinations
from tests.simulation.faults import Fault, FaultKind
from tests.simulation.incidents import (
    with_delays,
    with_deploys,
    with_incidents,
    with_lease_durations,
    with_long_incidents,
    with_partial_answers,
    with_pauses,
    with_stalls,
)

APPLICATION: Final = "orders-app"
# A day without meaning, 2027-01-01T00:00:00Z.
EPOCH: Final = 1_798_761_600.0

# Every duration of a run is stretched by one of these. The protocol does not care; a stretched run covers more
# hours for the same work, an unstretched one has timeouts that matter next to its intervals.
STRETCHES: Final = (1, 20, 150)
ACTIVE_SECONDS: Final = 900.0  # of faults, before stretching
CALM_SECONDS: Final = 420.0  # of healing, before stretching
# Hours. Stretched runs last for days, and where it is not about expiry nothing is to be lost by waiting.
LONGEST_RETENTION: Final = 8760
SHORTEST_RETENTION: Final = 24
# Seeds with rarer troubles, and among the most stretched of them those that lose records.
FURTHER_SHARE: Final = 0.75
OUTAGE_SHARE: Final = 0.4
SHORTENED_SHARE: Final = 0.3
# Of the seeds whose application a Java fleet could serve as well, about half of all.
JAVA_SHARE: Final = 0.35
# Of the seeds without Java workers: fleets with `min_workers` 0.
RESTING_SHARE: Final = 0.15
# Of all seeds: those whose workers count nothing.
UNCOUNTED_SHARE: Final = 0.25
# Of the seeds without Java workers: those that a schedule of bounded runs reads, without a fleet.
# Earlier seeds remain what they were when they found something.
BOUNDED_SHARE: Final = 0.1
FIRST_BOUNDED_SEED: Final = 30_000
# Of these seeds, all workers decide their batches in chains, and of later ones some. Earlier seeds remain as above.
CHAINED_SEEDS: Final = range(40_000, 50_000)
FIRST_MIXED_SEED: Final = 100_000
CHAINED_SHARE: Final = 0.5
# Of these seeds, the sink of all applications has two destinations; of the later ones in chains, that of some.
TWO_DESTINATIONS_SEEDS: Final = range(42_000, 43_000)
TWO_DESTINATIONS_SHARE: Final = 0.3
# Of these seeds, some change the lease duration during the run.
FIRST_DURATIONS_SEED: Final = 60_000
# Of these seeds, some have tables of which a scan takes seconds. Only unstretched ones: the budget of a tick is not
# stretched, and a scan that is longer than it ends each tick.
FIRST_LONG_SCANS_SEED: Final = 70_000
LONG_SCANS_SHARE: Final = 0.5
FURTHER: Final = 1000
SLOWEST_START: Final = 30.0  # a run in the queue, and its start
MOST_CALLS_BEFORE_A_PAUSE: Final = 8  # a tick makes about as many


@dataclass(frozen=True, slots=True)
class JavaStint:
    """Java workers on the same tables, for a while. `alone`: ours are stopped meanwhile. `ends` None: they stay."""

    begins: float
    ends: float | None
    workers: int
    alone: bool
    variance: bool
    """How their leader balances: by utilization, or by number of leases."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A bounded run every `seconds`, unless the last one still goes on. `leads`: it leads meanwhile. Otherwise
    there are daemons, which launch nothing."""

    seconds: float
    leads: bool


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run. Equal scenarios are equal runs."""

    seed: int
    application: Application
    stretch: int
    shards: tuple[int, ...]
    """Of each stream, at the beginning."""

    deployments: int
    daemons: int
    """Of each deployment."""

    one_run_per_slot: bool
    """Whether the run queue is configured to hold a second run of a slot back."""

    watchdog: bool
    """Whether workers notice that their run is over."""

    monitor_seconds: float
    """How long Dagster takes to notice that a run's process is gone."""

    record_seconds: float
    """Between two records."""

    history: int
    """How often the streams were resharded before the application began."""

    legacy_tables: bool
    page_items: int
    staleness: float
    skew: float
    """How far wall clocks are off, at most."""

    retention_hours: int
    """How long the streams keep records."""

    active: float
    calm: float
    pod_seconds: float = 0.0
    """How long a run waits for its machine, at most."""

    spark_seconds: float = 0.0
    """From a worker's first heartbeat to its first batch."""

    counts: bool = True
    """Whether workers count what they store by windows. The lease of a closed shard that was counted is kept until
    its windows are declared, which is longer than most runs last."""

    faults: tuple[Fault, ...] = field(default=())
    java: tuple[JavaStint, ...] = field(default=())
    schedule: Schedule | None = None
    """Where set, bounded runs read the streams, and no fleet does."""

    chained: Chained | None = None
    """Where set, batches are decided in chains, and not in the leases."""

    lease_durations: tuple[float, float] | None = None
    """Where set, the application begins with the first lease duration, and the second is deployed during the run.
    `application` has the longer one, by which all patience is measured."""

    page_seconds: float = 0.0
    """How long each page of a scan takes on top of the way there and back, as in a large table."""

    def without(self, *kinds: FaultKind) -> "Scenario":
        """The same run without faults of these kinds."""
        return replace(self, faults=tuple(fault for fault in self.faults if fault.kind not in kinds))

    @property
    def asleep(self) -> float:
        """Seconds for which the whole fleet stands still: time in which nothing is simulated but the streams."""
        return sum(fault.seconds for fault in self.faults if fault.kind is FaultKind.OUTAGE)

    @property
    def start_seconds(self) -> float:
        """What a new worker may take on top of what Dagster takes, until it reads."""
        return self.pod_seconds + self.spark_seconds

    @property
    def replacing_seconds(self) -> float:
        """After which a worker that was asked to stop has a successor that reads."""
        timings = self.application.timings
        return timings.handoff_timeout + 4 * (timings.tick_interval + 1.0) + SLOWEST_START + self.start_seconds

    @property
    def until(self) -> float:
        return self.active + self.calm

    def without_faults(self) -> "Scenario":
        return replace(self, faults=())


def draw(seed: int, *, incidents: bool = True) -> Scenario:
    """The scenario of a seed; with `incidents` False, without those of `incidents.py`."""
    random = Random(f"scenario {seed}")
    stretch = random.choice(STRETCHES)
    application = _application(random, stretch)
    active = ACTIVE_SECONDS * stretch * random.uniform(0.5, 1.0)
    scenario = Scenario(
        seed=seed,
        application=application,
        stretch=stretch,
        shards=tuple(random.randint(1, 3) for _ in application.streams),
        deployments=2 if random.random() < 0.15 else 1,
        daemons=2 if random.random() < 0.25 else 1,
        one_run_per_slot=random.random() < 0.7,
        watchdog=random.random() < 0.7,
        monitor_seconds=random.choice([5.0, 60.0, 180.0]) * (1 + random.random()),
        record_seconds=stretch * random.choice([2.0, 5.0, 15.0]),
        history=random.choice([0, 0, 2, 8]),
        legacy_tables=random.random() < 0.25,
        page_items=random.choice([3, 10, 100]),
        staleness=random.choice([0.0, 0.5, 3.0]) * stretch,
        skew=random.choice([0.0, 1.0, 300.0]),
        retention_hours=LONGEST_RETENTION,
        active=active,
        calm=CALM_SECONDS * stretch,
    )
    count = random.choice([0, 6, 15, 40])
    kinds = _fault_kinds(random)
    if application.policy.name == "kcl":
        # The KCL does not repair a merge one of whose parents lost its lease, and neither do its rules here.
        kinds = [kind for kind in kinds if kind is not FaultKind.DELETE_LEASE]
    faults = [_fault(random, scenario, number, kinds) for number in range(count)]
    scenario, more = _further(Random(f"further {seed}"), scenario)
    ordered = sorted([*faults, *more], key=lambda fault: (fault.at, fault.id))
    mixed = _with_java(Random(f"java {seed}"), replace(scenario, faults=tuple(ordered)))
    shortened = _shortened(Random(f"retention {seed}"), mixed)
    if not incidents:
        return shortened
    scenario = with_incidents(Random(f"incidents {seed}"), shortened)
    scenario = with_long_incidents(Random(f"long incidents {seed}"), scenario)
    scenario = with_deploys(Random(f"deploys {seed}"), scenario)
    scenario = with_pauses(Random(f"pauses {seed}"), scenario)
    scenario = with_stalls(Random(f"stalls {seed}"), scenario)
    scenario = _resting(Random(f"resting {seed}"), scenario)
    scenario = with_delays(Random(f"delays {seed}"), scenario)
    scenario = with_partial_answers(Random(f"partial answers {seed}"), scenario)
    if Random(f"counts {seed}").random() < UNCOUNTED_SHARE:
        scenario = replace(scenario, counts=False)
    scenario = _bounded(Random(f"bounded {seed}"), scenario)
    scenario = _chained(Random(f"chained {seed}"), scenario)
    if seed < FIRST_DURATIONS_SEED:
        return scenario
    scenario = with_lease_durations(Random(f"lease durations {seed}"), scenario)
    return _with_long_scans(Random(f"long scans {seed}"), scenario)


def _with_long_scans(random: Random, scenario: Scenario) -> Scenario:
    """Some leaders read so long that they leave out reads."""
    is_late = scenario.seed >= FIRST_LONG_SCANS_SEED and scenario.stretch == 1
    if not is_late or random.random() >= LONG_SCANS_SHARE:
        return scenario
    return replace(scenario, page_items=10, page_seconds=random.choice([0.3, 1.0, 2.0]))


def _chained(random: Random, scenario: Scenario) -> Scenario:
    """The sink of some applications is a folder or a table in chains."""
    is_mixed = scenario.seed >= FIRST_MIXED_SEED and random.random() < CHAINED_SHARE
    if not (is_mixed or scenario.seed in CHAINED_SEEDS):
        return scenario
    return _with_destinations(Random(f"two destinations {scenario.seed}"), with_chains(random, scenario))


def _with_destinations(random: Random, scenario: Scenario) -> Scenario:
    is_mixed = scenario.seed >= FIRST_MIXED_SEED and random.random() < TWO_DESTINATIONS_SHARE
    has_two = is_mixed or scenario.seed in TWO_DESTINATIONS_SEEDS
    return with_two_destinations(random, scenario) if has_two else scenario


def _bounded(random: Random, scenario: Scenario) -> Scenario:
    """Some applications have no fleet: a schedule launches bounded runs."""
    if scenario.java or scenario.seed < FIRST_BOUNDED_SEED or random.random() >= BOUNDED_SHARE:
        return scenario
    seconds = scenario.stretch * random.choice([30.0, 60.0, 120.0])
    return replace(scenario, schedule=Schedule(seconds, leads=random.random() < 0.5))


def _resting(random: Random, scenario: Scenario) -> Scenario:
    """Some fleets have no worker while nothing is unread."""
    if scenario.java or random.random() >= RESTING_SHARE:
        return scenario
    stretch, fleet = scenario.stretch, scenario.application.fleet
    fleet = fleet.model_copy(
        update={
            "min_workers": 0,
            "scale_up_lag": random.choice([20.0, 60.0]) * stretch,
            "cooldown": random.choice([40.0, 120.0]) * stretch,
        }
    )
    return replace(scenario, application=scenario.application.model_copy(update={"fleet": fleet}))


def _shortened(random: Random, scenario: Scenario) -> Scenario:
    """Of some of the most stretched runs, which last for longer than a day, the streams forget sooner all at once:
    during an outage, or at any time. Its number follows those of all others."""
    if scenario.stretch != STRETCHES[-1] or scenario.java or random.random() >= SHORTENED_SHARE:
        return scenario
    outage = next((fault for fault in scenario.faults if fault.kind is FaultKind.OUTAGE), None)
    since, seconds = (outage.at, outage.seconds) if outage is not None else (0.0, scenario.active)
    at = since + seconds * random.uniform(0.1, 0.9)
    shortened = Fault(id=2 * FURTHER, kind=FaultKind.RETENTION_SHORTENED, at=at, target="")
    faults = sorted([*scenario.faults, shortened], key=lambda fault: (fault.at, fault.id))
    return replace(scenario, retention_hours=LONGEST_RETENTION, faults=tuple(faults))


def _with_java(random: Random, scenario: Scenario) -> Scenario:
    """One fleet in six is mixed. Left out is what the KCL is known not to survive, and what only ours promise:
    see NOT_FOR_JAVA, and a start at LATEST, which a Java worker resolves anew whenever it starts."""
    application = scenario.application
    start = application.streams[0].start.position
    is_fit = (
        not application.multi_stream
        and start is Position.TRIM_HORIZON
        and scenario.retention_hours == LONGEST_RETENTION
    )
    if not (is_fit and random.random() < JAVA_SHARE):
        return scenario
    tables = application.tables.model_copy(update={"owner_index": True})
    stints = []
    for _ in range(random.choice([1, 1, 2])):
        begins = scenario.active * random.uniform(0.02, 0.5)
        ends = begins + (scenario.active - begins) * random.uniform(0.1, 0.95)
        alone = random.random() < 0.3
        stays = not alone and random.random() < 0.3
        stints.append(
            JavaStint(begins, None if stays else ends, random.randint(1, 2), alone, random.random() < 0.5)
        )
    return replace(
        scenario.without(*NOT_FOR_JAVA),
        application=application.model_copy(update={"tables": tables}),
        skew=min(scenario.skew, 1.0),  # a Java leader goes by the wall clocks of others
        java=tuple(stints),
    )


def _further(random: Random, scenario: Scenario) -> tuple[Scenario, list[Fault]]:
    """Rarer troubles, on top of the others, for some seeds. Their numbers begin at FURTHER."""
    if not random.random() < FURTHER_SHARE:
        return scenario, []
    kinds = list(_FURTHER)
    if scenario.application.multi_stream:
        # Under one stream's own name leases cannot be told from their predecessors: an operator has to reset them.
        kinds += [FaultKind.RECREATED]
    count = random.choice([2, 5, 12])
    faults = [_fault(random, scenario, FURTHER + number, kinds) for number in range(count)]
    # At LATEST the KCL skips shards all of whose parents left the stream meanwhile, and so do its rules here.
    application = scenario.application
    skips = application.policy.name == "kcl" and application.streams[0].start.position is Position.LATEST
    if scenario.stretch == STRETCHES[-1] and random.random() < OUTAGE_SHARE and not skips:
        return _with_outage(random, scenario, faults)
    return scenario, faults


def _with_outage(random: Random, scenario: Scenario, faults: list[Fault]) -> tuple[Scenario, list[Fault]]:
    """The fleet is down for longer than the streams keep records. Only stretched runs last long enough."""
    hours = SHORTEST_RETENTION + random.uniform(-4, 8)
    down = Fault(
        id=FURTHER + len(faults),
        kind=FaultKind.OUTAGE,
        at=scenario.active * random.uniform(0.1, 0.6),
        target="",
        seconds=hours * 3600,
    )
    application = scenario.application
    batch = application.batch.model_copy(update={"on_data_loss": random.choice(["stop", "continue", "continue"])})
    longer = replace(
        scenario,
        application=application.model_copy(update={"batch": batch}),
        retention_hours=SHORTEST_RETENTION,
        active=scenario.active + down.seconds,
    )
    return longer, [*faults, down]


def _application(random: Random, stretch: int) -> Application:
    several = random.random() < 0.2
    start = random.choices([Position.TRIM_HORIZON, Position.LATEST], [4, 1])[0]
    names = ["clicks", "taps"] if several else ["clicks"]
    fewest = random.randint(1, 2)
    lease = random.choice([10.0, 30.0]) * stretch
    return Application(
        name=APPLICATION,
        streams=tuple(StreamSettings(name=name, start=StartAt(position=start)) for name in names),
        multi_stream=several or random.random() < 0.1,
        timings=Timings(
            lease_duration=lease,
            renewals_per_lease=random.choice([3, 3, 5]),
            tick_interval=5 * stretch - 1,
            tick_budget=random.choice([5.0, 20.0]),
            handoff_timeout=random.choice([10.0, 30.0]) * stretch,
            leader_lock=random.choice([20.0, 60.0]) * stretch,
            shard_audit=30.0 * stretch,
            heartbeat=5.0 * stretch,
            leaderless=random.choice([60.0, 120.0]) * stretch,
        ),
        tables=TableSettings(owner_index=random.random() < 0.7, scan_segments=random.choice([0, 1, 3])),
        policy=PolicySettings(name=random.choice(["balanced", "balanced", "count", "throughput", "kcl"])),
        fleet=FleetSettings(
            min_workers=fewest,
            max_workers=random.randint(fewest, 4),
            shards_per_worker=random.choice([1, 2, 16]),
            scale_up_lag=60.0 * stretch,
            scale_down_lag=5.0 * stretch,
            cooldown=120.0 * stretch,
            lifetime=random.choice([300.0, 6 * 3600.0]) * stretch,
        ),
        batch=BatchSettings(
            max_seconds=random.choice([0.5, 5.0]),
            max_records=random.choice([3, 1000]),
            idle_seconds=random.choice([2.0, 5.0]) * stretch,
            prefetch=False,
        ),
    )


_PROCESS = (
    FaultKind.KILL,
    FaultKind.KILL_AT_CALL,
    FaultKind.PAUSE,
    FaultKind.SUSPEND,
    FaultKind.TERMINATE,
    FaultKind.JUMP,
)
_ORCHESTRATOR = (FaultKind.RUN_FAILED_BUT_ALIVE, FaultKind.SECOND_RUN, FaultKind.REPLAYED_TICK)
_MEMORY = (FaultKind.LOSE_MEMORY, FaultKind.REPLAY_MEMORY, FaultKind.DELETE_LEASE, FaultKind.DELETE_ROW)
_NETWORK = (
    FaultKind.THROTTLED,
    FaultKind.BROKEN,
    FaultKind.UNREACHABLE,
    FaultKind.REQUEST_LOST,
    FaultKind.ANSWER_LOST,
    FaultKind.LATE,
    FaultKind.DENIED,
)
_STREAM = (FaultKind.SPLIT, FaultKind.MERGE, FaultKind.RESHARD_STORM)
_SINK = (FaultKind.SINK_REFUSES, FaultKind.SINK_LIES, FaultKind.SINK_SLOW)

_SERVICE = (
    FaultKind.ITERATORS_EXPIRE,
    FaultKind.EMPTY_PAGES,
    FaultKind.NEVER_AT_TIP,
    FaultKind.NO_CHILDREN_NAMED,
)
_FURTHER = (
    *_SERVICE,
    *(FaultKind.PAUSE_AT_CALL for _ in range(8)),
    FaultKind.STUCK_QUEUE,
    FaultKind.SKIPPED_TICKS,
    FaultKind.CUT,
    FaultKind.CUT,
    FaultKind.STALE_INDEX,
    FaultKind.DOUBLE_SPLIT,
    FaultKind.DOUBLE_SPLIT,
    FaultKind.DELETE_ROW,
)

NOT_FOR_JAVA: Final = (FaultKind.DELETE_LEASE, FaultKind.NO_CHILDREN_NAMED, FaultKind.JUMP)

DENIABLE: Final = {
    "dynamodb": ("query", "scan", "get_item", "update_item", "put_item", "delete_item", "transact_write_items"),
    "kinesis": ("list_shards", "describe_stream_summary", "get_records", "get_shard_iterator"),
}


def _fault_kinds(random: Random) -> list[FaultKind]:
    """Some runs see everything, some only one sort of trouble, but more of it."""
    groups = (_PROCESS, _ORCHESTRATOR, _MEMORY, _NETWORK, _STREAM, _SINK)
    if random.random() < 0.5:
        return [kind for group in groups for kind in group]
    chosen = random.sample(groups, 2)
    return [kind for group in chosen for kind in group] + [FaultKind.KILL, FaultKind.SPLIT]


def _fault(random: Random, scenario: Scenario, number: int, kinds: list[FaultKind]) -> Fault:
    kind = random.choice(kinds)
    timings = scenario.application.timings
    lease = timings.lease_duration
    fault = Fault(
        id=number,
        kind=kind,
        at=scenario.active * random.uniform(0.05, 0.9),
        target=random.choice(["worker", "worker", "daemon"]),
        number=random.randrange(8),
    )
    if kind in (FaultKind.PAUSE, FaultKind.SUSPEND):
        return replace(fault, seconds=lease * random.choice([0.3, 0.9, 1.5, 4.0, 20.0]))
    if kind is FaultKind.PAUSE_AT_CALL:
        # Often just before it moves a lease, or its progress: what it has read is old when it writes.
        target, written = random.choice(
            [
                ("worker", ""),
                ("worker", PENDING),
                ("worker", CHECKPOINT_OWNER),
                ("daemon", ""),
                *[("daemon", CHECKPOINT_OWNER)] * 2,
            ]
        )
        return replace(
            fault,
            target=target,
            operation=written,
            number=random.randrange(MOST_CALLS_BEFORE_A_PAUSE * (1 if written else 4)),
            seconds=lease * random.choice([0.9, 1.5, 4.0, 10.0]),
        )
    if kind is FaultKind.JUMP:
        return replace(fault, seconds=random.choice([-3600.0, -30.0, 30.0, 3600.0]))
    if kind is FaultKind.KILL_AT_CALL:
        return replace(fault, seconds=float(random.randrange(40)))
    if kind is FaultKind.TERMINATE:
        return replace(fault, target="worker", seconds=random.choice([0.0, 10.0, 120.0]))
    if kind in _NETWORK:
        service = random.choice(["dynamodb", "dynamodb", "kinesis"])
        return replace(
            fault,
            target=random.choice(["worker", "daemon", "any"]),
            service=service,
            operation=random.choice(DENIABLE[service]) if kind is FaultKind.DENIED else "",
            seconds=lease * random.choice([0.2, 0.8, 2.0, 5.0]),
            share=random.choice([0.05, 0.3, 1.0]),
        )
    if kind in _SINK:
        return replace(
            fault, target="any", seconds=lease * random.choice([0.5, 3.0]), share=random.choice([0.2, 1.0])
        )
    if kind is FaultKind.RESHARD_STORM:
        return replace(fault, target="", seconds=float(random.randint(2, 6)))
    if kind is FaultKind.CUT:
        return replace(
            fault,
            target=random.choice(["worker", "worker", "daemon"]),
            service=random.choice(["dynamodb", "kinesis"]),
            seconds=lease * random.choice([2.0, 5.0, 20.0]),
        )
    if kind in _SERVICE:
        return replace(
            fault, target="", seconds=lease * random.choice([0.5, 3.0]), share=random.choice([0.1, 0.5, 1.0])
        )
    if kind in (FaultKind.STUCK_QUEUE, FaultKind.SKIPPED_TICKS, FaultKind.STALE_INDEX):
        return replace(fault, target="", seconds=lease * random.choice([2.0, 10.0, 40.0]))
    return fault
