"""The clean stage of a tick: deletes the rows that `cleanup` finds superfluous, and rows of workers that have
ended.

Modelled in spec/Reshard.tla as Clean.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from kcl_dagster.errors import KclError
from kcl_dagster.leader.cleanup import plan_cleanup
from kcl_dagster.leader.liveness import WorkerSight
from kcl_dagster.leader.observation import Sight
from kcl_dagster.leader.sync import children_of
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.shard import Shard
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.workers import WorkerTable

STALE_ROW_SECONDS: Final = 86_400.0  # the KCL keeps a worker's row for the same time after its last update


class Cleaner:
    """Deletes finished leases and the rows of workers that have ended. Every deletion is conditional."""

    def __init__(
        self,
        leases: LeaseTable,
        workers: WorkerTable,
        clock: Clock,
        stale_row_seconds: float = STALE_ROW_SECONDS,
    ) -> None:
        self.stale_row_seconds = stale_row_seconds
        self._leases = leases
        self._workers = workers
        self._clock = clock

    def run(
        self,
        sight: Sight,
        listings: Mapping[str, Sequence[Shard]],
        deadline: float,
        abandoned: Collection[LeaseKey] = (),
        complete: int | None = None,
    ) -> list[str]:
        """Delete the rows that are no longer needed. Returns the errors. Stops at `deadline` (monotonic); the next
        tick continues.

        `abandoned`: leases of shards that left the stream unread; they are deleted, too. `complete`: every record
        that arrived before this moment (epoch seconds) is stored.
        """
        problems: list[str] = []
        grouped: dict[str, list[Lease]] = {}
        for lease in sight.leases:
            grouped.setdefault(str(lease.stream) if lease.stream is not None else "", []).append(lease)
        for stream, leases in grouped.items():
            shards = listings.get(stream)
            plan = plan_cleanup(
                leases,
                children_of(shards or ()),
                None if shards is None else {shard.id for shard in shards},
                complete=complete,
            )
            for lease, children in plan.children:
                self._attempt(problems, deadline, partial(self._leases.update_children, lease.key, children))
            for lease in plan.deletes:
                self._attempt(problems, deadline, partial(self._leases.delete, lease))
        for lease in sight.leases:
            if lease.key in abandoned:
                self._attempt(problems, deadline, partial(self._leases.delete, lease, forced=True))
        for seen in self._departed(sight):
            self._attempt(problems, deadline, partial(self._workers.delete, seen.row))
        return problems

    def _departed(self, sight: Sight) -> list[WorkerSight]:
        """Return the workers without leases whose rows can be deleted: their run is over, or their row was not
        written for `stale_row_seconds`. If a worker still writes its row, the row is kept, because the worker reads
        in the row that it has to end."""
        owners = {lease.actual_owner for lease in sight.unfinished} | {lease.owner for lease in sight.unfinished}
        now = self._clock.now()
        return [
            seen
            for seen in sight.workers
            if seen.id not in owners
            and (
                (seen.run_is_over and not seen.beats)
                or (not seen.alive and now - (seen.row.last_update or 0) > self.stale_row_seconds)
            )
        ]

    def _attempt(self, problems: list[str], deadline: float, write: Callable[[], object]) -> None:
        if self._clock.monotonic() >= deadline:
            return
        try:
            write()
        except KclError as error:
            problems.append(str(error))
