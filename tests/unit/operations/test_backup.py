"""Leases out of a table and back."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.errors import ConfigurationError, Unsafe
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ChainId, Claim, ClaimId
from kcl_dagster.operations.backup import BEGUN, export_leases, from_line, import_leases, to_line
from kcl_dagster.operations.pausing import pause
from kcl_dagster.operations.reset import STORED_WITH_THE_DATA
from kcl_dagster.operations.status import read_status
from kcl_dagster.worker.pins import Pin, pin_of
from tests.unit.operations.conftest import Shop

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def raw(shop: Shop, key: str = FIRST) -> dict[str, Any]:
    found = shop.dynamodb.get_item(TableName=shop.application.lease_table, Key={"leaseKey": {"S": key}})
    item: dict[str, Any] = found["Item"]
    return item


def with_strange_attributes(shop: Shop) -> None:
    shop.tick()
    strange = {
        "theirs": {"M": {"list": {"L": [{"B": b"\x00\xff"}, {"NULL": True}, {"N": "1.50"}]}}},
        "blobs": {"BS": [b"\x01", b"\x02"]},
        "names": {"SS": ["a", "b"]},
    }
    shop.dynamodb.put_item(TableName=shop.application.lease_table, Item={**raw(shop), **strange})


def test_a_line_is_the_item_and_back() -> None:
    item = {
        "leaseKey": {"S": FIRST},
        "leaseCounter": {"N": "3"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "TRIM_HORIZON"},
        "pendingCheckpointState": {"B": b"\x00\x01\xfe"},
        "unknown": {"L": [{"BS": [b"x"]}, {"M": {"deep": {"BOOL": False}}}]},
    }
    assert from_line(to_line(item), 1) == item


@pytest.mark.parametrize(
    "line", ["no json", "[]", "7", '{"leaseKey": "x"}', '{"leaseKey": {"S": "x"}, "leaseCounter": {"S": "1"}}']
)
def test_what_is_no_lease_is_named_by_its_line(line: str) -> None:
    with pytest.raises(ConfigurationError, match="line 3 is no exported lease"):
        from_line(line, 3)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["TRIM_HORIZON", "AA=="]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["S", "N", "B", "BS", "L", "M", "x"]), inner, max_size=2)
    ),
    max_leaves=6,
)
almost = st.dictionaries(
    st.sampled_from(["leaseKey", "leaseCounter", "ownerSwitchesSinceCheckpoint", "checkpoint", "other"]),
    anything,
)


@given(st.text(max_size=20) | (anything | almost).map(json.dumps))
def test_any_line_is_a_lease_or_refused(line: str) -> None:
    try:
        item = from_line(line, 1)
    except ConfigurationError:
        return
    assert from_line(to_line(item), 1) == item


def test_only_leases_are_exported_with_everything_in_them(shop: Shop) -> None:
    with_strange_attributes(shop)
    lines = list(export_leases(shop.opened))
    assert [json.loads(line)["leaseKey"]["S"] for line in lines] == [FIRST, SECOND]
    assert from_line(lines[0], 1) == raw(shop)


def test_an_export_makes_a_new_table_with_the_same_leases(shop: Shop) -> None:
    with_strange_attributes(shop)
    shop.beat()
    shop.tick()
    lines = list(export_leases(shop.opened))
    other = Shop()
    report = import_leases(other.opened, lines)
    assert report.created == (FIRST, SECOND)
    copy, original = raw(other), raw(shop)
    assert original.pop("leaseOwner")
    assert copy == original
    assert import_leases(other.opened, lines).unchanged == (FIRST, SECOND)


def test_a_dry_run_makes_nothing(shop: Shop) -> None:
    shop.tick()
    other = Shop()
    assert import_leases(other.opened, export_leases(shop.opened), dry=True).created == (FIRST, SECOND)
    assert other.dynamodb.list_tables()["TableNames"] == []


def changed_meanwhile(shop: Shop) -> list[str]:
    """An export, and a lease that went on after it."""
    [sequence] = shop.put(b"one")
    shop.serve()
    lines = list(export_leases(shop.opened))
    lease = shop.leases()[FIRST]
    shop.opened.leases.checkpoint(lease, Checkpoint(sequence))
    return lines


def test_leases_that_went_on_are_not_replaced_unless_forced(shop: Shop) -> None:
    lines = changed_meanwhile(shop)
    pause(shop.opened)
    for lease in shop.leases().values():
        shop.opened.leases.release(lease)
    with pytest.raises(Unsafe) as refusal:
        import_leases(shop.opened, lines)
    assert f"1 lease differs from the file ({FIRST} in checkpoint" in str(refusal.value)
    assert str(refusal.value).endswith("--force sets them back to what the file says")


def test_leases_that_were_only_renewed_do_not_differ(shop: Shop) -> None:
    shop.serve()
    lines = list(export_leases(shop.opened))
    table = shop.application.lease_table
    shop.dynamodb.update_item(
        TableName=table,
        Key={"leaseKey": {"S": FIRST}},
        UpdateExpression="SET leaseCounter = :c, throughputKBps = :t, kdTip = :n",
        ExpressionAttributeValues={":c": {"N": "999"}, ":t": {"N": "7.5"}, ":n": {"N": "1700000000"}},
    )
    shop.opened.leases.release(shop.leases()[SECOND])
    assert import_leases(shop.opened, lines).unchanged == (FIRST, SECOND)


def test_the_chain_of_a_lease_that_goes_back_is_settled_and_is_no_progress(shop: Shop) -> None:
    lines = changed_meanwhile(shop)
    pause(shop.opened)
    claim = Claim(ChainId("clicks-72b40fb1~worker-000-1"), ClaimId("claim"))
    for lease in shop.leases().values():
        shop.opened.leases.release(
            shop.opened.leases.checkpoint(lease, lease.checkpoint or TRIM_HORIZON, claim=claim)
        )
    claimed = list(export_leases(shop.opened))
    import_leases(shop.opened, lines, force=True)
    assert shop.leases()[FIRST].claim == Claim(claim.chain, None)
    assert shop.leases()[SECOND].claim == claim  # it was not written
    import_leases(shop.opened, claimed, force=True)
    assert shop.leases()[FIRST].claim == Claim(claim.chain, None)


def test_a_running_application_has_to_be_paused_before_leases_are_set_back(shop: Shop) -> None:
    lines = changed_meanwhile(shop)
    for force in (False, True):
        with pytest.raises(Unsafe, match=rf"{FIRST} in checkpoint.* is owned by .*pause the application first"):
            import_leases(shop.opened, lines, force=force)


def test_owned_leases_are_not_replaced_even_if_forced(shop: Shop) -> None:
    lines = changed_meanwhile(shop)
    before = raw(shop)
    with pytest.raises(Unsafe, match="is owned by"):
        import_leases(shop.opened, lines, force=True)
    assert raw(shop) == before


def test_forced_leases_go_back_and_their_counters_do_not(shop: Shop) -> None:
    lines = changed_meanwhile(shop)
    pause(shop.opened)
    for lease in shop.leases().values():
        shop.opened.leases.release(lease)
    counter = shop.leases()[FIRST].counter
    assert import_leases(shop.opened, lines, force=True).replaced == (FIRST,)
    assert shop.leases()[FIRST].checkpoint == TRIM_HORIZON
    assert shop.leases()[FIRST].counter > counter
    assert [entry.action for entry in shop.opened.audit.all()] == ["pause", "import"]


def test_a_file_that_has_a_lease_twice_is_refused(shop: Shop) -> None:
    shop.tick()
    lines = list(export_leases(shop.opened))
    with pytest.raises(ConfigurationError, match="twice"):
        import_leases(shop.opened, [*lines, lines[0]])


@pytest.mark.parametrize("is_replaced", [True, False])
@pytest.mark.parametrize("is_pinned", [True, False])
def test_no_number_of_a_batch_is_used_again(shop: Shop, is_replaced: bool, is_pinned: bool) -> None:
    """Whatever was stored after the export has the numbers that follow those of the file."""
    shop.tick()
    values: dict[str, Any] = {":b": {"N": "7"}}
    if is_pinned:
        values |= {":p": {"S": "495"}, ":s": {"N": "0"}, ":m": {"B": Pin(7).to_state()}}
    pending = ", pendingCheckpoint = :p, pendingCheckpointSubSequenceNumber = :s, pendingCheckpointState = :m"
    shop.dynamodb.update_item(
        TableName=shop.application.lease_table,
        Key={"leaseKey": {"S": FIRST}},
        UpdateExpression="SET kdBatch = :b" + (pending if is_pinned else ""),
        ExpressionAttributeValues=values,
    )
    lines = list(export_leases(shop.opened))
    target = shop if is_replaced else Shop()
    if is_replaced:
        pause(shop.opened)
        lease = shop.leases()[FIRST]
        shop.opened.leases.release(shop.opened.leases.checkpoint(lease, Checkpoint("500")))
    report = import_leases(target.opened, lines, force=is_replaced)
    assert FIRST in (report.replaced if is_replaced else report.created)
    imported = target.leases()[FIRST]
    assert (imported.batch, pin_of(imported), imported.pending_checkpoint) == (0, None, None)
    begun = (FIRST,) if is_pinned else ()
    assert (report.begun, report.to_document()["begun"]) == (begun, list(begun))
    assert [line for line in report.lines() if BEGUN in line] == [f"{key}: {BEGUN}" for key in begun]


def read_through(shop: Shop, moment: int, batch: int, sequence: str = "9") -> None:
    """All leases are read to a record, and stored through a moment."""
    for lease in shop.leases().values():
        free = shop.opened.leases.checkpoint(lease, Checkpoint(sequence * 56), batch=batch, stored_through=moment)
        shop.opened.leases.release(free)


@pytest.fixture
def set_back(shop: Shop) -> tuple[Shop, list[str], int]:
    """A paused application, an export of it, and the moment through which the application was complete then."""
    shop.serve()
    then = int(shop.clock.now())
    read_through(shop, then, batch=41, sequence="7")
    lines = list(export_leases(shop.opened))
    shop.clock.advance(3600)
    read_through(shop, then + 3600, batch=57)
    shop.opened.completeness.advance(shop.opened.completeness.load(), then + 3590)
    pause(shop.opened)
    return shop, lines, then - 10


def test_an_import_goes_back_to_the_moment_of_its_leases_and_says_so(
    set_back: tuple[Shop, list[str], int],
) -> None:
    shop, lines, moment = set_back
    text = datetime.fromtimestamp(moment, UTC).isoformat()
    dry = import_leases(shop.opened, lines, force=True, dry=True)
    assert dry.lines()[-2:] == [f"complete through: would go back to {text}", STORED_WITH_THE_DATA]
    assert shop.opened.completeness.load().through == moment + 3600
    report = import_leases(shop.opened, lines, force=True)
    assert report.lines() == [
        "0 created, 2 replaced, 0 unchanged, 0 overtaken",
        f"complete through: goes back to {text}",
        STORED_WITH_THE_DATA,
    ]
    row = shop.opened.completeness.load()
    assert (row.through, row.back_to, row.epoch > 0) == (moment, moment, True)
    assert read_status(shop.application, shop.dynamodb, shop.runtime).complete_through == text
    assert report.to_document()["complete_through"] == dry.to_document()["complete_through"] == text
    assert shop.opened.audit.all()[-1].detail["complete_through"] == text
    again = import_leases(shop.opened, lines, force=True)
    assert again.lines() == ["0 created, 0 replaced, 2 unchanged, 0 overtaken"]


def test_an_import_of_leases_without_a_moment_leaves_it_unknown(set_back: tuple[Shop, list[str], int]) -> None:
    shop, lines, _ = set_back
    items = [from_line(line, 1) for line in lines]
    del items[0]["kdTip"]
    report = import_leases(shop.opened, [to_line(item) for item in items], force=True)
    assert report.lines()[-2:] == ["complete through: goes back to unknown", STORED_WITH_THE_DATA]
    assert shop.opened.completeness.load().through is None
