"""The leases that this worker holds. This module combines `held_leases`, which lists them, `lease_writes`, which
writes their rows, `claimed_leases`, which writes the claims of chains into the rows, and `lease_handover`, which
gives leases up."""

from kcl_dagster.model.lease import WorkerId
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.worker.claimed_leases import ClaimedLeases
from kcl_dagster.worker.events import OnEvent, ignore
from kcl_dagster.worker.lease_handover import GoesOn, LeaseHandover, every_worker_goes_on
from kcl_dagster.worker.lease_writes import LeaseWrites


class Holdings(LeaseWrites):
    """The leases that this worker holds. Called from the batch thread and from the renewal thread. Every method can
    block for one table write."""

    def __init__(
        self,
        table: LeaseTable,
        worker: WorkerId,
        lease_duration: float,
        throughput_window: float,
        runtime: Runtime,
        on_event: OnEvent = ignore,
        goes_on: GoesOn = every_worker_goes_on,
    ) -> None:
        super().__init__(table, worker, lease_duration, throughput_window, runtime, on_event)
        self.claims = ClaimedLeases(self)
        self.handover = LeaseHandover(self, self.claims, goes_on)
