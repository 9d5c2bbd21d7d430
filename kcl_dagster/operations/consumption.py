"""What an application's tables have cost, by the units that CloudWatch counted."""

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

PERIOD_SECONDS: Final = 60  # CloudWatch keeps DynamoDB's minutes for 15 days
MOST_POINTS: Final = 1440  # in one answer
LATE_SECONDS: Final = 300.0  # the last minutes are not counted yet
_METRICS: Final = {"write": "ConsumedWriteCapacityUnits", "read": "ConsumedReadCapacityUnits"}


@dataclass(frozen=True, slots=True)
class Consumption:
    """Units that were consumed in `seconds`, by table, or table and index."""

    seconds: float
    writes: Mapping[str, float]
    reads: Mapping[str, float]
    prices: Prices

    @property
    def is_empty(self) -> bool:
        """CloudWatch knows of nothing: too early, or not AWS's own tables."""
        return not self.writes and not self.reads

    @property
    def dollars(self) -> float:
        """A month, if all of it is like this."""
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
    """What everybody who uses the tables consumed in the last `hours`: workers and leaders, ours and Java's.

    Needs cloudwatch:GetMetricStatistics. Raises a ServiceError where CloudWatch does not answer.
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
    """An index is counted beside its table."""
    for table in dict.fromkeys(place.table for place in (layout.leases, layout.workers, layout.coordinator)):
        yield table, [{"Name": "TableName", "Value": table}]
    table = layout.leases.table
    index = {"Name": "GlobalSecondaryIndexName", "Value": OWNER_INDEX}
    yield f"{table}/{OWNER_INDEX}", [{"Name": "TableName", "Value": table}, index]
