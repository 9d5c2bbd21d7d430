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
    """The result of one stage. `error`: what happened and what to do. A postponed stage is not ok either."""

    name: str
    ok: bool
    seconds: float
    error: str | None = None
    began: float = 0.0
    """Monotonic."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A slot that needs a run. The same generation is asked for until its run is seen, so asking twice is safe
    wherever the generation is part of the run key."""

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
    """Hash keys that no lease covers."""

    created: tuple[LeaseKey, ...] = ()


@dataclass(frozen=True, slots=True)
class DataLossEvent:
    """Records left the stream before they were read."""

    lease: LeaseKey
    what: str


@dataclass(frozen=True, slots=True)
class TickReport:
    """Everything that one tick read and did. `moves`: those that were written. `planned`: all that were decided."""

    began: float = 0.0
    ended: float = 0.0
    """Monotonic, as `began`."""

    leading: bool = False
    leader: str | None = None
    """The holder of the leader lock, if it is known."""

    skipped: str | None = None
    """Why the tick did nothing at all."""

    refused: str | None = None
    """Why the tables that the leader knows may not be written to any more; open another leader to look again."""

    missing_table: str | None = None
    """Said where a table that the leader had is gone: what is lost by a new one, and what to do."""

    stages: tuple[StageOutcome, ...] = ()
    moves: tuple[Move, ...] = ()
    planned: tuple[Move, ...] = ()
    launches: tuple[Launch, ...] = ()
    retire: Mapping[str, str] = field(default_factory=dict)
    """Slots whose worker was asked to drain, or whose run is queued and not wanted any more, and why."""

    abandoned: tuple[str, ...] = ()
    """Runs that keep their slots although their workers are gone: the orchestrator takes them for failed."""

    leases: tuple[Lease, ...] = ()
    """As they stood when the tick began."""

    workers: tuple[WorkerSight, ...] = ()
    streams: tuple[StreamSight, ...] = ()
    unserved: dict[LeaseKey, str] = field(default_factory=dict)
    """Leases that still have no worker after this tick, and why."""

    resting: Mapping[LeaseKey, float] = field(default_factory=dict)
    """Leases of a fleet with `min_workers` 0 that have no worker because their records may wait, and for how many
    seconds the oldest has."""

    paused: frozenset[LeaseKey] = frozenset()
    """Open leases that an operator has paused, by themselves or with the whole application."""

    paused_by: str | None = None
    """Who paused something last; None where nothing is paused."""

    unreadable: tuple[str, ...] = ()
    lag_ms: int | None = None
    """The furthest behind of all workers that say, and of the leases at rest."""

    completeness: Completeness | None = None
    """Through which moment everything is stored, and what holds it back. None where this process does not lead, or
    could not read the tables."""

    resets: tuple[SetBack, ...] = ()
    """Those that are known to have put the application back, oldest first; see `WrittenThrough`."""

    target_workers: int | None = None
    starts_given_up: Mapping[str, int] = field(default_factory=dict)
    """Runs whose workers did not come to read in time, and when they were given up, in epoch seconds, until a
    worker has started since. Empty where this process does not lead."""

    data_loss: tuple[DataLossEvent, ...] = ()
    notes: tuple[str, ...] = ()
    """Decisions worth telling that are not moves."""

    @property
    def lives(self) -> Mapping[str, bool]:
        """By run, whether its worker lives. Without the runs that have no worker."""
        return {seen.row.run_id: seen.alive for seen in self.workers if seen.row.run_id is not None}

    @property
    def ok(self) -> bool:
        return all(stage.ok for stage in self.stages)

    def stage(self, name: str) -> StageOutcome | None:
        return next((stage for stage in self.stages if stage.name == name), None)
