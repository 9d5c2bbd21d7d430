"""Rows of any content: nothing crashes, and nothing is written to a row that cannot be read."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_dagster.application import TableSettings
from kcl_dagster.errors import KclError, UnreadableItem
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.shard import HashRange
from kcl_dagster.model.standing import Standing
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.tables import attributes as a
from kcl_dagster.tables import rows
from kcl_dagster.tables.audit import ACTION, AT, AUDIT, AUDIT_PREFIX, BY, DETAIL, AuditTable
from kcl_dagster.tables.control import (
    CHANGED_AT,
    CHANGED_BY,
    CONTROL,
    CONTROL_KEY,
    PAUSED,
    PAUSED_LEASES,
    PAUSED_SLOTS,
    ControlRow,
)
from kcl_dagster.tables.items import lease_from_item, lease_to_item
from kcl_dagster.tables.lock import LeaderLock
from kcl_dagster.tables.memory_row import MemoryRow
from kcl_dagster.tables.rows import worker_row_from_item, worker_row_to_item
from kcl_dagster.tables.starts import StartTable
from kcl_dagster.tables.table_layout import create_tables, detect_layout
from kcl_dagster.tables.workers import WorkerTable
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import ANNA, BERT, Tables, application, at, new_lease, runtime

pytestmark = pytest.mark.slow

T = TypeVar("T")
KEY = "shardId-000000000000"

words = st.sampled_from(
    ["", "0", "5", "TRIM_HORIZON", "LATEST", "SHARD_END", "AT_TIMESTAMP", "120000", "123456789012:orders:17", KEY]
) | st.text(max_size=8)
numbers = st.integers(-5, 2**70).map(str) | st.decimals(-9, 9, places=2).map(str)
# What DynamoDB can hold.
values = st.recursive(
    st.one_of(
        words.map(lambda text: {"S": text}),
        numbers.map(lambda number: {"N": number}),
        st.binary(max_size=8).map(lambda data: {"B": data}),
        st.booleans().map(lambda flag: {"BOOL": flag}),
        st.just({"NULL": True}),
        st.sets(words.filter(bool), min_size=1, max_size=3).map(lambda texts: {"SS": sorted(texts)}),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda members: {"L": members}),
        st.dictionaries(st.sampled_from(["C", "M", "x"]), inner, max_size=3).map(lambda members: {"M": members}),
    ),
    max_leaves=4,
)
# What no service ever answers, but a proxy may.
garbage = st.one_of(
    st.none(), st.integers(), st.text(max_size=3), st.just({}), st.just({"S": None}), st.just({"S": "a", "N": "1"})
)
names = st.sampled_from(
    [
        a.COUNTER,
        a.OWNER,
        a.CHECKPOINT_OWNER,
        a.CHECKPOINT,
        a.CHECKPOINT_SUB,
        a.PENDING,
        a.PENDING_SUB,
        a.PENDING_STATE,
        a.SWITCHES,
        a.PARENTS,
        a.CHILDREN,
        a.HASH_START,
        a.HASH_END,
        a.THROUGHPUT,
        a.STREAM,
        a.SHARD,
        a.BATCH,
        rows.LAST_UPDATE,
        rows.AVERAGES,
        rows.OPERATING_RANGE,
        rows.STATE,
        rows.DRAIN,
        rows.LAG,
        rows.PROPERTIES,
        "leaseDuration",
        "recordVersionNumber",
        "ownerName",
        "isReleased",
        "cv",
        "tm",
        "h",
        "document",
        "format",
        "position",
        "other",
    ]
)
kinds = st.sampled_from([a.LEASE, a.WORKER, a.LEADER, a.CLIENT_VERSION, a.LEADER_MEMORY, a.START_POSITION, "NEW"])
BASES = [
    {},
    lease_to_item(new_lease(KEY, owner=ANNA, counter=3, parents=frozenset("p"))),
    worker_row_to_item(WorkerRow(WorkerId(KEY), 5, {"C": (1.0,)}, {"C": (100,)}, slot="worker-000")),
    {"ownerName": {"S": "x"}, "leaseDuration": {"S": "1"}, "recordVersionNumber": {"S": "v"}},
]


@st.composite
def items(draw: st.DrawFn, content: st.SearchStrategy[Any] = values, key: str = KEY) -> dict[str, Any]:
    """A row somebody wrote, changed in a few attributes."""
    item: dict[str, Any] = {**draw(st.sampled_from(BASES)), a.LEASE_KEY: {"S": key}}
    item |= draw(st.dictionaries(names, content, max_size=4))
    for name in draw(st.sets(st.sampled_from(sorted(item)), max_size=2)) - {a.LEASE_KEY}:
        del item[name]
    if draw(st.booleans()):
        item[a.ENTITY_TYPE] = {"S": draw(kinds)}
    return item


@given(items(values | garbage), st.sampled_from([None, True, False]))
@settings(max_examples=1000)
def test_any_item_is_a_lease_or_not_or_refused(item: dict[str, Any], multi_stream: bool | None) -> None:
    lease = attempt(lambda: lease_from_item(item, multi_stream=multi_stream))
    if lease is not None:
        assert lease_from_item(lease_to_item(lease), multi_stream=multi_stream) == lease


@given(st.dictionaries(st.sampled_from(["leaseKey", "entityType", "wid"]), values | garbage))
def test_an_item_without_a_proper_key_is_neither(item: dict[str, Any]) -> None:
    item.pop("leaseKey", None)
    for read in (lease_from_item, worker_row_from_item):
        with pytest.raises(UnreadableItem, match="'leaseKey' is missing"):
            read(item)


@given(items(values | garbage))
@settings(max_examples=1000)
def test_any_item_is_a_worker_or_not_or_refused(item: dict[str, Any]) -> None:
    row = attempt(lambda: worker_row_from_item(item))
    if row is not None:
        assert worker_row_from_item(worker_row_to_item(row)) == row


def attempt(act: Callable[[], T]) -> T | None:
    """What `act` returns, or None if it raises an error of ours, which then says something."""
    try:
        return act()
    except KclError as error:
        if not str(error):
            raise AssertionError("an error without a message") from error
        return None


def fresh() -> Tables:
    """Without the index, which would keep some odd rows out of the table."""
    clock = FakeClock()
    app = application(tables=TableSettings(owner_index=False))
    return Tables(FakeDynamoDB(clock, strict=False), app, runtime(clock))


@given(items())
@settings(max_examples=300, deadline=None)
def test_nothing_is_ever_written_to_a_lease_that_cannot_be_read(item: dict[str, Any]) -> None:
    tables = fresh()
    tables.put(item)
    stored = tables.item(KEY)
    assert stored is not None
    leases = tables.leases
    if attempt(lambda: leases.get(new_lease(KEY).key)) is not None:
        return
    scanned = leases.scan()
    assert scanned.leases == ()
    assert leases.create(new_lease(KEY)) is False
    assert not attempt(lambda: leases.update_children(new_lease(KEY).key, frozenset("c")))
    assert not attempt(lambda: leases.update_hash_range(new_lease(KEY).key, HashRange(1, 2)))
    if stored.get(a.ENTITY_TYPE) != {"S": a.WORKER}:
        workers = WorkerTable(tables.client, tables.application, tables.layout, tables.runtime)
        row = WorkerRow(WorkerId(KEY), int(tables.runtime.clock.now()), averages={})
        assert attempt(lambda: workers.put(row)) is None
    assert tables.item(KEY) == stored


@given(items(), st.integers(0, 11))
@settings(max_examples=300, deadline=None)
def test_whatever_is_done_to_a_readable_lease_leaves_a_readable_lease(item: dict[str, Any], action: int) -> None:
    tables = fresh()
    tables.put(item)
    leases = tables.leases
    lease = attempt(lambda: leases.get(new_lease(KEY).key))
    if lease is None:
        return
    acts: tuple[Callable[[], object], ...] = (
        lambda: leases.renew(lease, 1.5),
        lambda: leases.take(lease, BERT),
        lambda: leases.assign(lease, BERT),
        lambda: leases.assign(lease, BERT, counter=lease.counter),
        lambda: leases.initiate_handoff(lease, BERT),
        lambda: leases.transfer(lease),
        lambda: leases.release(lease),
        lambda: leases.checkpoint(lease, at(), batch=3),
        lambda: leases.prepare(lease, at(), state=b"pin"),
        lambda: leases.rewind(lease, TRIM_HORIZON),
        lambda: leases.update_children(lease.key, frozenset("c")),
        lambda: leases.delete(lease, forced=True),
    )
    with contextlib.suppress(ValueError):  # a step that makes no sense, refused before it is sent
        attempt(acts[action])
    after = leases.get(lease.key)
    assert after is None or after.counter in {lease.counter, lease.counter + 1}
    assert after is not None or action == 11
    stored = tables.item(KEY)
    assert stored is None or stored.get("other") == tables_value(item, "other")


def tables_value(item: dict[str, Any], name: str) -> Any:
    tables = fresh()
    tables.put(item)
    stored = tables.item(KEY)
    assert stored is not None
    return stored.get(name)


@given(
    st.sampled_from(["Leader", "Migration3.0", "kdLeaderMemory", "kdStart:orders"]).flatmap(
        lambda key: items(key=key)
    )
)
@settings(max_examples=300, deadline=None)
def test_state_rows_of_any_content_are_understood_or_refused(item: dict[str, Any]) -> None:
    tables = fresh()
    tables.put(item)
    parts = (tables.client, tables.application, tables.layout, tables.runtime)
    lock, standing = LeaderLock(*parts, "us"), Standing()
    for act in (
        lambda: detect_layout(tables.client, tables.application, tables.runtime),
        lambda: create_tables(*parts),
        lambda: lock.hold(standing),
        lambda: lock.hold(standing),
        lock.release,
        lambda: StartTable(*parts).all(),
        lambda: StartTable(*parts).get("orders"),
        lambda: MemoryRow(*parts).load(),
    ):
        attempt(act)


operators = st.dictionaries(
    st.sampled_from([PAUSED, PAUSED_LEASES, PAUSED_SLOTS, CHANGED_BY, CHANGED_AT, ACTION, BY, AT, DETAIL]),
    values | st.just({"S": "{"}) | st.just({"S": '{"a": 1}'}) | st.just({"N": "5"}),
    max_size=8,
)


@given(operators, st.sampled_from([(CONTROL_KEY, CONTROL), (f"{AUDIT_PREFIX}5:x", AUDIT), (CONTROL_KEY, AUDIT)]))
@settings(max_examples=200, deadline=None)
def test_what_operators_wrote_is_understood_or_refused(attributes: dict[str, Any], name: tuple[str, str]) -> None:
    tables, (key, kind) = fresh(), name
    parts = (tables.client, tables.application, tables.layout, tables.runtime)
    tables.put({**attributes, a.LEASE_KEY: {"S": key}, a.ENTITY_TYPE: {"S": kind}})
    attempt(lambda: ControlRow(*parts).load())
    attempt(lambda: AuditTable(*parts).all())
