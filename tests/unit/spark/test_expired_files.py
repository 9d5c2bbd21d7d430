"""Which files of an Iceberg table are deleted when snapshots are expired: those that no snapshot has any more, and
whatever others do with the table."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO, _dataframe_to_data_files

from kcl_dagster.errors import SinkError
from kcl_dagster.spark.sinks import catalog_table, expired_files, snapshot_expiry
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.worker.table_committer import RETRY_SECONDS
from tests.unit.spark.chained_lakes import IDENTIFIER, IcebergLake
from tests.unit.spark.changed_lakes import BY_ID, changes_of, commit, found, gone
from tests.unit.spark.iceberg_deletes import add_deletes
from tests.unit.spark.rest_catalog import rest_catalog
from tests.unit.worker.kit import Killed

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots are expired although there are few."""
    monkeypatch.setattr(snapshot_expiry, "FEWEST", 2)
    monkeypatch.setattr(snapshot_expiry, "LEAST_KEPT", 2)


def lake_in(folder: Path, *columns: str, kind: type[IcebergLake] = IcebergLake) -> IcebergLake:
    """With a row, and a table whose snapshots are old at once."""
    folder.mkdir(exist_ok=True)
    lake = kind(folder, columns, changes=BY_ID)
    lake.decide(changes_of((0, "first")))
    commit(lake)
    with lake.table().transaction() as transaction:
        transaction.set_properties({snapshot_expiry.AGE: "0"})
    return lake


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    return lake_in(tmp_path)


def merge(lake: IcebergLake, *changes: Any) -> None:
    lake.decide(changes_of(*changes))
    commit(lake)


def merges(lake: IcebergLake, count: int, first: int = 0) -> None:
    """Each changes a row of the table, deletes one and inserts one."""
    for number in range(first, first + count):
        merge(lake, (0, f"{number}"), (1000 + number, "new"), gone(999 + number))


def referenced(lake: IcebergLake) -> set[str]:
    """By the snapshots of the table: manifest lists, manifests, and files of data and deletes."""
    table = lake.table()
    manifests = {one.manifest_path: one for snapshot in table.snapshots() for one in snapshot.manifests(table.io)}
    files = {
        entry.data_file.file_path
        for one in manifests.values()
        for entry in one.fetch_manifest_entry(table.io, discard_deleted=True)
    }
    return {_local(path) for path in [*manifests, *files, *(one.manifest_list for one in table.snapshots())]}


def _local(path: str) -> str:
    return path.removeprefix("file://")


def on_disk(lake: IcebergLake) -> set[str]:
    root = Path(_local(lake.table().location()))
    return {str(path) for pattern in ("data/**/*.parquet", "metadata/*.avro") for path in root.glob(pattern)}


def is_exact(lake: IcebergLake) -> bool:
    """Each file is there that a snapshot has, and no other one."""
    assert referenced(lake) == on_disk(lake)
    return True


# What is deleted


def test_files_that_merges_replaced_are_deleted_with_their_snapshots(lake: IcebergLake) -> None:
    for number in range(6):
        merges(lake, 1, number)
        assert is_exact(lake)
    assert lake.version() <= 4
    assert found(lake) == {0: "5", 1005: "new"}
    for snapshot in lake.table().snapshots():
        assert lake.table().scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == 2


def test_files_of_partitions_are_deleted_too(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, "bucket(3, id)")
    merges(lake, 4)
    assert is_exact(lake)
    assert lake.version() <= 4


def test_files_that_other_writers_replaced_are_deleted_too(lake: IcebergLake) -> None:
    merge(lake, *((n, "a") for n in range(10)))
    lake.table().delete("id = 3")  # rewrites a file
    add_deletes(lake.table(), lake.table().inspect.files()["file_path"].to_pylist()[0], [0])
    lake.table().overwrite(lake.read())
    merges(lake, 4)
    assert lake.version() <= 4
    assert {1, 2, 4, 5, 6, 7, 8, 9} - set(found(lake)) in (set(), {1}), "and the row at place 0"
    assert is_exact(lake)


def test_snapshots_of_appends_leave_their_data(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path, ())
    for number in range(6):
        lake.write(pa.record_batch({"id": pa.array([number], pa.int64())}))
        with lake.table().transaction() as transaction:
            transaction.set_properties({snapshot_expiry.AGE: "0"})
    assert lake.version() <= 4
    assert sorted(lake.read()["id"].to_pylist()) == list(range(6))
    assert is_exact(lake)


def test_statistics_of_expired_snapshots_are_deleted(lake: IcebergLake) -> None:
    from pyiceberg.table.statistics import StatisticsFile

    table = lake.table()
    path = Path(_local(table.location()), "metadata", "some.stats")
    path.write_bytes(b"statistics")
    snapshot = table.current_snapshot().snapshot_id
    about = {"snapshot-id": snapshot, "statistics-path": f"file://{path}", "file-size-in-bytes": 10}
    with table.update_statistics() as update:
        update.set_statistics(StatisticsFile(**about, **{"file-footer-size-in-bytes": 1, "blob-metadata": []}))
    merges(lake, 1)
    assert path.exists()
    merges(lake, 3, 1)
    assert not path.exists()
    assert not lake.table().metadata.statistics


# What remains


@pytest.mark.parametrize("how", ["tag", "branch", "branch of its own", "staged", "rolled back"])
def test_what_others_refer_to_remains(lake: IcebergLake, how: str) -> None:
    merges(lake, 1)
    table = lake.table()
    kept = table.current_snapshot().snapshot_id
    if how == "tag":
        table.manage_snapshots().create_tag(kept, "before").commit()
    elif how == "staged":
        merges_into(table, None)
        kept = table.snapshots()[-1].snapshot_id
    elif how == "rolled back":
        merges(lake, 1, 50)
        kept = lake.table().current_snapshot().snapshot_id
        lake.table().manage_snapshots().rollback_to_snapshot(table.current_snapshot().snapshot_id).commit()
    else:
        table.manage_snapshots().create_branch(kept, "audit").commit()
        if how == "branch of its own":
            merges_into(lake.table(), "audit")
            kept = lake.table().refs()["audit"].snapshot_id
    rows = rows_of(lake, kept)
    merges(lake, 5, 1)
    assert rows_of(lake, kept) == rows
    assert lake.version() <= 6
    assert is_exact(lake)


def merges_into(table: Any, branch: str | None) -> None:
    with table.transaction() as transaction, transaction.update_snapshot(branch=branch).fast_append() as update:
        for file in _dataframe_to_data_files(table.metadata, pa.table({"id": [7], "value": ["theirs"]}), table.io):
            update.append_data_file(file)


def rows_of(lake: IcebergLake, snapshot: int) -> Counter[tuple[Any, ...]]:
    rows = lake.table().scan(snapshot_id=snapshot).to_arrow()
    return Counter(zip(rows["id"].to_pylist(), rows["value"].to_pylist(), strict=True))


def test_a_branch_keeps_as_many_snapshots_as_it_says(lake: IcebergLake) -> None:
    merges(lake, 1)
    table = lake.table()
    with table.transaction() as transaction:
        transaction._apply(
            *transaction._set_ref_snapshot(
                snapshot_id=table.current_snapshot().snapshot_id,
                ref_name="audit",
                type="branch",
                min_snapshots_to_keep=2,
            )
        )
    two = {one.snapshot_id: rows_of(lake, one.snapshot_id) for one in lake.table().snapshots()}
    assert len(two) == 2
    merges(lake, 5, 1)
    assert {snapshot: rows_of(lake, snapshot) for snapshot in two} == two
    assert lake.version() <= 6
    assert is_exact(lake)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        (snapshot_expiry.AGE, "3600000"),
        (snapshot_expiry.AGE, "none"),
        ("history.expire.min-snapshots-to-keep", "10"),
        ("gc.enabled", "false"),
    ],
)
def test_the_table_says_what_is_expired(lake: IcebergLake, name: str, kept: str) -> None:
    with lake.table().transaction() as transaction:
        transaction.set_properties({name: kept})
    merges(lake, 5)
    assert lake.version() == 6
    assert is_exact(lake)


def test_snapshots_are_left_to_engines_if_tags_have_too_many_files(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges(lake, 1)
    table = lake.table()
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "before").commit()
    monkeypatch.setattr(snapshot_expiry, "MOST_COMPARED", 1)  # it has two
    merges(lake, 4, 1)
    assert lake.version() == 6
    monkeypatch.setattr(snapshot_expiry, "MOST_COMPARED", 2)
    merges(lake, 1, 5)
    assert lake.version() == 4
    assert is_exact(lake)


def test_a_file_that_was_added_again_remains(lake: IcebergLake) -> None:
    merges(lake, 1)
    table = lake.table()
    [old] = [task.file for task in table.scan(row_filter="id = 1000").plan_files()]
    merge(lake, gone(1000))
    table = lake.table()
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        update.append_data_file(old)
    merges(lake, 5, 10)
    assert found(lake)[1000] == "new"
    assert lake.version() <= 4
    merge(lake, gone(1000))
    merges(lake, 3, 15)
    assert is_exact(lake), "and is deleted when it has been removed again"


def test_a_manifest_list_that_was_deleted_by_hand_stops_nothing(lake: IcebergLake) -> None:
    merges(lake, 1)
    Path(_local(lake.table().snapshots()[0].manifest_list)).unlink()
    merges(lake, 3, 1)
    assert lake.version() <= 4
    assert found(lake) == {0: "3", 1003: "new"}
    assert referenced(lake) <= on_disk(lake)
    left = on_disk(lake) - referenced(lake)
    assert len(left) == 1, "only the manifest that the deleted list alone has named"


def test_a_store_that_permits_no_deletion_gets_few_requests(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def forbidden(_: Any, path: str) -> None:
        asked.append(path)
        raise PermissionError("access denied")

    monkeypatch.setattr(PyArrowFileIO, "delete", forbidden)
    monkeypatch.setattr(expired_files, "_in_parallel", lambda call, values: [call(value) for value in values])
    merges(lake, 5)
    assert found(lake) == {0: "4", 1004: "new"}
    said = [record.getMessage() for record in caplog.records if record.name == expired_files.__name__]
    assert said, "an operator has to know"
    assert len(said) == len(asked), "one request for each commit that expires snapshots"
    assert "access denied" in said[0]


# Whatever happens meanwhile


@dataclass
class Moments:
    """What happens at the n-th moment of a commit, which is made with this context: before each request to the
    catalog, after each commit of it, and before each deletion of a file."""

    at: int
    happens: Callable[[], None]
    passed: int = 0
    is_commit: bool = False

    def __enter__(self) -> None:
        self.is_commit = True

    def __exit__(self, *_: object) -> None:
        self.is_commit = False

    def pass_one(self) -> None:
        if not self.is_commit:
            return
        self.passed += 1
        if self.passed == self.at:
            self.is_commit = False
            self.happens()
            self.is_commit = True


def each_moment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, happens: Callable[[IcebergLake], Callable[[], None]]
) -> Iterator[tuple[IcebergLake, Moments]]:
    """A table with merges, and changes whose commit expires snapshots, while something happens at each moment in
    turn; the last time after the last moment."""
    # One after the other, so that there are moments between two of them.
    monkeypatch.setattr(expired_files, "_in_parallel", lambda call, values: [call(value) for value in values])
    for point in itertools.count(1):
        with monkeypatch.context() as patched:
            lake = lake_in(folder / str(point))
            merges(lake, 3)
            assert lake.version() == 4
            lake.decide(changes_of((0, "last"), (2000, "new")))
            moments = Moments(point, happens(lake))
            for of, name in ((SqlCatalog, "load_table"), (SqlCatalog, "commit_table"), (PyArrowFileIO, "delete")):
                patched.setattr(of, name, _watched(getattr(of, name), moments))
            yield lake, moments
            if point > moments.passed:
                assert point > 10
                return


def _watched(call: Callable[..., Any], moments: Moments) -> Callable[..., Any]:
    def watched(*args: Any, **more: Any) -> Any:
        moments.pass_one()
        answer = call(*args, **more)
        if call.__name__ == "commit_table":
            moments.pass_one()
        return answer

    return watched


def finish(lake: IcebergLake) -> None:
    """As a process that tries again after a failure."""
    committer = lake.committer()
    for _ in range(5):
        with suppress(SinkError):
            committer.finish(lake.wanted)
            return
        lake.clock.advance(RETRY_SECONDS)
    raise AssertionError("not committed")


def killed() -> None:
    raise Killed


def test_a_worker_that_is_killed_anywhere_leaves_a_table_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphans = 0
    for lake, moments in each_moment(tmp_path, monkeypatch, lambda _: killed):
        with moments, suppress(Killed):
            lake.committer().finish(lake.wanted)
        assert referenced(lake) <= on_disk(lake)
        finish(lake)
        assert found(lake) == {0: "last", 1002: "new", 2000: "new"}
        orphans = max(orphans, len(on_disk(lake) - referenced(lake)))
        merges(lake, 2, 10)
        assert referenced(lake) <= on_disk(lake)
        assert lake.version() <= 4
    assert orphans > 0, "no moment was between the commit and the last deletion"


@pytest.mark.nightly
def test_others_may_do_anything_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker makes the commit and the next one. Another writer appends, replaces files and expires
    snapshots."""

    def others(lake: IcebergLake) -> Callable[[], None]:
        def act() -> None:
            lake.table().append(pa.table({"id": [7], "value": ["theirs"]}))
            finish(lake)
            merge(lake, (3000, "next"))
            lake.table().delete("id = 1002")
            expire_as_engines_do(lake, leave=2)

        return act

    for lake, moments in each_moment(tmp_path, monkeypatch, others):
        with moments:
            finish(lake)
        assert referenced(lake) <= on_disk(lake)
        has_happened = moments.at <= moments.passed
        expected = {7: "theirs", 3000: "next"} if has_happened else {1002: "new"}
        assert found(lake) == {0: "last", 2000: "new", **expected}
        merges(lake, 2, 10)
        assert referenced(lake) <= on_disk(lake)


@pytest.mark.nightly
def test_a_tag_that_is_made_meanwhile_keeps_its_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tagged: dict[int, Counter[tuple[Any, ...]]] = {}

    def tags(lake: IcebergLake) -> Callable[[], None]:
        oldest = lake.table().snapshots()[0].snapshot_id
        rows = rows_of(lake, oldest)

        def act() -> None:
            if lake.table().snapshot_by_id(oldest) is not None:
                lake.table().manage_snapshots().create_tag(oldest, "before").commit()
                tagged[oldest] = rows

        return act

    made = 0
    for lake, moments in each_moment(tmp_path, monkeypatch, tags):
        tagged.clear()
        with moments:
            finish(lake)
        for snapshot, rows in tagged.items():
            made += 1
            assert lake.table().refs()["before"].snapshot_id == snapshot
            assert rows_of(lake, snapshot) == rows
        assert lake.version() == (5 if tagged else 3)
        assert is_exact(lake)
    assert made > 3


class RestLake(IcebergLake):
    uri = ""

    @property
    def chains_path(self) -> str:
        return str(self.folder / "elsewhere")

    def catalog_table(self) -> CatalogTable:
        return CatalogTable(IDENTIFIER, {"type": "rest", "uri": self.uri})


def test_a_rest_catalog_is_asked_for_tags_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = catalog_table._append
    with rest_catalog(tmp_path) as catalog:
        monkeypatch.setattr(RestLake, "uri", catalog.uri)
        lake = lake_in(tmp_path, kind=RestLake)
        merges(lake, 3)
        oldest = lake.table().snapshots()[0].snapshot_id
        rows = rows_of(lake, oldest)

        def tagged_first(table: Any, addition: Any) -> None:
            if "before" not in lake.table().refs():
                lake.table().manage_snapshots().create_tag(oldest, "before").commit()
            append(table, addition)

        monkeypatch.setattr(catalog_table, "_append", tagged_first)
        merges(lake, 2, 3)
        assert lake.table().refs()["before"].snapshot_id == oldest
        assert rows_of(lake, oldest) == rows
        assert lake.version() <= 5
        assert is_exact(lake)


def expire_as_engines_do(lake: IcebergLake, leave: int) -> None:
    """With all files that only these snapshots have."""
    table, before = lake.table(), referenced(lake)
    named = {ref.snapshot_id for ref in table.refs().values()}
    old = [one.snapshot_id for one in table.snapshots()[:-leave] if one.snapshot_id not in named]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()
        for path in before - referenced(lake):
            Path(path).unlink()


@dataclass
class Others:
    """Whatever others may do with a table, at random. `rows`: of each snapshot, as it was first seen."""

    lake: IcebergLake
    random: random.Random
    rows: dict[int, Counter[tuple[Any, ...]]] = field(default_factory=dict)
    names: Iterator[int] = field(default_factory=itertools.count)

    def step(self) -> None:
        act = self.random.choice(
            [self.merge] * 8
            + [self.append, self.delete, self.compact, self.tag, self.branch, self.write_into_a_branch]
            + [self.stage, self.drop, self.roll_back, self.add_again, self.pick, self.expire]
        )
        act()
        assert referenced(self.lake) <= on_disk(self.lake), act.__name__

    def look(self) -> None:
        """Each snapshot can be read, and has its rows."""
        for snapshot in self.lake.table().snapshots():
            found = rows_of(self.lake, snapshot.snapshot_id)
            assert self.rows.setdefault(snapshot.snapshot_id, found) == found

    def merge(self) -> None:
        keys = self.random.sample(range(12), 3)
        merge(self.lake, (keys[0], self._value()), (keys[1], self._value()), gone(keys[2]))

    def append(self) -> None:
        self.lake.append(pa.table({"id": [self.random.randrange(12)], "value": [self._value()]}))

    def delete(self) -> None:
        self.lake.table().delete(f"id = {self.random.randrange(12)}")

    def compact(self) -> None:
        self.lake.table().overwrite(self.lake.read())

    def tag(self) -> None:
        self.lake.table().manage_snapshots().create_tag(self._snapshot(), f"tag-{next(self.names)}").commit()

    def branch(self) -> None:
        self.lake.table().manage_snapshots().create_branch(self._snapshot(), f"branch-{next(self.names)}").commit()

    def write_into_a_branch(self) -> None:
        branches = [name for name in self.lake.table().refs() if name.startswith("branch")]
        if branches:
            merges_into(self.lake.table(), self.random.choice(branches))

    def stage(self) -> None:
        merges_into(self.lake.table(), None)

    def drop(self) -> None:
        names = [name for name in self.lake.table().refs() if name != "main"]
        if names:
            name, manage = self.random.choice(names), self.lake.table().manage_snapshots()
            (manage.remove_tag if name.startswith("tag") else manage.remove_branch)(name).commit()

    def roll_back(self) -> None:
        manage = self.lake.table().manage_snapshots()
        manage.rollback_to_snapshot(self.random.choice(sorted(manage._current_ancestors()))).commit()

    def add_again(self) -> None:
        """A file that some snapshot has, or that is only there."""
        self._add(self.lake.table().snapshots())

    def pick(self) -> None:
        """Files of a branch or of a staged snapshot."""
        table = self.lake.table()
        ancestors = table.manage_snapshots()._current_ancestors()
        self._add([one for one in table.snapshots() if one.snapshot_id not in ancestors])

    def _add(self, snapshots: list[Any]) -> None:
        table = self.lake.table()
        now = {task.file.file_path for task in table.scan().plan_files()}
        files = {
            task.file.file_path: task.file
            for one in snapshots
            for task in table.scan(snapshot_id=one.snapshot_id).plan_files()
            if task.file.file_path not in now
        }
        if files:
            with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
                update.append_data_file(files[self.random.choice(sorted(files))])

    def expire(self) -> None:
        expire_as_engines_do(self.lake, leave=self.random.randrange(1, 4))

    def _snapshot(self) -> int:
        return int(self.random.choice(self.lake.table().snapshots()).snapshot_id)

    def _value(self) -> str:
        return f"value {next(self.names)}"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 12))])
def test_whatever_others_do_each_snapshot_can_be_read_and_no_file_is_left(tmp_path: Path, seed: int) -> None:
    others = Others(lake_in(tmp_path), random.Random(seed))
    for number in range(40):
        others.step()
        if number % 5 == 4:
            others.look()
    assert is_exact(others.lake)
