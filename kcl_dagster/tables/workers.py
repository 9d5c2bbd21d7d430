"""The rows in which workers report that they are alive and how busy they are. kcl_dagster workers also report their
run."""

from collections.abc import Iterable
from typing import Final

from kcl_dagster import aws
from kcl_dagster.application import Application
from kcl_dagster.errors import UnreadableItem
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables import coordination
from kcl_dagster.tables.attributes import ENTITY_TYPE, LEASE, Item, Value, s
from kcl_dagster.tables.outcomes import WriteVerdict
from kcl_dagster.tables.places import LayoutKind, TableLayout
from kcl_dagster.tables.rows import why_not_writable, worker_row_from_item, worker_row_values
from kcl_dagster.tables.scanning import scan_items
from kcl_dagster.tables.sending import DEADLINE_SECONDS, Applied, Sender

_LEASE: Final = s(LEASE)

RowsRead = tuple[list[WorkerRow], list[UnreadableItem]]


class WorkerTable:
    """Reads and writes worker rows, in the lease table or in the KCL's older table for workers."""

    def __init__(
        self,
        client: aws.Client,
        application: Application,  # noqa: ARG002 (all table classes take the same arguments)
        layout: TableLayout,
        runtime: Runtime,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._sender = Sender(client, runtime, deadline_seconds)
        self._place = layout.workers
        self._clock = runtime.clock
        # A fleet of Java workers migrates from three tables to one when all workers announce in their rows that
        # they support this. A kcl_dagster worker cannot follow a migration while it runs. In the layout with three
        # tables, it therefore does not announce support, so the fleet does not migrate.
        self._hides_support = layout.kind is LayoutKind.LEGACY

    def put(self, row: WorkerRow) -> WorkerRow:
        """Write a heartbeat. If a field of `row` is None, its attribute remains unchanged. Returns the row as it is
        afterwards. The row shows whether the worker should drain.

        Raises ValueError for a row that the KCL would not write. Raises UnreadableItem if the id is the key of
        another kind of row.
        """
        try:
            item = self._sender.overwrite(coordination.put_worker(self._place, row.id, self._values(row)))
        except aws.ConditionFailed as error:
            raise _no_worker(row.id) from error
        return self._row(item) or row

    def beat(self, row: WorkerRow) -> WorkerRow | None:
        """Write a heartbeat if the row exists. If the row does not exist, write nothing and return None. Raises as
        `put` does."""
        try:
            item = self._sender.overwrite(coordination.beat_worker(self._place, row.id, self._values(row)))
        except aws.ConditionFailed as error:
            if error.item is not None:
                raise _no_worker(row.id) from error
            return None
        return self._row(item) or row

    def _values(self, row: WorkerRow) -> dict[str, Value]:
        problem = why_not_writable(row, self._clock.now())
        if problem is not None:
            msg = f"the row of worker {row.id} {problem}"
            raise ValueError(msg)
        values = worker_row_values(row)
        if self._hides_support:
            values = {name: value for name, value in values.items() if name not in {"sup", "slu"}}
        return values

    def get(self, worker: WorkerId) -> WorkerRow | None:
        return self._row(self._sender.get(self._place.table, {self._place.key: s(worker)}))

    def list(self) -> list[WorkerRow]:
        """Return all readable rows, sorted by id."""
        return list(newest_by_id(self.scan()[0]))

    def scan(self) -> "RowsRead":
        """Return all readable rows, and the errors of the unreadable rows."""
        items = scan_items(self._sender, self._place.table, consistent=True)
        return readable_workers(items, self._place.key)

    def delete(self, row: WorkerRow) -> bool:
        """Delete a worker's row, unless the worker has written it since `row` was read. Returns whether the row no
        longer exists."""
        outcome = self._sender.write(
            coordination.delete_worker(self._place, row),
            lambda item: WriteVerdict.APPLIED if item is None else WriteVerdict.STANDING,
        )
        return isinstance(outcome, Applied) or outcome.item is None

    def request_drain(self, worker: WorkerId, wanted: bool = True) -> bool:
        """Ask a worker to drain. With `wanted=False`, withdraw the request. Returns False if the worker has no
        row."""
        try:
            self._sender.overwrite(coordination.request_drain(self._place, worker, wanted=wanted))
        except aws.ConditionFailed:
            return False
        return True

    def _row(self, item: Item | None) -> WorkerRow | None:
        return None if item is None else worker_row_from_item(item, key=self._place.key)


def _no_worker(worker: WorkerId) -> UnreadableItem:
    return UnreadableItem(
        worker, "entityType", "says it is no worker's: a worker may not have the id of another row"
    )


def readable_workers(items: Iterable[Item], key: str) -> RowsRead:
    """Return the worker rows among `items`, and the errors of worker rows that cannot be read. Rows of other kinds
    are left out."""
    rows: list[WorkerRow] = []
    unreadable: list[UnreadableItem] = []
    for item in items:
        if item.get(ENTITY_TYPE) == _LEASE:  # most rows, where one table holds everything
            continue
        try:
            row = worker_row_from_item(item, key=key)
        except UnreadableItem as error:
            unreadable.append(error)
        else:
            if row is not None:
                rows.append(row)
    return rows, unreadable


def newest_by_id(rows: Iterable[WorkerRow]) -> tuple[WorkerRow, ...]:
    """Return the newest row of each worker. A worker may have two rows: after a table migration, an old row may
    remain in the other table."""
    newest: dict[WorkerId, WorkerRow] = {}
    for row in rows:
        known = newest.get(row.id)
        if known is None or (row.last_update or 0) > (known.last_update or 0):
            newest[row.id] = row
    return tuple(newest[worker] for worker in sorted(newest))
