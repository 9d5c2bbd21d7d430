"""One tick of the leader.

    lead -> observe -> sync -> fleet -> assign -> clean -> report

A tick depends on the tables, the orchestrator's runs, earlier observations, and the time. Stages are isolated: if a
stage fails, the tick reports it, and the next stages continue with the information that they have. A tick has a
time budget. If it runs out of time, the next tick decides again. Every write is conditional, so two leaders, a
repeated tick or an interrupted tick do no harm.
"""

import copy
import json
import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kcl_dagster.errors import KclError, LayoutRefused, TableNotFound
from kcl_dagster.leader import expiry, handoff
from kcl_dagster.leader.application_completeness import Completeness, Hindrance, complete_through
from kcl_dagster.leader.failure_count import twice
from kcl_dagster.leader.first_rows import wait_for_first_rows
from kcl_dagster.leader.fleet import ABANDONED_SECONDS, FleetPlan, FleetSight, decide_fleet
from kcl_dagster.leader.former_workers import spare_former_workers
from kcl_dagster.leader.liveness import MISSED_BEATS, lag_of, scalable_lag_of
from kcl_dagster.leader.memory import LAUNCH, SILENT, TARGET, Memory
from kcl_dagster.leader.moving import MoveOutcome, decide
from kcl_dagster.leader.observation import Observer, Sight
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.scan_pace import is_settled
from kcl_dagster.leader.start_patience import remembered
from kcl_dagster.leader.start_watch import START_SECONDS
from kcl_dagster.leader.sync_stage import SyncOutcome
from kcl_dagster.leader.tick_report import Launch, StageOutcome, TickReport
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.tables.lock import DEPLOYMENT, STANDBY

if TYPE_CHECKING:
    from kcl_dagster.leader.tick import Leader

log = logging.getLogger(__name__)

# The time for which a counter was unchanged is saved if it is at least this part of the lease duration. An owner
# that is alive changes the counter earlier.
_WORTH_REMEMBERING: Final = 0.5
# A leader that started recently also saves shorter times: those of at least this part of the time since its start.
# Without this rule, leaders that restart often would never save anything.
_WORTH_REMEMBERING_YOUNG: Final = 0.5
# The memory is saved at least at this interval. If a decision has changed, such as a launch, the same tick saves
# the memory. While the memory contains the time for which a lease or a handoff was unchanged, every tick saves it.
_SAVE_SECONDS: Final = 30.0
# The part of the budget after which the sync stage stops for this tick, so that time remains for the assign stage.
_SYNC_SHARE: Final = 0.5
# The part of the budget that is left for decisions even if the tables were read for longer than the whole budget.
_DECISION_SHARE: Final = 0.5
# If reading the tables took long, the deadline of the tick is extended, to at most this many seconds after the
# start of the tick. Dagster abandons a tick after 60 s.
_LATEST_END: Final = 50.0


@dataclass(slots=True)
class Tick:
    """One tick of a leader. If `dry`, the tick decides everything and writes nothing."""

    leader: "Leader"
    runs: RunView
    dry: bool = False
    stages: list[StageOutcome] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    sight: Sight | None = None
    synced: SyncOutcome = field(default_factory=SyncOutcome)
    fleet: FleetPlan | None = None
    moved: MoveOutcome = field(default_factory=MoveOutcome)
    launches: list[Launch] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    leading: bool = False
    owner: str | None = None
    cannot_read: bool = False
    refused: str | None = None
    missing_table: str | None = None
    resting: Mapping[LeaseKey, float] = field(default_factory=dict)
    deadline: float = 0.0
    started: float = 0.0
    completeness: Completeness | None = None
    scanned: tuple[float, float] | None = None
    """When the last read of the tables began and ended (monotonic)."""

    memory: Memory = field(init=False)
    observer: Observer = field(init=False)

    def __post_init__(self) -> None:
        # A dry tick works with a copy of the leader's memory.
        kept = self.leader.memory, self.leader.observer
        self.memory, self.observer = copy.deepcopy(kept) if self.dry else kept
        self.started = self.leader.runtime.clock.monotonic()
        self.deadline = self.started + self.leader.application.timings.tick_budget

    def run(self) -> TickReport:
        if not self.dry and not self._stage("lead", self._lead):
            return self._report()
        if not self.dry and not self.leading:
            self._follow()
            return self._report()
        if not self.dry and not self._is_due():
            return replace(self._report(), skipped="nothing is to be done, and the tables were read not long ago")
        self._stage("observe", self._observe)
        self._leave_time_to_decide()
        self._stage("sync", self._sync)
        self._stage("fleet", self._decide_fleet)
        self._stage("assign", self._assign)
        self._see_completeness()
        if not self.dry:
            self._stage("clean", self._clean)
            self._stage("report", self._save)
            self._count_failures()
            self._watch_starts()
            self._set_pace()
        return self._report()

    def _stage(self, name: str, work: Callable[[], str | None]) -> bool:
        """Run one stage. `work` returns a text with the errors that did not stop the stage, or None. Returns
        whether the stage had no error."""
        clock = self.leader.runtime.clock
        started = clock.monotonic()
        if started >= self.deadline:
            late = "postponed: the tick ran out of time"
            self.stages.append(StageOutcome(name, ok=False, seconds=0.0, error=late, began=started))
            return False
        try:
            error = work()
        except TableNotFound:
            # The table existed when this leader was opened. With a new table, the application would begin anew and
            # store records again, so only an operator is allowed to create one.
            error = self.missing_table = (
                f"a table of application {self.leader.application.name} was deleted. The leader makes no new one, "
                "because the application would begin anew and store records again. Restore the table from a backup "
                "or with kcl-dagster import: the leader then goes on by itself. Only if the application is to "
                "begin anew: reload the code location"
            )
            self.broken.add(name)
        except KclError as problem:
            error = str(problem)
            self.broken.add(name)
        except Exception as problem:  # a bug in one stage must not prevent the other stages
            log.exception("stage %s of the leader of %s failed", name, self.leader.application.name)
            error = f"{type(problem).__name__}: {problem}"
            self.broken.add(name)
        took = clock.monotonic() - started
        self.stages.append(StageOutcome(name, ok=error is None, seconds=took, error=error, began=started))
        return error is None

    def _lead(self) -> None:
        try:
            is_declared = self.leader.tables.verify()
        except LayoutRefused as refusal:
            self.refused = str(refusal)
            raise
        self._stay_away()
        self.leader.remember()
        view = self.leader.tables.lock.hold(self.memory.standing)
        self.leading, self.owner = view.held, view.owner
        if view.is_shared:
            self._agree()
        # The protocol is declared before any lease is created, because without this declaration, workers refuse the
        # leases.
        if view.held and not is_declared:
            self.leader.tables.declare()
        if view.held:
            self._read_control()
        else:
            self.leader.forget_leadership()

    def _is_due(self) -> bool:
        """Whether to read the tables in this tick; see `scan_pace`."""
        return self.leader.pace.is_due(self.started, self._known())

    def _known(self) -> object:
        """The information that a tick has without reading the leases and the workers' rows: the runs, and what an
        operator has paused."""
        return dict(self.runs.slots), self.runs.unknown, self.leader.control

    def _set_pace(self) -> None:
        """Decide whether the next ticks can leave out the read of the tables."""
        sight, pace = self.sight, self.leader.pace
        changes = self.moved.planned or self.launches or self.abandoned or self.synced.created
        is_done = self.leading and not changes and all(stage.ok for stage in self.stages)
        if (
            sight is None
            or self.scanned is None
            or not is_done
            or not is_settled(sight, self.leader.control.leases)
        ):
            pace.reset()
            return
        pace.note(*self.scanned, self._known(), expiry.soonest(sight.leases, sight.ages, sight.durations))

    def _agree(self) -> None:
        """Take over the decisions of another process of this deployment. If they cannot be read, this tick
        continues with the decisions that this process knows."""
        self.leader.pace.reset()
        try:
            self.leader.remember(anew=True)
        except KclError as problem:
            self.notes.append(f"what another process of this deployment decided could not be read: {problem}")

    def _stay_away(self) -> None:
        """Raise a KclError while this process must not take the lock that it has given up."""
        failures, now = self.leader.failures, self.leader.runtime.clock.monotonic()
        if failures.waits(now) > 0:
            raise KclError(
                f"it could not do its work and leaves the lead to others for {failures.waits(now):.0f} s"
            )
        rest = self.leader.starts.waits(now)
        if rest > 0:
            raise KclError(f"none of its workers comes to read, and it leaves the lead to others for {rest:.0f} s")
        if failures.cannot_read:
            twice(self.leader.tables.leases.scan)
            failures.cannot_read = False

    def _follow(self) -> None:
        """If a Java worker leads, launch and drain kcl_dagster workers. The Java worker assigns leases to these
        workers, but does not launch or drain them."""
        if self.owner is None or self.owner.startswith((DEPLOYMENT, STANDBY)):
            return
        self.observer = self.leader.follower
        self._stage("observe", self._observe)
        if self.sight is None or not any(row.id == self.owner and row.slot is None for row in self._rows()):
            return
        self.notes.append(f"{self.owner}, a Java worker, leads: it assigns leases, and workers are launched here")
        self._stage("fleet", self._decide_fleet)
        self._stage("report", self._save)

    def _observe(self) -> None:
        clock = self.leader.runtime.clock
        if self.dry or not self.leading:
            self._read_control()
        self._read_completeness()
        self.sight = self._look()
        rest = expiry.rest(self.sight.leases, self.sight.ages, self.sight.durations)
        if rest is not None and not self.dry and clock.monotonic() + rest < self.deadline:
            clock.sleep(rest)
            self.sight = self._look()
        if not self.dry and self.leading:
            workers = self.leader.tables.workers
            if wait_for_first_rows(self.sight, self.runs, workers, clock, self.deadline):
                self.sight = self._look()
        for slot in self.runs.slots:
            self.memory.saw_run(slot)

    def _leave_time_to_decide(self) -> None:
        """Extend the deadline after a long read of the tables. Without this, ticks would never decide anything if
        each read takes the whole budget."""
        least = self._read_until + self.leader.application.timings.tick_budget * _DECISION_SHARE
        self.deadline = max(self.deadline, min(least, self.started + _LATEST_END))

    @property
    def _read_until(self) -> float:
        """When the last read of the tables ended (monotonic); the start of the tick if they were not read."""
        return self.started if self.scanned is None else self.scanned[1]

    def _look(self) -> Sight:
        try:
            scan = twice(self.leader.tables.leases.scan)
        except KclError:
            self.cannot_read = True
            raise
        self.scanned = scan.started, scan.ended
        runs = replace(self.runs, finished=self._finished)
        return self.observer.observe(scan, runs, self.leader.runtime.clock.now())

    def _read_control(self) -> None:
        """Read whether an operator has paused the application, leases or slots. If this cannot be read, the last
        known state applies."""
        try:
            self.leader.control = self.leader.tables.control.load()
        except KclError as problem:
            self.notes.append(f"whether the application is paused could not be read: {problem}")

    def _read_completeness(self) -> None:
        """Read the completeness row, unless this process knows the row already. While this process leads, it knows
        the row from its own writes. Must run before the leases are read; see `Leader.written`."""
        leader = self.leader
        if leader.written is None:
            try:
                leader.written = leader.tables.completeness.load()
            except KclError as problem:
                self.notes.append(f"through which moment the application is complete could not be read: {problem}")

    def _see_completeness(self) -> None:
        """Calculate the moment through which everything is stored, and write it if it is later than before."""
        leader, sight = self.leader, self.sight
        if sight is None or leader.written is None:
            return
        found = complete_through(
            sight.leases,
            [stream.name for stream in leader.application.streams],
            leader.application.timings.arrival_margin,
            now=leader.runtime.clock.now(),
            unreadable=sight.unreadable,
            hindered=self._hindered(sight),
            read_through=leader.unread.read_through(sight.leases),
        )
        if found.through is not None and not self.dry and self.leading:
            try:
                first = leader.syncer.first_moment() if leader.written.awaits_first else None
                leader.written = leader.tables.completeness.advance(leader.written, found.through, first)
            except KclError as problem:
                self.notes.append(f"that everything is stored through {found.through} is not written: {problem}")
        written = leader.written
        now = leader.runtime.clock.now()
        self.completeness = replace(
            found,
            through=written.through,
            epoch=written.epoch,
            back_to=written.back_to,
            first=written.first,
            reached=found.through,
            seconds_ago=None if written.through is None else max(0.0, now - written.through),
        )

    def _hindered(self, sight: Sight) -> dict[LeaseKey, Hindrance]:
        """Return the leases that make no progress for a known reason, and the reason."""
        found = dict.fromkeys(sight.unserved, Hindrance.UNSERVED)
        for seen in sight.workers:
            found |= dict.fromkeys(seen.row.stopped or (), Hindrance.STOPPED)
        return found | dict.fromkeys(self._paused(sight), Hindrance.PAUSED)

    def _finished(self, run_ids: Collection[str]) -> Collection[str]:
        """Return the runs that are over. If the orchestrator does not answer, returns none. Leases of workers that
        have ended are then taken only when the leases expire."""
        try:
            return self.runs.finished(run_ids)
        except Exception as problem:
            self.notes.append(f"which runs are over could not be found out: {problem}")
            return ()

    def _sync(self) -> str | None:
        sight = self._seen()
        share = self.leader.application.timings.tick_budget * _SYNC_SHARE
        until = self._read_until + share
        self.synced = self.leader.syncer.run(sight.leases, until, self._rows(), dry=self.dry)
        not_ours = (*self.synced.former, *self.synced.disputed)
        self.sight = sight.with_created(self.synced.created).without(lease.key for lease in not_ours)
        problems = self.synced.errors
        if not self.dry:
            current = self.leader.syncer.identifiers()
            notes, more = self.leader.former.run(self.synced.former, current, until)
            self.notes += notes
            problems += more
        return "; ".join(problems) or None

    def _decide_fleet(self) -> None:
        if self.leader.control.paused:
            self._drain_all_workers()
            return
        if not self.runs.launches:
            return
        if self.runs.unknown:
            self.notes.append(f"{self.runs.unknown}: a slot whose run is queued or starting is taken for free")
        clock = self.leader.runtime.clock
        sight, book, standing = self.sight, self.observer.book, self.memory.standing
        paused = self.leader.control.leases
        plan = decide_fleet(
            self.leader.application.fleet,
            FleetSight(
                slots=self.runs.slots,
                workers=sight.workers if sight is not None else (),
                open_leases=len(sight.unfinished) if sight is not None and self._is_synced() else None,
                unserved=sum(key not in paused for key in sight.unserved) if sight is not None else 0,
                lag_ms=scalable_lag_of(sight.workers, paused) if sight is not None else None,
                waited=self._waited(sight) if sight is not None else None,
                kbps=sum(book.kbps(lease) or 0.0 for lease in sight.unfinished) if sight is not None else 0.0,
                target=self.memory.target,
                target_stood=standing.stood_for(TARGET, str(self.memory.target)),
                now=clock.now(),
                paused=self.leader.control.slots,
                code=self.runs.code,
                given_up=remembered(self.memory.given_up, clock.now()),
            ),
            self.leader.application.policy.max_throughput_kbps_per_worker,
        )
        self.fleet = plan
        self.memory.target = plan.target
        moment = clock.monotonic()
        standing.observe(TARGET, str(plan.target), moment, moment)
        if not self.dry:
            up = {seen.row.run_id for seen in sight.workers if seen.alive and seen.ready} if sight else None
            self.leader.launches.see(self.runs.slots, clock.now(), moment, up)
        if sight is not None:
            self._see_silent(plan, moment)
        for slot, because in plan.launch.items():
            self._launch(slot, because)
        self.notes += plan.notes
        if plan.given_up_over:
            self.memory.end_given_up()
        if sight is not None:
            self.sight = sight.with_draining(plan.drain)
        if not self.dry:
            self.memory.given_up = remembered(self.memory.given_up, clock.now())
            for worker in plan.drain:
                if self._request_drain(worker) and worker in plan.given_up:
                    self.memory.give_up(plan.given_up[worker], clock.now())
        if sight is not None:
            self._send_away(sight)

    def _waited(self, sight: Sight) -> float | None:
        """Return for how many seconds the oldest record that no worker reads has waited. This is looked up only
        while the fleet is at rest; otherwise the result is None."""
        if self.leader.application.fleet.min_workers > 0 or self.memory.target:
            return None
        paused = self.leader.control.leases
        leases = [lease for lease in sight.unfinished if lease.key in sight.unserved and lease.key not in paused]
        self.resting = self.leader.unread.waited(leases)
        return max(self.resting.values(), default=0.0)

    def _see_silent(self, plan: FleetPlan, moment: float) -> None:
        """Find runs that keep a slot although their worker has ended, and list them in `abandoned`. Called only if
        the rows of the workers could be read."""
        standing, heartbeat = self.memory.standing, self.leader.application.timings.heartbeat
        for slot, run in self.runs.slots.items():
            standing.observe(SILENT + slot, plan.silent.get(slot, ""), moment, moment)
            silent_for = standing.stood_for(SILENT + slot, run.run_id)
            # A worker whose clock is wrong is silent only until its second heartbeat.
            if slot in plan.silent and silent_for >= max(ABANDONED_SECONDS, MISSED_BEATS * heartbeat):
                self.abandoned.append(run.run_id)
                self.notes.append(f"run {run.run_id} of {slot} is reported as failed: its worker is gone")

    def _send_away(self, sight: Sight) -> None:
        """Ask a worker to drain if it still writes its row although its run is over, or although another run has
        its slot. The worker itself possibly does not detect that it has to end."""
        for seen in sight.workers:
            if seen.beats and (seen.run_is_over or seen.replaced) and seen.id not in self.observer.sent_away:
                self.notes.append(f"{seen.id} is asked to leave: its run is over, or its slot has another")
                if not self.dry and self._request_drain(seen.id):
                    self.observer.sent_away.add(seen.id)

    def _drain_all_workers(self) -> None:
        """While the application is paused, ask the remaining kcl_dagster workers to drain. A Java worker cannot be
        asked to drain."""
        self.notes.append(f"the application is paused by {self.leader.control.changed_by or 'an operator'}")
        self.memory.end_given_up()
        sight = self._seen()
        for seen in sight.workers:
            if seen.alive and seen.row.slot is not None and not seen.row.drain_requested:
                self.notes.append(f"{seen.id} is asked to drain: the application is paused")
                if not self.dry:
                    self._request_drain(seen.id)

    def _launch(self, slot: str, because: str) -> None:
        clock, standing = self.leader.runtime.clock, self.memory.standing
        pause = self.leader.launches.pause(slot, clock.monotonic())
        if pause > 0:
            ended = self.leader.launches.short_runs(slot)
            self.notes.append(
                f"{slot} ended early, or before it could read, {ended} times in a row; "
                f"it is launched again in {pause:.0f} s"
            )
            return
        known = self.memory.generations.get(slot)
        waited = standing.stood_for(LAUNCH + slot, str(known.number)) if known is not None else 0.0
        number = self.memory.generation(slot, clock.now(), waited=waited)
        moment = clock.monotonic()
        standing.observe(LAUNCH + slot, str(number), moment, moment)
        self.launches.append(Launch(slot, number, because))

    def _is_synced(self) -> bool:
        """Whether the number of leases shows how many shards there are. If so, the number of workers can
        follow the number of leases."""
        has_leases = self.sight is not None and bool(self.sight.leases)
        return has_leases or (self.leading and not self.synced.errors) or self.dry

    def _assign(self) -> str | None:
        if self.leader.control.paused:
            self._free_the_dead(self._seen())
            return None
        sight = self._without_paused(self._seen())
        expected = self.fleet.expected + len(self.launches) if self.fleet is not None else 0
        now = self.leader.runtime.clock.monotonic()
        balance = self.leader.balanced_at is None or now - self.leader.balanced_at >= self.leader.balances_every
        assignment = decide(
            self.leader.policy,
            spare_former_workers(sight),
            self.observer.book,
            self.leader.application.policy,
            expected=expected,
            balance=balance,
            # A plan shows all moves, although the command that makes it may have observed the loads only once.
            watched=self.dry or self.observer.book.is_watched,
        )
        self.observer.book.note_outside(assignment.outside)
        if balance and not self.dry:
            self.leader.balanced_at = now
        self.moved = self.leader.mover.run(sight, assignment, self.deadline, dry=self.dry)
        problems = list(self.moved.errors)
        if problems and not self.moved.written:
            self.broken.add("assign")
        if self.moved.postponed:
            problems.append(f"{self.moved.postponed} moves are postponed: the tick ran out of time")
        return "; ".join(problems) or None

    def _without_paused(self, sight: Sight) -> Sight:
        """Take paused leases from their owners. The next write of such an owner then fails. Return the view without
        the paused leases, so that the assignment gives them no worker."""
        paused = self.leader.control.leases
        for lease in sight.unfinished:
            if lease.key in paused and lease.actual_owner is not None and not self.dry and not self._is_late():
                self.notes.append(f"{lease.key} is paused: it is taken from {lease.actual_owner}")
                self._evict(lease)
        return sight.without(paused)

    def _free_the_dead(self, sight: Sight) -> None:
        """While the application is paused, remove the owners of leases whose workers have ended. Resets and other
        operations can then change these leases. The write is conditional on the counter, so a worker that is alive
        keeps its lease."""
        for lease in sight.unfinished:
            why = sight.unserved.get(lease.key)
            if why is None or lease.actual_owner is None or self.dry or self._is_late():
                continue
            try:
                freed = self.leader.tables.leases.vacate(lease, counter=lease.counter)
            except KclError as problem:
                self.notes.append(f"{lease.key} could not be released: {problem}")
                continue
            if freed is not None:
                self.notes.append(f"{lease.key} is released: {why}")

    def _is_late(self) -> bool:
        """Whether the tick is out of time. The next tick continues."""
        return self.leader.runtime.clock.monotonic() >= self.deadline

    def _request_drain(self, worker: WorkerId) -> bool:
        """Ask a worker to drain, unless the tick is out of time. Returns whether it was asked."""
        return not self._is_late() and self.leader.tables.workers.request_drain(worker)

    def _evict(self, lease: Lease) -> None:
        """Remove the owner of a lease. During a handoff, releasing the lease only makes its next owner the owner,
        so the lease is then released once more."""
        leases = self.leader.tables.leases
        try:
            released = leases.release(lease)
            if released is not None and released.owner is not None:
                leases.release(released)
        except KclError as problem:
            self.notes.append(f"{lease.key} could not be taken away: {problem}")

    def _clean(self) -> str | None:
        sight = self._seen()
        gives_up = self.leader.application.batch.on_data_loss == "continue"
        lost = {event.lease for outcome in self.synced.streams for event in outcome.lost} if gives_up else set()
        listings = self.leader.syncer.listings()
        written = self.leader.written
        complete = None if written is None else written.through
        problems = self.leader.cleaner.run(sight, listings, self.deadline, abandoned=lost, complete=complete)
        return "; ".join(problems) or None

    def _save(self) -> None:
        """Save the memory for the next leader, if it has something urgent (see `_SAVE_SECONDS`) or the last save is
        long ago."""
        leader, now = self.leader, self.leader.runtime.clock.monotonic()
        worth = min(
            leader.application.timings.lease_duration * _WORTH_REMEMBERING,
            (now - leader.began) * _WORTH_REMEMBERING_YOUNG,
        )
        self.memory.costs = {worker: float(f"{cost:.3g}") for worker, cost in self.observer.book.costs.items()}
        document = self.memory.to_document(max(worth, 1.0))
        decisions = json.dumps({**document, "standing": None, "costs": None}, sort_keys=True)
        urgent = any(key.startswith((expiry.LEASE, handoff.HANDOFF)) for key in self.memory.standing_in(document))
        if leader.saved is not None and not urgent:
            saved_at, saved = leader.saved
            if saved == decisions and now - saved_at < _SAVE_SECONDS:
                return
        leader.tables.memory.save(document)
        leader.saved = now, decisions

    def _count_failures(self) -> None:
        """Give up leadership if this leader repeatedly cannot read or assign."""
        if self.broken.isdisjoint({"observe", "assign"}):
            self.leader.failures.succeeded()
        elif self.leader.failures.failed():
            now = self.leader.runtime.clock.monotonic()
            self.leader.failures.give_up(now, cannot_read=self.cannot_read)
            self._stage("resign", self._resign)

    def _watch_starts(self) -> None:
        """If none of this deployment's workers begins to read, give up leadership. Another deployment can then lead
        and launch workers."""
        plan, sight, runs = self.fleet, self.sight, self.runs
        if not self.leading or sight is None or runs.unknown or not runs.launches:
            return
        reading = [seen.row for seen in sight.reading(self.leader.control.leases)]
        ours = {run.run_id for run in runs.slots.values()}
        served = {row.slot for row in reading}
        wanted = set(runs.slots) - served - self.leader.control.slots
        is_short = plan is not None and plan.target > 0 and bool(plan.launch or wanted - set(plan.cancel))
        now = self.leader.runtime.clock.now()
        starting = [
            run.run_id
            for slot, run in runs.slots.items()
            if slot in wanted and run.status in {"starting", "running"} and now - run.started_at <= START_SECONDS
        ]
        reads = any(row.run_id in ours for row in reading)
        moment = self.leader.runtime.clock.monotonic()
        if self.leader.starts.see(moment, is_short=is_short, reads=reads, starting=starting):
            self.notes.append("no worker of this deployment has read for minutes: another deployment may lead")
            self._stage("resign", self._resign)

    def _resign(self) -> None:
        self.leader.resign()
        self.leading = False

    def _rows(self) -> list[WorkerRow]:
        return [seen.row for seen in self.sight.workers] if self.sight is not None else []

    def _seen(self) -> Sight:
        if self.sight is None:
            raise KclError("the tables could not be read in this tick")
        return self.sight

    def _paused(self, sight: Sight) -> frozenset[LeaseKey]:
        control = self.leader.control
        return frozenset(lease.key for lease in sight.unfinished if control.pauses(lease.key))

    def _report(self) -> TickReport:
        sight = self.sight
        report = TickReport(
            began=self.started,
            ended=self.leader.runtime.clock.monotonic(),
            leading=self.leading,
            leader=self.owner,
            refused=self.refused,
            missing_table=self.missing_table,
            stages=tuple(self.stages),
            moves=() if self.dry else self.moved.written,
            planned=self.moved.planned,
            launches=tuple(self.launches),
            abandoned=() if self.dry else tuple(self.abandoned),
            target_workers=self.fleet.target if self.fleet is not None else None,
            streams=tuple(outcome.sight for outcome in self.synced.streams),
            data_loss=tuple(event for outcome in self.synced.streams for event in outcome.lost),
            starts_given_up=self.memory.starts_given_up(self.leader.runtime.clock.now()) if self.leading else {},
            notes=tuple(self.notes),
        )
        if self.fleet is not None:
            retire = dict.fromkeys(self.fleet.cancel, "its run is queued and not needed any more")
            retire |= {worker.rpartition(":")[0]: why for worker, why in self.fleet.drain.items()}
            report = replace(report, retire=dict(sorted(retire.items())))
        written = self.leader.written
        report = replace(report, completeness=self.completeness, resets=() if written is None else written.resets)
        if sight is None:
            return report
        left = self.moved.left if self.moved.left is not None else sight.unserved
        is_at_rest = self.fleet is not None and self.fleet.target == 0
        resting = {
            key: waited for key, waited in self.resting.items() if is_at_rest and key in left and waited < math.inf
        }
        lag_ms = lag_of(sight.workers)
        if resting:
            lag_ms = max(lag_ms or 0, round(1000 * max(resting.values())))
        return replace(
            report,
            leases=sight.leases,
            ages=sight.ages,
            workers=sight.workers,
            unserved={key: why for key, why in left.items() if key not in resting},
            resting=resting,
            paused=self._paused(sight),
            paused_by=self.leader.control.paused_by,
            unreadable=sight.unreadable,
            lag_ms=lag_ms,
        )
