"""Whatever botocore raises, callers of the tables see errors of ours."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from botocore import exceptions as botocore_errors
from botocore.parsers import ResponseParserError

from kcl_dagster.application import Position
from kcl_dagster.errors import KclError
from kcl_dagster.model.checkpoint import SHARD_END
from kcl_dagster.model.shard import HashRange
from kcl_dagster.model.standing import Standing
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.tables.expressions import Request
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.lock import LeaderLock
from kcl_dagster.tables.memory_row import MemoryRow
from kcl_dagster.tables.starts import StartPosition, StartTable
from kcl_dagster.tables.table_layout import create_tables, detect_layout
from kcl_dagster.tables.workers import WorkerTable
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import (
    ANNA,
    BERT,
    Fault,
    FaultyClient,
    Tables,
    application,
    at,
    client_error,
    new_lease,
    raising,
    runtime,
)

pytestmark = pytest.mark.slow

FAULTS: dict[str, Fault] = {
    "no credentials": raising(botocore_errors.NoCredentialsError()),
    "wrong credentials": client_error("UnrecognizedClientException"),
    "denied": client_error("AccessDeniedException"),
    "throttled": client_error("ProvisionedThroughputExceededException"),
    "no such table": client_error("ResourceNotFoundException"),
    "in use": client_error("ResourceInUseException"),
    "invalid": client_error("ValidationException"),
    "broken": client_error("InternalServerError", 500),
    "unreachable": raising(botocore_errors.EndpointConnectionError(endpoint_url="http://x")),
    "no answer": raising(botocore_errors.ReadTimeoutError(endpoint_url="http://x")),
    "cut off": raising(botocore_errors.ConnectionClosedError(endpoint_url="http://x")),
    "gibberish": raising(ResponseParserError("not JSON")),
    "bad parameters": raising(botocore_errors.ParamValidationError(report="x")),
    "condition": client_error("ConditionalCheckFailedException"),
}

LEASE = new_lease(owner=ANNA, counter=1)
HANDING_OVER = new_lease(owner=BERT, checkpoint_owner=ANNA, counter=1)
START = StartPosition("orders", Position.LATEST, 1, 2)


class Everything(Tables):
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.faulty = FaultyClient(FakeDynamoDB(self.clock))
        super().__init__(self.faulty, application(), runtime(self.clock))
        parts = (self.faulty, self.application, self.layout, self.runtime)
        self.workers = WorkerTable(*parts)
        self.lock = LeaderLock(*parts, "us")
        self.memory = MemoryRow(*parts)
        self.starts = StartTable(*parts)

    @property
    def row(self) -> WorkerRow:
        return WorkerRow(ANNA, int(self.clock.now()), averages={}, operating_range={})


def guard_of_a_leader() -> Request:
    tables = Everything()
    assert tables.lock.hold(Standing()).held
    return tables.lock.guard()


ACTIONS: dict[str, Callable[[Everything], Any]] = {
    "get": lambda t: t.leases.get(LEASE.key),
    "scan": lambda t: t.leases.scan(),
    "has_leases": lambda t: t.leases.has_leases(),
    "owned_by": lambda t: t.leases.owned_by(ANNA),
    "create": lambda t: t.leases.create(new_lease("other")),
    "create_all": lambda t: t.leases.create_all([new_lease("other"), new_lease("another")], guard_of_a_leader()),
    "create_child": lambda t: t.leases.create_child(LEASE, new_lease("other"), frozenset({"other"})),
    "renew": lambda t: t.leases.renew(LEASE),
    "take": lambda t: t.leases.take(LEASE, BERT),
    "assign": lambda t: t.leases.assign(LEASE, BERT),
    "initiate_handoff": lambda t: t.leases.initiate_handoff(LEASE, BERT),
    "transfer": lambda t: t.leases.transfer(HANDING_OVER),
    "release": lambda t: t.leases.release(LEASE),
    "vacate": lambda t: t.leases.vacate(LEASE),
    "checkpoint": lambda t: t.leases.checkpoint(LEASE, SHARD_END),
    "prepare": lambda t: t.leases.prepare(LEASE, at()),
    "rewind": lambda t: t.leases.rewind(LEASE, at()),
    "update_children": lambda t: t.leases.update_children(LEASE.key, frozenset("c")),
    "update_hash_range": lambda t: t.leases.update_hash_range(LEASE.key, HashRange(1, 2)),
    "delete": lambda t: t.leases.delete(LEASE, forced=True),
    "workers.beat": lambda t: t.workers.beat(t.row),
    "workers.put": lambda t: t.workers.put(t.row),
    "workers.get": lambda t: t.workers.get(ANNA),
    "workers.list": lambda t: t.workers.list(),
    "workers.delete": lambda t: t.workers.delete(t.row),
    "workers.request_drain": lambda t: t.workers.request_drain(ANNA),
    "lock.hold": lambda t: t.lock.hold(Standing()),
    "lock.guard": lambda t: t.lock.guard(),
    "lock.peek": lambda t: t.lock.peek(),
    "lock.release": lambda t: t.lock.release(),
    "memory.load": lambda t: t.memory.load(),
    "memory.save": lambda t: t.memory.save({}),
    "starts.get": lambda t: t.starts.get("orders"),
    "starts.all": lambda t: t.starts.all(),
    "starts.delete": lambda t: t.starts.delete("orders"),
    "starts.record": lambda t: t.starts.record(START),
    "starts.refuse_other": lambda t: t.starts.refuse_other("orders-app", StreamIdentifier.single("orders")),
    "starts.replace": lambda t: t.starts.replace(START),
    "starts.resolved": lambda t: t.starts.resolved(StreamIdentifier.single("orders")),
    "detect_layout": lambda t: detect_layout(t.faulty, t.application, t.runtime),
    "create_tables": lambda t: create_tables(t.faulty, t.application, t.layout, t.runtime),
}
PARTS: dict[str, type] = {
    "": LeaseTable,
    "workers.": WorkerTable,
    "lock.": LeaderLock,
    "memory.": MemoryRow,
    "starts.": StartTable,
}


def test_every_public_method_is_among_the_actions() -> None:
    for prefix, part in PARTS.items():
        methods = {name for name in dir(part) if not name.startswith("_") and callable(getattr(part, name))}
        if part is WorkerTable:
            methods.remove("scan")  # what `list` is made of
        assert {f"{prefix}{name}" for name in methods} <= set(ACTIONS)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("action", ACTIONS)
def test_only_errors_of_ours_come_out(action: str, fault: str) -> None:
    everything = Everything()
    everything.leases.create(LEASE)
    with everything.faulty.failing_always(FAULTS[fault]):
        said = "done"
        try:
            ACTIONS[action](everything)
        except KclError as error:
            said = str(error)
        assert said


@pytest.mark.parametrize("seed", range(20))
def test_nor_when_one_fault_follows_another(seed: int) -> None:
    chance = random.Random(seed)
    faults = list(FAULTS.values())

    def any_fault(client: FaultyClient, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if chance.random() < 0.6:
            return chance.choice(faults)(client, operation, parameters)
        answer: dict[str, Any] = getattr(client.inner, operation)(**parameters)
        return answer

    everything = Everything()
    everything.leases.create(LEASE)
    outcomes = {"done": 0, "refused": 0}
    with everything.faulty.failing_always(any_fault):
        for action in ACTIONS.values():
            try:
                action(everything)
                outcomes["done"] += 1
            except KclError:
                outcomes["refused"] += 1
    assert outcomes["refused"]
