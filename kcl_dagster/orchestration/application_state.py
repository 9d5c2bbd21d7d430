"""The state of an application, as one tick of the leader or one command observed it. Metadata of assets and results
of checks are derived from this state. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from kcl_dagster.leader.application_completeness import Completeness
from kcl_dagster.leader.run_view import SlotRun
from kcl_dagster.leader.tick_report import StreamSight, TickReport
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow

NEW_SECONDS = 60.0  # enough to start a run and Spark, and to get the first lease

DecisionKind = Literal["unserved", "balance", "drain", "start", "end", "loss", "note"]


@dataclass(frozen=True, slots=True)
class Decision:
    """An action or an observation of the leader. `subject`: a lease, a slot, or the first part of a note. `why`:
    the reason, or the rest of the note."""

    kind: DecisionKind
    subject: str
    why: str = ""
    to: WorkerId | None = None

    def __str__(self) -> str:
        if self.kind == "note":
            return f"{self.subject}: {self.why}" if self.why else self.subject
        goes = f"{self.subject} to {self.to}" if self.to is not None else self.subject
        return f"{goes} ({self.kind}): {self.why}" if self.why else goes


@dataclass(frozen=True, slots=True)
class ShardLag:
    """The lag of one shard. `seconds` is None if the lag is not known, for example because no worker has read the
    shard yet."""

    lease: LeaseKey
    stream: str | None
    seconds: float | None
    retention_used: float | None
    worker: WorkerId | None
    is_read: bool = True
    """Whether a living worker has the lease. If it is False, or if the worker has not reported a lag yet, `seconds`
    is an upper bound. The exception is a lease at rest: its `seconds` are those in `Observation.resting`."""


@dataclass(frozen=True)
class Observation:
    """Facts about one application at one moment, collected by the leader's tick or by an operator's command.

    The cached properties are derived from all leases and workers. Each is calculated only once, because several
    checks and assets use it in each tick.
    """

    leases: Sequence[Lease] = ()
    workers: Sequence[WorkerRow] = ()
    leader: str | None = None
    """The holder of the leader lock, if it is known."""

    leading: bool = False
    """Whether this process is the leader."""

    missing_table: str | None = None
    """If a table was deleted while the application ran: a text about the deletion and its remedy. Otherwise
    None."""

    leader_is_silent: bool = False
    """True if the leader lock has a holder, and the holder seems to have ended: this process has watched the lock
    for the whole time after which a lock expires, and has observed no renewal."""

    unserved: Collection[LeaseKey] = ()
    resting: Mapping[LeaseKey, float] = field(default_factory=dict)
    """Leases that have no worker because their records can wait -> the seconds for which the first unread record
    has waited."""

    paused: Collection[LeaseKey] = ()
    """Open leases that have no worker and that an operator has paused."""

    paused_by: str | None = None
    """The operator who last paused the application, a lease or a slot, if anything is paused now."""

    ages: Mapping[LeaseKey, float] = field(default_factory=dict)
    """Seconds since the counter of each lease last changed."""

    failed_stages: Mapping[str, str] = field(default_factory=dict)
    overdue_handoffs: Collection[LeaseKey] = ()
    lag_seconds: float | None = None
    """The largest of the lags that workers report. At a tick of the leader, the lags of leases at rest count, too.
    """

    retention: Mapping[str, float] = field(default_factory=dict)
    """Seconds for which each stream keeps its records. Streams whose retention is not known are missing."""

    unknown_retention: Collection[str] = ()
    """Streams whose retention could not be read."""

    data_loss: Sequence[str] = ()
    waiting_runs: Mapping[str, float] = field(default_factory=dict)
    """Slots (places for workers) whose run is queued -> for how many seconds."""

    starts_given_up: Mapping[str, int] = field(default_factory=dict)
    """Runs whose workers had not begun to read when the leader stopped waiting for them -> the time at which it
    stopped waiting, in epoch seconds. A run is left out if a worker was started successfully after this time, or if
    no worker had to be launched since."""

    uptimes: Mapping[WorkerId, float] = field(default_factory=dict)
    """Seconds since the run of each worker began. Workers whose run is not known are missing."""

    completeness: Completeness | None = None
    """The time through which everything is stored, and what prevents a later time. None if the time was not
    determined."""

    streams: Sequence[StreamSight] = ()
    decisions: Sequence[Decision] = ()
    now: float = 0.0
    """Epoch seconds."""

    @cached_property
    def open_leases(self) -> list[Lease]:
        return [lease for lease in self.leases if not lease.is_finished]

    @cached_property
    def shares(self) -> dict[str, int]:
        """For each worker that is alive or owns an open lease: the number of its open leases."""
        held = Counter(str(lease.actual_owner) for lease in self.open_leases if lease.actual_owner)
        return {**{str(row.id): 0 for row in self.workers}, **held}

    @cached_property
    def speeds(self) -> dict[str, float]:
        """The throughput of each worker that owns an open lease, in KB/s."""
        found: dict[str, float] = {}
        for lease in self.open_leases:
            owner = lease.actual_owner
            if owner is not None:
                found[owner] = found.get(owner, 0.0) + (lease.throughput_kbps or 0.0)
        return found

    @cached_property
    def stopped(self) -> list[LeaseKey]:
        """Shards that are not read further because a batch of theirs keeps failing."""
        return sorted({key for row in self.workers for key in row.stopped or ()})

    @cached_property
    def failing(self) -> set[LeaseKey]:
        """Shards whose last attempt at a batch failed, including stopped shards."""
        return {key for row in self.workers for key in row.failing or ()}

    @cached_property
    def slow_since(self) -> dict[LeaseKey, int]:
        """Shards with a batch that the consumer's code has been processing for a long time -> when this processing
        began, in epoch seconds."""
        return {key: at for row in self.workers for key, at in (row.slow_since or {}).items()}

    @cached_property
    def why_stopped(self) -> dict[LeaseKey, str]:
        """The errors of stopped shards. Shards whose workers report no error are missing."""
        return {key: why for row in self.workers for key, why in (row.why_stopped or {}).items()}

    @cached_property
    def lags(self) -> list[ShardLag]:
        """The lags of open leases: first the leases whose lag is not known, then the largest lag first.

        - If a worker reads the lease, the lag is the one that the worker reports. A worker reports only its shards
          with the largest lags. Leases of its other shards are left out.
        - If the lease is at rest, the lag is the time for which its first unread record has waited.
        - In all other cases, the lag is the upper bound of `_by_clock`. For example, the lease is paused, or its
          worker has not reported any lag yet.
        """
        told = {key: (ms / 1000, row.id) for row in self.workers for key, ms in (row.behind or {}).items()}
        unserved = {*self.unserved, *self.paused, *self.resting}
        rows = {row.id: row for row in self.workers}
        found = []
        for lease in self.open_leases:
            row = rows.get(lease.actual_owner) if lease.actual_owner is not None else None
            is_read = row is not None and lease.key not in unserved
            seconds, worker = told.get(lease.key, (None, None)) if is_read else (None, None)
            if seconds is None and row is not None and is_read and (row.slot is None or row.lag_ms is not None):
                continue  # one of the shards that its worker does not report
            if seconds is None:
                seconds = self.resting.get(lease.key, self._by_clock(lease))
            stream = self.stream_of(lease)
            used = self._used(stream, seconds)
            found.append(ShardLag(lease.key, stream, seconds, used, worker or lease.actual_owner, is_read=is_read))
        return sorted(found, key=lambda lag: (lag.seconds is not None, -(lag.seconds or 0.0), lag.lease))

    def _by_clock(self, lease: Lease) -> float | None:
        """An upper bound of the lag: the seconds since `stored_through`. Every record that reached the shard before
        that time is stored. None if one of the two times is not known."""
        return None if lease.stored_through is None or not self.now else max(0.0, self.now - lease.stored_through)

    @cached_property
    def unknown_lags(self) -> list[LeaseKey]:
        """Leases that have no worker and whose lag is not known, except for new leases in their first minute."""
        return [
            lag.lease
            for lag in self.lags
            if lag.seconds is None and not lag.is_read and self.ages.get(lag.lease, NEW_SECONDS) >= NEW_SECONDS
        ]

    @cached_property
    def seconds_behind(self) -> float | None:
        known = [lag.seconds for lag in self.lags if lag.seconds is not None]
        told = [] if self.lag_seconds is None else [self.lag_seconds]
        return max((*known, *told), default=None)

    @cached_property
    def retention_used(self) -> float | None:
        """The part of the retention that is used up: the lag of a shard, divided by the retention of its stream.
        The shard with the largest quotient counts. If no quotient is known, `lag_seconds` is divided by the
        shortest retention."""
        used = [lag.retention_used for lag in self.lags if lag.retention_used is not None]
        if not used and self.lag_seconds is not None and self.retention:
            used = [self.lag_seconds / min(self.retention.values())]
        return max(used, default=None)

    def stream_of(self, lease: Lease) -> str | None:
        """The name of a lease's stream. If the application has several streams, the lease itself contains the
        name."""
        if lease.stream is not None:
            return lease.stream.name
        names = [*self.retention] or [stream.name for stream in self.streams]
        return names[0] if len(names) == 1 else None

    def _used(self, stream: str | None, seconds: float | None) -> float | None:
        kept = self.retention.get(stream) if stream is not None else None
        return seconds / kept if seconds is not None and kept else None

    @cached_property
    def shape(self) -> object:
        """A value that changes only with facts that an operator would want to see at once: the owners and ends of
        leases, the states of workers, the leader, and the failed stages."""
        return (
            frozenset((lease.key, lease.owner, lease.checkpoint_owner, lease.is_finished) for lease in self.leases),
            frozenset((row.id, row.state) for row in self.workers),
            self.leader,
            frozenset(self.failed_stages),
        )


def of_tick(
    report: TickReport,
    runs: Mapping[str, SlotRun],
    now: float,
    retention: Mapping[str, float] | None = None,
) -> Observation:
    """The observation of a tick; `now` in epoch seconds, `retention` in seconds by stream."""
    workers = [sight.row for sight in report.workers if sight.alive]
    of_slot = {row.id: runs[row.slot] for row in workers if row.slot is not None and row.slot in runs}
    return Observation(
        leases=report.leases,
        workers=workers,
        leader=report.leader,
        leading=report.leading,
        missing_table=report.missing_table,
        unserved=[key for key in report.unserved if key not in report.paused],
        resting=report.resting,
        paused=[
            lease.key
            for lease in report.leases
            if lease.key in report.paused and (lease.actual_owner is None or lease.key in report.unserved)
        ],
        paused_by=report.paused_by,
        ages=report.ages,
        failed_stages={stage.name: stage.error or "postponed" for stage in report.stages if not stage.ok},
        lag_seconds=None if report.lag_ms is None else report.lag_ms / 1000,
        retention=retention or {},
        data_loss=[f"{loss.lease}: {loss.what}" for loss in report.data_loss],
        waiting_runs={slot: now - run.started_at for slot, run in runs.items() if run.status == "queued"},
        starts_given_up=report.starts_given_up,
        uptimes={
            row.id: now - of_slot[row.id].started_at
            for row in workers
            if row.id in of_slot and of_slot[row.id].run_id == row.run_id
        },
        completeness=report.completeness,
        streams=report.streams,
        decisions=_decisions(report),
        now=now,
    )


def _decisions(report: TickReport) -> list[Decision]:
    return [
        *(Decision("loss", str(loss.lease), loss.what) for loss in report.data_loss),
        *(Decision(move.kind, str(move.lease), move.because, move.to) for move in report.moves),
        *(Decision("start", launch.slot, launch.because) for launch in report.launches),
        *(Decision("end", slot, because) for slot, because in report.retire.items()),
        *(_note(note) for note in report.notes),
    ]


def _note(text: str) -> Decision:
    """Split a note at its first colon, after which a note usually states the reason."""
    what, _, why = text.partition(": ")
    return Decision("note", what, why)
