"""Converts a scan of the tables to the leader's view: which leases need an owner, and which workers are alive."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from kcl_dagster.application import Timings
from kcl_dagster.leader import expiry, handoff, liveness
from kcl_dagster.leader.handoff import Deadline, HandoffVerdict
from kcl_dagster.leader.liveness import KCL_ROW_SECONDS, MISSED_BEATS, LivenessRule, WorkerSight
from kcl_dagster.leader.load import LoadBook
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.lease_durations import lease_durations
from kcl_dagster.model.standing import Standing
from kcl_dagster.tables.lease_reader import ScanResult


@dataclass(frozen=True)
class Sight:
    """The leader's view of the tables at one time.

    - `unserved`: leases that need an owner now, and why.
    - `overdue`: leases whose handoff has exceeded its time.
    - `ages`: for how many seconds the counter of each lease was unchanged.
    - `unbegun`: leases that their owner has not renewed since it got them.
    """

    leases: tuple[Lease, ...]
    workers: tuple[WorkerSight, ...]
    unserved: Mapping[LeaseKey, str]
    overdue: frozenset[LeaseKey]
    ages: Mapping[LeaseKey, float]
    unbegun: frozenset[LeaseKey] = frozenset()
    unreadable: tuple[str, ...] = ()
    durations: Mapping[LeaseKey, float] = field(default_factory=dict)
    """The seconds without a renewal after which each lease expires."""

    @cached_property
    def unfinished(self) -> tuple[Lease, ...]:
        return tuple(lease for lease in self.leases if not lease.is_finished)

    def reading(self, paused: Collection[LeaseKey] = ()) -> list[WorkerSight]:
        """Return the ready workers that have begun to read at least one of their leases. If no lease is unserved or
        unbegun, all ready workers are returned. `paused` leases are ignored."""
        leases = [lease for lease in self.unfinished if lease.key not in paused]
        waiting = {lease.key for lease in leases} & (self.unserved.keys() | self.unbegun)
        begun = {lease.actual_owner for lease in leases if lease.key not in waiting}
        return [seen for seen in self.workers if seen.alive and seen.ready and (not waiting or seen.id in begun)]

    def with_created(self, created: Sequence[Lease]) -> "Sight":
        """Return this view with the leases that the sync stage created after the tables were read."""
        if not created:
            return self
        unserved = {**self.unserved, **{lease.key: "it is new" for lease in created}}
        leases = tuple(sorted((*self.leases, *created), key=lambda lease: lease.key))
        ages = {**self.ages, **{lease.key: 0.0 for lease in created}}
        return replace(self, leases=leases, unserved=unserved, ages=ages)

    def without(self, keys: Iterable[LeaseKey]) -> "Sight":
        """Return this view without the given leases, which should not be served."""
        gone = frozenset(keys)
        if not gone:
            return self
        return replace(
            self,
            leases=tuple(lease for lease in self.leases if lease.key not in gone),
            unserved={key: why for key, why in self.unserved.items() if key not in gone},
            overdue=self.overdue - gone,
        )

    def with_draining(self, workers: Iterable[WorkerId]) -> "Sight":
        asked = frozenset(workers)
        if not asked:
            return self
        return replace(
            self,
            workers=tuple(
                replace(
                    seen, row=replace(seen.row, drain_requested=True), accepts=False, why="it is asked to drain"
                )
                if seen.id in asked
                else seen
                for seen in self.workers
            ),
        )


@dataclass(slots=True)
class Observer:
    """Converts scans to `Sight`s. Records its observations in `standing` and `book`."""

    timings: Timings
    standing: Standing
    book: LoadBook = field(default_factory=LoadBook)
    _versions: dict[WorkerId, str] = field(default_factory=dict)
    _moving: set[WorkerId] = field(default_factory=set)
    _last_look: float | None = None
    """The time at which the last scan began (monotonic)."""

    _given: dict[LeaseKey, tuple[WorkerId | None, int | None]] = field(default_factory=dict)
    """For each lease, its owner, and the counter that the lease had when this owner was first observed. The counter
    is None once it has changed: the owner has then begun to renew the lease.

    The leader begins no handoff of a lease before that. A worker finds its new leases by searching for its own name
    as owner. During a handoff, the row names the next owner, so a worker that has not found the lease yet would
    never find it."""

    _runs: dict[WorkerId, str] = field(default_factory=dict)
    """The run of every worker that has a row, and of every worker that owns a lease although its row was
    deleted."""

    sent_away: set[WorkerId] = field(default_factory=set)
    """Workers that were asked to drain because their run is over, or because another run has their slot."""

    _suspects: dict[WorkerId, str] = field(default_factory=dict)
    """Workers that let a lease expire, with the version of their row at that time. By now, the lease may have
    another owner. Only this entry then still shows that the former owner may have ended: the row of a Java worker
    shows its end only after more than a minute."""

    def observe(self, scan: ScanResult, runs: RunView, now: float) -> Sight:
        """Return the leader's view of a scan, which must be strongly consistent. Called for each read of the
        tables, at most three times per tick. `now`: epoch seconds."""
        self._enter(scan)
        ended = self._ended(scan, runs)
        rule = LivenessRule(
            heartbeat=self.timings.heartbeat,
            now=now,
            stood=lambda row: self.standing.stood_for(liveness.observed_key(row), liveness.observed_version(row)),
            moved=lambda row: row.id in self._moving,
        )
        workers = _without_replaced([rule.judge(row, ended) for row in scan.workers], runs)
        over = {worker for worker, run in self._runs.items() if run in ended}
        ages: dict[LeaseKey, float] = {}
        unserved: dict[LeaseKey, str] = {}
        overdue: set[LeaseKey] = set()
        silent: set[WorkerId] = set()
        durations = lease_durations(scan.leases, scan.workers, self.timings.lease_duration)
        for lease in scan.leases:
            stood = self.standing.stood_for(expiry.observed_key(lease), expiry.observed_version(lease))
            ages[lease.key] = stood
            duration = durations[lease.key]
            why = expiry.why_unserved(lease, stood, duration, over.__contains__)
            if why is not None:
                unserved[lease.key] = why
                if lease.actual_owner is not None:
                    silent.add(lease.actual_owner)
            elif lease.in_handoff:
                waited = self.standing.stood_for(handoff.observed_key(lease), handoff.observed_version(lease))
                if Deadline(self.timings.handoff_timeout, duration).judge(lease, waited) is HandoffVerdict.FORCE:
                    overdue.add(lease.key)
        self.book.see(scan.leases, workers, scan.ended)
        return Sight(
            leases=scan.leases,
            workers=_without_suspects(workers, self._suspected(workers, silent)),
            unserved=unserved,
            overdue=frozenset(overdue),
            ages=ages,
            unbegun=self._unbegun(scan),
            unreadable=tuple(str(problem) for problem in scan.unreadable),
            durations=durations,
        )

    def _unbegun(self, scan: ScanResult) -> frozenset[LeaseKey]:
        """Return the leases that their owners have not begun to renew. A lease counts as begun if its owner has not
        changed since this leader first read it."""
        seen: dict[LeaseKey, tuple[WorkerId | None, int | None]] = {}
        for lease in scan.leases:
            owner, counter = self._given.get(lease.key, (lease.actual_owner, None))
            if owner != lease.actual_owner:
                owner, counter = lease.actual_owner, lease.counter
            seen[lease.key] = owner, counter if counter == lease.counter else None
        self._given = seen
        return frozenset(key for key, (owner, counter) in seen.items() if owner and counter is not None)

    def _suspected(self, workers: Sequence[WorkerSight], silent: Collection[WorkerId]) -> Collection[WorkerId]:
        """Return the workers that let a lease expire and whose rows have not changed since."""
        versions = {seen.id: liveness.observed_version(seen.row) for seen in workers}
        self._suspects = {
            worker: versions[worker]
            for worker in versions
            if worker in silent or self._suspects.get(worker) == versions[worker]
        }
        return self._suspects.keys()

    def _enter(self, scan: ScanResult) -> None:
        started, ended = scan.started, scan.ended
        kept: set[str] = set()
        for lease in scan.leases:
            key = expiry.observed_key(lease)
            kept.add(key)
            self.standing.observe(key, expiry.observed_version(lease), started, ended)
            if lease.in_handoff:
                key = handoff.observed_key(lease)
                kept.add(key)
                self.standing.observe(key, handoff.observed_version(lease), started, ended)
        # After a pause of the leader, a changed row may have been written minutes ago. Such a change does not show
        # that the worker is alive now.
        was_watching = self._last_look is not None and started - self._last_look <= self._longest_gap()
        self._last_look = started
        if not was_watching:
            self._moving.clear()
        for row in scan.workers:
            key, version = liveness.observed_key(row), liveness.observed_version(row)
            kept.add(key)
            self.standing.observe(key, version, started, ended)
            if was_watching and self._versions.get(row.id, version) != version:
                self._moving.add(row.id)
            self._versions[row.id] = version
        here = {row.id for row in scan.workers}
        self._moving &= here
        self.sent_away &= here
        self._versions = {worker: version for worker, version in self._versions.items() if worker in here}
        prefixes = (expiry.LEASE, handoff.HANDOFF, liveness.WORKER)
        self.standing.keep(lambda key: key in kept or not key.startswith(prefixes))

    def _longest_gap(self) -> float:
        """Return the longest time between two scans after which a changed row still shows that its worker is
        alive."""
        return max(MISSED_BEATS * self.timings.heartbeat, KCL_ROW_SECONDS)

    def _ended(self, scan: ScanResult, runs: RunView) -> frozenset[str]:
        """Return the runs that are over. Only runs of workers that have a row or own a lease are looked up. Runs
        that are active in a slot are not looked up, because they are not over."""
        owners = {lease.actual_owner for lease in scan.leases}
        known = {worker: run for worker, run in self._runs.items() if worker in owners}
        self._runs = known | {row.id: row.run_id for row in scan.workers if row.run_id is not None}
        active = {run.run_id for run in runs.slots.values()}
        asked = set(self._runs.values()) - active
        return frozenset(runs.finished(sorted(asked))) & asked if asked else frozenset()


def _without_suspects(workers: Sequence[WorkerSight], silent: Collection[WorkerId]) -> tuple[WorkerSight, ...]:
    """Mark the workers in `silent`, which do not renew their leases, as accepting no leases. This is done only if
    another worker accepts leases."""
    if not any(seen.accepts and seen.id not in silent for seen in workers):
        return tuple(workers)
    why = "it does not renew its leases"
    return tuple(
        replace(seen, accepts=False, why=why) if seen.accepts and seen.id in silent else seen for seen in workers
    )


def _without_replaced(workers: Sequence[WorkerSight], runs: RunView) -> tuple[WorkerSight, ...]:
    """Mark a worker as draining if another run has its slot, and the worker of that run can read.

    A run that is queued or starting replaces no worker. It may remain queued for ever, and the present worker of
    the slot may belong to another deployment of the application.
    """
    up = {seen.row.run_id for seen in workers if seen.alive and seen.ready}

    def judged(seen: WorkerSight) -> WorkerSight:
        run = runs.slots.get(seen.row.slot) if seen.row.slot is not None else None
        if run is None or seen.row.run_id is None or run.run_id == seen.row.run_id or run.run_id not in up:
            return seen
        why = f"run {run.run_id} has its slot"
        if not seen.alive:
            return replace(seen, replaced=True)
        row = replace(seen.row, drain_requested=True)
        return replace(seen, row=row, accepts=False, why=why, replaced=True)

    return tuple(judged(seen) for seen in workers)
