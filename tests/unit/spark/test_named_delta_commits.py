"""Commits with Spark's own writer: once each, whatever happens between Spark, the history and the file beside the
chains. `make lakehouse` runs them with Spark and Delta; here the table follows Delta's rules for `txnVersion`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from kcl_dagster.chains.entry import PublishingEntry, StagedFile, TableRules
from kcl_dagster.errors import SinkError, Unsafe
from kcl_dagster.spark.parquet_file import ParquetFile
from kcl_dagster.spark.sinks.named_delta import NamedDelta
from kcl_dagster.spark.sinks.named_delta_commits import NamedDeltaCommits, ReadStaged
from kcl_dagster.spark.sinks.named_delta_rules import NamedDeltaRules
from kcl_dagster.spark.sinks.target import encoded_schema
from kcl_dagster.spark.storage import LocalStore, Store, open_store

SERIES = "clicks"
KEY = "kcl-dagster/clicks"


@dataclass
class Rows:
    """What `mapInArrow` was given. A DataFrame is evaluated by the commit, and not where Delta skips it."""

    read: ReadStaged
    tasks: int

    def values(self) -> list[dict[str, Any]]:
        numbers = iter([pa.record_batch({"id": pa.array(range(self.tasks), pa.int64())})])
        return [row for batch in self.read(numbers) for row in batch.to_pylist()]


class Session:
    def range(self, _first: int, last: int, _step: int, tasks: int) -> "Session":
        assert last == tasks
        self.tasks = tasks
        return self

    def mapInArrow(self, read: ReadStaged, _schema: object) -> Rows:  # noqa: N802 - Spark's name
        return Rows(read, self.tasks)


@dataclass(slots=True)
class Table(NamedDelta):
    """As Delta: a version that is not higher than the last one of its application is skipped without an error."""

    identifier: str = "c.s.t"
    session: Any = Session
    stored: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    recorded: list[Mapping[str, str]] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    """Versions whose answer is lost after the commit."""

    def rules(self) -> NamedDeltaRules:
        return NamedDeltaRules(self.name, pa.schema([]), {})

    def append(self, rows: Any, application: str, version: int, metadata: Mapping[str, str]) -> None:
        if version > self.versions.get(application, -1):
            self.stored += rows.values()
            self.versions[application] = version
            self.recorded.append(metadata)
        if version in self.lost:
            self.lost.remove(version)
            raise SinkError("the answer was lost")

    def history(self, limit: int | None) -> Iterator[Mapping[str, Any]]:
        yield from self.recorded[::-1][:limit]


@dataclass
class Lake:
    store: Store
    table: Table = field(default_factory=Table)
    made: int = 0

    def commits(self) -> NamedDeltaCommits:
        """Of a process of its own."""
        return NamedDeltaCommits(self.table, self.store)

    def entry(self, *numbers: int, column: str = "n") -> PublishingEntry:
        self.made += 1
        schema = pa.schema([(column, pa.int64())])
        file = ParquetFile(schema)
        file.write(pa.record_batch([pa.array(numbers, pa.int64())], schema=schema))
        content = bytes(file.finish())
        path = f"_staged/chain/{self.made}.parquet"
        self.store.put(path, content)
        rules = TableRules(encoded_schema(schema))
        return PublishingEntry(
            f"attempt-{self.made}", (StagedFile(path, len(numbers), len(content)),), (), 1, rules
        )

    def staged(self) -> list[str]:
        return [file.path for file in self.store.files("_staged/", hidden=True)]

    def numbers(self) -> list[int]:
        return [row["n"] for row in self.table.stored if "n" in row]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(cast("LocalStore", open_store(str(tmp_path))))


def test_a_commit_has_the_rows_of_all_entries_and_removes_their_files(lake: Lake) -> None:
    lake.commits().commit(SERIES, 1, [lake.entry(1, 2), lake.entry(3)], None)
    assert sorted(lake.numbers()) == [1, 2, 3]
    assert lake.commits().committed(SERIES) == 1
    assert lake.staged() == []


def test_a_commit_that_another_process_repeats_changes_nothing(lake: Lake) -> None:
    entries = [lake.entry(1)]
    late = lake.commits()
    assert late.committed(SERIES) == 0
    lake.commits().commit(SERIES, 1, entries, None)
    late.commit(SERIES, 1, entries, None)
    assert lake.numbers() == [1]


def test_a_commit_whose_process_was_killed_before_it_noted_it_is_found_in_the_history(lake: Lake) -> None:
    entries = [lake.entry(1)]
    lake.table.lost.append(1001)
    killed = lake.commits()
    killed.commit(SERIES, 1, entries, None)  # as if the answer was lost
    lake.store.delete([file.path for file in lake.store.files("_table_commits/", hidden=True)])
    assert lake.commits().committed(SERIES) == 1
    lake.commits().commit(SERIES, 2, [lake.entry(2)], None)
    assert lake.numbers() == [1, 2]


def test_an_error_of_a_commit_that_was_not_made_is_raised_and_nothing_is_removed(lake: Lake) -> None:
    entry = lake.entry(1)
    lake.store.delete([entry.files[0].path])
    with pytest.raises(SinkError, match=r"1\.parquet is missing, whose rows were decided"):
        lake.commits().commit(SERIES, 1, [entry, other := lake.entry(2)], None)
    assert lake.commits().committed(SERIES) == 0
    assert lake.staged() == [other.files[0].path]


def test_entries_with_other_columns_are_appended_one_after_the_other_and_recorded_once(lake: Lake) -> None:
    entries = [lake.entry(1), lake.entry(2), lake.entry(3, column="m"), lake.entry(4)]
    lake.table.lost.append(1002)
    with pytest.raises(SinkError, match="lost"):  # not all of it was made
        lake.commits().commit(SERIES, 1, entries, None)
    assert lake.commits().committed(SERIES) == 0
    lake.commits().commit(SERIES, 1, entries, None)
    assert [sorted(row.items()) for row in lake.table.stored] == [[("n", 1)], [("n", 2)], [("m", 3)], [("n", 4)]]
    assert [KEY in one for one in lake.table.recorded] == [False, False, True]


def test_a_number_that_the_table_has_with_other_batches_is_refused_and_its_files_remain(lake: Lake) -> None:
    """The folder of plans is an older copy, and the history no longer shows that at the first look."""
    lake.commits().commit(SERIES, 1, [lake.entry(1)], None)
    lake.commits().commit(SERIES, 2, [lake.entry(2)], None)
    lake.store.delete([file.path for file in lake.store.files("_table_commits/", hidden=True)])
    lake.table.recorded += [{"of": "another writer"}] * 200
    entry = lake.entry(3)
    with pytest.raises(Unsafe, match="older copy"):
        lake.commits().commit(SERIES, 2, [entry], None)
    assert lake.staged() == [entry.files[0].path]
    assert lake.numbers() == [1, 2]


def test_an_unreadable_number_of_the_last_commit_is_named(lake: Lake) -> None:
    lake.commits().commit(SERIES, 1, [lake.entry(1)], None)
    [file] = lake.store.files("_table_commits/", hidden=True)
    lake.store.put(file.path, b"")
    with pytest.raises(Unsafe, match=f"{lake.store.root}/{file.path} is not the number of a commit"):
        lake.commits().committed(SERIES)


def test_the_last_commit_is_known_when_the_history_is_gone(lake: Lake) -> None:
    lake.commits().commit(SERIES, 1, [lake.entry(1)], None)
    lake.table.recorded.clear()
    assert lake.commits().committed(SERIES) == 1
    assert lake.commits().committed("another application") == 0
    assert NamedDeltaCommits(Table("c.s.other"), lake.store).committed(SERIES) == 0
