"""Commits with Spark's own writer: once each, whatever happens between Spark, the history and the file beside the
chains. `make lakehouse` runs them with Spark and Delta; here the table follows Delta's rules for `txnVersion`."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from msgspec import structs

from kcl_dagster.chains.entry import PublishingEntry, StagedFile, TableRules, place_id
from kcl_dagster.chains.publication import chain_id
from kcl_dagster.chains.store import Entries
from kcl_dagster.chains.table_commits import TableCommit, TableCommits
from kcl_dagster.errors import ConfigurationError, SinkError, Unsafe
from kcl_dagster.model.change_rules import ChangeRules
from kcl_dagster.spark.parquet_file import ParquetFile
from kcl_dagster.spark.sinks.named_delta import NamedDelta
from kcl_dagster.spark.sinks.named_delta_commits import NamedDeltaCommits, ReadStaged
from kcl_dagster.spark.sinks.named_delta_rules import NamedDeltaRules
from kcl_dagster.spark.sinks.table_columns import encoded_schema
from kcl_dagster.spark.storage import LocalStore, Store, open_store

SERIES = "clicks"


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

    read: list[int | None] = field(default_factory=list)
    """How many commits of the history were asked for."""

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
        self.read.append(limit)
        yield from self.recorded[::-1][:limit]


@dataclass
class Lake:
    store: Store
    table: Table = field(default_factory=Table)
    made: int = 0

    @property
    def key(self) -> str:
        return f"kcl-dagster/clicks/spark/{place_id(self.store.root)}"

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

    def noted(self) -> list[str]:
        return [file.path for file in self.store.files("_table_commits/", hidden=True)]

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
    lake.store.delete(lake.noted())
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
    assert [lake.key in one for one in lake.table.recorded] == [False, False, True]


def test_a_number_that_the_table_has_with_other_batches_is_refused_and_its_files_remain(lake: Lake) -> None:
    """The folder of plans is an older copy, and the history no longer shows that at the first look."""
    lake.commits().commit(SERIES, 1, [lake.entry(1)], None)
    lake.commits().commit(SERIES, 2, [lake.entry(2)], None)
    lake.store.delete(lake.noted())
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
    with pytest.raises(Unsafe, match=f"{lake.store.root}/{file.path} is not a note of a commit"):
        lake.commits().committed(SERIES)


def test_the_last_commit_is_known_when_the_history_is_gone(lake: Lake) -> None:
    lake.commits().commit(SERIES, 1, [lake.entry(1)], None)
    lake.table.recorded.clear()
    assert lake.commits().committed(SERIES) == 1
    assert lake.commits().committed("another application") == 0


def test_the_same_table_under_another_name_goes_on_although_its_history_is_long(lake: Lake) -> None:
    lake.commits().commit(SERIES, 1, [lake.entry(1)], None)
    lake.table.recorded += [{"of": "another writer"}] * 200
    lake.table.identifier = "main.c.s.t"
    assert lake.commits().committed(SERIES) == 1
    lake.commits().commit(SERIES, 2, [lake.entry(2)], None)
    assert lake.numbers() == [1, 2]


def test_another_table_goes_on_with_the_next_commit(lake: Lake) -> None:
    lake.commits().commit(SERIES, 1, [lake.entry(1)], None)
    lake.table = Table("c.s.new")
    assert lake.commits().committed(SERIES) == 1
    lake.commits().commit(SERIES, 2, [lake.entry(2)], None)
    assert lake.numbers() == [2]


def test_a_slow_worker_does_not_lower_the_number_of_the_last_commit(lake: Lake, monkeypatch: Any) -> None:
    slow, append = lake.commits(), Table.append
    first, second = [lake.entry(1)], [lake.entry(2)]

    def answered_late(self: Table, *given: Any) -> None:
        append(self, *given)
        monkeypatch.setattr(Table, "append", append)
        lake.commits().commit(SERIES, 1, first, None)
        lake.commits().commit(SERIES, 2, second, None)

    monkeypatch.setattr(Table, "append", answered_late)
    slow.commit(SERIES, 1, first, None)
    lake.table.recorded += [{"of": "another writer"}] * 200
    assert lake.commits().committed(SERIES) == 2
    assert slow.committed(SERIES) == 2
    assert len(lake.noted()) == 1, "files of former commits remain"


def test_commits_of_delta_rs_to_the_same_table_do_not_count(lake: Lake) -> None:
    lake.table.versions["kcl-dagster/clicks"] = 5000
    lake.table.recorded.append({"kcl-dagster/clicks": "5000"})
    assert lake.commits().committed(SERIES) == 0
    lake.commits().commit(SERIES, 1, [lake.entry(1)], None)
    assert lake.numbers() == [1]
    assert lake.table.versions["kcl-dagster/clicks"] == 5000


def test_two_deployments_with_chains_of_their_own_number_their_commits_apart(lake: Lake, tmp_path: Path) -> None:
    other = Lake(open_store(str(tmp_path / "other")), lake.table)
    for number in (1, 2):
        lake.commits().commit(SERIES, number, [lake.entry(number)], None)
    other.commits().commit(SERIES, 1, [other.entry(3)], None)
    assert (lake.commits().committed(SERIES), other.commits().committed(SERIES)) == (2, 1)
    assert lake.numbers() == [1, 2, 3]


def test_an_older_copy_at_another_place_is_refused(tmp_path: Path) -> None:
    lake = Lake(open_store(str(tmp_path / "chains")))
    lake.commits().commit(SERIES, 1, [lake.entry(1)], None)
    for name in ("copy", "later"):
        shutil.copytree(tmp_path / "chains", tmp_path / name)
    lake.commits().commit(SERIES, 2, [lake.entry(2)], None)
    copy = Lake(open_store(str(tmp_path / "copy")), lake.table, made=10)
    assert copy.commits().committed(SERIES) == 2  # which the committer compares with the plans
    lake.table.recorded += [{"of": "another writer"}] * 200
    copy = Lake(open_store(str(tmp_path / "later")), lake.table, made=10)
    assert copy.commits().committed(SERIES) == 1
    with pytest.raises(Unsafe, match="older copy"):
        copy.commits().commit(SERIES, 2, [copy.entry(2)], None)
    assert lake.numbers() == [1, 2]


def test_a_commit_that_is_found_in_the_history_is_noted_for_workers_that_have_read_it_already(lake: Lake) -> None:
    """Its worker was killed between the commit and its note. Then its entries are deleted."""
    other, entry = lake.commits(), lake.entry(1)
    assert other.committed(SERIES) == 0
    killed = lake.commits()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(killed), "_note", lambda *_: None)
        killed.commit(SERIES, 1, [entry], None)
    assert other.committed(SERIES) == 0
    assert lake.commits().committed(SERIES) == 1
    assert other.committed(SERIES) == 1


def test_a_commit_without_its_note_is_not_known(lake: Lake) -> None:
    commits, entry = lake.commits(), lake.entry(1)
    assert commits.committed(SERIES) == 0

    def refused(path: str, content: bytes) -> bool:
        raise SinkError("503 Slow Down")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(lake.store), "create", lambda _, path, content: refused(path, content))
        with pytest.raises(SinkError):
            commits.commit(SERIES, 1, [entry], None)
        assert commits.committed(SERIES) == 0
    commits.commit(SERIES, 1, [entry], None)
    assert (lake.numbers(), lake.commits().committed(SERIES)) == ([1], 1)


def test_workers_that_name_the_folder_in_different_ways_have_one_series(tmp_path: Path) -> None:
    (tmp_path / "chains").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "chains")
    lake = Lake(open_store(str(tmp_path / "chains")))
    linked = Lake(open_store(str(tmp_path / "link")), lake.table, made=10).commits()
    entry, first = lake.entry(1), lake.commits()
    assert (linked.committed(SERIES), first.committed(SERIES)) == (0, 0)
    for commits in (first, linked):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(commits), "_note", lambda *_: None)
            commits.commit(SERIES, 1, [entry], None)
    assert lake.numbers() == [1]


def test_a_failing_commit_reads_only_the_newest_commits(lake: Lake) -> None:
    entry, commits = lake.entry(1), lake.commits()
    lake.store.delete([entry.files[0].path])
    assert commits.committed(SERIES) == 0
    lake.table.read.clear()
    for _ in range(3):
        with pytest.raises(SinkError, match="is missing"):
            commits.commit(SERIES, 1, [entry], None)
    assert lake.table.read == [10, 10, 10]


def test_files_of_another_writer_are_neither_appended_nor_removed(lake: Lake) -> None:
    entry = lake.entry(1)
    lake.store.put("part.parquet", lake.store.get(entry.files[0].path))
    of_delta_rs = structs.replace(entry, files=(structs.replace(entry.files[0], path="part.parquet"),))
    with pytest.raises(Unsafe, match="another writer has decided"):
        lake.commits().commit(SERIES, 1, [of_delta_rs], None)
    assert entry.rules is not None
    changes = structs.replace(entry.rules, changes=ChangeRules(("n",)))
    with pytest.raises(Unsafe, match="another writer has decided"):
        lake.commits().commit(SERIES, 1, [structs.replace(entry, rules=changes)], None)
    lake.commits().discard(["part.parquet"])
    assert lake.numbers() == []
    assert lake.store.get("part.parquet")


def test_the_folder_of_a_delta_table_is_refused_for_chains(lake: Lake) -> None:
    lake.store.put("_delta_log/00000000000000000000.json", b"{}")
    for asked in (lambda: lake.commits().committed(SERIES), lake.commits().check_store):
        with pytest.raises(ConfigurationError, match="is the folder of a Delta table"):
            asked()


def test_plans_of_another_writer_are_refused_before_a_batch_is_decided(lake: Lake) -> None:
    chain, plans = chain_id("clicks", "w", "1"), TableCommits(lake.store, "clicks")
    plans.make(1, TableCommit("without rows", (), {}))
    lake.commits().check_plans("clicks")
    plans.make(2, TableCommit("p", ((chain, 1),), {chain: 1}))
    with pytest.raises(ConfigurationError, match=r"has plan 2 of clicks, whose entries were deleted"):
        lake.commits().check_plans("clicks")
    entry = lake.entry(1)
    Entries(lake.store).create(chain, 1, entry)
    lake.commits().check_plans("clicks")  # a plan that is not carried out yet
    lake.commits().commit(SERIES, 2, [entry], None)
    Entries(lake.store).forget(chain)
    lake.commits().check_plans("clicks")
