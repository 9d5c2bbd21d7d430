"""What commits leave in an Iceberg table beside data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcl_dagster.chains.entry import FIRST
from kcl_dagster.spark.sinks.iceberg import IcebergFormat
from kcl_dagster.tables.completeness_row import WrittenThrough
from tests.unit.spark.chained_lakes import APPLICATION, IcebergLake, rows_of
from tests.unit.spark.moments import readers

RETRIES = "commit.retry.num-retries"
KEY = f"kcl-dagster/{APPLICATION}/complete-through"
HOUR, NOON = 3600, 1_769_860_800


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    return IcebergLake(tmp_path)


def others_come(catalog: Any, meanwhile: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """After its next look at the table."""
    look, others = catalog.load_table, [meanwhile]

    def load_table(identifier: str) -> Any:
        found = look(identifier)
        if others:
            others.pop()()
        return found

    monkeypatch.setattr(catalog, "load_table", load_table)


def test_others_keep_their_retries(lake: IcebergLake) -> None:
    lake.write(rows_of(range(2)))
    assert RETRIES not in lake.table().properties
    with lake.table().transaction() as transaction:
        transaction.set_properties({RETRIES: "7"})
    lake.write(rows_of(range(2, 3)))
    assert lake.table().properties[RETRIES] == "7"
    assert lake.numbers() == [0, 1, 2]


def test_an_idle_table_has_the_moment_as_a_property_once_in_each_window(lake: IcebergLake) -> None:
    lake.format.keep_complete(APPLICATION, WrittenThrough(NOON), NOON)  # the first batch makes the table
    lake.write(rows_of(range(1)))
    seen = []
    for through, wanted in (
        (NOON + 5, NOON),
        (NOON + 65, NOON),
        (NOON + HOUR + 5, NOON),  # batches have a minute to be first
        (NOON + HOUR + 65, NOON + HOUR),
        (NOON + HOUR + 125, NOON + HOUR),
    ):
        lake.format.keep_complete(APPLICATION, WrittenThrough(through), wanted)
        seen.append(json.loads(lake.table().properties[KEY])["through"][11:19])
    assert seen == ["12:00:05", "12:00:05", "12:00:05", "13:01:05", "13:01:05"]
    assert len(lake.table().snapshots()) == 1
    # A snapshot makes another property superfluous, for all workers.
    lake.decide(rows_of(range(1, 2)))
    lake.committer(WrittenThrough(NOON + 2 * HOUR)).finish(lake.wanted)
    for other in (lake.format, lake.process()):
        other.keep_complete(APPLICATION, WrittenThrough(NOON + 2 * HOUR + 60), NOON + 2 * HOUR)
    assert json.loads(lake.table().properties[KEY])["through"][11:19] == "13:01:05"
    read = readers()["iceberg_complete_through"]
    assert read(lake.table(), APPLICATION) == "2026-01-31T14:00:00+00:00"
    lake.format.keep_complete(APPLICATION, WrittenThrough(NOON, epoch=1), NOON)
    assert read(lake.table(), APPLICATION) == "2026-01-31T12:00:00+00:00"
    assert read(lake.table(), "other") is None
    lake.write(rows_of(range(2, 3)))
    assert lake.numbers() == [0, 1, 2]


def test_the_moment_and_a_batch_do_not_keep_each_other_from_the_table(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write(rows_of(range(1)))
    lake.decide(rows_of(range(1, 2)))
    committer: Any = lake.committer()

    def keep() -> None:
        lake.process().keep_complete(APPLICATION, WrittenThrough(NOON), NOON)

    others_come(committer.tables[FIRST].table.catalog, keep, monkeypatch)
    committer.finish(lake.wanted)
    assert lake.numbers() == [0, 1]
    assert KEY in lake.table().properties
    # The other way round, the batch is first, and its table is not idle.
    late = lake.process()
    assert isinstance(late, IcebergFormat)
    late.table.beside = late.table.open_catalog()
    others_come(late.table.beside, lambda: lake.write(rows_of(range(2, 3))), monkeypatch)
    late.keep_complete(APPLICATION, WrittenThrough(NOON + HOUR), NOON + HOUR)
    assert lake.numbers() == [0, 1, 2]
