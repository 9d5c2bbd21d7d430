"""The report of a tick."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kcl_dagster.leader.application_completeness import Completeness
from kcl_dagster.leader.assignment.policy import Move
from kcl_dagster.leader.liveness import WorkerSight
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.tables.completeness_row import SetBack

STAGES = ("lead", "observe", "sync", "fleet", "assign", "clean", "report")


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """The result of one stage. `error`: what happened and what to do. If a stage was postponed, `ok` is False."""

    name: str
    ok: bool
    seconds: float
    error: str | None = None
    began: float = 0.0
    """The time at which the stage began (monotonic)."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A slot that needs a run. `generation`: the number of this launch of the slot. Successive ticks request the
    same generation until its run appears, or until `memory.LAUNCH_SECONDS` have passed. Repeated requests are safe
    if the generation is part of the run key."""

    slot: str
    generation: int
    because: str


@dataclass(frozen=True, slots=True)
class StreamSight:
    """One stream as the last sync read it."""

    name: str
    open_shards: int
    shards: tuple[str, ...] = ()
    """The ids of the open shards, sorted; empty while no listing has succeeded."""

    hole: str | None = None
    """The hash keys that no lease covers; None if all are covered."""

    created: tuple[LeaseKey, ...] = ()


@dataclass(frozen=True, slots=True)
class DataLossEvent:
    """Records that left the stream before they were read."""

    lease: LeaseKey
    what: str


@dataclass(frozen=True, slots=True)
class TickReport:
    """Everything that one tick read and did. `moves`: the moves that were written. `planned`: all moves that were
    decided."""

    began: float = 0.0
    ended: float = 0.0
    """The time at which the tick ended. `began` and `ended` are monotonic."""

    leading: bool = False
    leader: str | None = None
    """The holder of the leader lock, if known."""

    skipped: str | None = None
    """Why the tick read and decided nothing; None if it ran. If this process leads, it has renewed the lock even in
    a skipped tick."""

    refused: str | None = None
    """Why this leader must no longer write: the layout or the protocol of its tables has changed since the leader
    detected them. A new leader has to detect them again. None if there is no such change."""

    missing_table: str | None = None
    """If a table of the leader was deleted: why the leader does not create a new one, and what to do. None if no
    table was deleted."""

    stages: tuple[StageOutcome, ...] = ()
    moves: tuple[Move, ...] = ()
    planned: tuple[Move, ...] = ()
    launches: tuple[Launch, ...] = ()
    retire: Mapping[str, str] = field(default_factory=dict)
    """For each slot whose worker was asked to drain, or whose queued run is no longer needed: the reason."""

    abandoned: tuple[str, ...] = ()
    """Runs that keep their slots although their workers are gone. The orchestrator should mark them as failed."""

    leases: tuple[Lease, ...] = ()
    """The leases as read at the beginning of the tick."""

    ages: Mapping[LeaseKey, float] = field(default_factory=dict)
    """For how many seconds the counter of each lease was unchanged."""

    workers: tuple[WorkerSight, ...] = ()
    streams: tuple[StreamSight, ...] = ()
    unserved: dict[LeaseKey, str] = field(default_factory=dict)
    """Leases that still have no worker after this tick, and why."""

    resting: Mapping[LeaseKey, float] = field(default_factory=dict)
    """For a fleet with `min_workers` 0: the leases that have no worker because their records are allowed to wait,
    and for how many seconds the oldest record of each has waited."""

    paused: frozenset[LeaseKey] = frozenset()
    """Open leases that an operator has paused, individually or with the whole application."""

    paused_by: str | None = None
    """The operator who last paused or resumed something; None if nothing is paused."""

    unreadable: tuple[str, ...] = ()
    lag_ms: int | None = None
    """The largest lag of all workers that report one, and of the leases at rest."""

    completeness: Completeness | None = None
    """The moment through which everything is stored, and what prevents a later moment. None if this process does
    not lead, or could not read the tables."""

    resets: tuple[SetBack, ...] = ()
    """The known resets and imports, oldest first; see `WrittenThrough`."""

    target_workers: int | None = None
    starts_given_up: Mapping[str, int] = field(default_factory=dict)
    """Runs whose workers the leader gave up because their starts took too long, and when (epoch seconds). Starts
    that no longer matter are left out; see `patience`. Empty if this process does not lead."""

    data_loss: tuple[DataLossEvent, ...] = ()
    notes: tuple[str, ...] = ()
    """Notable decisions other than moves."""

    @property
    def lives(self) -> Mapping[str, bool]:
        """For each run that has a worker, whether the worker is alive."""
        return {seen.row.run_id: seen.alive for seen in self.workers if seen.row.run_id is not None}

    @property
    def ok(self) -> bool:
        return all(stage.ok for stage in self.stages)

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each stage that failed."""
        return tuple(f"{stage.name}: {stage.error}" for stage in self.stages if not stage.ok)

    def stage(self, name: str) -> StageOutcome | None:
        return next((stage for stage in self.stages if stage.name == name), None)
