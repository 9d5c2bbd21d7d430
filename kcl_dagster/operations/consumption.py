"""The cost of an application's tables, from the consumed units in CloudWatch."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from kcl_dagster import aws
from kcl_dagster.operations.cost import SECONDS_PER_MONTH, Prices
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.attributes import OWNER_INDEX
from kcl_dagster.tables.places import TableLayout

PERIOD_SECONDS: Final = 60  # CloudWatch keeps DynamoDB's values for single minutes for 15 days
MOST_POINTS: Final = 1440  # data points in one response
LATE_SECONDS: Final = 300.0  # CloudWatch has not counted the last minutes yet
_METRICS: Final = {"write": "ConsumedWriteCapacityUnits", "read": "ConsumedReadCapacityUnits"}


@dataclass(frozen=True, slots=True)
class Consumption:
    """The units that were consumed within `seconds`, by the name of a table, or of a table and its index."""

    seconds: float
    writes: Mapping[str, float]
    reads: Mapping[str, float]
    prices: Prices

    @property
    def is_empty(self) -> bool:
        """Whether CloudWatch has no data, because it is too early, or because the tables are not on AWS."""
        return not self.writes and not self.reads

    @property
    def dollars(self) -> float:
        units = sum(self.writes.values()) * self.prices.write + sum(self.reads.values()) * self.prices.read
        return units / self.seconds * SECONDS_PER_MONTH / 1e6

    def to_document(self) -> dict[str, Any]:
        return {
            "hours": round(self.seconds / 3600, 2),
            "write_units": {name: round(units, 1) for name, units in self.writes.items()},
            "read_units": {name: round(units, 1) for name, units in self.reads.items()},
            "dollars_per_month": None if self.is_empty else round(self.dollars, 2),
        }


def measure(
    cloudwatch: aws.Client, layout: TableLayout, runtime: Runtime, *, hours: float, prices: Prices | None = None
) -> Consumption:
    """Read the units that all users of the tables consumed in the last `hours`: workers and leaders, of this
    package and of Java.

    Needs cloudwatch:GetMetricStatistics. Raises a ServiceError if CloudWatch does not respond.
    """
    end = runtime.clock.now() - LATE_SECONDS
    begin = end - hours * 3600
    period = math.ceil(hours * 3600 / MOST_POINTS / PERIOD_SECONDS) * PERIOD_SECONDS
    found: dict[str, dict[str, float]] = {kind: {} for kind in _METRICS}
    for name, dimensions in _counted(layout):
        for kind, metric in _METRICS.items():
            points = aws.call(
                cloudwatch,
                "get_metric_statistics",
                Namespace="AWS/DynamoDB",
                MetricName=metric,
                Dimensions=dimensions,
                StartTime=datetime.fromtimestamp(begin, UTC),
                EndTime=datetime.fromtimestamp(end, UTC),
                Period=period,
                Statistics=["Sum"],
            )["Datapoints"]
            if points:
                found[kind][name] = sum(point["Sum"] for point in points)
    return Consumption(hours * 3600, found["write"], found["read"], prices or Prices())


def _counted(layout: TableLayout) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The tables and the index with the dimensions of their metrics. CloudWatch counts an index separately from
    its table."""
    for table in dict.fromkeys(place.table for place in (layout.leases, layout.workers, layout.coordinator)):
        yield table, [{"Name": "TableName", "Value": table}]
    table = layout.leases.table
    index = {"Name": "GlobalSecondaryIndexName", "Value": OWNER_INDEX}
    yield f"{table}/{OWNER_INDEX}", [{"Name": "TableName", "Value": table}, index]
