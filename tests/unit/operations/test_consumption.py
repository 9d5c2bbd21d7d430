"""Costs by what CloudWatch counted."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kcl_dagster.operations.consumption import LATE_SECONDS, measure
from kcl_dagster.operations.cost import Prices
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.attributes import OWNER_INDEX
from tests.doubles.clock import FakeClock
from tests.unit.operations.conftest import Shop

HOUR = 3600
TABLE = "orders-app"


def count(client: Any, moment: float, metric: str, units: float, table: str = TABLE, index: str = "") -> None:
    dimensions = [{"Name": "TableName", "Value": table}]
    if index:
        dimensions.append({"Name": "GlobalSecondaryIndexName", "Value": index})
    client.put_metric_data(
        Namespace="AWS/DynamoDB",
        MetricData=[
            {
                "MetricName": metric,
                "Dimensions": dimensions,
                "Timestamp": datetime.fromtimestamp(moment, UTC),
                "Value": units,
            }
        ],
    )


def test_what_was_consumed_within_the_hours_is_counted(cloudwatch: Any, shop: Shop) -> None:
    now = datetime.now(UTC).timestamp()
    runtime = Runtime(clock=FakeClock(now))
    end = now - LATE_SECONDS
    for minutes in range(1, 60, 10):
        count(cloudwatch, end - minutes * 60, "ConsumedWriteCapacityUnits", 600)
        count(cloudwatch, end - minutes * 60, "ConsumedReadCapacityUnits", 60)
    count(cloudwatch, end - 600, "ConsumedWriteCapacityUnits", 999, table="another")
    count(cloudwatch, end - 2 * HOUR, "ConsumedWriteCapacityUnits", 999)
    count(cloudwatch, end + 60, "ConsumedWriteCapacityUnits", 999)
    shop.tick()
    used = measure(cloudwatch, shop.opened.layout, runtime, hours=1, prices=Prices(write=1.0, read=0.5))
    assert used.writes == {TABLE: 3600}
    assert used.reads == {TABLE: 360}
    units = (3600 * 1.0 + 360 * 0.5) / HOUR
    assert used.dollars == pytest.approx(units * 30 * 24 * HOUR / 1e6)
    assert used.to_document()["dollars_per_month"] == round(used.dollars, 2)


def test_the_index_is_counted_beside_its_table(cloudwatch: Any, shop: Shop) -> None:
    now = datetime.now(UTC).timestamp()
    count(cloudwatch, now - LATE_SECONDS - 600, "ConsumedWriteCapacityUnits", 36, index=OWNER_INDEX)
    shop.tick()
    used = measure(cloudwatch, shop.opened.layout, Runtime(clock=FakeClock(now)), hours=1)
    assert used.writes[f"{TABLE}/{OWNER_INDEX}"] == 36


def test_tables_that_cloudwatch_does_not_know_have_no_price(cloudwatch: Any, shop: Shop) -> None:
    shop.tick()
    used = measure(cloudwatch, shop.opened.layout, shop.runtime, hours=24)
    assert used.is_empty
    assert used.to_document()["dollars_per_month"] is None
