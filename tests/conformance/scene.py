"""A lease table in memory, the worker code on top of it, and what cases say happens to them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kcl_dagster.application import Application
from kcl_dagster.errors import KclError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.items import lease_from_item
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import TableLayout, create_tables
from kcl_dagster.worker.holdings import Holdings
from tests.conformance.case import Given, NotUnderstood
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb.client import FakeDynamoDB
from tests.doubles.dynamodb.failures import client_error

# Short names that cases use for attributes.
_SHORT = {
    "k": "leaseKey",
    "key": "leaseKey",
    "o": "leaseOwner",
    "owner": "leaseOwner",
    "c": "leaseCounter",
    "counter": "leaseCounter",
    "kbps": "throughputKBps",
    "hash_start": "startingHashKey",
    "hash_end": "endingHashKey",
    "parents": "parentShardId",
    "parentShardIds": "parentShardId",
    "children": "childShardIds",
}
_NUMBERS = {
    "leaseCounter",
    "ownerSwitchesSinceCheckpoint",
    "checkpointSubSequenceNumber",
    "pendingCheckpointSubSequenceNumber",
    "throughputKBps",
}
_SETS = {"parentShardId", "childShardIds"}
# Every lease that a KCL wrote has these; cases leave out what does not matter to them.
_DEFAULTS = {
    "leaseCounter": 0,
    "ownerSwitchesSinceCheckpoint": 0,
    "checkpoint": "TRIM_HORIZON",
    "checkpointSubSequenceNumber": 0,
}
ATTRIBUTES = (
    "leaseKey", "leaseOwner", "checkpointOwner", "leaseCounter", "ownerSwitchesSinceCheckpoint", "checkpoint",
    "checkpointSubSequenceNumber", "pendingCheckpoint", "pendingCheckpointSubSequenceNumber", "startingHashKey",
    "endingHashKey", "parentShardId", "childShardIds", "throughputKBps", "entityType", "streamName", "shardId",
)  # fmt: skip


def item_of(given: Given) -> dict[str, Any]:
    """The item a case describes in plain values, as DynamoDB holds it."""
    values: dict[str, Any] = {}
    for name in given:
        value = given[name]
        if name in {"only_key_attribute", "last_counter_increment_ns", "blocked"}:
            continue
        values[_SHORT.get(name, name)] = value
    if "leaseKey" not in values:
        raise NotUnderstood(f"item {dict(given)} has no key")
    if not (given.has("only_key_attribute") and given.flag("only_key_attribute")):
        values = {**_DEFAULTS, **values}
    return {name: _attribute(name, value) for name, value in values.items() if value is not None}


def _attribute(name: str, value: Any) -> dict[str, Any]:
    if name in _NUMBERS:
        return {"N": str(value)}
    if name in _SETS:
        return {"SS": sorted(value)}
    if not isinstance(value, str):
        raise NotUnderstood(f"attribute {name} = {value!r}")
    return {"S": value}


def plain(item: Mapping[str, Any] | None) -> dict[str, object]:
    """All attributes of an item in plain values; absent ones are None."""
    found: dict[str, object] = dict.fromkeys(ATTRIBUTES)
    for name, value in (item or {}).items():
        ((kind, content),) = value.items()
        found[name] = _plain(kind, content)
    found["parentShardIds"] = found["parentShardId"]
    return found


def _plain(kind: str, content: Any) -> object:
    if kind == "N":
        return float(content) if "." in content or "E" in content else int(content)
    return sorted(content) if kind == "SS" else content


@dataclass
class Watched:
    """A client that counts calls, and fails where it is told to."""

    client: FakeDynamoDB
    calls: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    code: str = "InternalServerError"
    answers: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(**parameters: Any) -> Any:
            self.calls.append(method)
            if method in self.failing:
                raise client_error(self.code, "as the case says", method)
            if method in self.answers:
                return self.answers[method](**parameters)
            return getattr(self.client, method)(**parameters)

        return call

    def count(self, method: str) -> int:
        return self.calls.count(method)


class Scene:
    """One application that is to behave as the KCL, on an in-memory DynamoDB, in the layout of KCL 3.5."""

    def __init__(
        self,
        *,
        page_items: int = 1000,
        policy: Mapping[str, Any] | None = None,
        timings: Mapping[str, float] | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.runtime = Runtime(clock=self.clock)
        self.dynamodb = FakeDynamoDB(self.clock, page_items=page_items)
        self.client = Watched(self.dynamodb)
        self.application = Application.model_validate(
            {
                "name": "conformance",
                "streams": ["stream"],
                "timings": timings or {},
                "policy": {"name": "kcl", **(policy or {})},
            }
        )
        self.layout = TableLayout.single(self.application)
        create_tables(self.client, self.application, self.layout, self.runtime)
        self.table = LeaseTable(self.client, self.application, self.layout, self.runtime)
        self.client.calls.clear()

    @property
    def name(self) -> str:
        return self.layout.leases.table

    def put(self, item: Mapping[str, Any]) -> None:
        """Behind everybody's back."""
        self.dynamodb.put_item(TableName=self.name, Item=dict(item))

    def item(self, key: str) -> dict[str, Any] | None:
        answer = self.dynamodb.get_item(TableName=self.name, Key={"leaseKey": {"S": key}}, ConsistentRead=True)
        found: dict[str, Any] | None = answer.get("Item")
        return found

    def lease_items(self) -> list[dict[str, Any]]:
        items = self.dynamodb.scan(TableName=self.name, ConsistentRead=True)["Items"]
        return [item for item in items if item.get("entityType", {"S": "LEASE"}) == {"S": "LEASE"}]

    def lease(self, key: str) -> Lease:
        item = self.item(key)
        lease = lease_from_item(item) if item is not None else None
        if lease is None:
            raise NotUnderstood(f"there is no lease {key!r}")
        return lease

    def holdings(self, worker: str, lease_duration: float = 10.0) -> Holdings:
        return Holdings(self.table, WorkerId(worker), lease_duration, lease_duration / 3, self.runtime)

    def change(self, key: str, **attributes: object) -> None:
        """What another client did to a lease; None removes an attribute."""
        item = self.item(key)
        if item is None:
            raise NotUnderstood(f"there is no lease {key!r}")
        for name, value in attributes.items():
            item.pop(name, None)
            if value is not None:
                item[name] = _attribute(name, value)
        self.put(item)


def memory_of(lease: Lease, given: Given) -> Lease:
    """`lease` as a process remembers it that read it at another time."""
    known: dict[str, Any] = {}
    for name, attribute in (("leaseOwner", "owner"), ("checkpointOwner", "checkpoint_owner")):
        if name in given:
            text = given.text_or_none(name)
            known[attribute] = None if text is None else WorkerId(text)
    if "leaseCounter" in given:
        known["counter"] = given.integer("leaseCounter")
    if "checkpoint" in given:
        known["checkpoint"] = Checkpoint(given.text("checkpoint"))
    return replace(lease, **known)


def remembered(lease: Lease) -> dict[str, object]:
    """A lease in memory, in the names of cases."""
    return {
        "leaseKey": lease.key,
        "leaseOwner": lease.owner,
        "checkpointOwner": lease.checkpoint_owner,
        "leaseCounter": lease.counter,
        "checkpoint": None if lease.checkpoint is None else lease.checkpoint.sequence,
        "pendingCheckpoint": None if lease.pending_checkpoint is None else lease.pending_checkpoint.sequence,
        "ownerSwitchesSinceCheckpoint": lease.owner_switches,
    }


def unread_lease(key: str, owner: str | None = None, checkpoint_owner: str | None = None) -> Lease:
    """A lease that somebody remembers although the table may not hold it."""
    return Lease(
        key=LeaseKey(key),
        shard_id=key,
        owner=None if owner is None else WorkerId(owner),
        checkpoint_owner=None if checkpoint_owner is None else WorkerId(checkpoint_owner),
        checkpoint=Checkpoint("TRIM_HORIZON"),
    )


def attempt(action: Callable[[], object]) -> tuple[object, Exception | None]:
    """What an action gave, and what it raised of the product's errors."""
    try:
        return action(), None
    except (KclError, ValueError) as raised:
        return None, raised
