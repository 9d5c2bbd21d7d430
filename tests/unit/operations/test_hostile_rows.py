"""Anyone who may write to the tables can put any row there: `status` and the leader's tick survive each of them."""

import io
import json
import tracemalloc
import zlib
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from rich.console import Console

from kcl_dagster.errors import KclError, LayoutRefused, UnreadableItem
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.operations.pausing import pause
from kcl_dagster.operations.status import Status, read_status
from kcl_dagster.operations.watching import view
from kcl_dagster.tables import attributes, control, coordination, rows
from kcl_dagster.tables.control import CONTROL_KEY
from kcl_dagster.tables.coordination import LEADER_KEY, MEMORY_KEY
from tests.unit.operations.conftest import ANNA, Shop

pytestmark = pytest.mark.slow

FIRST = LeaseKey("shardId-000000000000")
DEEP = b"[" * 100_000 + b"]" * 100_000
MIB = 1024 * 1024


def shown(status: Status) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(view(status))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def status_of(shop: Shop) -> Status:
    return read_status(shop.application, shop.dynamodb, shop.runtime)


def put(shop: Shop, row: str, /, **values: Any) -> None:
    """Replace attributes of a row, or make one."""
    table = shop.opened.layout.leases.table
    known = shop.dynamodb.get_item(TableName=table, Key={"leaseKey": {"S": row}}).get("Item", {})
    shop.dynamodb.put_item(TableName=table, Item={**known, **values, "leaseKey": {"S": row}})


def memory(shop: Shop, document: bytes) -> None:
    put(shop, MEMORY_KEY, document={"B": document}, entityType={"S": "KD_LEADER_MEMORY"}, format={"N": "1"})


@pytest.mark.audit("D7")
@pytest.mark.parametrize("text", ["[/oops]", "[bold]b[/bold]", "[link=file:///etc]", "a[", "\\[x]"])
def test_status_shows_markup_in_names_as_it_is(shop: Shop, text: str) -> None:
    shop.serve()
    put(shop, FIRST, leaseOwner={"S": text})
    shop.beat(WorkerId(f"worker-001:{text}"))
    out = shown(status_of(shop))
    assert f"│{text}" in out
    assert f"worker-001:{text}" in out


@pytest.mark.audit("D7")
def test_status_sends_no_control_characters_to_the_terminal(shop: Shop) -> None:
    shop.serve()
    put(shop, FIRST, leaseOwner={"S": "\x1b]0;owned\x07\x1b[2J\r\nnext"})
    put(shop, "bad\x1b[2J", leaseCounter={"S": "x\x1b[2J"})
    pause(shop.opened, workers=["worker-003"])
    put(shop, CONTROL_KEY, changedBy={"S": "olga\x1b[2J"})
    out = shown(status_of(shop))
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\ufffd" in out


@pytest.mark.audit("D7")
@pytest.mark.parametrize(
    "document",
    [
        zlib.compress(DEEP),
        zlib.compress(b'{"version": 1, "standing": ' + DEEP + b"}"),
        zlib.compress(b'{"version": 1, "target": ' + b"9" * 5000 + b"}"),
        zlib.compress(b'{"version": 1, "target": 1e400, "generations": {"worker-000": [1e400, 1]}}'),
        zlib.compress(b"{}")[:-3],
        b"",
    ],
    ids=["deep", "deep inside", "long number", "infinity", "cut", "empty"],
)
def test_a_leader_leads_whatever_the_memory_row_holds(shop: Shop, document: bytes) -> None:
    shop.tick()
    shop.leader.resign()
    memory(shop, document)
    report = shop.tick()
    assert report.leading
    assert report.ok, report.stages


@pytest.mark.audit("D7")
def test_a_small_row_that_unpacks_to_much_is_not_unpacked(shop: Shop) -> None:
    shop.tick()
    memory(shop, zlib.compress(b'{"version": 1, "x": "' + b" " * (256 * MIB // 4) + b'"}'))
    tracemalloc.start()
    try:
        assert shop.leader.tables.memory.load() == {}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 * MIB


@pytest.mark.audit("D7")
def test_a_checkpoint_is_no_longer_than_kinesis_makes_them() -> None:
    assert Checkpoint("9" * 129).position()
    with pytest.raises(ValueError, match="neither a sequence number"):
        Checkpoint("9" * 5000)


@pytest.mark.audit("D7")
def test_a_creation_epoch_is_a_java_long() -> None:
    assert StreamIdentifier.parse(f"123456789012:orders:{2**63 - 1}").creation_epoch == 2**63 - 1
    with pytest.raises(ValueError, match="is not of the form"):
        StreamIdentifier.parse(f"123456789012:orders:{'9' * 400}")


@pytest.mark.audit("D7")
@pytest.mark.parametrize("key", [LEADER_KEY, CONTROL_KEY])
def test_status_tells_of_a_lock_or_a_pause_that_cannot_be_read(shop: Shop, key: str) -> None:
    shop.serve()
    put(shop, key, entityType={"N": "7"})
    status = status_of(shop)
    assert len(status.open_leases) == 2
    assert any(key in problem for problem in status.unreadable)
    assert f"unreadable: item '{key}'" in shown(status)


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"S": "deep"}
    for _ in range(depth):
        value = {"L": [value]}
    return value


TEXTS = st.sampled_from(["[/oops]", "[", "\x1b[2J", "\u202e", "0", "9" * 4301, "SHARD_END", "é", " ", str(ANNA)])
VALUES = st.one_of(
    TEXTS.map(lambda text: {"S": text}),
    st.sampled_from(["0", "-1", "1E+125", "-9.9E-100", "1.5", "9" * 38]).map(lambda number: {"N": number}),
    st.sampled_from([b"", b"\0", zlib.compress(DEEP)]).map(lambda data: {"B": data}),
    st.booleans().map(lambda flag: {"BOOL": flag}),
    st.just({"NULL": True}),
    st.lists(TEXTS, min_size=1, max_size=2, unique=True).map(lambda texts: {"SS": texts}),
    st.sampled_from([1, 30]).map(nested),
    st.dictionaries(TEXTS, st.sampled_from([{"N": "1E+125"}, {"S": "x"}, {"L": [{"N": "7"}]}]), max_size=2).map(
        lambda members: {"M": members}
    ),
)
ATTRIBUTES = st.sampled_from(
    [
        value
        for module in (attributes, control, coordination, rows)
        for value in vars(module).values()
        if isinstance(value, str) and value.isalpha()
    ]
)
KEYS = st.sampled_from(
    [FIRST, str(ANNA), "new", MEMORY_KEY, LEADER_KEY, CONTROL_KEY, "Migration3.0", "kdStart:orders", "kdAudit:1:x"]
)


@pytest.mark.audit("D7")
@settings(max_examples=150, deadline=None)
@given(KEYS, st.dictionaries(ATTRIBUTES, VALUES, min_size=1, max_size=3))
@example(FIRST, {"checkpoint": {"S": "9" * 5000}})
@example(FIRST, {"throughputKBps": {"N": "1E+125"}})
@example(str(ANNA), {"kdLagMs": {"N": "9223372036854775807"}, "sts": {"M": {"C": {"L": [{"N": "1E+125"}]}}}})
@example(str(ANNA), {"opr": {"M": {"C": {"L": [{"N": "1E+125"}]}}}})
def test_status_and_tick_survive_any_row(key: str, values: dict[str, Any]) -> None:
    shop = Shop()
    shop.serve()
    try:
        put(shop, key, **values)
    except ClientError:
        reject()  # DynamoDB refuses such an item: an owner that is no text does not fit the index
    try:
        status = status_of(shop)
    except (UnreadableItem, LayoutRefused):
        assert key == "Migration3.0", "where the rows are has to be known; everything else is shown as unreadable"
    else:
        assert shown(status)
        assert json.dumps(status.to_document())
    for _ in range(2):
        report = shop.tick()
        mistakes = [stage.error for stage in report.stages if stage.error and "Error: " in stage.error]
        assert not mistakes
    try:
        shop.leader.tables.memory.load()
    except KclError as error:
        raise AssertionError(error) from error
