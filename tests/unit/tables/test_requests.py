"""Every write, pinned byte for byte in tests/data/requests, and what all of them have in common."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcl_dagster.application import Position
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON
from kcl_dagster.model.claim import ChainId, Claim, ClaimId
from kcl_dagster.model.first_moment import FirstMoment
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.shard import HashRange
from kcl_dagster.model.stored import StoredCounts, StoredRows, mark_of
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker_row import WorkerRow, WorkerState
from kcl_dagster.tables import coordination as c
from kcl_dagster.tables import requests as r
from kcl_dagster.tables.attributes import n, s
from kcl_dagster.tables.bounded_run_row import EndedRun, save_bounded_run
from kcl_dagster.tables.completeness_row import SetBack, WrittenThrough, advance_completeness, set_completeness_back
from kcl_dagster.tables.expressions import Request, guarded, together
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.rows import worker_row_values
from tests.unit.tables.kit import ANNA, BERT, application, at, new_lease

GOLDEN = Path(__file__).parents[2] / "data" / "requests"
TABLE = "orders-app"
SINGLE = TableLayout.single(application())
LEGACY = TableLayout.legacy(application())

FREE = new_lease(parents=frozenset({"shardId-000000000009", "shardId-000000000008"}))
OWNED = replace(FREE, owner=ANNA, counter=41, checkpoint=at(sub=3))
HANDING_OVER = replace(OWNED, owner=BERT, checkpoint_owner=ANNA)
MULTI = Lease(
    key=LeaseKey("123456789012:orders:1680616058:shardId-000000000000"),
    shard_id="shardId-000000000000",
    owner=ANNA,
    counter=41,
    checkpoint=TRIM_HORIZON,
    stream=StreamIdentifier("orders", "123456789012", 1680616058),
)
RESETS = (SetBack(2), SetBack(3, 1_800_000_000))
ROW = WorkerRow(
    id=ANNA,
    last_update=1_784_600_000,
    averages={"C": (41.5, 100.0, -1.0)},
    operating_range={"C": (100,)},
    support_code=1,
    support_update=1_784_600_000,
    slot="worker-000",
    run_id="anna-0815",
    state=WorkerState.DRAINING,
    beat=12,
    zone="eu-central-1a",
    lag_ms=1500,
)

CLAIM = Claim(ChainId("clicks-72b40fb1~worker-000-1"), ClaimId("claim"))

LEASES: dict[str, Request] = {
    "create": r.create(TABLE, FREE),
    "create, multi-stream": r.create(TABLE, replace(MULTI, owner=None, counter=0)),
    "renew": r.renew(TABLE, OWNED),
    "renew with throughput": r.renew(TABLE, OWNED, 1024.102412324),
    "renew in a handoff": r.renew(TABLE, HANDING_OVER),
    "take, unowned": r.take(TABLE, FREE, BERT),
    "take from another": r.take(TABLE, OWNED, BERT),
    "take in a handoff": r.take(TABLE, HANDING_OVER, BERT),
    "take back in a handoff": r.take(TABLE, HANDING_OVER, ANNA),
    "assign, unowned": r.assign(TABLE, FREE, BERT),
    "assign to another": r.assign(TABLE, OWNED, BERT),
    "assign to another, expecting the counter": r.assign(TABLE, OWNED, BERT, 41),
    "assign to its owner": r.assign(TABLE, OWNED, ANNA),
    "transfer": r.transfer(TABLE, HANDING_OVER),
    "initiate handoff": r.initiate_handoff(TABLE, OWNED, BERT),
    "release": r.release(TABLE, OWNED),
    "release in a handoff": r.release(TABLE, HANDING_OVER),
    "vacate": r.vacate(TABLE, OWNED),
    "vacate in a handoff, by counter": r.vacate(TABLE, HANDING_OVER, HANDING_OVER.counter),
    "checkpoint": r.checkpoint(TABLE, OWNED, at(sub=4)),
    "checkpoint with everything": r.checkpoint(
        TABLE, OWNED, SHARD_END, batch=7, children=frozenset({"b", "a"}), throughput_kbps=1.0
    ),
    "checkpoint with counts": r.checkpoint(
        TABLE,
        OWNED,
        at(sub=4),
        stored_through=1_800_000_000,
        stored=StoredCounts((StoredRows(1_799_996_400, 7, 700, 1),), mark=mark_of(at(sub=4))),
    ),
    "checkpoint with a claim": r.checkpoint(TABLE, OWNED, at(), claim=replace(CLAIM, at=at())),
    "checkpoint that ends a claim": r.checkpoint(TABLE, OWNED, at(), ends_claim=True),
    "checkpoint, multi-stream": r.checkpoint(TABLE, MULTI, at()),
    "prepare": r.prepare_checkpoint(TABLE, OWNED, at(sub=4)),
    "prepare with state and batch": r.prepare_checkpoint(TABLE, OWNED, at(sub=4), state=b"pin", batch=7),
    "rewind": r.rewind(TABLE, replace(OWNED, owner=None), TRIM_HORIZON),
    "update children": r.update_children(TABLE, OWNED.key, frozenset({"b", "a"})),
    "update hash range": r.update_hash_range(TABLE, OWNED.key, HashRange(1, 2)),
    "delete": r.delete_lease(TABLE, OWNED),
    "delete, forced": r.delete_lease(TABLE, OWNED, forced=True),
    "delete, forced, unowned": r.delete_lease(TABLE, FREE, forced=True),
}

_START = {c.START_POSITION: s(Position.LATEST), c.START_CREATED: n(1_680_616_058), c.START_TIMESTAMP: n(1)}
_KNOWN = {c.VERSION: s("CLIENT_VERSION_2X"), c.MODIFIED_BY: s("tool"), c.MODIFIED: n(17)}

COORDINATION: dict[str, Request] = {
    "put worker": c.put_worker(SINGLE.workers, ANNA, worker_row_values(ROW)),
    "put worker, legacy": c.put_worker(LEGACY.workers, ANNA, worker_row_values(replace(ROW, support_code=None))),
    "put worker, throughput only": c.put_worker(
        SINGLE.workers, ANNA, worker_row_values(WorkerRow(ANNA, 17, averages={}, operating_range={}))
    ),
    "beat worker": c.beat_worker(SINGLE.workers, ANNA, worker_row_values(WorkerRow(ANNA, 17, averages={}))),
    "beat worker, legacy": c.beat_worker(LEGACY.workers, ANNA, worker_row_values(WorkerRow(ANNA, 17, averages={}))),
    "delete worker": c.delete_worker(SINGLE.workers, ROW),
    "delete worker, legacy, never updated": c.delete_worker(LEGACY.workers, WorkerRow(ANNA, None)),
    "request drain": c.request_drain(SINGLE.workers, ANNA, wanted=True),
    "acquire lock": c.acquire_lock(SINGLE.coordinator, "us", 60_000, "v1"),
    "acquire lock, legacy": c.acquire_lock(LEGACY.coordinator, "us", 60_000, "v1"),
    "take lock": c.take_lock(SINGLE.coordinator, "us", 60_000, "v2", "v1"),
    "heartbeat lock": c.heartbeat_lock(SINGLE.coordinator, "us", 60_000, "v2", "v1"),
    "heartbeat lock, with its process": c.heartbeat_lock(
        SINGLE.coordinator, "us", 60_000, "v2", "v1", process="machine/17@1.25"
    ),
    "take lock, with its process": c.take_lock(
        SINGLE.coordinator, "us", 60_000, "v2", "v1", process="machine/17@1.25"
    ),
    "heartbeat lock, legacy": c.heartbeat_lock(LEGACY.coordinator, "us", 60_000, "v2", "v1"),
    "release lock": c.release_lock(LEGACY.coordinator, "us", "v2"),
    "create version": c.create_version(SINGLE.coordinator, "CLIENT_VERSION_3X", "kcl_dagster", 1_784_600_000_123),
    "change version": c.change_version(
        LEGACY.coordinator, "CLIENT_VERSION_3X", "kcl_dagster", 18, _KNOWN, [{"M": {}}] * 10
    ),
    "save memory": c.save_memory(SINGLE.coordinator, b"packed", 1),
    "record start": c.record_start(SINGLE.coordinator, "orders", _START),
    "replace start": c.replace_start(LEGACY.coordinator, "orders", _START),
    "advance completeness, first": advance_completeness(SINGLE.coordinator, WrittenThrough(), 1_800_000_000),
    "advance completeness": advance_completeness(LEGACY.coordinator, WrittenThrough(None, 2), 1_800_000_000),
    "advance completeness, with the first moment": advance_completeness(
        SINGLE.coordinator, WrittenThrough(), 1_800_000_000, FirstMoment(1_799_000_000)
    ),
    "advance completeness, with another first moment": advance_completeness(
        SINGLE.coordinator,
        WrittenThrough(None, 2, first=FirstMoment(1_799_000_000, is_settled=False)),
        1_800_000_000,
        FirstMoment(1_799_000_060),
    ),
    "set completeness back, first": set_completeness_back(
        SINGLE.coordinator, 0, WrittenThrough(None, 1_800_000_900, None, (SetBack(1_800_000_900),))
    ),
    "set completeness back": set_completeness_back(
        LEGACY.coordinator, 2, WrittenThrough(1_800_000_000, 3, 1_800_000_000, RESETS)
    ),
    "set completeness back, with the first moment": set_completeness_back(
        LEGACY.coordinator, 2, WrittenThrough(None, 3, None, RESETS, FirstMoment(1_799_000_000, is_creation=True))
    ),
    "save bounded run": save_bounded_run(SINGLE.coordinator, EndedRun("run-1", 1_800_000_060, 1_800_000_000)),
    "save bounded run, failed": save_bounded_run(
        LEGACY.coordinator, EndedRun("run-1", 1_800_000_060, 1_800_000_000, "shardId-0: paused by ann")
    ),
}

CHILD = new_lease("shardId-000000000002", parents=frozenset({FREE.shard_id}))
TRANSACTIONS: dict[str, Request] = {
    "create as a leader": guarded(r.create(TABLE, FREE), c.still_leads(SINGLE.coordinator, "us", 60_000, "v1")),
    "create as a leader, legacy": guarded(
        r.create(TABLE, FREE), c.still_leads(LEGACY.coordinator, "us", 60_000, "v1")
    ),
    "create several as a leader": together(
        [r.create(TABLE, FREE), r.create(TABLE, CHILD), c.still_leads(SINGLE.coordinator, "us", 60_000, "v1")]
    ),
    "create a child": r.create_child(TABLE, CHILD, FREE.key, frozenset({CHILD.shard_id, "shardId-000000000003"})),
}

FILES = {"leases": LEASES, "coordination": COORDINATION, "transactions": TRANSACTIONS}
ALL = {f"{file}/{name}": request for file, requests in FILES.items() for name, request in requests.items()}


def parts() -> dict[str, Request]:
    """Transactions are looked at write by write."""
    kinds: dict[str, Any] = {"Put": "put_item", "Update": "update_item"}
    return {
        f"{name}, {kind}": Request(kinds[kind], parameters)
        for name, request in TRANSACTIONS.items()
        for part in request.parameters["TransactItems"]
        for kind, parameters in part.items()
    }


SINGLY = LEASES | COORDINATION | parts()
each = pytest.mark.parametrize("request_", SINGLY.values(), ids=SINGLY)


def written(request: Request) -> str:
    document = {"operation": request.operation, "parameters": request.parameters}
    return json.dumps(document, indent=1, default=lambda blob: blob.decode("latin-1"))


@pytest.mark.parametrize("name", ALL)
def test_the_request_is_the_one_on_file(name: str) -> None:
    file, _, entry = name.partition("/")
    golden = json.loads((GOLDEN / f"{file}.json").read_text())
    assert written(ALL[name]) == json.dumps(golden[entry], indent=1)


@pytest.mark.parametrize(("file", "requests"), FILES.items())
def test_no_request_on_file_is_forgotten(file: str, requests: dict[str, Request]) -> None:
    assert list(json.loads((GOLDEN / f"{file}.json").read_text())) == list(requests)


@each
def test_every_placeholder_is_used_and_every_use_has_a_value(request_: Request) -> None:
    p = request_.parameters
    text = f"{p.get('UpdateExpression', '')} {p.get('ConditionExpression', '')}"
    assert set(re.findall(r":\w+", text)) == set(p.get("ExpressionAttributeValues", {}))
    assert set(re.findall(r"#\w+", text)) == set(p.get("ExpressionAttributeNames", {}))


@each
def test_a_condition_that_fails_says_what_stands_there(request_: Request) -> None:
    p = request_.parameters
    assert ("ConditionExpression" in p) == (p.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD")


UNCONDITIONAL = {"save memory", "replace start", "put worker, legacy"}


@pytest.mark.parametrize("name", SINGLY)
def test_only_rows_nobody_else_writes_are_written_without_a_condition(name: str) -> None:
    assert ("ConditionExpression" not in SINGLY[name].parameters) == (name in UNCONDITIONAL)


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_a_transaction_needs_no_right_that_single_writes_do_not(name: str) -> None:
    kinds = [kind for part in TRANSACTIONS[name].parameters["TransactItems"] for kind in part]
    assert set(kinds) == {"Put", "Update"}  # no ConditionCheck


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_a_transaction_is_told_by_the_row_that_it_is_about(name: str) -> None:
    about = CHILD if name == "create a child" else FREE
    assert (TRANSACTIONS[name].table, TRANSACTIONS[name].key) == (TABLE, {"leaseKey": {"S": about.key}})


@pytest.mark.parametrize("name", LEASES)
def test_leases_are_updated_attribute_by_attribute(name: str) -> None:
    assert (LEASES[name].operation == "put_item") == name.startswith("create")


@pytest.mark.parametrize("name", LEASES)
def test_counters_only_grow(name: str) -> None:
    p = LEASES[name].parameters
    expression = p.get("UpdateExpression", "")
    if "leaseCounter = :leaseCounter" in expression:
        values = p["ExpressionAttributeValues"]
        assert int(values[":leaseCounter"]["N"]) == int(values[":counter"]["N"]) + 1
    else:
        others = expression.replace("kdHandoff = leaseCounter", "")
        assert "leaseCounter" not in others or "ADD leaseCounter :one" in others


@pytest.mark.parametrize(
    ("impossible", "message"),
    [
        (lambda: r.create(TABLE, new_lease(checkpoint=None)), "has no checkpoint"),
        (lambda: r.transfer(TABLE, OWNED), "is not being handed over"),
        (lambda: r.initiate_handoff(TABLE, FREE, BERT), "cannot be handed over"),
        (lambda: r.initiate_handoff(TABLE, HANDING_OVER, BERT), "cannot be handed over"),
        (lambda: r.initiate_handoff(TABLE, OWNED, ANNA), "cannot be handed over"),
        (lambda: r.update_children(TABLE, FREE.key, frozenset()), "neither be empty nor"),
        (lambda: r.take(TABLE, FREE, type(ANNA)("")), "never empty"),
    ],
)
def test_what_the_kcl_could_not_read_is_never_asked_for(impossible: Callable[[], Request], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        impossible()


if __name__ == "__main__":  # `python -m tests.unit.tables.test_requests` writes the files anew, for review
    for file, requests in FILES.items():
        entries = {name: json.loads(written(request)) for name, request in requests.items()}
        (GOLDEN / f"{file}.json").write_text(json.dumps(entries, indent=1) + "\n")
