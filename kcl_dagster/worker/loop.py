"""One worker, from its first heartbeat to its last.

    start          write the row, start the background threads: renewals; discovery, heartbeat, watches
    round          plan, fetch, prepare, write, commit: see `kcl_dagster.worker.protocol`
    drain          if the leader requests it, or at the end of the lifetime: continue until the leader has moved the
                   leases
    bound          in a bounded run: when everything that had arrived before a given time is stored, stop
    stop           finish the batch or give it up, give the leases to other workers, delete the row; end the process
                   even if user code does not return

All work is divided into steps. `run` and its threads call the steps in real time. A simulator calls them one by
one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Generic, Protocol

from kcl_dagster.chains.entry import FIRST
from kcl_dagster.errors import ConfigurationError, EndpointUnreachable, KclError, Unsafe
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.lease_taking import TakingRules
from kcl_dagster.model.stored import MOST_BYTES, MOST_BYTES_BETWEEN_RUNS
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.windows import FixedWindows
from kcl_dagster.model.worker_row import ERRORS_TOLD, SHARDS_TOLD, STOPPED_TOLD, WorkerState
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.control import Control
from kcl_dagster.tables.lease_reader import ScanResult
from kcl_dagster.worker.batch import D, R, Reader
from kcl_dagster.worker.batch_retries import Failures
from kcl_dagster.worker.bound import Activity, BoundWatch
from kcl_dagster.worker.chain_protocol import ChainProtocol
from kcl_dagster.worker.claims import Claims
from kcl_dagster.worker.completeness_watch import CompletenessWatch
from kcl_dagster.worker.completeness_writer import CompletenessWriter, is_writer
from kcl_dagster.worker.concurrency import ForEach, WithoutWaiting, several_at_once
from kcl_dagster.worker.discovery import Discoverer
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent, unfailing
from kcl_dagster.worker.heartbeat import Heartbeat, Identity
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.lag import Lag, LagReport, unstored_of
from kcl_dagster.worker.lost_owners import LostOwners
from kcl_dagster.worker.outage import Outage
from kcl_dagster.worker.parents import Parents
from kcl_dagster.worker.pinned_leases import PinnedLeases
from kcl_dagster.worker.poison import PoisonHandling
from kcl_dagster.worker.processing_watch import ProcessingWatch
from kcl_dagster.worker.processor_attempts import unfinished
from kcl_dagster.worker.processor_protocol import ProcessorProtocol
from kcl_dagster.worker.protocol import BatchProtocol
from kcl_dagster.worker.publishing import publisher_of
from kcl_dagster.worker.ranges import Planner, first_number_at
from kcl_dagster.worker.reading import Reading, RoundSettings
from kcl_dagster.worker.renewal import Renewer
from kcl_dagster.worker.report import BatchReport
from kcl_dagster.worker.retention import RetentionWatch
from kcl_dagster.worker.settings import WATCHING_SECONDS, WorkerSettings
from kcl_dagster.worker.shard_end import ShardEnds
from kcl_dagster.worker.spans import BATCH
from kcl_dagster.worker.staging import StagingSink
from kcl_dagster.worker.stop import StopReason, StopSignal
from kcl_dagster.worker.stored_counts import WindowRules
from kcl_dagster.worker.successors import Successors
from kcl_dagster.worker.surroundings import Surroundings
from kcl_dagster.worker.taking import Taker
from kcl_dagster.worker.thread_watch import HOUSEKEEPING, RENEWALS, ThreadWatch
from kcl_dagster.worker.threads import Steps, Threads

STOP_POLL_SECONDS = 0.1  # how soon an idle worker detects a request to stop or a new lease
# A round waits this long for leases that are just being acquired. Acquiring a lease takes 20 ms.
ACQUIRING_SECONDS = 1.0
# At most about this number of batches is committed to a table together.
BATCHES_BETWEEN_COMMITS = 10
WATCH_SECONDS = 5.0  # a worker whose run or parent process has ended stops well within a lease duration
# How often per lease duration the worker reads the leader's lock. If there is no leader, it reads the leases as
# often. With two reads, a dead owner is detected after 1.5 durations.
LOOKS_PER_LEASE = 2
PAUSED_SECONDS = 1.0  # between two looks of a draining worker at whether the application is paused

Background = Callable[[Steps, str], AbstractContextManager[object]]


class Rounds(Protocol):
    def run_once(self, abandon: Callable[[], bool]) -> BatchReport: ...

    def close(self) -> None: ...


class Every:
    """A timer. `is_due` returns True at the first call, and then once per `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next: float | None = None

    def is_due(self, now: float) -> bool:
        if self._next is not None and now < self._next:
            return False
        self._next = now + self._seconds
        return True


class Worker(Generic[D]):
    """A worker. `run` blocks until the worker has stopped. Instead of calling `run`, one thread can call the steps
    one at a time."""

    def __init__(
        self,
        surroundings: Surroundings[D],
        identity: Identity,
        runtime: Runtime,
        background: Background = Threads,
        for_each: ForEach = several_at_once,
        renew_each: ForEach | None = None,
    ) -> None:
        """`for_each`, `renew_each`: call a function for several leases; `renew_each` calls renewals. Its default is
        `WithoutWaiting`, or `for_each` if that is given."""
        self._around = surroundings
        self._service_time = surroundings.service_time or runtime.clock.now
        self.identity = identity
        self._clock = runtime.clock
        self._background = background
        self.for_each = for_each
        self.renew_each = renew_each or (WithoutWaiting() if for_each is several_at_once else for_each)
        self.settings = WorkerSettings.of(
            surroundings.application,
            is_bounded=surroundings.bound is not None,
            has_processors=surroundings.processors is not None,
        )
        self.tell: OnEvent = unfailing(surroundings.on_event)
        self._on_batch = unfailing(surroundings.on_batch)
        self._on_lag = unfailing(surroundings.on_lag)
        self.stop = StopSignal()
        self.heartbeat = Heartbeat(
            surroundings.workers,
            identity,
            self._clock,
            surroundings.utilization,
            self.tell,
            lease_duration=self.settings.lease_duration,
        )
        self.holdings = Holdings(
            surroundings.leases,
            identity.worker,
            self.settings.lease_duration,
            self.settings.renewal_interval,
            runtime,
            self.tell,
            self._goes_on,
        )
        self.renewer = Renewer(
            self.holdings,
            self.settings.renewal_interval,
            self.settings.handoff_timeout,
            self._clock,
            self.tell,
            self.renew_each,
        )
        if surroundings.processors is None:
            self.holdings.reads_on = self.settings.reads_on
        self.discoverer = Discoverer(
            surroundings.leases,
            identity.worker,
            self.holdings,
            self.tell,
            self._clock,
            self.settings.arrival_patience,
            self.for_each,
        )
        # Record processors run in other processes, which the worker does not interrupt
        is_interruptible = surroundings.processors is None
        limit = surroundings.application.batch.max_process_seconds if is_interruptible else None
        self.processing = ProcessingWatch(self._clock, self.tell, limit, surroundings.interrupt)
        self.completeness = CompletenessWatch(surroundings.load_completeness, self._clock)
        self._completeness_writer = self._make_completeness_writer()
        self.protocol = self._make_protocol(runtime)
        self._bound = self._make_bound()
        self.threads = ThreadWatch(self._clock, self.tell)
        self._lag = Lag(self._clock, self.settings.round_patience)
        self._beat_due = Every(self.settings.heartbeat)
        self._discovery_due = Every(self.settings.discovery)
        self._watching_due = Every(WATCHING_SECONDS)
        self._watch_due = Every(WATCH_SECONDS)
        self._leader_due = Every(self.settings.lease_duration / LOOKS_PER_LEASE)
        self._paused_due = Every(PAUSED_SECONDS)
        rules = TakingRules(self.settings.lease_duration, surroundings.application.policy.max_leases_per_worker)
        self.taker = Taker(surroundings.leases, identity.worker, rules, runtime, self.tell)
        self.successors = Successors(
            surroundings.leases, surroundings.application, identity.worker, self._clock, self.tell
        )
        self._longest_life = self.settings.longest_life(runtime.random.random())
        self._is_ready = False
        self._last_round = BatchReport()
        self._storing: deque[float] = deque(maxlen=BATCHES_BETWEEN_COMMITS)
        self._beats_while_starting = 0
        self._started: float | None = None
        self._draining_since: float | None = None
        self._stop_seen: float | None = None
        self._is_ended = False
        self._is_leader_silent = False
        self._fatal: ConfigurationError | None = None

    def _make_bound(self) -> BoundWatch | None:
        around = self._around
        if around.bound is None:
            return None
        return BoundWatch(around.bound, self.holdings, around.leases, self._clock, self.tell, self.for_each)

    def _make_completeness_writer(self) -> CompletenessWriter | None:
        around, application = self._around, self._around.application
        if around.chains is None:
            return None
        stream = application.streams[0].name
        return CompletenessWriter(
            around.chains.keep_complete,
            application.name,
            self.completeness.last,
            lambda: is_writer((holding.lease for holding in self.holdings.holdings()), stream),
            around.windows or FixedWindows(),
            self._clock,
            self.tell,
        )

    def _first_number(self) -> int:
        """The number of the first batch of a new lease. It is taken from the clock that all workers share, so it is
        higher than all numbers of former leases of the shard."""
        now = self._service_time()
        if now is None:
            raise EndpointUnreachable("the time is not known by which batches are numbered: Kinesis did not say it")
        return first_number_at(now)

    def _make_protocol(self, runtime: Runtime) -> Rounds:
        around, application = self._around, self._around.application
        failures = Failures(application.batch.failure, self._clock, runtime.random)
        planner = Planner(
            StreamIdentifier.single(application.streams[0].name),
            around.resolved_start,
            self._first_number,
            around.code,
        )
        shard_ends = ShardEnds(around.leases, around.list_shards)
        rules = self._window_rules()
        if around.processors is not None:
            reading = self._reading(around.processors, failures)
            return ProcessorProtocol(
                reading, self.holdings, around.processors, planner, shard_ends, around.dead_letters, rules
            )
        if around.chains is not None:
            return self._make_chain_protocol(around.chains, failures, planner, shard_ends, rules, runtime)
        poison = PoisonHandling(
            self.holdings, failures, around.dead_letters, self._clock, self.tell, rules, code=around.code
        )
        reading_batches = self._reading(around.engine, failures)
        return BatchProtocol(
            reading_batches, self.holdings, around.sink, planner, shard_ends, poison, rules, self.for_each
        )

    def _make_chain_protocol(
        self,
        chains: StagingSink[D],
        failures: Failures,
        planner: Planner,
        shard_ends: ShardEnds,
        rules: WindowRules | None,
        runtime: Runtime,
    ) -> ChainProtocol[D]:
        around, former = self._around, chains.former_parts
        reading = self._reading(around.engine, failures)
        # The files that an earlier version stored in a folder do not show whether a part has all its files.
        is_folder = chains.destinations[FIRST].commits is None
        holds = None if is_folder else lambda part: former.stored_to(part) is not None
        claims = Claims(
            chains.entries,
            self.holdings,
            around.application.name,
            str(self.identity.worker),
            runtime.new_id,
            publisher_of(
                chains.entries,
                chains.destinations,
                around.application.name,
                runtime,
                self.completeness.last,
                around.spans,
            ),
            around.code,
            around.spans,
        )
        return ChainProtocol(
            reading,
            self.holdings,
            chains,
            claims,
            planner,
            shard_ends,
            LostOwners(self.holdings, around.code),
            around.dead_letters,
            PinnedLeases(replace(reading, holds=holds), self.holdings, former, planner, rules),
            rules,
            lambda: _readable(around.leases.scan()),
        )

    def _is_listed(self, lease: Lease, shard_id: str) -> bool:
        stream = lease.stream or StreamIdentifier.single(self._around.application.streams[0].name)
        return any(shard.id == shard_id for shard in self._around.list_shards(stream))

    def _window_rules(self) -> WindowRules | None:
        around = self._around
        if around.windows is None:
            return None
        margin = around.application.timings.arrival_margin
        most_bytes = MOST_BYTES if around.bound is None else MOST_BYTES_BETWEEN_RUNS
        return WindowRules(around.windows, around.event_time, around.allowed_lateness, margin, most_bytes)

    def _reading(self, reader: Reader[R], failures: Failures) -> Reading[R]:
        around, application = self._around, self._around.application
        return Reading(
            settings=RoundSettings(
                application=application.name,
                worker=self.identity.worker,
                budget=self.settings.budget,
                on_data_loss=application.batch.on_data_loss,
                prefetch=application.batch.prefetch,
                code=self._around.code,
            ),
            holdings=self.holdings,
            engine=reader,
            parents=Parents(around.leases, self._clock, self.settings.parent_poll, self._is_listed),
            failures=failures,
            retention=RetentionWatch(around.retention_of, self._clock),
            clock=self._clock,
            processing=self.processing,
            service_time=self._service_time,
            expects_leases=self.discoverer.expects_leases,
            on_event=self.tell,
            confirm=around.confirm_stream,
            spans=around.spans,
        )

    # In real time

    def run(self, stop: StopSignal | None = None) -> StopReason:
        """Work until `stop` is requested or the worker itself decides to stop. Then release everything. Returns the
        reason of the stop.

        Raises a ServiceError, and begins nothing, if the first heartbeat could not be written. Raises
        ConfigurationError, after everything was released, if the settings cannot work.
        """
        self.stop = stop or self.stop
        self.start()
        try:
            with self._background(self, str(self.identity.worker)):
                try:
                    while not self.stop.is_requested():
                        self.step_round()
                finally:
                    self.protocol.close()
        finally:
            self.shut_down()
        if self._fatal is not None:
            raise self._fatal
        return self.stop.reason or StopReason.ASKED

    # Steps

    def start(self) -> None:
        self._started = self._clock.monotonic()
        self.heartbeat.write()
        self._beat_due.is_due(self._started)

    def step_batch(self) -> BatchReport:
        """One round of the batch protocol, on the main thread. Before the engine has started, nothing is read, so
        no lease is in a batch. Leases can then be handed over at once to a worker that reads."""
        if not self.is_ready():
            return BatchReport()
        with self._around.spans.span(BATCH):
            return self._round()

    def step_round(self, pause: float = STOP_POLL_SECONDS) -> None:
        """A batch, and the waits after it, on the main thread. After a batch without records, `settings.idle` after
        its beginning is waited for. This wait ends early if the worker has got a lease, has become ready or is to
        stop, which is checked every `pause` seconds."""
        began = self._clock.monotonic()
        if self.step_batch().is_idle:
            self._rest(began + self.settings.idle, pause)
        until = self._clock.monotonic() + ACQUIRING_SECONDS
        while self.discoverer.is_gathering() and not self.stop.is_requested() and self._clock.monotonic() < until:
            self._clock.sleep(STOP_POLL_SECONDS)

    def _rest(self, until: float, pause: float) -> None:
        held, was_ready = self.holdings.keys(), self._is_ready
        while (left := until - self._clock.monotonic()) > 0:
            if self.stop.is_requested() or self.holdings.keys() - held or self.is_ready() != was_ready:
                return
            self._clock.sleep(min(left, pause))

    def _round(self) -> BatchReport:
        began = self._clock.monotonic()
        report = self._last_round = self.protocol.run_once(self.stop.is_requested)
        self._see_storing(report, self._clock.monotonic() - began - report.fetch_seconds)
        if report.records and self._completeness_writer is not None:
            self._completeness_writer.records_were_stored()
        if report.is_idle and self._bound is not None and isinstance(self.protocol, ChainProtocol):
            self.protocol.publish_all()  # the run ends when everything is visible
        self._lag.see(report.leases, self.holdings.to_be_read())
        self.heartbeat.stopped = report.stopped[:STOPPED_TOLD]
        self.heartbeat.why_stopped = {key: report.why_stopped[key] for key in report.stopped[:SHARDS_TOLD]}
        behind = self.heartbeat.behind
        # A shard can fail and recover in rounds that read no lease. These rounds are reported, too.
        is_failing = bool(report.failing or self.heartbeat.failing)
        # Shards that are in the row's `behind` come first, because the leader uses `behind` and `failing` together.
        self.heartbeat.failing = tuple(sorted(report.failing, key=lambda key: key not in behind)[:SHARDS_TOLD])
        failing = [key for key in self.heartbeat.failing if key in report.why_failing][:ERRORS_TOLD]
        self.heartbeat.why_failing = {key: report.why_failing[key] for key in failing}
        self.heartbeat.attempts = {
            key: report.attempts[key] for key in self.heartbeat.failing if key in report.attempts
        }
        if report.leases or is_failing:
            self._on_batch(report)
        if report.fatal is not None:
            self._fatal = report.fatal
            self._request_stop(StopReason.MISCONFIGURED, str(report.fatal))
        return report

    def _see_storing(self, report: BatchReport, seconds: float) -> None:
        """Adapt the time for which leases are read on to the `seconds` that a round took beside reading: for
        processing, storing and committing to tables."""
        if self._around.processors is not None:
            return
        if report.records or seconds > max(self._storing, default=0.0):
            self._storing.append(seconds)
        self.holdings.reads_on = self.settings.reads_on_beside(max(self._storing, default=0.0))

    def is_ready(self) -> bool:
        """Whether the engine has started. Remains True afterwards."""
        self._is_ready = self._is_ready or self._around.is_ready()
        return self._is_ready

    def step_renewal(self) -> float:
        """Renew the leases that are due. Returns the seconds until the next lease is due. Called on the renewal
        thread."""
        self.threads.begins(RENEWALS)
        self.renewer.step()
        return self.renewer.seconds_until_due()

    def step_housekeeping(self) -> None:
        """Call all other steps that are due. Called on the housekeeping thread."""
        self.threads.begins(HOUSEKEEPING)
        now = self._clock.monotonic()
        if self.stop.is_requested():
            self.step_leaving()
        elif self._discovery_due.is_due(now):
            self.step_discovery()
        elif self.discoverer.watches() and self._watching_due.is_due(now):
            self.discoverer.step_expected()
        if self._watch_due.is_due(now):
            self.step_watches()
        if self._leader_due.is_due(now):
            self.step_leaderless()
        self.step_drain()
        self.step_bound()
        self.completeness.step()
        if self._completeness_writer is not None:
            self._completeness_writer.step()
        self.processing.step()
        self.heartbeat.measure()
        if self._beat_due.is_due(now) or self._has_become_ready():
            self.step_heartbeat()

    def step_discovery(self) -> list[LeaseKey]:
        return self.discoverer.step()

    def step_heartbeat(self) -> bool:
        if self.heartbeat.state is WorkerState.STARTING:
            if self.is_ready():
                self.heartbeat.state = WorkerState.RUNNING
            else:
                self._beats_while_starting += 1
        slow_since = self.processing.slow_since()
        self._measure_lag(tuple(sorted(slow_since)))
        self.heartbeat.slow_since = dict(sorted(slow_since.items())[:SHARDS_TOLD])
        self.heartbeat.held_since = self.threads.held_since()
        return self.heartbeat.step()

    def _has_become_ready(self) -> bool:
        """Whether the worker has just become ready. The row is then written before the next heartbeat is due,
        because the leader assigns leases only to a worker that is ready."""
        is_starting = self.heartbeat.state is WorkerState.STARTING
        return is_starting and self._beats_while_starting > 0 and self.is_ready()

    def _measure_lag(self, hung: tuple[LeaseKey, ...]) -> None:
        self.holdings.expire()  # also called here, because the renewal thread may be waiting for a request
        leases = self.holdings.to_be_read()
        delivered = self.protocol.delivered() if isinstance(self.protocol, ProcessorProtocol) else {}
        unstored = unstored_of(unfinished(leases, delivered), self._last_round.failing)
        behind = self._lag.measure(leases, unstored)
        if behind or self.heartbeat.lag_ms is not None:
            # A worker that has lost all its leases has no lag any more.
            self.heartbeat.lag_ms = max(behind.values(), default=0)
        self.heartbeat.behind = dict(list(behind.items())[:SHARDS_TOLD])
        self._on_lag(LagReport(leases, behind, hung))

    def step_watches(self) -> None:
        for watch in self._around.watches:
            why = watch()
            if why is not None:
                self._request_stop(StopReason.ORPHANED, why)

    def step_leaderless(self) -> list[LeaseKey]:
        """If no leader was observed for a long time, take unserved leases, and request leases from workers that
        have too many. Returns the keys of these leases. Discovery acquires them later."""
        leader = self._around.leader
        if leader is None or self._draining_since is not None or self.stop.is_requested():
            return []
        try:
            silent = leader.silent_for()
            self._see_leader(silent)
            if silent >= self.settings.leaderless:
                if not self.is_ready():  # another worker may be able to read at once, so this worker takes nothing
                    self.taker.look()
                    return []
                return self.taker.step(leader.control())
        except KclError as error:
            self.tell(WorkerEvent(EventKind.DISCOVERY_FAILED, f"looking for a leader: {error}"))
            return []
        self.taker.forget()
        return []

    def _see_leader(self, silent: float) -> None:
        """Report one event for each period in which no leader writes the leader lock, for example because the
        leader's tick does not end."""
        is_silent = silent >= self.settings.leaderless
        if is_silent and not self._is_leader_silent:
            message = f"no leader has written the leader lock for {silent:.0f} s; workers take unserved leases"
            self.tell(WorkerEvent(EventKind.LEADER_SILENT, message, facts={"seconds": round(silent, 1)}))
        self._is_leader_silent = is_silent

    def step_drain(self) -> None:
        """Start to drain if this was requested, or if this worker is long past its lifetime and no leader has
        replaced it. Stop when all leases are moved, or when the leader has had enough time to move them. If the
        application is paused, the leader moves none, so stop at once."""
        now = self._clock.monotonic()
        if self._draining_since is None:
            if not self._is_to_leave(now):
                return
            self._draining_since = now
            self.heartbeat.state = WorkerState.DRAINING
            self.step_heartbeat()
        is_late = now - self._draining_since >= self.settings.drain_patience
        if not self.holdings.keys() or is_late or self._is_paused(now):
            is_over = not self.heartbeat.drain_requested
            self._request_stop(StopReason.LIFETIME if is_over else StopReason.DRAINED)

    def _is_paused(self, now: float) -> bool:
        if self._around.leader is None or not self._paused_due.is_due(now):
            return False
        try:
            return self._around.leader.control().paused
        except KclError:
            return False

    def step_bound(self) -> None:
        """In a bounded run, stop if no record is left to be read, or if the remaining records cannot be read
        now."""
        if self._bound is None or not self._is_ready or self.stop.is_requested():
            return
        leader, last = self._around.leader, self._last_round
        is_processing = self.processing.running_for() is not None
        activity = Activity(last.why_stopped, is_idle=last.is_idle, is_processing=is_processing)
        enough = self._bound.step(Control if leader is None else leader.control, activity)
        if enough is not None:
            self._request_stop(*enough)

    def step_leaving(self) -> None:
        """Give up the leases after a request to stop. Without record processors, leases of which no batch is being
        written are given up at once. All other leases are given up when their batch ends, and at the latest after
        `stop_patience`: user code that hangs must not keep its leases."""
        now = self._clock.monotonic()
        if self._stop_seen is None:
            self._stop_seen = now
            self.heartbeat.state = WorkerState.DRAINING  # so that this worker gets no leases
            self.step_heartbeat()
            if self._around.processors is None:  # with processors, no pin shows on which leases user code works
                self._let_go(unless_pinned=True)
        if now - self._stop_seen < self.settings.stop_patience:
            return
        if self.holdings.keys():
            self._let_go()
        if self._around.processors is None:
            self.processing.give_up()
        if now - self._stop_seen >= self._end_patience() and not self.holdings.keys():
            self._end_hung()

    def _end_patience(self) -> float:
        """How long the worker waits for its batch to end, in seconds from the stop request. While the worker reads
        records, this includes the time after which reading ends by itself."""
        is_reading = self.processing.running_for() is None
        return self.settings.end_patience + (self.settings.budget.seconds if is_reading else 0.0)

    def _end_hung(self) -> None:
        """End the process although the batch does not end. The row is deleted first. Nothing is lost, because a
        batch without leases cannot be committed."""
        if self._is_ended:
            return
        self._is_ended = True
        self.heartbeat.stop()
        self.discoverer.give_back()
        ran = self.processing.running_for()
        if ran is None:
            why = f"its batch has not ended for {self._end_patience():.0f} s since it was to stop"
        else:
            since = datetime.fromtimestamp(self._clock.now() - ran, UTC)
            why = f"hung in your code since {since:%Y-%m-%d %H:%M:%S} UTC"
        self.tell(WorkerEvent(EventKind.HUNG, f"{self.identity.worker} is ended: {why} ({self.stop})"))
        self._around.end_process(
            f"{self.identity.worker}: {why} ({self.stop}). It has no lease any more, so nothing is lost."
        )

    def _goes_on(self, worker: WorkerId) -> bool:
        """Whether another worker can be given a lease: it has a row, and does not drain. True also if the table
        does not answer. This is safe, because the leader reassigns the lease if that worker has ended."""
        try:
            row = self._around.workers.get(worker)
        except KclError:
            return True
        return row is not None and row.state is not WorkerState.DRAINING and not row.drain_requested

    def _is_to_leave(self, now: float) -> bool:
        is_over = self._started is not None and now - self._started >= self._longest_life
        return is_over or self.heartbeat.drain_requested

    def _request_stop(self, reason: StopReason, detail: str = "") -> None:
        if not self.stop.is_requested():
            self.stop.request(reason, detail)
            self.tell(WorkerEvent(EventKind.STOPPING, str(self.stop)))

    def shut_down(self) -> None:
        """Release everything, so that the next owner need not wait. All other threads must have ended.

        The row is deleted first, so that no more leases are assigned. Leases that were assigned just before are
        released, too.
        """
        self.heartbeat.stop()
        self._let_go()
        self.discoverer.give_back()
        if isinstance(self.protocol, ChainProtocol):
            self.protocol.leave()

    def _let_go(self, *, unless_pinned: bool = False) -> None:
        held = self.holdings.keys()
        successors = self.successors.of(held)
        outage = Outage(EventKind.RENEWAL_FAILED, self._clock, self.tell)
        for key in outage.begin(sorted(held)):
            if not outage.may_try():
                break
            try:
                self.holdings.handover.release(key, successors.get(key), unless_pinned=unless_pinned)
            except KclError as error:  # the lease expires by itself
                outage.failed(KclError(f"not released: {error}"), key)
            else:
                outage.succeeded(key)
        outage.end()


def _readable(scan: ScanResult) -> Sequence[Lease]:
    """All leases. Raises Unsafe if a row cannot be read, because this row may name a chain."""
    if scan.unreadable:
        raise Unsafe(f"rows of the lease table cannot be read, the first of them: {scan.unreadable[0]}")
    return scan.leases
