"""Rows that a sink writes are counted by the minutes of a column."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from kcl_dagster.spark.sinks.minutes import MinuteCounts

NOON = int(datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp())


def moments(*seconds: float | None, zone: str | None = "UTC", unit: str = "us") -> pa.Array:
    scale = {"s": 1, "ms": 1000, "us": 1_000_000}[unit]
    values = [None if one is None else round((NOON + one) * scale) for one in seconds]
    return pa.array(values, pa.int64()).cast(pa.timestamp(unit, tz=zone))


def counted(column: str, *batches: dict[str, pa.Array]) -> object:
    minutes = MinuteCounts(column)
    for batch in batches:
        minutes.add(pa.RecordBatch.from_pydict(batch))
    return None if minutes.counted is None else sorted(minutes.counted, key=str)


def test_rows_count_by_the_minute_of_their_arrival() -> None:
    found = counted(
        "arrival_timestamp",
        {"arrival_timestamp": moments(0, 59.999, 60)},
        {"arrival_timestamp": moments(119.5, 120)},
    )
    assert found == [[NOON, None, 2], [NOON + 60, None, 2], [NOON + 120, None, 1]]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", None])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_rows_with_a_time_of_their_own_count_by_that_and_their_arrival(zone: str | None, unit: str) -> None:
    at = moments(0, 0, -3600, None, zone=zone, unit=unit)
    found = counted("at", {"at": at, "arrival_timestamp": moments(10, 70, 70, 70)})
    assert found == sorted([[NOON - 3600, NOON + 60, 1], [NOON, NOON, 1], [NOON, NOON + 60, 1]], key=str)


def test_the_arrival_may_be_missing() -> None:
    assert counted("at", {"at": moments(0, 1, 61)}) == [[NOON, None, 2], [NOON + 60, None, 1]]
    assert counted("at", {"at": moments(0, 1), "arrival_timestamp": moments(5, None)}) == sorted(
        [[NOON, NOON, 1], [NOON, None, 1]], key=str
    )


def test_times_before_the_epoch_are_in_the_minute_that_they_are_in() -> None:
    assert counted("at", {"at": moments(-NOON - 1)}) == [[-60, None, 1]]


@pytest.mark.parametrize("column", [pa.array(["12:00"]), pa.array([NOON])])
def test_a_column_that_is_no_timestamp_is_not_counted(column: pa.Array) -> None:
    assert counted("at", {"at": column}) is None
    assert counted("at", {"other": column}) is None
