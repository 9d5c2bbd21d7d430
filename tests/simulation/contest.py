"""Many leaders of one application: two daemons, two standbys outside of the orchestrator, and a code server that
evaluates old ticks again. Ten minutes of faults, at the speed of production.

    python -m tests.simulation --scenario leaders --seeds 1-100
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from kcl_dagster.application import Application, BatchSettings, FleetSettings, PolicySettings, Timings
from kcl_dagster.errors import KclError
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.standby import lead
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.tables.lock import STANDBY
from tests.simulation.dagster import Orchestrator
from tests.simulation.faults import Fault, FaultKind
from tests.simulation.fleet import Outcome, Simulation
from tests.simulation.kernel import Process
from tests.simulation.processes import Daemon, runtime_of
from tests.simulation.scenario import APPLICATION, LONGEST_RETENTION, Scenario
from tests.simulation.trace import Trace

ACTIVE_SECONDS: Final = 600.0
CALM_SECONDS: Final = 300.0
STANDBYS: Final = 2
TICKS_LATE: Final = 12  # how old a view may be that is evaluated again
REPLAY_SECONDS: Final = (20.0, 60.0)
RETRY_SECONDS: Final = 5.0

# What makes leaders come and go, and what gives them something to do.
_LEADERS: Final = (
    FaultKind.PAUSE,
    FaultKind.SUSPEND,
    FaultKind.JUMP,
    FaultKind.SKIPPED_TICKS,
    FaultKind.REPLAYED_TICK,
    FaultKind.LOSE_MEMORY,
    FaultKind.REPLAY_MEMORY,
    FaultKind.ANSWER_LOST,
    FaultKind.THROTTLED,
)
_WORKERS: Final = (
    FaultKind.KILL,
    FaultKind.TERMINATE,
    FaultKind.PAUSE,
    FaultKind.RUN_FAILED_BUT_ALIVE,
    FaultKind.SPLIT,
)
_LASTING: Final = (FaultKind.PAUSE, FaultKind.SUSPEND, FaultKind.SKIPPED_TICKS)


def draw_contest(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(f"contest {seed}")
    lease = random.choice([10.0, 20.0])
    workers = random.randint(2, 4)
    application = Application.model_validate(
        {
            "name": APPLICATION,
            "streams": "clicks",
            "timings": Timings(
                lease_duration=lease,
                tick_interval=4,
                tick_budget=random.choice([5.0, 20.0]),
                handoff_timeout=random.choice([10.0, 30.0]),
                leader_lock=random.choice([20.0, 60.0]),
                shard_audit=30.0,
            ),
            "policy": PolicySettings(name=random.choice(["balanced", "balanced", "count", "throughput"])),
            "fleet": FleetSettings(min_workers=workers, max_workers=workers, cooldown=60.0),
            "batch": BatchSettings(max_seconds=0.5, idle_seconds=2.0, prefetch=False),
        }
    )
    faults = [_fault(random, number, lease) for number in range(random.choice([0, 10, 25]))]
    return Scenario(
        seed=seed,
        application=application,
        stretch=1,
        shards=(random.randint(2, 8),),
        deployments=1,
        daemons=2,
        one_run_per_slot=random.random() < 0.7,
        watchdog=random.random() < 0.7,
        monitor_seconds=random.choice([5.0, 60.0]),
        record_seconds=5.0,
        history=random.choice([0, 1]),
        legacy_tables=random.random() < 0.25,
        page_items=random.choice([3, 100]),
        staleness=random.choice([0.0, 0.5]),
        skew=random.choice([0.0, 300.0]),
        retention_hours=LONGEST_RETENTION,
        active=ACTIVE_SECONDS,
        calm=CALM_SECONDS,
        faults=tuple(sorted(faults, key=lambda fault: (fault.at, fault.id))),
    )


def _fault(random: Random, number: int, lease: float) -> Fault:
    strikes_leaders = random.random() < 0.6
    kind = random.choice(_LEADERS if strikes_leaders else _WORKERS)
    seconds = 0.0
    if kind in _LASTING:
        seconds = lease * random.choice([0.5, 1.5, 4.0, 8.0])
    elif kind is FaultKind.JUMP:
        seconds = random.choice([-3600.0, 30.0, 3600.0])
    elif kind in (FaultKind.ANSWER_LOST, FaultKind.THROTTLED):
        seconds = lease * random.choice([0.5, 2.0])
    return Fault(
        id=number,
        kind=kind,
        at=ACTIVE_SECONDS * random.uniform(0.1, 0.9),
        target="daemon" if strikes_leaders else "worker",
        number=random.randrange(8),
        seconds=seconds,
        share=random.choice([0.3, 1.0]),
        service="dynamodb",
    )


class _Yesterday:
    """An orchestrator that answers with what it said before."""

    def __init__(self, orchestrator: Orchestrator, random: Random) -> None:
        self._orchestrator = orchestrator
        self._random = random
        self._views: deque[RunView] = deque(maxlen=TICKS_LATE)

    def look(self) -> None:
        self._views.append(self._orchestrator.view())

    def view(self) -> RunView:
        return self._random.choice(self._views) if self._views else self._orchestrator.view()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._orchestrator, name)


@dataclass(slots=True, eq=False)
class Replayer(Daemon):
    """A code server of the same deployment that is evaluated again with what earlier ticks saw of the runs."""

    def main(self) -> None:
        kernel, yesterday = self.process.kernel, self.orchestrator
        assert isinstance(yesterday, _Yesterday)
        while True:
            until = kernel.now + self.random.uniform(*REPLAY_SECONDS)
            while kernel.now < until:
                kernel.sleep(self.interval)
                yesterday.look()
            self._tick()


@dataclass(slots=True, eq=False)
class Standby:
    """`kcl-dagster lead`."""

    name: str
    process: Process
    application: Application
    open: Callable[[], Any]
    on_report: Callable[[TickReport], None]
    clock: Any

    def main(self) -> None:
        while True:
            try:
                leader = self.open()
            except KclError as error:
                self.process.kernel.note("leader", f"{self.name} cannot lead yet: {error}")
                self.process.kernel.sleep(RETRY_SECONDS)
            else:
                lead(leader, self.clock, lambda: False, self.on_report)


@dataclass(eq=False)
class Contest(Simulation):
    """Five leaders. `led`: those that did, by name."""

    led: dict[str, int] = field(default_factory=dict)
    standbys: list[Standby] = field(default_factory=list)

    def _open(self) -> None:
        super()._open()
        self._start_replayer()
        for number in range(STANDBYS):
            self._start_standby(f"{STANDBY}{number}")

    def _start_replayer(self) -> None:
        process, random = self.process("replayer"), self.random("replayer")
        yesterday: Any = _Yesterday(self.orchestrators[0], random)
        replayer = Replayer(
            "replayer",
            process,
            self.scenario.application,
            yesterday,
            self.line(process, "dynamodb"),
            self.line(process, "kinesis"),
            random,
            identity="dagster:0",
            interval=self.scenario.application.timings.tick_interval + 1.0,
            on_report=lambda report: self._reported("replayer", report),
        )
        self.daemons.append(replayer)
        self.kernel.spawn(process, "ticks", replayer.main)

    def _start_standby(self, name: str) -> None:
        process = self.process(name)
        runtime = runtime_of(process, self.random(name))
        dynamodb, kinesis = self.line(process, "dynamodb"), self.line(process, "kinesis")
        standby = Standby(
            name,
            process,
            self.scenario.application,
            lambda: open_leader(
                self.scenario.application,
                dynamodb=dynamodb,
                kinesis=kinesis,
                identity=name,
                runtime=runtime,
                parallel=map,
            ),
            lambda report: self._reported(name, report),
            runtime.clock,
        )
        self.standbys.append(standby)
        self.kernel.spawn(process, "ticks", standby.main)

    def _leads_as(self, actor: Process | None) -> str | None:
        standing_by = next((standby.name for standby in self.standbys if standby.process is actor), None)
        return standing_by or super()._leads_as(actor)

    def _reported(self, daemon: str, report: TickReport) -> None:
        if report.leading:
            self.led[daemon] = self.led.get(daemon, 0) + 1
        super()._reported(daemon, report)

    def processes(self) -> list[Process]:
        others = [standby.process for standby in self.standbys if standby.process.is_alive]
        return [*super().processes(), *others]


def run_contest(scenario: Scenario, *, keep_trace: bool = False) -> Outcome:
    """One scenario, from the beginning to its end or its first violation. `counts` tells who led how often."""
    contest = Contest(scenario, Trace(keep=keep_trace))
    outcome = contest.run()
    outcome.counts.update({f"led by {name}": ticks for name, ticks in contest.led.items()})
    return outcome
