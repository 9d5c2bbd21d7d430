"""What a commit to an Iceberg table does when another one comes in between, and what it leaves in the table."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.parquet_file import ParquetFile
from kcl_dagster.spark.sinks.iceberg import IcebergSink
from kcl_dagster.spark.sinks.iceberg_partitions import IcebergPartitions
from kcl_dagster.spark.sinks.record import StoredPart, owner_key
from kcl_dagster.spark.sinks.writing import WrittenFile
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, Part
from tests.doubles.clock import FakeClock
from tests.unit.spark.moments import readers

SCHEMA = pa.schema([("n", pa.int64())])
LEASE = LeaseKey("a")
RETRIES = "commit.retry.num-retries"


def part(number: int) -> Part:
    after, through = Checkpoint(str(10 * number)), Checkpoint(str(10 * number + 9))
    return Part("app", LEASE, StreamIdentifier("s"), "a", after, through, number, 10, 9)


@dataclass
class Lake:
    """A table, and workers that commit to it."""

    folder: Path

    def sink(self) -> IcebergSink:
        where = {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": str(self.folder)}
        runtime = Runtime(clock=FakeClock(), random=random.Random(1))
        return IcebergSink("lake.clicks", where, runtime=runtime)

    def commit(self, sink: IcebergSink, number: int, *values: int, complete: WrittenThrough | None = None) -> None:
        """A part with these values, of which no file is made if there are none."""
        table = sink._table.catalog.load_table("lake.clicks")
        root = f"{table.location()}/data"
        files = []
        if values:
            name = f"{number}-{random.getrandbits(40):x}.parquet"
            Path(root).mkdir(parents=True, exist_ok=True)
            file = ParquetFile(SCHEMA)
            file.write(pa.record_batch({"n": values}, schema=SCHEMA))
            Path(root, name).write_bytes(file.finish())
            files = [WrittenFile(LEASE, name, len(values), 9, {}, SCHEMA, file.footer)]
        batch = Batch("app", WorkerId("w:1"), (part(number),), complete=complete)
        sink._commit(batch, files, root, IcebergPartitions.of("t", table.spec(), table.schema()))

    @property
    def table(self) -> Any:
        return self.sink()._table.catalog.load_table("lake.clicks")

    def values(self) -> list[int]:
        return sorted(self.table.scan().to_arrow()["n"].to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake(tmp_path)
    found.sink()._table.create(SCHEMA)
    return found


def sleeps_after_it_looked(sink: IcebergSink, meanwhile: Callable[[], None], monkeypatch: Any) -> None:
    """Of the next commit of the sink: others act between its look at the table and what it does then."""
    look, others = sink._table.catalog.load_table, [None, meanwhile]  # the first look is for where the files go

    def load_table(identifier: str) -> Any:
        found = look(identifier)
        act = others.pop(0) if others else None
        if act is not None:
            act()
        return found

    monkeypatch.setattr(sink._table.catalog, "load_table", load_table)


def test_others_keep_their_retries(lake: Lake) -> None:
    lake.commit(lake.sink(), 1, 10, 11)
    assert RETRIES not in lake.table.properties
    with lake.table.transaction() as transaction:
        transaction.set_properties({RETRIES: "7"})
    lake.commit(lake.sink(), 2, 20)
    assert lake.table.properties[RETRIES] == "7"
    assert lake.values() == [10, 11, 20]


def test_files_are_not_added_again_on_top_of_what_came_in_between(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper, owner = lake.sink(), lake.sink()
    sleeps_after_it_looked(sleeper, lambda: lake.commit(owner, 1, 10, 11), monkeypatch)
    lake.commit(sleeper, 1, 10, 11)
    assert lake.values() == [10, 11]


def test_a_part_without_output_does_not_take_the_place_of_a_later_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper, owner = lake.sink(), lake.sink()

    def others() -> None:
        lake.commit(owner, 1)
        lake.commit(owner, 2, 20, 21)

    sleeps_after_it_looked(sleeper, others, monkeypatch)
    lake.commit(sleeper, 1)
    assert lake.table.properties[owner_key(part(2))] == str(StoredPart.of(part(2)))
    lake.commit(lake.sink(), 2, 20, 21)  # repeated after a crash
    assert lake.values() == [20, 21]


def test_a_snapshot_says_through_when_the_application_was_complete(tmp_path: Path) -> None:
    """For engines that never ask Dagster."""
    lake = Lake(tmp_path)
    sink = lake.sink()
    sink._table.create(SCHEMA)
    lake.commit(sink, 1, 1)
    lake.commit(sink, 2, 2, complete=WrittenThrough(1_769_860_800, epoch=3))
    first, second = sink._table.catalog.load_table("lake.clicks").snapshots()
    key = "kcl-dagster/app/complete-through"
    assert first.summary is not None
    assert second.summary is not None
    assert first.summary.get(key) is None
    assert json.loads(str(second.summary.get(key))) == {"epoch": 3, "through": "2026-01-31T12:00:00+00:00"}


def test_an_idle_table_has_the_moment_as_a_property_once_in_each_window(tmp_path: Path) -> None:
    lake, hour, noon = Lake(tmp_path), 3600, 1_769_860_800
    sink, key = lake.sink(), "kcl-dagster/app/complete-through"
    sink.keep_complete("app", WrittenThrough(noon), noon)  # the first batch makes the table
    sink._table.create(SCHEMA)
    lake.commit(sink, 1, 1)
    seen = []
    for through, wanted in (
        (noon + 5, noon),
        (noon + 65, noon),
        (noon + hour + 5, noon),  # batches have a minute to be first
        (noon + hour + 65, noon + hour),
        (noon + hour + 125, noon + hour),
    ):
        sink.keep_complete("app", WrittenThrough(through), wanted)
        seen.append(json.loads(lake.table.properties[key])["through"][11:19])
    assert seen == ["12:00:05", "12:00:05", "12:00:05", "13:01:05", "13:01:05"]
    assert len(lake.table.snapshots()) == 1
    # A snapshot makes another property superfluous, for all workers.
    lake.commit(sink, 2, 2, complete=WrittenThrough(noon + 2 * hour))
    for other in (sink, lake.sink()):
        other.keep_complete("app", WrittenThrough(noon + 2 * hour + 60), noon + 2 * hour)
    assert json.loads(lake.table.properties[key])["through"][11:19] == "13:01:05"
    read = readers()["iceberg_complete_through"]
    assert read(lake.table, "app") == "2026-01-31T14:00:00+00:00"
    sink.keep_complete("app", WrittenThrough(noon, epoch=1), noon)
    assert read(lake.table, "app") == "2026-01-31T12:00:00+00:00"
    assert read(lake.table, "other") is None
    lake.commit(sink, 3, 3)
    assert lake.values() == [1, 2, 3]


def test_the_moment_and_a_batch_do_not_keep_each_other_from_the_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, other = lake.sink(), lake.sink()
    kept = partial(other.keep_complete, "app", WrittenThrough(1_769_860_800), 1_769_860_800)
    sleeps_after_it_looked(sink, kept, monkeypatch)
    lake.commit(sink, 1, 10)
    assert lake.values() == [10]
    assert lake.table.properties["kcl-dagster/app/complete-through"]
    # The other way round, the batch is first, and its table is not idle.
    late = lake.sink()
    late._table.beside = late._table.open_catalog()
    look = late._table.beside.load_table

    def load_table(identifier: str) -> Any:
        found = look(identifier)
        lake.commit(lake.sink(), 2, 20)
        return found

    monkeypatch.setattr(late._table.beside, "load_table", load_table)
    late.keep_complete("app", WrittenThrough(1_769_900_000), 1_769_900_000)
    assert lake.values() == [10, 20]


def test_a_commit_that_the_client_sent_again_after_a_lost_answer_keeps_its_manifests(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request is refused, because the first one was carried out."""
    commit = SqlCatalog.commit_table

    def sent_twice(*args: Any) -> Any:
        commit(*args)
        raise CommitFailedException("the table has changed")

    with monkeypatch.context() as network:
        network.setattr(SqlCatalog, "commit_table", sent_twice)
        lake.commit(lake.sink(), 1, 10, 11)
    assert lake.values() == [10, 11]
    lake.commit(lake.sink(), 2, 20)
    assert lake.values() == [10, 11, 20]
