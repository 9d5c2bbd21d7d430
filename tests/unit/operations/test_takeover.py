"""Taking the tables of KCL 2.x over."""

import pytest

from kcl_dagster.errors import ConfigurationError, LayoutRefused, Unsafe
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.operations.takeover import take_over_2x
from kcl_dagster.tables.table_layout import detect_layout
from tests.unit.operations.conftest import Shop


@pytest.fixture
def from_2x(shop: Shop) -> Shop:
    shop.serve()
    shop.dynamodb.delete_item(TableName=shop.application.lease_table, Key={"leaseKey": {"S": "Migration3.0"}})
    return shop


def take_over(shop: Shop, *, stopped: bool = True, dry: bool = False) -> None:
    take_over_2x(shop.application, shop.dynamodb, shop.runtime, "olga", workers_are_stopped=stopped, dry=dry)


def test_a_stopped_fleet_is_taken_over_and_can_be_led(from_2x: Shop) -> None:
    before = from_2x.dynamodb.scan(TableName=from_2x.application.lease_table)["Items"]
    take_over(from_2x)
    leader = open_leader(
        from_2x.application,
        dynamodb=from_2x.dynamodb,
        kinesis=from_2x.kinesis,
        identity="new",
        runtime=from_2x.runtime,
        parallel=map,
    )
    assert leader.plan(from_2x.leader_runs()).ok
    after = from_2x.dynamodb.scan(TableName=from_2x.application.lease_table)["Items"]
    assert [item for item in before if item not in after] == []
    assert [entry.action for entry in from_2x.opened.audit.all()] == ["take-over-2x"]


def test_nothing_happens_before_somebody_says_that_the_workers_are_stopped(from_2x: Shop) -> None:
    with pytest.raises(Unsafe, match="--workers-are-stopped"):
        take_over(from_2x, stopped=False)


def test_a_worker_that_still_renews_is_found_out(from_2x: Shop) -> None:
    tables = from_2x.leader.tables.leases
    lease = tables.scan().leases[0]

    def renew() -> None:
        tables.renew(lease)

    from_2x.clock.call_in(10, renew)
    with pytest.raises(Unsafe, match="still writes lease"):
        take_over(from_2x)
    with pytest.raises(LayoutRefused):
        detect_layout(from_2x.dynamodb, from_2x.application, from_2x.runtime)


def test_a_dry_run_leaves_the_fleet_to_2x(from_2x: Shop) -> None:
    take_over(from_2x, dry=True)
    with pytest.raises(LayoutRefused):
        detect_layout(from_2x.dynamodb, from_2x.application, from_2x.runtime)


def test_there_is_nothing_to_take_over_from_a_fleet_that_speaks_3x(shop: Shop) -> None:
    shop.serve()
    with pytest.raises(ConfigurationError, match="nothing to take over"):
        take_over(shop)
