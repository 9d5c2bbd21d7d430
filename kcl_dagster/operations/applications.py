"""List the KCL applications of an account and region. Each table with the key of a lease table counts as an
application."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kcl_dagster import aws
from kcl_dagster.application import Application
from kcl_dagster.errors import AccessDenied, LayoutRefused, TableNotFound, UnreadableItem
from kcl_dagster.model.counting import counted
from kcl_dagster.operations.status import OBSERVER
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.attributes import CHECKPOINT, COUNTER, ENTITY_TYPE, LEASE, LEASE_KEY, WORKER, Item
from kcl_dagster.tables.lock import LeaderLock
from kcl_dagster.tables.scanning import scan_items
from kcl_dagster.tables.sending import Sender
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.tables.workers import WorkerTable

_ANY_STREAM: Final = "unknown"  # the tables of a single-stream application do not name its stream
_SHARD_END: Final = "SHARD_END"


@dataclass(frozen=True, slots=True)
class ApplicationView:
    """An application as its tables describe it. If `layout` is None, `problem` describes the state of the
    tables."""

    name: str
    layout: str | None
    open_leases: int
    finished_leases: int
    workers: int
    leader: str | None
    problem: str | None = None

    def __str__(self) -> str:
        finished = f" and {self.finished_leases} finished" if self.finished_leases else ""
        text = (
            f"{self.name}: {counted(self.open_leases, 'open lease')}{finished}, {counted(self.workers, 'worker')}, "
            f"leader {self.leader or 'none'}, layout {self.layout or 'unknown'}"
        )
        return text if self.problem is None else f"{text}; {self.problem}"


@dataclass(frozen=True, slots=True)
class Applications:
    """All applications that were found. `denied`: tables that these credentials are not allowed to read. Each of
    them may be the table of an application."""

    found: Sequence[ApplicationView]
    denied: Sequence[str]

    def to_document(self) -> dict[str, Any]:
        return {
            "applications": [
                {
                    "application": one.name,
                    "layout": one.layout,
                    "open_leases": one.open_leases,
                    "finished_leases": one.finished_leases,
                    "workers": one.workers,
                    "leader": one.leader,
                    "problem": one.problem,
                }
                for one in self.found
            ],
            "denied": list(self.denied),
        }


def list_applications(dynamodb: aws.Client, runtime: Runtime) -> Applications:
    """Examine every table of the account and region. This takes one request for each table, and a scan of each
    lease table.

    Raises AccessDenied if the credentials do not allow listing the tables.
    """
    sender = Sender(dynamodb, runtime)
    found, denied = [], []
    for table in _tables(sender):
        try:
            if _is_lease_table(sender, table):
                found.append(_view(dynamodb, sender, table, runtime))
        except AccessDenied:
            denied.append(table)
        except TableNotFound:
            continue  # deleted since it was listed
    return Applications(found, denied)


def _tables(sender: Sender) -> Iterator[str]:
    start: dict[str, str] = {}
    while True:
        answer = sender.read("list_tables", **start)
        yield from answer["TableNames"]
        if not answer.get("LastEvaluatedTableName"):
            return
        start = {"ExclusiveStartTableName": answer["LastEvaluatedTableName"]}


def _is_lease_table(sender: Sender, table: str) -> bool:
    described = sender.read("describe_table", TableName=table)["Table"]
    return [(k["AttributeName"], k["KeyType"]) for k in described.get("KeySchema", [])] == [(LEASE_KEY, "HASH")]


def _view(dynamodb: aws.Client, sender: Sender, table: str, runtime: Runtime) -> ApplicationView:
    application = Application(name=table, streams=(_ANY_STREAM,))
    rows = scan_items(sender, table, consistent=False)
    leases = [row for row in rows if _text(row, ENTITY_TYPE) == LEASE or _is_lease_of_kcl_2(row)]
    finished = sum(_text(row, CHECKPOINT) == _SHARD_END for row in leases)
    workers = sum(_text(row, ENTITY_TYPE) == WORKER for row in rows)
    layout, leader, problem = None, None, None
    try:
        layout = detect_layout(dynamodb, application, runtime)
        leader = LeaderLock(dynamodb, application, layout, runtime, OBSERVER).peek()
        if not layout.shares_one_table:
            workers += len(WorkerTable(dynamodb, application, layout, runtime).list())
    except (LayoutRefused, UnreadableItem, TableNotFound) as error:
        problem = " ".join(str(error).split())
    return ApplicationView(
        name=table,
        layout=None if layout is None else layout.kind.value,
        open_leases=len(leases) - finished,
        finished_leases=finished,
        workers=workers,
        leader=leader,
        problem=problem,
    )


def _is_lease_of_kcl_2(row: Item) -> bool:
    return ENTITY_TYPE not in row and COUNTER in row


def _text(row: Item, attribute: str) -> str | None:
    value = row.get(attribute)
    return value.get("S") if isinstance(value, dict) else None
