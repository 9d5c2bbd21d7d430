"""The leader of one application."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

from kcl_dagster.application import Application
from kcl_dagster.aws import Client
from kcl_dagster.leader.assignment import policies
from kcl_dagster.leader.clean_stage import Cleaner
from kcl_dagster.leader.failure_count import FailureCount
from kcl_dagster.leader.former_streams import FormerStreams
from kcl_dagster.leader.kinesis_streams import Streams
from kcl_dagster.leader.launches import LaunchBook
from kcl_dagster.leader.memory import Memory
from kcl_dagster.leader.moving import Mover
from kcl_dagster.leader.observation import Observer
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.scan_pace import ScanPace
from kcl_dagster.leader.stages import Tick
from kcl_dagster.leader.start_watch import StartWatch
from kcl_dagster.leader.sync_stage import Syncer
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.leader.unread import UnreadWatch
from kcl_dagster.model.standing import Standing
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.completeness_row import CompletenessRow, WrittenThrough
from kcl_dagster.tables.control import Control, ControlRow
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.lock import LeaderLock, LockProcess
from kcl_dagster.tables.memory_row import MemoryRow
from kcl_dagster.tables.scanning import Map
from kcl_dagster.tables.starts import StartTable
from kcl_dagster.tables.table_layout import TableLayout, declare_protocol, verify_layout
from kcl_dagster.tables.workers import WorkerTable


@dataclass(frozen=True, slots=True)
class LeaderTables:
    """The tables that a leader reads and writes."""

    leases: LeaseTable
    workers: WorkerTable
    lock: LeaderLock
    memory: MemoryRow
    starts: StartTable
    control: ControlRow
    completeness: CompletenessRow
    verify: Callable[[], bool]
    """Checks the tables. Raises LayoutRefused if the fleet has changed its tables or its protocol since they were
    detected. Returns False if the row that declares the protocol of KCL 3.x is missing."""

    declare: Callable[[], bool]
    """Writes the row that declares the protocol of KCL 3.x, if it is missing."""

    @classmethod
    def open(
        cls,
        client: Client,
        application: Application,
        layout: TableLayout,
        runtime: Runtime,
        identity: str,
        parallel: Map | None = None,
        process: LockProcess | None = None,
    ) -> Self:
        """Return the tables of an application. The tables must exist. Sends no request."""
        common = (client, application, layout, runtime)
        return cls(
            LeaseTable(*common, parallel=parallel),
            WorkerTable(*common),
            LeaderLock(*common, identity, process=process),
            MemoryRow(*common),
            StartTable(*common),
            ControlRow(*common),
            CompletenessRow(*common),
            partial(verify_layout, *common),
            partial(declare_protocol, client, layout, runtime),
        )


class Leader:
    """Leads one application, tick by tick. Keep the object between ticks: it remembers what it observed.

    Any thread can call `tick`. A call during another call does nothing.
    """

    def __init__(
        self,
        application: Application,
        tables: LeaderTables,
        streams: Streams,
        runtime: Runtime,
        parallel: Map = map,
    ) -> None:
        self.application = application
        self.tables = tables
        self.runtime = runtime
        self.memory = Memory()
        self.observer = Observer(application.timings, self.memory.standing)
        # Observes the tables while a Java worker leads. It is separate from `observer`, because a leader must not
        # use these observations to take a lease from its owner. As in the KCL, a leader uses only observations that
        # it made while it led.
        self.follower = Observer(application.timings, Standing())
        self.syncer = Syncer(
            application, tables.leases, tables.starts, streams, runtime.clock, parallel, tables.lock.guard
        )
        self.mover = Mover(tables.leases, application.policy, runtime.clock, parallel)
        self.cleaner = Cleaner(tables.leases, tables.workers, runtime.clock)
        self.former = FormerStreams(tables.leases, runtime.clock)
        self.unread = UnreadWatch(application, tables.starts, streams, runtime.clock, parallel)
        self.launches = LaunchBook(application.fleet.lifetime)
        self.failures = FailureCount()
        self.starts = StartWatch(application.timings.tick_interval)
        self.pace = ScanPace(application.timings.lease_duration)
        self.policy = policies.configured(application, runtime.random)
        self.balances_every = policies.balances_every(application)
        self.balanced_at: float | None = None
        self.saved: tuple[float, str] | None = None
        self.control = Control()
        self.written: WrittenThrough | None = None
        """The completeness row as last read or written. It is read before the leases. If leases are reset between
        the two reads, the epoch in the table differs from the epoch here. DynamoDB then refuses to store a moment
        that was calculated from these leases."""

        self.began = runtime.clock.monotonic()
        self._remembers = False
        self._lock = runtime.new_lock()
        self._busy_since: float | None = None

    def tick(self, runs: RunView) -> TickReport:
        """Run one tick. Never raises a KclError, because errors are in the report. If another tick of this leader
        is running, this call does nothing.

        Takes at most `timings.tick_budget`, plus the timeout of one request. If the read of the tables takes more
        than half of the budget, the tick can take longer.
        """
        return self._alone(lambda: Tick(self, runs).run())

    def plan(self, runs: RunView) -> TickReport:
        """Return what the next tick would do. Writes nothing, neither to the tables nor to the leader's memory."""
        return self._alone(lambda: Tick(self, runs, dry=True).run())

    def resign(self) -> None:
        """Let another leader take over at once. Raises a ServiceError."""
        self.tables.lock.release()
        self.forget_leadership()

    def remember(self, *, anew: bool = False) -> None:
        """Load the observations and decisions of earlier leaders. They are loaded once per process, and again when
        this process leads again.

        `anew`: load them in any case. This is needed if another process of this deployment has led meanwhile.
        Without this, two processes that lead in turn and want different numbers of workers would launch and drain
        workers for ever.
        """
        if anew or not self._remembers:
            document = self.tables.memory.load()
            self.memory.absorb(document, self.runtime.clock.monotonic())
            self.observer.book.recall_costs(self.memory.costs)
            self._remembers = True

    def forget_leadership(self) -> None:
        """Record that this process no longer leads. When this process leads again, it loads what the other leader
        wrote."""
        self._remembers = False
        self.written = None
        self.pace.reset()
        self.starts.forget()

    def _alone(self, run: Callable[[], TickReport]) -> TickReport:
        now = self.runtime.clock.monotonic()
        with self._lock:
            busy = self._busy_since
            if busy is None:
                self._busy_since = now
        if busy is not None:
            return TickReport(skipped=f"another tick is running, since {now - busy:.0f} s")
        try:
            return run()
        finally:
            with self._lock:
                self._busy_since = None
