"""One bounded run of an application: it stores what had arrived by a given time, and ends.

The run is a worker with the application's leases, so it can run alone, beside a fleet, or beside other bounded
runs. There are three cases:

    no record to read        the run ends at once, without Spark
    a fleet reads            the run waits until the fleet has stored everything, without Spark
    no worker reads a shard  the run starts a worker, which shares the leases with other workers

If there is no leader, the run acquires the leader lock and leads until it ends. It leads as a standby: if the
leader sensor ticks meanwhile, the sensor takes the lock over from the run.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from pyspark.sql import SparkSession

from kcl_dagster.errors import KclError
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.tick import Leader
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.worker_row import BOUNDED_SLOT
from kcl_dagster.orchestration.bounded_outcome import (
    BoundedOutcome,
    Lead,
    leads_again,
    open_bounded_leader,
    resign,
)
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.worker_run import WorkerRun
from kcl_dagster.runtime import Clock, Runtime, system
from kcl_dagster.streams.listing import refuse_missing
from kcl_dagster.tables.bounded_run_row import BoundedRunRow, EndedRun
from kcl_dagster.tables.completeness_row import CompletenessRow
from kcl_dagster.tables.control import ControlRow
from kcl_dagster.tables.lease_reader import ScanResult
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.worker.bound import SHARDS_NAMED, Bound, Remainder, remainder
from kcl_dagster.worker.error_text import brief
from kcl_dagster.worker.service_clock import ServiceClock
from kcl_dagster.worker.stop import StopReason, StopSignal
from kcl_dagster.worker.successors import FRESH_BEATS
from kcl_dagster.worker.surroundings import EndProcess, Watch, cannot_end

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 1.0  # shorter than the five seconds of the leader sensor: the run gets its leases at ticks
LOOK_SECONDS: Final = 1.0  # between two reads of the table, while a fleet reads
LEADER_JOIN_SECONDS: Final = 60.0  # longer than the longest budget of a tick, which is 45 s
KEEP_SECONDS: Final = 60.0  # for `_keep_complete`; after that, the run ends, and the next run stores a newer time


@dataclass(frozen=True, slots=True)
class BoundedRun:
    """The settings of one bounded run. `open_session`: called at most once, if there are records to read. `runs`:
    returns the worker runs known to Dagster, for the ticks of this run."""

    consumer: Consumer
    kcl: KclResource
    open_session: Callable[[], SparkSession]
    run_id: str
    event_log: RunEventLog
    watches: tuple[Watch, ...] = ()
    end_process: EndProcess = cannot_end
    runs: Callable[[], RunView] = RunView
    job: str | None = None

    def run(self, stop: StopSignal, through: float | None = None) -> BoundedOutcome:
        """Read and store what had arrived by `through` (epoch seconds; by default, and at the latest, now). Blocks
        until one of these is true:

        - all of it is stored,
        - `stop` is requested,
        - the remaining records cannot be read now.

        Raises StreamNotFound at once if none of the streams exists, and a KclError if the tables or the stream
        cannot be reached. If Spark cannot start, raises the error of
        the start.
        """
        runtime = system()
        began = runtime.clock.now()
        wanted = began if through is None else min(through, began)
        try:
            outcome = self._read(stop, through, runtime)
        except Exception as error:
            self._note_end(wanted, brief(error), runtime)
            raise
        self._note_end(outcome.through, "" if outcome.is_caught_up else str(outcome), runtime)
        return outcome

    def _read(self, stop: StopSignal, through: float | None, runtime: Runtime) -> BoundedOutcome:
        application = self.consumer.application
        refuse_missing(self._client("kinesis"), [stream.name for stream in application.streams], runtime)
        leader = open_bounded_leader(application, self.kcl, self.run_id, runtime)
        with _Leading(leader, self.runs) as leading:
            bound = self._bound(through, runtime)
            looked = self._look(bound, runtime).wait(stop, self.watches)
            outcome = looked if looked is not None else self._work(bound, stop)
        if outcome.reason in (StopReason.CAUGHT_UP, StopReason.STUCK):
            self._keep_complete(runtime)
        return _judged(replace(outcome, tick=leading.last, leading=leading.again))

    def _note_end(self, bound: float, problem: str, runtime: Runtime) -> None:
        """Store how this run ended, for the command `status`. The run's worker no longer has a row or leases that
        could show this."""
        application, dynamodb = self.consumer.application, self._client("dynamodb")
        ended = EndedRun(self.run_id, int(runtime.clock.now()), int(bound), " ".join(problem.split()))
        try:
            layout = detect_layout(dynamodb, application, runtime)
            BoundedRunRow(dynamodb, application, layout, runtime).save(ended)
        except KclError as error:
            log.warning("how this run ended was not stored for kcl-dagster status: %s", error)

    def _keep_complete(self, runtime: Runtime) -> None:
        """Store, with the data, the time through which the application is complete. In a fleet, workers store this
        time. But the worker of this run ended before the time was known, and possibly no other worker runs until
        the next bounded run. Waits for at most KEEP_SECONDS."""
        thread = threading.Thread(target=self._kept, args=(runtime,), name="kcl-completeness", daemon=True)
        thread.start()
        thread.join(KEEP_SECONDS)
        if thread.is_alive():
            log.warning("through when all is stored was not stored with the data in %.0f s", KEEP_SECONDS)

    def _kept(self, runtime: Runtime) -> None:
        choice, application, dynamodb = self.consumer.sink, self.consumer.application, self._client("dynamodb")
        if choice.open_staging is None:
            return
        try:
            layout = detect_layout(dynamodb, application, runtime)
            known = CompletenessRow(dynamodb, application, layout, runtime).load()
            if known.through is None:
                return
            sink = choice.open_staging(self.consumer.stored_transform, self.kcl.connection("s3", application))
            sink.keep_complete(application.name, known, self.consumer.windows.start_of(known.through))
        except (
            Exception
        ) as error:  # an error of the store or of the table's library: the records are stored nevertheless
            log.warning("through when all is stored was not stored with the data: %s", brief(error))

    def _bound(self, through: float | None, runtime: Runtime) -> Bound:
        """The time through which the run reads. The present time is taken from the clock of Kinesis, because the
        `stored_through` of leases is by this clock, too."""
        application = self.consumer.application
        by_service = ServiceClock(self._client("kinesis"), application.streams[0].name, runtime).now()
        now = runtime.clock.now() if by_service is None else by_service
        return Bound(
            now if through is None else min(through, now),
            application.timings.arrival_margin,
            streams=[stream.name for stream in application.streams],
        )

    def _work(self, bound: Bound, stop: StopSignal) -> BoundedOutcome:
        worker = WorkerRun(
            self.consumer,
            self.kcl,
            self.open_session,
            BOUNDED_SLOT,
            self.run_id,
            self.event_log,
            self.watches,
            self.end_process,
            bound,
            self.job,
        )
        reason = worker.work(stop)
        return _worked(bound, reason, stop.detail, self.event_log)

    def _look(self, bound: Bound, runtime: Runtime) -> "_Look":
        application, dynamodb = self.consumer.application, self._client("dynamodb")
        layout = detect_layout(dynamodb, application, runtime)
        return _Look(
            bound,
            LeaseTable(dynamodb, application, layout, runtime),
            ControlRow(dynamodb, application, layout, runtime),
            application.timings.heartbeat * FRESH_BEATS,
            runtime.clock,
        )

    def _client(self, service: str) -> Any:
        return self.kcl.client(service, self.consumer.application)


def _worked(bound: Bound, reason: StopReason, detail: str, event_log: RunEventLog) -> BoundedOutcome:
    """The outcome of a run that read by itself. If the run was stopped, for example by an operator, the outcome
    names the failing shards, because they can be the reason. If the run is stuck, `detail` already names them."""
    errors = {} if reason in (StopReason.CAUGHT_UP, StopReason.STUCK) else event_log.errors
    named = [f"{key}: {error}" for key, error in sorted(errors.items())[:SHARDS_NAMED]]
    more = len(errors) - len(named)
    told = [*filter(None, [detail]), *named, *([f"and {more} more shards failed"] if more else [])]
    return BoundedOutcome(bound.through, reason, "; ".join(told), event_log.records, worked=True)


def _judged(outcome: BoundedOutcome) -> BoundedOutcome:
    """The outcome. It is changed from caught up to stuck if the run's last tick as the leader could not calculate
    through which moment the application is complete. This can happen although all existing leases are stored
    through the bound of the run, because another lease can be missing."""
    completeness = None if outcome.tick is None else outcome.tick.completeness
    held_by = None if completeness is None or completeness.reached is not None else completeness.held_by
    if not outcome.is_caught_up or held_by is None:
        return outcome
    return replace(outcome, reason=StopReason.STUCK, detail=str(held_by))


@dataclass(slots=True)
class _Look:
    """Reads the tables until it is clear whether this run has to read. `fresh_seconds`: a worker whose row is older
    counts as ended."""

    bound: Bound
    leases: LeaseTable
    control: ControlRow
    fresh_seconds: float
    clock: Clock

    def wait(self, stop: StopSignal, watches: Sequence[Watch]) -> BoundedOutcome | None:
        """Wait until it is clear whether this run has to read. Returns None if it has to, because no worker reads
        one of the remaining shards. In all other cases, returns the outcome with which this run ends."""
        places: object = None
        moved_at = self.clock.monotonic()
        while True:
            for why in filter(None, (watch() for watch in watches)):
                stop.request(StopReason.ORPHANED, why)
            if stop.is_requested():
                return self._outcome(stop.reason or StopReason.ASKED, stop.detail)
            scan = self.leases.scan()
            left = remainder(self.bound, scan.leases, scan.workers, self.control.load(), {})
            if left.is_empty:
                return self._outcome(StopReason.CAUGHT_UP)
            if left.is_stuck:
                return self._outcome(StopReason.STUCK, str(left))
            if self._is_unserved(left, scan):
                return None
            now = self.clock.monotonic()
            seen = {lease.key: lease.checkpoint for lease in scan.leases}
            if seen != places or any(row.slow_since for row in scan.workers):
                places, moved_at = seen, now
            if now - moved_at >= self.bound.patience:
                return self._outcome(StopReason.STUCK, f"nothing has moved for {self.bound.patience:.0f} s: {left}")
            self.clock.sleep(LOOK_SECONDS)

    def _outcome(self, reason: StopReason, detail: str = "") -> BoundedOutcome:
        return BoundedOutcome(self.bound.through, reason, detail)

    def _is_unserved(self, left: Remainder, scan: ScanResult) -> bool:
        """Whether one of the remaining shards has no worker with a recent row."""
        now = self.clock.now()
        living = {row.id for row in scan.workers if abs(now - (row.last_update or 0)) <= self.fresh_seconds}
        owners = {lease.key: lease.actual_owner for lease in scan.leases}
        return any(owners[key] not in living for key in left.waiting)


class _Leading:
    """A leader that ticks on its own thread until the block ends, and then a last time."""

    def __init__(self, leader: Leader | None, runs: Callable[[], RunView]) -> None:
        self._leader = leader
        self._runs = runs
        self._over = threading.Event()
        self._said: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._lead, name="kcl-bounded-leader", daemon=True)
        self.last: TickReport | None = None
        """The report of the newest tick in which this run led."""

    def __enter__(self) -> Self:
        if self._leader is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._leader is not None:
            self._thread.join(LEADER_JOIN_SECONDS)

    def _lead(self) -> None:
        leader = self._leader
        assert leader is not None
        try:
            is_last = False
            while not is_last:
                is_last = self._over.wait(0.0 if self.last is None else TICK_SECONDS)
                self._see(leader.tick(self._view()))
        finally:
            resign(leader)

    def again(self) -> AbstractContextManager[Lead]:
        """Lead once more, but only if this run led before. Otherwise the other leader continues to lead."""
        return leads_again(None if self.last is None else self._leader, self._view)

    def _view(self) -> RunView:
        """The worker runs known to Dagster. If Dagster does not respond, the leader detects a dead worker only by
        the unchanged counters of its leases. That takes longer."""
        try:
            return replace(self._runs(), launches=False)
        except Exception as error:
            log.warning("the runs of workers could not be looked up: %s", error)
            return RunView(launches=False)

    def _see(self, report: TickReport) -> None:
        if report.leading:
            self.last = report
        said = report.problems
        for problem in said:
            if problem not in self._said:
                log.warning("a tick of the leader: %s", problem)
        self._said = said
