"""Which snapshots of an Iceberg table a commit expires."""

from collections.abc import Sequence
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from kcl_dagster.spark.sinks.snapshot_expiry import AGE, FEWEST, LEAST_KEPT, MOST, expirable

HOUR, DAY = 3_600, 86_400
COMMITS = LEAST_KEPT + 2 * FEWEST
EACH = 30  # seconds


def table(times: Sequence[int], **properties: str) -> TableMetadata:
    """A table that keeps two hours, with an append at each of these times, in seconds."""
    snapshots = [
        Snapshot(
            snapshot_id=number,
            parent_snapshot_id=number - 1 or None,
            sequence_number=number,
            timestamp_ms=second * 1000,
            manifest_list=f"snap-{number}.avro",
            summary=Summary(Operation.APPEND),
        )
        for number, second in enumerate(times, 1)
    ]
    return TableMetadataV2(
        location="lake",
        last_column_id=0,
        schemas=[Schema()],
        partition_specs=[PartitionSpec()],
        properties={AGE: str(2 * HOUR * 1000), **properties},
        snapshots=snapshots,
        current_snapshot_id=len(times),
        refs={"main": SnapshotRef.model_validate({"snapshot-id": len(times), "type": "branch"})},
    )


def expired(times: Sequence[int], **properties: str) -> int:
    """How many. They are the oldest ones."""
    found = [one.snapshot_id for one in expirable(table(times, **properties))]
    assert found == list(range(1, len(found) + 1))
    return max(0, len(found) - 1)


def every(seconds: int, commits: int = COMMITS) -> list[int]:
    return list(range(DAY, DAY + commits * seconds, seconds))


def test_snapshots_older_than_the_table_wants_them_are_expired() -> None:
    # Those of the last two hours are one more than the least that are kept.
    assert expired(every(EACH)) == COMMITS - LEAST_KEPT - 1
    assert expired(every(EACH, LEAST_KEPT + FEWEST)) == 0, "too few at once"
    assert expired(every(EACH, 1000)) == MOST


@pytest.mark.parametrize("commits", [1, 3, COMMITS])
@pytest.mark.parametrize("seconds", [1, 10], ids="every {} s".format)
def test_a_clock_that_is_ahead_leaves_the_newest_snapshots(seconds: int, commits: int) -> None:
    """One worker may make all commits, and each snapshot has the time of its worker."""
    times = every(seconds, 1000)
    wrong = [times[-1] + 30 * DAY + seconds * number for number in range(commits)]
    left = times + wrong
    while count := expired(left):
        left = left[count:]
    assert len(left) >= LEAST_KEPT


def test_a_table_says_how_many_of_its_snapshots_remain() -> None:
    least: Any = {"history.expire.min-snapshots-to-keep": str(LEAST_KEPT + FEWEST)}
    times = [*every(EACH), 40 * DAY]
    assert expired(times) == COMMITS + 1 - LEAST_KEPT
    assert expired(times, **least) == COMMITS + 1 - LEAST_KEPT - FEWEST


@pytest.mark.parametrize("wrong", [30 * DAY, -30 * DAY], ids=["ahead", "behind"])
def test_a_former_snapshot_with_a_wrong_time_neither_stops_nor_hastens_it(wrong: int) -> None:
    times = every(EACH)
    right = expired(times)
    for place in (0, 100, COMMITS - 2):
        strange = [*times[:place], times[place] + wrong, *times[place + 1 :]]
        assert abs(expired(strange) - right) <= 1
