"""The outcome and the leader of a bounded run. A bounded run is a worker that stores what had arrived at its start,
and ends. If there is no other leader, the run leads the application while it reads. When the outcome is known, the
run can lead once more, for tasks such as the declaration of complete windows.

This module does not import Spark, because a run whose Spark driver is elsewhere needs no Spark in its own process.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from kcl_dagster.application import Application
from kcl_dagster.errors import AccessDenied, KclError
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.tick import Leader
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.worker_row import BOUNDED_SLOT
from kcl_dagster.orchestration.lock_process import lock_process
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.lock import STANDBY
from kcl_dagster.worker.stop import StopReason

log = logging.getLogger(__name__)

Lead = Callable[[], TickReport | None]
"""Ticks as the leader, and returns the report of the tick. Returns None if another leader leads."""


@contextmanager
def leads_again(leader: Leader | None = None, view: Callable[[], RunView] = RunView) -> Iterator[Lead]:
    """Yield a function that ticks at each call. The leader lock is released at the end of the block."""

    def lead() -> TickReport | None:
        report = None if leader is None else leader.tick(view())
        return report if report is not None and report.leading else None

    try:
        yield lead
    finally:
        resign(leader)


@dataclass(frozen=True, slots=True)
class BoundedOutcome:
    """The outcome of a bounded run. `records`: how many records the run stored itself; other workers may have
    stored more."""

    through: float
    """The run was to store everything that arrived before this time (epoch seconds)."""

    reason: StopReason
    detail: str = ""
    records: int = 0
    worked: bool = False
    """Whether the run read by itself, and did not only wait for other workers."""

    tick: TickReport | None = None
    """The run's last tick as the leader. None if another leader led all the time."""

    leading: Callable[[], AbstractContextManager[Lead]] = leads_again
    """Opens a block in which the run leads once more, for tasks that only a leader does. The run has released the
    leader lock before."""

    @property
    def is_caught_up(self) -> bool:
        return self.reason is StopReason.CAUGHT_UP

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else str(self.reason)


def open_bounded_leader(application: Application, kcl: KclResource, run_id: str, runtime: Runtime) -> Leader | None:
    """The leader of a bounded run. None if the run has no rights to lead. Another leader must then assign leases to
    the run."""
    try:
        return open_leader(
            _without_caps(application),
            dynamodb=kcl.client("dynamodb", application),
            kinesis=kcl.client("kinesis", application),
            identity=f"{STANDBY}{BOUNDED_SLOT}:{run_id[:8]}",
            runtime=runtime,
            process=lock_process(),
        )
    except AccessDenied as error:
        log.warning("this run cannot lead, and waits for another leader to give it leases: %s", error)
        return None


def _without_caps(application: Application) -> Application:
    """The application without limits for a worker. While this run leads, its worker can be the only one, and has to
    take every shard."""
    uncapped = {"max_leases_per_worker": None, "max_throughput_kbps_per_worker": None}
    return application.model_copy(update={"policy": application.policy.model_copy(update=uncapped)})


def resign(leader: Leader | None) -> None:
    """Release the leader lock. If that fails, the lock expires."""
    try:
        if leader is not None:
            leader.resign()
    except KclError as error:
        log.warning("the leader lock could not be released and will expire: %s", error)
