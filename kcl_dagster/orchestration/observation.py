"""What the assets and checks of an application are made of: one look at it. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kcl_dagster.leader.report import StreamSight, TickReport
from kcl_dagster.leader.runs import SlotRun
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.worker import WorkerRow


@dataclass(frozen=True, slots=True)
class Observation:
    """Facts about one application at one moment, whoever gathered them: the leader's tick or an operator."""

    leases: Sequence[Lease] = ()
    workers: Sequence[WorkerRow] = ()
    leader: str | None = None
    """Who holds the leader lock, as far as known."""

    leading: bool = False
    """Whether that is us."""

    unserved: Collection[LeaseKey] = ()
    ages: Mapping[LeaseKey, float] = field(default_factory=dict)
    """Seconds for which each lease's counter has been seen standing still."""

    failed_stages: Mapping[str, str] = field(default_factory=dict)
    overdue_handoffs: Collection[LeaseKey] = ()
    lag_seconds: float | None = None
    retention_used: float | None = None
    """Fraction of the stream's retention that the furthest shard is behind."""

    data_loss: Sequence[str] = ()
    waiting_runs: Mapping[str, float] = field(default_factory=dict)
    """Slots whose run is queued, and for how many seconds."""

    streams: Sequence[StreamSight] = ()
    decisions: Sequence[str] = ()

    @property
    def open_leases(self) -> list[Lease]:
        return [lease for lease in self.leases if not lease.is_finished]

    @property
    def shares(self) -> dict[str, int]:
        """Open leases of each worker that is alive or holds one."""
        held = Counter(str(lease.actual_owner) for lease in self.open_leases if lease.actual_owner)
        return {**{str(row.id): 0 for row in self.workers}, **held}

    @property
    def shape(self) -> object:
        """Equal as long as nothing changed that an operator would want to see at once."""
        return (
            frozenset((lease.key, lease.owner, lease.checkpoint_owner, lease.is_finished) for lease in self.leases),
            frozenset((row.id, row.state) for row in self.workers),
            self.leader,
            frozenset(self.failed_stages),
        )


def of_tick(
    report: TickReport,
    ages: Mapping[LeaseKey, float],
    runs: Mapping[str, SlotRun],
    now: float,
    retention: float | None = None,
) -> Observation:
    """What a tick saw; `now` in epoch seconds, `retention` in seconds."""
    lag = None if report.lag_ms is None else report.lag_ms / 1000
    decided = [f"{move.lease} to {move.to} ({move.kind}): {move.because}" for move in report.moves]
    decided += [f"launch {launch.slot}: {launch.because}" for launch in report.launches]
    decided += [f"retire {slot}" for slot in report.retire]
    return Observation(
        leases=report.leases,
        workers=[sight.row for sight in report.workers if sight.alive],
        leader=report.leader,
        leading=report.leading,
        unserved=report.unserved,
        ages=ages,
        failed_stages={stage.name: stage.error or "postponed" for stage in report.stages if not stage.ok},
        lag_seconds=lag,
        retention_used=lag / retention if lag is not None and retention else None,
        data_loss=[f"{loss.lease}: {loss.what}" for loss in report.data_loss],
        waiting_runs={slot: now - run.started_at for slot, run in runs.items() if run.status == "queued"},
        streams=report.streams,
        decisions=[*decided, *report.notes],
    )
