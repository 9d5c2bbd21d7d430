"""A fleet as its rows show it: one worker that owns every lease, renews it, and is at the tip."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import kcl_dagster as kcl
from kcl_dagster.model.worker_row import WorkerRow, WorkerState, slot_name, worker_id
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.runtime import system
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.tables.workers import WorkerTable

RENEWAL_SECONDS = 1.0


@dataclass
class Fleet:
    renewals: int = 0


@contextmanager
def reading_fleet(consumer: Consumer, resource: kcl.KclResource) -> Iterator[Fleet]:
    runtime, application, dynamodb = system(), consumer.application, resource.client("dynamodb")
    layout = detect_layout(dynamodb, application, runtime)
    leases = LeaseTable(dynamodb, application, layout, runtime)
    workers = WorkerTable(dynamodb, application, layout, runtime)
    me = worker_id(slot_name(0), "beside-run")
    now = int(runtime.clock.now())
    row = WorkerRow(me, now, {}, {}, slot=slot_name(0), run_id="beside-run", state=WorkerState.RUNNING)
    workers.put(row)
    for lease in leases.scan().leases:
        assert leases.assign(lease, me) is not None
    fleet, over = Fleet(), threading.Event()

    def renew() -> None:
        while not over.wait(RENEWAL_SECONDS):
            now = int(runtime.clock.now())
            workers.put(replace(row, last_update=now, beat=fleet.renewals))
            for lease in leases.scan().leases:
                if lease.owner == me and not lease.in_handoff:
                    leases.renew(lease, stored_through=now)
                    fleet.renewals += 1

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield fleet
    finally:
        over.set()
        thread.join()
