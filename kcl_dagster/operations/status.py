"""The status of an application: one read of its tables, as data."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeVar

from kcl_dagster.application import Application
from kcl_dagster.aws import Client
from kcl_dagster.errors import ConfigurationError, TableNotFound, UnreadableItem
from kcl_dagster.leader.application_completeness import Hindrance, complete_through
from kcl_dagster.leader.liveness import CLOCK_TOLERANCE, is_recent
from kcl_dagster.leader.memory import starts_given_up
from kcl_dagster.leader.start_patience import described
from kcl_dagster.model.counting import counted
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.superseded import former_streams
from kcl_dagster.model.worker_row import BOUNDED_SLOT, WorkerRow
from kcl_dagster.operations.no_table import no_table
from kcl_dagster.operations.unread_lag import Unread
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.bounded_run_row import BoundedRunRow, EndedRun
from kcl_dagster.tables.completeness_row import CompletenessRow, SetBack, WrittenThrough
from kcl_dagster.tables.control import Control, ControlRow
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.lock import STANDBY, LeaderLock
from kcl_dagster.tables.memory_row import MemoryRow
from kcl_dagster.tables.places import LayoutKind
from kcl_dagster.tables.starts import StartTable
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.tables.workers import WorkerTable

OBSERVER = "observer"  # the name of a lock object that only reads; the name is never written
GONE = "gone"  # the state of a worker whose last heartbeat is too old
# For this long after a bounded run, leases without a worker count as at rest, although it is not known when the
# next run is due. By default, a stream keeps its records for a day.
REST_SECONDS = 24 * 3600.0
FOREIGN = "a Java worker reads it, and does not store through when"

T = TypeVar("T")


@dataclass(frozen=True)
class Status:
    """The leases, workers and rows of an application at the time `at` (epoch seconds)."""

    application: Application
    layout: LayoutKind
    leader: str | None
    leases: Sequence[Lease]
    workers: Sequence[WorkerRow]
    unreadable: Sequence[str]
    at: float
    control: Control = field(default_factory=Control)
    """The application, leases and slots that operators have paused."""

    unread: Mapping[LeaseKey, float] = field(default_factory=dict)
    """When the first unread record of each lease without a worker arrived, in epoch milliseconds. Infinite if every
    record was read. Leases for which this is not known are missing."""

    complete: WrittenThrough = field(default_factory=WrittenThrough)
    """The time through which the application is complete (all records that arrived before it are stored), as the
    leader recorded it."""

    complete_within: float | None = None
    """Seconds. If set, bounded runs read the application, and it must be complete through a time that is at most
    this long ago. As long as it is, leases without an owner are at rest."""

    starts_given_up: Mapping[str, int] = field(default_factory=dict)
    """For each run whose worker the leader gave up, because its start took too long: when the leader gave it up, in
    epoch seconds. Runs are removed when a worker that was launched after them can read, or when no worker has to be
    launched."""

    last_run: EndedRun | None = None
    """How the last bounded run ended. None if there was none, or if its row cannot be read."""

    @cached_property
    def failed_run(self) -> EndedRun | None:
        """The last bounded run, if it failed and not all of its records have been stored since. None otherwise."""
        run, through = self.last_run, self.complete.through
        if run is None or not run.failed or (through is not None and through >= run.bound):
            return None
        return run

    @cached_property
    def set_back_since_run(self) -> SetBack | None:
        """The resets and imports since the last bounded run ended, combined into one. `epoch` is that of the last
        reset or import. `back_to` is the earliest moment to which one of them went back, or None if one of these
        moments is not known.

        The result is None if there was no reset or import, if the run failed, or if everything that the run had to
        store is stored again.
        """
        run, complete = self.last_run, self.complete
        if run is None or run.failed or (complete.through is not None and complete.through >= run.bound):
            return None
        since = [
            one
            for one in complete.resets
            if one.epoch >= run.ended_at - CLOCK_TOLERANCE and (one.back_to is None or one.back_to < run.bound)
        ]
        if not since:
            return None
        moments = [one.back_to for one in since if one.back_to is not None]
        return SetBack(since[-1].epoch, min(moments) if len(moments) == len(since) else None)

    @property
    def is_run_missed(self) -> bool:
        """Whether the failure of the last bounded run is a reason for an alert. It is no reason while something is
        paused. If `complete_within` is set, it is no reason either, because `is_overdue` then decides whether runs
        have failed for too long."""
        return self.failed_run is not None and self.complete_within is None and self.control.paused_by is None

    @property
    def _is_led_for_a_fleet(self) -> bool:
        """Whether there is a leader, and it is not the leader of a bounded run."""
        return self.leader is not None and not self.leader.startswith(f"{STANDBY}{BOUNDED_SLOT}:")

    @property
    def about_last_run(self) -> str | None:
        """One line about the last bounded run. None if there was no bounded run. Also None if a fleet has a leader,
        and everything that the run was to store is stored."""
        run = self.last_run
        if run is None or (self.failed_run is None and self._is_led_for_a_fleet):
            return None
        which = "the last bounded run that ended" if self.unended_runs else "the last bounded run"
        ended = f"{which} ({run.run_id[:8]}) {{}} at {_moment(run.ended_at)}"
        if self.failed_run is not None:
            return f"{ended.format('failed')}: {run.problem}"
        back = self.set_back_since_run
        if back is not None:
            which = "what it stored" if back.back_to is None else f"what arrived after {_moment(back.back_to)}"
            why = f"because leases were reset or imported at {_moment(back.epoch)}"
            return f"{ended.format('ended well')}; {which} is read again, {why}"
        what, stored = ("failed", "is stored by now") if run.failed else ("ended well", "was stored")
        return f"{ended.format(what)}; everything that had arrived by {_moment(run.bound)} {stored}"

    @property
    def unended_runs(self) -> list[WorkerRow]:
        """The workers of bounded runs that own open leases and have no recent heartbeat. Their processes were
        killed before they could record the end of the run."""
        living, owners = self.living, {lease.actual_owner for lease in self.open_leases}
        return [row for row in self.workers if row.is_bounded and row.id in owners and row.id not in living]

    @property
    def about_unended_runs(self) -> list[str]:
        return [
            f"a bounded run ({(row.run_id or '')[:8]}) has not ended: its worker, which has "
            f"{counted(self._open_by_owner[row.id], 'open lease')}, {_last_report(row)}. "
            "If its process was killed, the next run reads what is left"
            for row in self.unended_runs
        ]

    @cached_property
    def is_overdue(self) -> bool:
        """Whether `complete_within` is set, and the application is not complete through a time that is recent
        enough."""
        if self.complete_within is None:
            return False
        through = self.complete.through
        return through is None or self.at - through > self.complete_within

    @property
    def complete_through(self) -> str | None:
        """The time through which the application is complete, as ISO 8601 in UTC; None if it is not known."""
        through = self.complete.through
        return None if through is None else _moment(through)

    @cached_property
    def _former(self) -> frozenset[StreamIdentifier]:
        return former_streams([stream.name for stream in self.application.streams], self.leases)

    @property
    def why_not_known(self) -> str | None:
        """The reason why the time through which the application is complete is not known. None if it is known."""
        if self.complete.through is not None:
            return None
        former = self._former
        found = complete_through(
            [lease for lease in self.leases if lease.stream not in former],
            [stream.name for stream in self.application.streams],
            self.application.timings.arrival_margin,
            now=self.at,
            unreadable=self.unreadable,
            hindered=self._hindered,
        )
        if found.through is None and found.held_by is not None:
            by = found.held_by
            return f"{by.what}: {by.why if by.lease not in self._foreign else FOREIGN}"
        since = f" since the reset or the import of {_moment(self.complete.epoch)}" if self.complete.epoch else ""
        return f"no leader and no bounded run has found it out{since}"

    @property
    def _hindered(self) -> dict[LeaseKey, Hindrance]:
        paused = [lease.key for lease in self.open_leases if self.is_paused(lease)]
        return dict.fromkeys(self.why_stopped, Hindrance.STOPPED) | dict.fromkeys(paused, Hindrance.PAUSED)

    @cached_property
    def _foreign(self) -> set[LeaseKey | None]:
        """Open leases that Java workers read."""
        java = {row.id for row in self.living.values() if row.slot is None}
        return {lease.key for lease in self.open_leases if lease.actual_owner in java}

    @cached_property
    def open_leases(self) -> list[Lease]:
        """Leases that have to be read: neither finished nor of a former stream."""
        former = self._former
        return [lease for lease in self.leases if not lease.is_finished and lease.stream not in former]

    @cached_property
    def streams_without_leases(self) -> list[str]:
        """The streams of the application that have no lease, so nothing of them is read. The first tick of a leader
        makes the leases, unless it cannot list the shards of the stream. Empty if the application is paused, or if
        rows cannot be read, which can be leases."""
        if any(lease.stream is None for lease in self.leases):  # of an application that reads one stream
            return []
        if self.control.paused or self.unreadable:
            return []
        known = {lease.stream.name for lease in self.leases if lease.stream is not None}
        return sorted(stream.name for stream in self.application.streams if stream.name not in known)

    @property
    def about_streams(self) -> list[str]:
        return [
            f"stream {name} has no lease, so nothing of it is read: see the leader's ticks or `kcl-dagster doctor`"
            for name in self.streams_without_leases
        ]

    @cached_property
    def living(self) -> Mapping[WorkerId, WorkerRow]:
        """The workers whose last heartbeat is recent."""
        heartbeat = self.application.timings.heartbeat
        return {row.id: row for row in self.workers if is_recent(row, heartbeat, self.at)}

    @cached_property
    def unserved(self) -> list[Lease]:
        """Open leases that no living worker owns, and that are neither paused nor at rest. It is not checked
        whether the counter of an owned lease changes, because that takes a leader, or two reads."""
        return [lease for lease in self.without_worker if not self.is_paused(lease) and not self.is_at_rest(lease)]

    @cached_property
    def _unserved_keys(self) -> frozenset[LeaseKey]:
        return frozenset(lease.key for lease in self.unserved)

    @cached_property
    def _keys_without_worker(self) -> frozenset[LeaseKey]:
        return frozenset(lease.key for lease in self.without_worker)

    @cached_property
    def _open_by_owner(self) -> Counter[WorkerId | None]:
        """The number of open leases of each worker."""
        return Counter(lease.actual_owner for lease in self.open_leases)

    @cached_property
    def _rows(self) -> Mapping[WorkerId, WorkerRow]:
        """All workers, living or not."""
        return {row.id: row for row in self.workers}

    def is_at_rest(self, lease: Lease) -> bool:
        """Whether a lease has no worker on purpose. Either the next bounded run reads its records, or its records
        have not waited long enough for a worker to start."""
        if lease.actual_owner is not None or lease.is_finished:
            return False
        if self.complete_within is not None:
            return not self.is_overdue
        if self._is_between_runs(lease):
            return True
        fleet, since = self.application.fleet, self.unread.get(lease.key)
        return fleet.min_workers == 0 and since is not None and self.at - since / 1000 <= fleet.scale_up_lag

    def _is_between_runs(self, lease: Lease) -> bool:
        """Whether only bounded runs read the application, and the last run has stored its records of this lease."""
        run = self.last_run
        if run is None or self._is_led_for_a_fleet or self.at - run.ended_at > REST_SECONDS:
            return False
        if self.failed_run is None and self.set_back_since_run is None:
            return True
        return lease.stored_through is not None and lease.stored_through >= run.bound

    def is_paused(self, lease: Lease) -> bool:
        return self.control.paused or lease.key in self.control.leases

    def state_of(self, lease: Lease) -> str:
        if lease.is_finished:
            return "finished"
        if lease.key in self._unserved_keys:
            return "unserved"
        if lease.stream in self._former:
            return "former"
        if lease.actual_owner is None:
            return "paused" if self.is_paused(lease) else "at rest"
        if lease.key in self.why_stopped:
            return "stopped"
        if lease.key in self.slow_since:
            return "hung"
        if lease.key in self.failing:
            return "failing"
        return f"handoff to {lease.owner}" if lease.in_handoff else "served"

    @cached_property
    def why_stopped(self) -> dict[LeaseKey, str]:
        """Shards that keep failing, with the error if the worker reports it."""
        found: dict[LeaseKey, str] = {}
        for row in self.living.values():
            found |= {key: (row.why_stopped or {}).get(key, "") for key in row.stopped or ()}
        return found

    @cached_property
    def slow_since(self) -> dict[LeaseKey, int]:
        """Shards on whose batch the consumer's code has been working for long -> since when, in epoch seconds."""
        return {key: at for row in self.living.values() for key, at in (row.slow_since or {}).items()}

    @property
    def held_since(self) -> dict[WorkerId, Mapping[str, int]]:
        """For each worker with background threads that make no progress: since when each of them makes none, in
        epoch seconds, by the name of the thread."""
        return {row.id: row.held_since for row in self.living.values() if row.held_since}

    @property
    def held_threads(self) -> list[str]:
        return [
            f"{worker}: its thread of {thread} has not gone on since {datetime.fromtimestamp(at, UTC):%H:%M} UTC"
            for worker, threads in sorted(self.held_since.items())
            for thread, at in threads.items()
        ]

    @property
    def given_up(self) -> list[str]:
        """A line about the workers in `starts_given_up`. Empty if there are none."""
        return [described(self.starts_given_up)] if self.starts_given_up else []

    @cached_property
    def failing(self) -> dict[LeaseKey, str]:
        """Shards whose last attempt failed -> the attempt ("3 of 5"; empty if not known)."""
        return {key: (row.attempts or {}).get(key, "") for row in self.living.values() for key in row.failing or ()}

    @property
    def about_failing(self) -> list[str]:
        """A line about each failing shard whose error is known. Such a shard is not stopped: its batch is tried
        again."""
        return [
            f"{key} is failing{f', attempt {self.failing[key]}' if self.failing.get(key) else ''}: {why}"
            for key, why in sorted(self._why_failing.items())
        ]

    @cached_property
    def _why_failing(self) -> dict[LeaseKey, str]:
        return {key: why for row in self.living.values() for key, why in (row.why_failing or {}).items()}

    @property
    def is_well(self) -> bool:
        """Whether there is no reason for an alert: every stream has leases, no lease is unserved, no shard is
        stopped, no code and no thread hangs, no bounded run is missed or overdue, and every row can be read. A
        failed attempt that will be repeated is no reason."""
        hangs = self.slow_since or self.held_since
        is_late = self.is_overdue or self.is_run_missed
        is_unread = self.streams_without_leases or self.unserved
        return not (is_late or is_unread or self.why_stopped or hangs or self.unreadable)

    def behind_ms(self, lease: Lease) -> int | None:
        """The lag of a lease in milliseconds. None if it is not known.

        - With a living worker: the lag that the worker last reported. A worker reports only its shards that are
          furthest behind, and a worker of the KCL reports none.
        - Without a living worker: the age of its first unread record. If that is not known, the time since its
          shard was last known to be read to its end, because no unread record can be older.
        """
        if lease.is_finished:
            return None
        row = None if lease.actual_owner is None else self.living.get(lease.actual_owner)
        if row is not None:
            return None if row.behind is None else row.behind.get(lease.key)
        since = self.unread.get(lease.key, self._tip_ms(lease))
        return None if since is None else max(0, round(self.at * 1000 - min(since, self.at * 1000)))

    def _tip_ms(self, lease: Lease) -> float | None:
        """The latest time, in epoch milliseconds, at which the shard was known to be read to its end, according to
        the lease or the last heartbeat of its owner. None if it is not known."""
        known: list[float] = [] if lease.stored_through is None else [lease.stored_through * 1000]
        row = None if lease.actual_owner is None else self._rows.get(lease.actual_owner)
        if row is not None and row.last_update is not None and row.behind is not None and lease.key in row.behind:
            known.append(row.last_update * 1000 - row.behind[lease.key])
        return max(known, default=None)

    def behind_by(self, lease: Lease) -> str | None:
        """The source of a lease's lag: its `worker`, the `stream`, or the `clock` (the time since its shard was
        last known to be read to its end). None if the lag is not known."""
        if self.behind_ms(lease) is None:
            return None
        if lease.key in self._keys_without_worker:
            return "stream" if lease.key in self.unread else "clock"
        return "worker"

    @property
    def furthest_behind_ms(self) -> int | None:
        """The lag of the shard furthest behind, in milliseconds, including shards that no living worker reads. None
        if a shard has no living worker and its lag is not known."""
        unread = [self.behind_ms(lease) for lease in self.without_worker]
        told = [row.lag_ms for row in self.living.values() if row.lag_ms is not None]
        known = [millis for millis in unread if millis is not None]
        return None if len(known) < len(unread) else max((*known, *told), default=None)

    @cached_property
    def without_worker(self) -> list[Lease]:
        """Open leases that no living worker owns, including paused leases."""
        living = self.living
        return [lease for lease in self.open_leases if lease.actual_owner not in living]

    def seconds_behind(self, lease: Lease) -> float | None:
        millis = self.behind_ms(lease)
        return None if millis is None else round(millis / 1000, 1)

    @property
    def worst_first(self) -> list[Lease]:
        """All leases: first unserved leases, then stopped or hanging ones, then the others by their lag, and
        finished leases last."""
        stuck = {*self.why_stopped, *self.slow_since}
        return sorted(
            self.leases,
            key=lambda lease: (
                lease.is_finished,
                lease.key not in self._unserved_keys,
                lease.key not in stuck,
                -(self.behind_ms(lease) or 0),
                lease.key,
            ),
        )

    def to_document(self) -> dict[str, Any]:
        """The status as plain values with stable names, for other programs."""
        return {
            "application": self.application.name,
            "streams": [stream.name for stream in self.application.streams],
            "table": self.application.lease_table,
            "layout": self.layout.value,
            "leader": self.leader,
            "at": self.at,
            "complete_through": self.complete_through,
            "complete_unknown": self.why_not_known,
            "complete_epoch": self.complete.epoch,
            "overdue": None if self.complete_within is None else self.is_overdue,
            "last_bounded_run": None if self.last_run is None else self._run(self.last_run),
            "unended_bounded_runs": [row.run_id for row in self.unended_runs],
            "leases": [self._lease(lease) for lease in self.leases],
            "workers": [self._worker(row) for row in self.workers],
            "well": self.is_well,
            "streams_without_leases": self.streams_without_leases,
            "unserved": [lease.key for lease in self.unserved],
            "stopped": sorted(self.why_stopped),
            "hung": sorted(self.slow_since),
            "starts_given_up": dict(self.starts_given_up),
            "unreadable": list(self.unreadable),
            "paused": {
                "application": self.control.paused,
                "leases": sorted(self.control.leases),
                "workers": sorted(self.control.slots),
            },
        }

    def _run(self, run: EndedRun) -> Mapping[str, Any]:
        return {
            "run": run.run_id,
            "ended": _moment(run.ended_at),
            "bound": _moment(run.bound),
            "problem": run.problem or None,
            "stored_since": run.failed and self.failed_run is None,
            "set_back_since": self.set_back_since_run is not None,
        }

    def _lease(self, lease: Lease) -> Mapping[str, Any]:
        return {
            "lease": lease.key,
            "owner": lease.actual_owner,
            "next_owner": lease.owner if lease.in_handoff else None,
            "checkpoint": None if lease.checkpoint is None else str(lease.checkpoint),
            "pending_checkpoint": None if lease.pending_checkpoint is None else str(lease.pending_checkpoint),
            "behind_ms": self.behind_ms(lease),
            "behind_by": self.behind_by(lease),
            "counter": lease.counter,
            "throughput_kbps": lease.throughput_kbps,
            "batch": lease.batch,
            "state": self.state_of(lease),
            "why_stopped": self.why_stopped.get(lease.key),
            "why_failing": self._why_failing.get(lease.key),
            "failed_attempt": self.failing.get(lease.key) or None,
            "slow_since": self.slow_since.get(lease.key),
            "rows_without_window": lease.stored.outside if lease.stored is not None else None,
            "late_rows_uncounted": lease.stored.late_uncounted if lease.stored is not None else None,
        }

    def _worker(self, row: WorkerRow) -> Mapping[str, Any]:
        return {
            "worker": row.id,
            "slot": row.slot,
            "run": row.run_id,
            "state": row.state.value if row.id in self.living else GONE,
            "alive": row.id in self.living,
            "held_since": dict(row.held_since or {}) if row.id in self.living else {},
            "leases": self._open_by_owner[row.id],
            "behind_ms": row.lag_ms,
            "seconds_since_heartbeat": None if row.last_update is None else round(self.at - row.last_update, 1),
        }


def read_status(
    application: Application, dynamodb: Client, runtime: Runtime, unread: Unread | None = None
) -> Status:
    """Read the tables, with seven to nine requests. Rows that cannot be parsed are listed in `unreadable`.

    `unread`: if given, the stream is also read, to find the lag of leases that no worker reads. This takes two or
    more requests for each of these leases.

    Raises TableNotFound if no leader has created the tables yet.
    """
    layout = detect_layout(dynamodb, application, runtime)
    try:
        scan = LeaseTable(dynamodb, application, layout, runtime).scan()
        workers = WorkerTable(dynamodb, application, layout, runtime).list()
        problems = [str(problem) for problem in scan.unreadable]
        lock = LeaderLock(dynamodb, application, layout, runtime, OBSERVER)
        leader = _unless_unreadable(lock.peek, None, problems)
        control = _unless_unreadable(ControlRow(dynamodb, application, layout, runtime).load, Control(), problems)
        row = CompletenessRow(dynamodb, application, layout, runtime)
        complete = _unless_unreadable(row.load, WrittenThrough(), problems)
        memory = MemoryRow(dynamodb, application, layout, runtime).load()
        ended = BoundedRunRow(dynamodb, application, layout, runtime)
        last_run = _unless_unreadable(ended.load, None, problems)
    except TableNotFound as error:
        raise no_table(application, dynamodb) from error
    found = Status(
        application=application,
        layout=layout.kind,
        leader=leader,
        leases=sorted(scan.leases, key=lambda lease: lease.key),
        workers=sorted(workers, key=lambda row: row.id),
        unreadable=problems,
        at=runtime.clock.now(),
        control=control,
        complete=complete,
        starts_given_up=starts_given_up(memory, runtime.clock.now()),
        last_run=last_run,
    )
    if unread is None or not found.without_worker:
        return found
    starts = StartTable(dynamodb, application, layout, runtime)
    return replace(found, unread=unread.arrivals(found.without_worker, application.streams[0].name, starts))


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _last_report(row: WorkerRow) -> str:
    return "has never reported" if row.last_update is None else f"has not reported since {_moment(row.last_update)}"


def refuse_other_streams(application: Application, dynamodb: Client, runtime: Runtime) -> None:
    """Raise ConfigurationError if the tables have start positions, but none for one or more of the application's
    streams. Tables of a KCL application in another language have no start positions."""
    known = known_streams(application, dynamodb, runtime)
    others = [stream.name for stream in application.streams if stream.name not in known]
    if known and others:
        raise ConfigurationError(
            f"application {application.name} does not read {', '.join(others)}: its tables name {', '.join(known)}"
        )


def known_streams(application: Application, dynamodb: Client, runtime: Runtime) -> list[str]:
    """The streams whose start positions are in the tables. Empty if none can be read."""
    layout = detect_layout(dynamodb, application, runtime)
    try:
        starts = StartTable(dynamodb, application, layout, runtime).all()
    except (TableNotFound, UnreadableItem):
        return []
    return sorted({_name_of(stream) for stream in starts})


def _name_of(stream: str) -> str:
    try:
        return StreamIdentifier.parse(stream).name
    except ValueError:
        return stream


def _unless_unreadable(read: Callable[[], T], otherwise: T, problems: list[str]) -> T:
    try:
        return read()
    except UnreadableItem as problem:
        problems.append(str(problem))
        return otherwise
