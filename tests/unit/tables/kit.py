"""What the tests of the tables share: a runtime that does not wait, and a client that fails as told."""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError

from kcl_dagster.application import Application, TableSettings
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.table_layout import create_tables, detect_layout
from tests.doubles.clock import FakeClock

ANNA, BERT, CARL = WorkerId("worker-000:anna"), WorkerId("worker-001:bert"), WorkerId("worker-002:carl")
SEQUENCE = "49587497311274533994574834252742144236107130636007899138"
LATER = "49587497311274533994574834252742144236107130636007899999"


def runtime(clock: FakeClock | None = None, seed: int = 7) -> Runtime:
    numbers = itertools.count(1)
    return Runtime(
        clock=clock or FakeClock(),
        new_id=lambda: f"id-{next(numbers)}",
        random=random.Random(seed),
    )


def application(name: str = "orders-app", **settings: Any) -> Application:
    return Application(name=name, streams="orders", **settings)


def new_lease(key: str = "shardId-000000000000", **fields: Any) -> Lease:
    """A lease as shard sync creates it, with whatever `fields` say differently."""
    values: dict[str, Any] = {
        "shard_id": key,
        "checkpoint": TRIM_HORIZON,
        "hash_range": HashRange(0, MAX_HASH_KEY),
        **fields,
    }
    return Lease(key=LeaseKey(key), **values)


def at(sequence: str = SEQUENCE, sub: int = 0) -> Checkpoint:
    return Checkpoint(sequence, sub)


class Tables:
    """A new application's tables behind one client, and raw access to them."""

    def __init__(self, client: Any, app: Application, rt: Runtime | None = None) -> None:
        self.client = client
        self.application = app
        self.runtime = rt or runtime()
        self.layout: TableLayout = detect_layout(client, app, self.runtime)
        create_tables(client, app, self.layout, self.runtime)
        self.leases = LeaseTable(client, app, self.layout, self.runtime)

    def item(self, key: str) -> dict[str, Any] | None:
        found = self.client.get_item(
            TableName=self.layout.leases.table, Key={"leaseKey": {"S": key}}, ConsistentRead=True
        ).get("Item")
        return dict(found) if found else None

    def put(self, item: dict[str, Any], table: str | None = None) -> None:
        self.client.put_item(TableName=table or self.layout.leases.table, Item=item)

    def remove(self, key: str) -> None:
        self.client.delete_item(TableName=self.layout.leases.table, Key={"leaseKey": {"S": key}})

    def holding(self, lease: Lease, owner: WorkerId = ANNA) -> Lease:
        """`lease`, created and owned by `owner`."""
        assert self.leases.create(lease)
        owned = self.leases.assign(lease, owner, counter=lease.counter)
        assert owned is not None
        return owned

    def existing(self, lease: Lease) -> Lease:
        assert self.leases.create(lease)
        return lease


Fault = Callable[["FaultyClient", str, dict[str, Any]], dict[str, Any]]


class FaultyClient:
    """Passes calls on to `inner`, except that the next calls of an operation meet the faults queued for it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._faults: dict[str, list[Fault]] = {}
        self._every: Fault | None = None

    def fail(self, operation: str, *faults: Fault) -> None:
        self._faults.setdefault(operation, []).extend(faults)

    def heal(self) -> None:
        self._faults.clear()

    @contextmanager
    def failing_always(self, fault: Fault) -> Iterator[None]:
        self._every = fault
        try:
            yield
        finally:
            self._every = None

    def count(self, operation: str) -> int:
        return sum(1 for name, _ in self.calls if name == operation)

    def __getattr__(self, operation: str) -> Any:
        if operation.startswith("_") or operation == "meta":
            raise AttributeError(operation)

        def send(**parameters: Any) -> dict[str, Any]:
            self.calls.append((operation, parameters))
            queued = self._faults.get(operation)
            if queued:
                return queued.pop(0)(self, operation, parameters)
            if self._every is not None:
                return self._every(self, operation, parameters)
            answer: dict[str, Any] = getattr(self.inner, operation)(**parameters)
            return answer

        return send


def client_error(code: str, status: int = 400, message: str = "as the test asked") -> Fault:
    def fault(_client: FaultyClient, operation: str, _parameters: dict[str, Any]) -> dict[str, Any]:
        answer: Any = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }
        raise ClientError(answer, "".join(part.capitalize() for part in operation.split("_")))

    return fault


def raising(error: Exception) -> Fault:
    def fault(_client: FaultyClient, _operation: str, _parameters: dict[str, Any]) -> dict[str, Any]:
        raise error

    return fault


THROTTLED = client_error("ProvisionedThroughputExceededException")
LOST_ON_THE_WAY = raising(ReadTimeoutError(endpoint_url="http://dynamodb"))
"""The request never arrived, but the sender cannot know."""


def passed_on(client: FaultyClient, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = getattr(client.inner, operation)(**parameters)
    return answer


def answer_lost(client: FaultyClient, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """The request is carried out and its answer, good or bad, does not come back."""
    with suppress(ClientError):
        getattr(client.inner, operation)(**parameters)
    raise ReadTimeoutError(endpoint_url="http://dynamodb")


def after(fault: Fault, then: Callable[[], object]) -> Fault:
    """`fault`, and then something happens before the sender does anything else."""

    def both(client: FaultyClient, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        try:
            return fault(client, operation, parameters)
        finally:
            then()

    return both


MADE_BY_OTHERS = TableSettings(create=False)
