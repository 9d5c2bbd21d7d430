"""Reads one lease, the leases of an owner, or all leases."""

import logging
from dataclasses import dataclass
from typing import Final

from kcl_dagster import aws
from kcl_dagster.application import Application
from kcl_dagster.errors import AccessDenied, TableNotFound, UnreadableItem
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables import scan_answers
from kcl_dagster.tables.attributes import LEASE_KEY, OWNER, OWNER_INDEX, Item, key_of, s
from kcl_dagster.tables.items import lease_from_changed_item, lease_from_item
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.scanning import Map, Segments, pages, scan_items
from kcl_dagster.tables.sending import DEADLINE_SECONDS, Sender
from kcl_dagster.tables.workers import WorkerTable, newest_by_id, readable_workers

log = logging.getLogger(__name__)

# Seconds before the reader tries again to use a missing index; the creation of an index takes minutes
INDEX_RECHECK_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The rows of the tables. Each row was read at some time between `started` and `ended` (monotonic seconds)."""

    leases: tuple[Lease, ...]
    workers: tuple[WorkerRow, ...]
    unreadable: tuple[UnreadableItem, ...]
    started: float
    ended: float


class LeaseReader:
    """Reads leases. Has no state except for caches, so any thread can call it.

    `parallel`: the function with which the segments of a scan are read at the same time, for example
    `ThreadPoolExecutor.map`.
    """

    def __init__(
        self,
        client: aws.Client,
        application: Application,
        layout: TableLayout,
        runtime: Runtime,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
        parallel: Map | None = None,
    ) -> None:
        scan_answers.install(client)
        self._sender = Sender(client, runtime, deadline_seconds)
        self._multi_stream = application.multi_stream
        self._as_kcl = application.policy.name == "kcl"
        self._table = layout.leases.table
        self._clock = runtime.clock
        self._parallel = parallel or map
        self._segments = Segments(application.tables.scan_segments, self._table_bytes, runtime.clock)
        # If the segments are read one after another, dividing a scan into segments only costs more requests.
        self._divides_scans = parallel is not None or application.tables.scan_segments > 0
        self._other_workers = None if layout.shares_one_table else WorkerTable(client, application, layout, runtime)
        self._no_index_until: float | None = None
        self._scanned: dict[LeaseKey, tuple[Item, Lease]] = {}

    def get(self, key: LeaseKey, consistent: bool = True) -> Lease | None:
        """Read one lease; None if it does not exist. Raises UnreadableItem."""
        return self._lease(self._sender.get(self._table, {LEASE_KEY: s(key)}, consistent=consistent))

    def scan(self, consistent: bool = True) -> ScanResult:
        """Read all leases and all worker rows, from one table or two. Rows that cannot be parsed are listed in the
        result."""
        started = self._clock.monotonic()
        segments = self._segments.count() if self._divides_scans else 1
        items = scan_items(
            self._sender, self._table, consistent=consistent, segments=segments, parallel=self._parallel
        )
        leases: list[Lease] = []
        unreadable: list[UnreadableItem] = []
        known = self._scanned
        seen: dict[LeaseKey, tuple[Item, Lease]] = {}
        for item in items:
            try:
                lease = self._scanned_lease(item, known.get(LeaseKey(key_of(item, LEASE_KEY))))
            except UnreadableItem as error:
                unreadable.append(error)
            else:
                if lease is not None:
                    seen[lease.key] = (item, lease)
                    leases.append(lease)
        self._scanned = seen
        workers, unreadable_workers = readable_workers(items, LEASE_KEY)
        if self._other_workers is not None:
            others, unreadable_others = self._other_workers.scan()
            workers, unreadable_workers = [*workers, *others], [*unreadable_workers, *unreadable_others]
        leases.sort(key=lambda lease: lease.key)
        return ScanResult(
            leases=tuple(leases),
            workers=newest_by_id(workers),
            unreadable=tuple(unreadable + unreadable_workers),
            started=started,
            ended=self._clock.monotonic(),
        )

    def has_leases(self) -> bool:
        """Whether there is any lease. Rows of other kinds do not count."""
        for page in pages(self._sender, "scan", TableName=self._table, ConsistentRead=True):
            for item in page:
                try:
                    if self._lease(item) is not None:
                        return True
                except UnreadableItem:
                    return True  # the row cannot be parsed, but the table is not new
        return False

    def owned_by(self, worker: WorkerId) -> list[LeaseKey]:
        """Return the keys of the leases whose `leaseOwner` is `worker`. Uses the index if it exists, or else a
        scan.

        The index is eventually consistent, so the caller has to read each lease again.
        """
        if self._no_index_until is None or self._clock.monotonic() >= self._no_index_until:
            try:
                found = self._owned_by_index(worker)
            # Each of these errors can mean that the index does not exist
            except (aws.RequestRefused, AccessDenied, TableNotFound) as error:
                self._no_index_until = self._clock.monotonic() + INDEX_RECHECK_SECONDS
                log.warning("index %s of %s cannot be used, scanning: %s", OWNER_INDEX, self._table, error)
            else:
                self._no_index_until = None
                return found
        items = scan_items(
            self._sender,
            self._table,
            consistent=True,
            FilterExpression=f"{OWNER} = :owner",
            ExpressionAttributeValues={":owner": s(worker)},
            ProjectionExpression=LEASE_KEY,
        )
        return sorted(LeaseKey(key_of(item, LEASE_KEY)) for item in items)

    def _owned_by_index(self, worker: WorkerId) -> list[LeaseKey]:
        found = pages(
            self._sender,
            "query",
            TableName=self._table,
            IndexName=OWNER_INDEX,
            KeyConditionExpression=f"{OWNER} = :owner",
            ExpressionAttributeValues={":owner": s(worker)},
        )
        return [LeaseKey(key_of(item, LEASE_KEY)) for page in found for item in page]

    def _scanned_lease(self, item: Item, before: tuple[Item, Lease] | None) -> Lease | None:
        """Return the lease in an item. `before`: the item and the lease that the last scan returned for the same
        key. Only attributes that have changed since are parsed, if possible."""
        if before is not None:
            if before[0] == item:
                return before[1]
            changed = lease_from_changed_item(item, *before)
            if changed is not None:
                return changed
        return self._lease(item)

    def _lease(self, item: Item | None) -> Lease | None:
        return None if item is None else lease_from_item(item, multi_stream=self._multi_stream)

    def _table_bytes(self) -> int:
        description = self._sender.read("describe_table", TableName=self._table)["Table"]
        return int(description.get("TableSizeBytes", 0))
