"""The audit log: one row for each manual intervention. Rows are never changed.

Interventions are rare, so there are few rows. kcl_dagster never deletes rows; operators can delete them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kcl_dagster import aws
from kcl_dagster.application import Application
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.attributes import ENTITY_TYPE, Item, ItemReader, n, s
from kcl_dagster.tables.expressions import Request, put
from kcl_dagster.tables.places import Place, TableLayout
from kcl_dagster.tables.scanning import scan_items
from kcl_dagster.tables.sending import DEADLINE_SECONDS, Sender

AUDIT_PREFIX: Final = "kdAudit:"
AUDIT: Final = "KD_AUDIT"
ACTION: Final = "did"
BY: Final = "changedBy"
AT: Final = "changedAt"  # epoch milliseconds
DETAIL: Final = "detail"  # JSON
# Bytes; DynamoDB takes 400 KB per item. About 2,000 leases fit, each with its old and its new position.
LARGEST_DETAIL: Final = 300 * 1024


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One intervention. `at`: its time in epoch milliseconds."""

    action: str
    by: str
    at: int
    detail: Mapping[str, Any]


class AuditTable:
    """Writes and reads the rows of the audit log."""

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
        self._place = layout.coordinator
        self._runtime = runtime

    def write(self, action: str, by: str, detail: Mapping[str, Any]) -> AuditEntry:
        """Record an intervention before it is carried out."""
        entry = AuditEntry(action, by, int(self._runtime.clock.now() * 1000), detail)
        self._sender.overwrite(write_entry(self._place, entry, self._runtime.new_id()))
        return entry

    def all(self) -> list[AuditEntry]:
        """Return all interventions, oldest first. Scans the table, so only operators' commands should call this."""
        items = scan_items(
            self._sender,
            self._place.table,
            consistent=True,
            FilterExpression=f"{ENTITY_TYPE} = :kind",
            ExpressionAttributeValues={":kind": s(AUDIT)},
        )
        return sorted((_entry(item, self._place.key) for item in items), key=lambda entry: entry.at)


def write_entry(place: Place, entry: AuditEntry, entry_id: str) -> Request:
    detail = json.dumps(entry.detail, sort_keys=True)
    if len(detail.encode()) > LARGEST_DETAIL:
        detail = json.dumps({"too long": f"{len(entry.detail)} facts, {len(detail)} bytes"})
    item: Item = {
        place.key: s(f"{AUDIT_PREFIX}{entry.at}:{entry_id}"),
        ENTITY_TYPE: s(AUDIT),
        ACTION: s(entry.action),
        BY: s(entry.by),
        AT: n(entry.at),
        DETAIL: s(detail),
    }
    return put(place.table, place.key, item, None)


def _entry(item: Mapping[str, Any], key: str) -> AuditEntry:
    reader = ItemReader(item, key)
    try:
        detail = json.loads(reader.required_text(DETAIL))
    except ValueError as error:
        reader.refuse(DETAIL, f"should be JSON: {error}")
    return AuditEntry(reader.required_text(ACTION), reader.required_text(BY), reader.required_whole(AT), detail)
