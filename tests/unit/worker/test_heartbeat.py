"""A worker's row is written whatever happens between two requests."""

import random

from kcl_dagster.application import Application
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.table_layout import create_tables, detect_layout
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.worker.heartbeat import Heartbeat, Identity
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB

ME = WorkerId("worker-000:1")


def test_a_beat_that_pauses_between_its_two_requests_writes_a_fresh_row() -> None:
    clock = FakeClock()
    runtime = Runtime(clock=clock, random=random.Random(1))
    dynamodb, application = FakeDynamoDB(clock), Application(name="app", streams=({"name": "clicks"},))
    layout = detect_layout(dynamodb, application, runtime)
    create_tables(dynamodb, application, layout, runtime)

    class PausingTable(WorkerTable):
        """The process pauses for ten minutes when it has learnt that its row is gone."""

        def beat(self, row: WorkerRow) -> WorkerRow | None:
            written = super().beat(row)
            clock.advance(600)
            return written

    table = PausingTable(dynamodb, application, layout, runtime)
    heartbeat = Heartbeat(table, Identity(ME, "worker-000", "1"), clock)
    heartbeat.write()
    [row] = table.list()
    assert table.delete(row)
    assert heartbeat.step()
    [row] = table.list()
    assert row.last_update == int(clock.now())
