"""Which snapshots of an Iceberg table a commit expires."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from kcl_dagster.spark.sinks.snapshot_expiry import AGE, FEWEST, LEAST_KEPT, MOST, MOST_COMPARED, old_snapshots

HOUR, DAY = 3_600, 86_400
COMMITS = LEAST_KEPT + 2 * FEWEST
EACH = 30  # seconds
MAIN: Mapping[str, Mapping[str, Any]] = {"main": {}}


def table(times: Sequence[int], refs: Mapping[str, Mapping[str, Any]] = MAIN, **properties: str) -> TableMetadata:
    """A table that keeps two hours, with an append at each of these times, in seconds. `refs`: by names, their
    settings; the snapshot is that of `main` unless one is given."""
    snapshots = [
        Snapshot(
            snapshot_id=number,
            parent_snapshot_id=number - 1 or None,
            sequence_number=number,
            timestamp_ms=second * 1000,
            manifest_list=f"snap-{number}.avro",
            summary=Summary(Operation.APPEND, **{"total-data-files": "1"}),
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
        refs={
            name: SnapshotRef.model_validate({"snapshot-id": len(times), "type": "branch", **settings})
            for name, settings in refs.items()
        },
    )


def expired(times: Sequence[int], **properties: str) -> int:
    """How many. They are the oldest ones."""
    found = old_snapshots(table(times, MAIN, **properties)).ids
    assert found == list(range(1, len(found) + 1))
    return len(found)


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


def test_tags_keep_their_snapshots_and_no_others() -> None:
    tags: Any = {f"of-{number}": {"type": "tag", "snapshot-id": number} for number in (1, 7, 8)}
    found = old_snapshots(table(every(EACH), {**MAIN, **tags}))
    assert found.ids == [one for one in range(1, COMMITS - LEAST_KEPT) if one not in (1, 7, 8)]
    assert [one.snapshot_id for one in found.later] == list(range(3, COMMITS - LEAST_KEPT + 1))


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, 1),
        ({"min-snapshots-to-keep": 5}, 5),
        ({"max-snapshot-age-ms": 365 * DAY * 1000}, 30),
        ({"max-snapshot-age-ms": 1}, 1),
    ],
)
def test_a_branch_keeps_what_it_says(settings: Any, kept: int) -> None:
    found = old_snapshots(table(every(EACH, 1000), {**MAIN, "audit": {"snapshot-id": 30, **settings}}))
    assert found.ids == [one for one in range(1, MOST + kept + 1) if not 30 - kept < one <= 30]


def test_a_branch_keeps_everything_if_neither_it_nor_the_table_says_an_age() -> None:
    main: Any = {"main": {"max-snapshot-age-ms": HOUR * 1000}}
    properties = {AGE: ""}
    assert len(old_snapshots(table(every(EACH, 1000), main, **properties)).ids) == MOST
    branch: Any = {"audit": {"snapshot-id": 200}}
    found = old_snapshots(table(every(EACH, 1000), {**main, **branch}, **properties))
    assert found.ids == list(range(201, 201 + MOST))


def test_settings_of_the_main_branch_come_before_those_of_the_table() -> None:
    kept: Any = {"main": {"min-snapshots-to-keep": LEAST_KEPT + FEWEST}}
    assert len(old_snapshots(table([*every(EACH), 40 * DAY], kept)).ids) == COMMITS + 1 - LEAST_KEPT - FEWEST
    aged: Any = {"main": {"max-snapshot-age-ms": 30 * DAY * 1000}}
    assert not old_snapshots(table(every(EACH), aged)).ids


def test_snapshots_outside_the_history_of_the_main_branch_are_left_alone() -> None:
    """Those after a rollback, and those that are staged."""
    times = every(EACH, 2 * COMMITS)
    rolled_back: Any = {"main": {"snapshot-id": COMMITS}}
    known = table(times, rolled_back).model_copy(update={"current_snapshot_id": COMMITS})
    assert old_snapshots(known).ids == list(range(1, COMMITS - LEAST_KEPT))


def test_snapshots_are_left_to_engines_if_too_many_files_would_have_to_be_compared() -> None:
    tag: Any = {"before": {"type": "tag", "snapshot-id": 1}}
    known = table(every(EACH), {**MAIN, **tag})
    for files in (str(MOST_COMPARED), str(MOST_COMPARED + 1), None):
        counts = {} if files is None else {"total-data-files": files}
        tagged = known.snapshots[0].model_copy(update={"summary": Summary(Operation.APPEND, **counts)})
        found = old_snapshots(known.model_copy(update={"snapshots": [tagged, *known.snapshots[1:]]}))
        assert bool(found.ids) == (files == str(MOST_COMPARED))
