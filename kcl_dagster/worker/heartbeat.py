"""Writes the worker's row. The row shows that the worker is alive, and contains its state, its lag, and whether it
was asked to drain."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow, WorkerState
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent, ignore


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a worker: one incarnation of a slot, in one run."""

    worker: WorkerId
    slot: str | None = None
    run_id: str | None = None
    zone: str | None = None


class Utilization(Protocol):
    """Measures how busy the machine is. The results have the form in which the KCL's rows store them."""

    def step(self) -> None:
        """Take a sample if one is due. Called several times per second; does not raise."""

    def averages(self) -> dict[str, tuple[float, ...]]:
        """The averages per metric, oldest first. If a worker reports no averages, the leader uses the worker's
        throughput instead."""

    def operating_range(self) -> dict[str, tuple[int, ...]]:
        """The highest tolerable percentage per metric, for the same metrics as `averages`."""


class Unmeasured:
    """The `Utilization` of a worker that publishes no metrics."""

    def step(self) -> None:
        return None

    def averages(self) -> dict[str, tuple[float, ...]]:
        return {}

    def operating_range(self) -> dict[str, tuple[int, ...]]:
        return {}


class Heartbeat:
    """Writes the worker's row. One thread calls `step` every `timings.heartbeat` seconds. Another thread can set
    `state`, `lag_ms`, `behind`, `stopped`, `why_stopped`, `failing`, `why_failing`, `attempts`, `slow_since` and
    `held_since`."""

    def __init__(
        self,
        table: WorkerTable,
        identity: Identity,
        clock: Clock,
        utilization: Utilization | None = None,
        on_event: OnEvent = ignore,
        *,
        lease_duration: float | None = None,
    ) -> None:
        self._table = table
        self._clock = clock
        self._utilization = utilization or Unmeasured()
        self._on_event = on_event
        self._row = WorkerRow(
            identity.worker,
            None,
            slot=identity.slot,
            run_id=identity.run_id,
            zone=identity.zone,
            lease_ms=None if lease_duration is None else round(lease_duration * 1000),
        )
        self._is_written = False
        self._over = threading.Event()
        self.state = WorkerState.STARTING
        self.lag_ms: int | None = None
        self.behind: Mapping[LeaseKey, int] = {}
        self.stopped: tuple[LeaseKey, ...] = ()
        self.why_stopped: Mapping[LeaseKey, str] = {}
        self.failing: tuple[LeaseKey, ...] = ()
        self.why_failing: Mapping[LeaseKey, str] = {}
        self.attempts: Mapping[LeaseKey, str] = {}
        self.slow_since: Mapping[LeaseKey, int] = {}
        self.held_since: Mapping[str, int] = {}
        self.drain_requested = False

    def measure(self) -> None:
        self._utilization.step()

    def write(self) -> None:
        """Write the row. Does nothing after `stop`. Raises a ServiceError; the next heartbeat then writes the same
        data."""
        if self._over.is_set():
            return
        averages = self._utilization.averages()
        operating_range = self._utilization.operating_range()
        row = replace(
            self._row,
            last_update=int(self._clock.now()),
            averages=averages,
            operating_range={metric: operating_range[metric] for metric in averages},
            state=self.state,
            beat=self._row.beat + 1,
            lag_ms=self.lag_ms,
            behind=self.behind,
            stopped=self.stopped,
            why_stopped=self.why_stopped,
            failing=self.failing,
            why_failing=self.why_failing,
            attempts=self.attempts,
            slow_since=self.slow_since,
            held_since=self.held_since,
        )
        self._row = row
        written = self._table.beat(row) if self._is_written else None
        if written is None:
            # This is the first heartbeat, or a leader regarded this worker as dead and deleted its row. The row is
            # created, unless `stop` is just deleting it.
            if self._over.is_set():
                return
            self._is_written = True  # also if the response is lost, because the table may have the row
            # The row gets the present time, because `put` refuses a row that is too old, and the process may have
            # paused since the row was built.
            self._row = row = replace(row, last_update=int(self._clock.now()))
            written = self._table.put(row)
        self.drain_requested = written.drain_requested

    def step(self) -> bool:
        """Send one heartbeat. Returns False if it failed, which is also reported as an event. No lease is lost
        because of this."""
        try:
            self.write()
        except KclError as error:
            self._on_event(WorkerEvent(EventKind.HEARTBEAT_FAILED, str(error)))
            return False
        return True

    def stop(self) -> None:
        """Delete the row, so that no lease is assigned to this worker any more. No heartbeat creates the row
        again. This also holds if another thread is sending a heartbeat at this moment."""
        self._over.set()
        if not self._is_written:
            return
        try:
            if not self._table.delete(self._row):
                # A heartbeat was under way, so the row in the table can be older or newer than `self._row`.
                current = self._table.get(self._row.id)
                if current is not None and current.run_id == self._row.run_id:
                    self._table.delete(current)
        except KclError as error:
            self._on_event(WorkerEvent(EventKind.HEARTBEAT_FAILED, f"row not deleted: {error}"))
