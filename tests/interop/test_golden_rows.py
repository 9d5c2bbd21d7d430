"""Rows that the real Java KCL wrote are understood, and understood completely. Needs no Java."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcl_dagster.application import Application
from kcl_dagster.leader.liveness import is_failing, is_valid
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.items import lease_from_item, lease_to_item
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.lock import LeaderLock
from kcl_dagster.tables.rows import worker_row_from_item
from kcl_dagster.tables.table_layout import LayoutKind, detect_layout
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb.client import FakeDynamoDB

DATA = Path(__file__).parents[1] / "data" / "kcl"
FILES = sorted(DATA.glob("golden-*.json"))
Item = dict[str, Any]


def _value(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if set(value) == {"base64"} else value


class Golden:
    """One release's rows."""

    def __init__(self, file: Path) -> None:
        document = json.loads(file.read_text(), object_hook=_value)
        self.version: str = document["kcl"]
        self.layout = LayoutKind(document["layout"])
        self.application = Application.model_validate({"name": document["application"], "streams": ["clicks"]})
        self.rows: list[tuple[str, Item]] = [(row["table"], row["item"]) for row in document["rows"]]

    def leases(self) -> Iterator[Item]:
        yield from (item for table, item in self.rows if table == "leases" and "leaseCounter" in item)

    def workers(self) -> Iterator[Item]:
        yield from (item for _, item in self.rows if "lut" in item)

    def parsed(self) -> list[Lease]:
        return [lease for lease in map(lease_from_item, self.leases()) if lease is not None]

    def tables(self) -> FakeDynamoDB:
        """A service that holds the last row of every key."""
        fake = FakeDynamoDB(FakeClock())
        names = {"leases": self.application.lease_table}
        keys = {"leases": "leaseKey"}
        if self.layout is LayoutKind.LEGACY:
            names |= {"workers": self.application.metrics_table, "coordinator": self.application.coordinator_table}
            keys |= {"workers": "wid", "coordinator": "key"}
        for place, name in names.items():
            fake.create_table(
                TableName=name,
                KeySchema=[{"AttributeName": keys[place], "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": keys[place], "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        for place, item in self.rows:
            fake.put_item(TableName=names[place], Item=item)
        return fake


def _unordered(item: Item) -> Item:
    return {name: {"SS": set(value["SS"])} if "SS" in value else value for name, value in item.items()}


@pytest.fixture(scope="module", params=FILES, ids=[file.stem for file in FILES])
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


def test_there_are_rows_of_both_layouts() -> None:
    assert {Golden(file).layout for file in FILES} == set(LayoutKind)


def test_every_lease_reads_and_writes_back_as_java_wrote_it(golden: Golden) -> None:
    for item in golden.leases():
        lease = lease_from_item(item)
        assert lease is not None
        ours = lease_to_item(lease)
        if "entityType" not in item:  # clients before 3.5
            del ours["entityType"]
        assert _unordered(ours) == _unordered(item)


def test_all_states_of_a_lease_were_seen(golden: Golden) -> None:
    leases = golden.parsed()
    assert any(lease.owner is None for lease in leases)
    assert any(lease.in_handoff and lease.actual_owner != lease.owner for lease in leases)
    assert any(lease.is_finished and lease.children for lease in leases)
    assert any(lease.parents and lease.checkpoint is not None for lease in leases)
    assert any(lease.throughput_kbps is not None for lease in leases)
    pending = [lease for lease in leases if lease.pending_checkpoint is not None]
    assert {lease.pending_state for lease in pending} == {b"state"}
    assert all(lease.hash_range is not None for lease in leases)


def test_worker_rows_are_valid_and_tell_no_failure(golden: Golden) -> None:
    key = "wid" if golden.layout is LayoutKind.LEGACY else "leaseKey"
    rows = [worker_row_from_item(item, key=key) for item in golden.workers()]
    assert rows
    for row in rows:
        assert row is not None
        assert is_valid(row)
        assert not is_failing(row)
        assert row.averages == {}


def test_the_layout_is_recognised_and_the_fleet_accepted(golden: Golden) -> None:
    layout = detect_layout(golden.tables(), golden.application, Runtime(clock=FakeClock()))
    assert layout.kind is golden.layout
    assert layout.stored_version == "CLIENT_VERSION_3X"


def test_a_scan_finds_every_lease_and_every_worker_and_nothing_unreadable(golden: Golden) -> None:
    client, runtime = golden.tables(), Runtime(clock=FakeClock())
    layout = detect_layout(client, golden.application, runtime)
    scan = LeaseTable(client, golden.application, layout, runtime).scan()
    assert {lease.key for lease in scan.leases} == {LeaseKey(item["leaseKey"]["S"]) for item in golden.leases()}
    assert {worker.id for worker in scan.workers} == {
        row["wid" if "wid" in row else "leaseKey"]["S"] for row in golden.workers()
    }
    assert not scan.unreadable


def test_the_lock_of_a_java_leader_is_respected(golden: Golden) -> None:
    client, runtime = golden.tables(), Runtime(clock=FakeClock())
    layout = detect_layout(client, golden.application, runtime)
    assert LeaderLock(client, golden.application, layout, runtime, "ours").peek() in {"java-1", "java-2"}
