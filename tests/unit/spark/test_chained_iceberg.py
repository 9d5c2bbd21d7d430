"""Iceberg tables with chains: the workers, other writers, maintenance, and people who alter the table."""

import itertools
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from moto import mock_aws
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import write_manifest, write_manifest_list
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.update import update_table_metadata
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField

from kcl_dagster.chains.entry import FIRST
from kcl_dagster.errors import ConfigurationError, SinkError, Unsafe
from kcl_dagster.spark.sinks import snapshot_expiry
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.spark.sinks.iceberg_commits import commit_key
from kcl_dagster.spark.storage import S3Options
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.table_committer import RETRY_SECONDS, TableCommitter
from tests.unit.spark.chained_lakes import APPLICATION, IDENTIFIER, IcebergLake, put_back, rows_of
from tests.unit.spark.rest_catalog import RestCatalog, rest_catalog
from tests.unit.worker.kit import Killed

pytestmark = pytest.mark.slow

KEY = commit_key(APPLICATION)


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    return IcebergLake(tmp_path)


@dataclass
class Moments:
    """What happens at the n-th moment of a process, before and after each request to the catalog."""

    at: dict[int, Callable[[], None]] = field(default_factory=dict)
    passed: int = 0

    def moment(self) -> None:
        self.passed += 1
        self.at.pop(self.passed, lambda: None)()

    def around(self, request: Callable[..., Any], *args: Any) -> Any:
        self.moment()
        answer = request(*args)
        self.moment()
        return answer


def watched(lake: IcebergLake, monkeypatch: pytest.MonkeyPatch) -> tuple[TableCommitter, Moments]:
    """A committer and its moments."""
    committer, moments = lake.committer(), Moments()
    catalog = committer.tables[FIRST].table.catalog  # type: ignore[attr-defined]  # of Iceberg
    for name in ("load_table", "commit_table"):
        monkeypatch.setattr(catalog, name, partial(moments.around, getattr(catalog, name)))
    return committer, moments


def finish(lake: IcebergLake, committer: TableCommitter) -> None:
    """As a process that tries again after a failure."""
    for _ in range(5):
        with suppress(SinkError):
            committer.finish(lake.wanted)
            return
        lake.clock.advance(RETRY_SECONDS)
    raise AssertionError(committer)


def killed() -> None:
    raise Killed


def each_moment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, happens: Callable[[IcebergLake], Callable[[], None]]
) -> Iterator[tuple[IcebergLake, TableCommitter, bool]]:
    """A table with some commits, for whose next one something happens at each moment in turn. That one expires a
    snapshot, too. The last time it happens too late."""
    monkeypatch.setattr(snapshot_expiry, "FEWEST", 1)
    monkeypatch.setattr(snapshot_expiry, "LEAST_KEPT", 1)
    for point in itertools.count(1):
        (folder / str(point)).mkdir()
        lake = IcebergLake(folder / str(point))
        for number in range(2):
            lake.decide(rows_of(range(number, number + 1)))
            lake.committer().finish(lake.wanted)
            keep_snapshots(lake, 0)
        lake.decide(rows_of(range(2, 4)))
        committer, moments = watched(lake, monkeypatch)
        moments.at[point] = happens(lake)
        yield lake, committer, point <= moments.passed
        if moments.at:
            assert point > 8
            return


def test_a_committer_that_is_killed_anywhere_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lake, committer, _ in each_moment(tmp_path, monkeypatch, lambda _: killed):
        with suppress(Killed):
            committer.finish(lake.wanted)
        lake.decide(rows_of(range(4, 5)))
        finish(lake, lake.committer())
        assert lake.numbers() == list(range(5))


@pytest.mark.nightly
def test_a_committer_that_pauses_anywhere_adds_nothing_to_what_others_did_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others(lake: IcebergLake) -> Callable[[], None]:
        def go_on() -> None:
            for number in (4, 5):
                finish(lake, lake.committer())
                lake.decide(rows_of(range(number, number + 1)))

        return go_on

    for lake, committer, _ in each_moment(tmp_path, monkeypatch, others):
        finish(lake, committer)
        finish(lake, lake.committer())
        expected = 6 if lake.chain.last == 5 else 4
        assert lake.numbers() == list(range(expected))
        assert lake.last_number() in (3, 4, 5)


@pytest.mark.nightly
def test_other_writers_and_expiry_may_come_in_between_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer appends, and all snapshots but the last one are expired, with their files."""

    def others(lake: IcebergLake) -> Callable[[], None]:
        def act() -> None:
            lake.table().append(pa.table({"n": [100], "kind": ["z"]}))
            expire(lake)
            lake.table().append(pa.table({"n": [101], "kind": ["z"]}))

        return act

    for lake, committer, _ in each_moment(tmp_path, monkeypatch, others):
        finish(lake, committer)
        has_happened = 100 in lake.numbers()
        expire(lake)
        lake.decide(rows_of(range(4, 5)))
        finish(lake, lake.committer())
        assert lake.numbers() == [*range(5), *([100, 101] if has_happened else [])]


def keep_snapshots(lake: IcebergLake, milliseconds: int) -> None:
    with lake.table().transaction() as transaction:
        transaction.set_properties({snapshot_expiry.AGE: str(milliseconds)})


def expire(lake: IcebergLake) -> None:
    """As engines do it: with the manifest lists, and the manifests that no other snapshot has."""
    table = lake.table()
    gone = [one for one in table.snapshots() if one.snapshot_id != table.current_snapshot().snapshot_id]
    kept = {one.manifest_path for one in table.current_snapshot().manifests(table.io)}
    files = [one.manifest_path for snapshot in gone for one in snapshot.manifests(table.io)]
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in gone]).commit()
    for path in {*files, *(one.manifest_list for one in gone)} - kept:
        Path(path.removeprefix("file://")).unlink()
    assert len(lake.table().snapshots()) == 1


def test_a_commit_whose_answer_was_lost_and_that_the_client_sent_again_is_not_undone(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request is refused, because the first one was carried out."""
    lake.decide(rows_of(range(2)))
    commit = SqlCatalog.commit_table

    def sent_twice(*args: Any) -> Any:
        commit(*args)
        raise CommitFailedException("the table has changed")

    with monkeypatch.context() as network:
        network.setattr(SqlCatalog, "commit_table", sent_twice)
        lake.committer().finish(lake.wanted)
    assert lake.numbers() == [0, 1]
    assert len(lake.table().snapshots()) == 1


def test_one_property_says_what_the_table_contains_however_many_commits_it_has(lake: IcebergLake) -> None:
    lake.decide(rows_of(range(1)))
    committer = lake.committer(WrittenThrough(1_769_860_800))
    committer.finish(lake.wanted)
    with lake.table().transaction() as transaction:
        transaction.set_properties(
            {"commit.manifest.min-count-to-merge": "4", "write.metadata.previous-versions-max": "3"}
        )
    first = {name: text for name, text in lake.table().properties.items() if name != KEY}
    for number in range(1, 14):
        lake.decide(rows_of(range(number, number + 1)))
        committer.finish(lake.wanted)
    table = lake.table()
    assert {name: text for name, text in table.properties.items() if name != KEY} == first
    assert lake.last_number() == 14
    assert len(table.current_snapshot().manifests(table.io)) <= 5
    assert len(list((lake.folder / "lake" / "clicks" / "metadata").glob("*.metadata.json"))) <= 5
    assert lake.numbers() == list(range(14))


def test_a_commit_copies_the_metadata_as_often_with_many_manifests_as_with_few(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy takes some milliseconds, and the more the more snapshots there are."""
    copies: list[int] = []

    def counted(*args: Any) -> Any:
        copies[-1] += 1
        return update_table_metadata(*args)

    monkeypatch.setattr("pyiceberg.table.update_table_metadata", counted)
    for number in range(12):
        lake.decide(rows_of(range(number, number + 1)))
        copies.append(0)
        lake.committer().finish(lake.wanted)
    table = lake.table()
    assert len(table.current_snapshot().manifests(table.io)) == 12
    assert 0 < copies[11] == copies[2]


def files_of_metadata(lake: IcebergLake, name: str) -> list[Path]:
    return list((lake.folder / "lake" / "clicks" / "metadata").glob(f"{name}.avro"))


def test_old_snapshots_are_expired_and_their_files_deleted(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_expiry, "FEWEST", 3)
    monkeypatch.setattr(snapshot_expiry, "LEAST_KEPT", 1)
    lake.make(rows_of(range(1)).schema)
    with lake.table().transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "3"})
    keep_snapshots(lake, 0)
    committer = lake.committer()
    for number in range(25):
        lake.decide(rows_of(range(number, number + 1)))
        committer.finish(lake.wanted)
    assert 1 <= lake.version() <= 5
    assert len(files_of_metadata(lake, "snap-*")) == lake.version()
    assert len(files_of_metadata(lake, "*")) < 25, "pyiceberg leaves one that it has merged at once"
    assert lake.numbers() == list(range(25))
    for snapshot in lake.table().snapshots():
        assert lake.table().scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows >= 20
    assert lake.last_number() == 25


def test_a_table_keeps_the_snapshots_of_two_hours_if_it_is_made_here(lake: IcebergLake) -> None:
    lake.decide(rows_of(range(1)))
    assert lake.table().properties[snapshot_expiry.AGE] == str(2 * 3600 * 1000)


def test_manifests_of_a_table_that_is_made_here_are_merged_while_that_takes_little(lake: IcebergLake) -> None:
    lake.decide(rows_of(range(1)))
    assert lake.table().properties["commit.manifest.target-size-bytes"] == str(1024 * 1024)


def test_a_table_whose_properties_were_removed_gets_nothing_twice(lake: IcebergLake) -> None:
    lake.decide(rows_of(range(2)))
    lake.committer().finish(lake.wanted)
    with lake.table().transaction() as transaction:
        transaction.remove_properties(KEY)
    lake.decide(rows_of(range(2, 3)))
    lake.committer().finish(lake.wanted)
    assert lake.numbers() == [0, 1, 2]


def test_files_of_a_former_partition_spec_come_into_the_table_with_the_same_commit(lake: IcebergLake) -> None:
    lake.decide(rows_of(range(2)))
    with lake.table().update_spec() as spec:
        spec.remove_field("kind")
        spec.add_field("n", BucketTransform(4), "n_bucket")
        spec.add_field("kind", IdentityTransform(), "whole")
    lake.decide(rows_of(range(2, 4), kind="b"))
    lake.committer().finish(lake.wanted)
    assert lake.numbers() == [0, 1, 2, 3]
    assert lake.last_number() == 1
    table = lake.table()
    assert {one.partition_spec_id for one in table.current_snapshot().manifests(table.io)} == {0, 1}
    for kind, numbers in (("a", [0, 1]), ("b", [2, 3])):
        found = table.scan(row_filter=f"kind = '{kind}'")
        assert sorted(found.to_arrow()["n"].to_pylist()) == numbers
        assert all(f"={kind}" in task.file.file_path for task in found.plan_files())
    lake.decide(rows_of(range(4, 5)))
    lake.committer().finish(lake.wanted)
    assert lake.numbers() == [0, 1, 2, 3, 4]


def without_kind(lake: IcebergLake) -> None:
    """The table is not partitioned by `kind` any more, and then the column is dropped."""
    with lake.table().update_spec() as spec:
        spec.remove_field("kind")
    with lake.table().update_schema() as schema:
        schema.delete_column("kind")


def partitions_of(lake: IcebergLake) -> list[Any]:
    return sorted(str(task.file.partition) for task in lake.table().scan().plan_files())


@pytest.mark.parametrize("is_put_back", [False, True])
def test_a_column_of_a_former_partition_spec_may_be_dropped(lake: IcebergLake, is_put_back: bool) -> None:
    for number in range(2):
        lake.write(rows_of(range(number, number + 1), kind=f"k{number}"))
    without_kind(lake)
    if is_put_back:
        put_back(lake, NestedField(10, "kind", LongType(), required=False))
    for number in (2, 3):
        lake.write(rows_of(range(number, number + 1)).select(["n"]))
    assert lake.numbers() == list(range(4))
    assert partitions_of(lake) == ["Record[]", "Record[]", "Record[k0]", "Record[k1]"]
    table = lake.table()
    manifests = table.current_snapshot().manifests(table.io)
    assert [one.partition_spec_id for one in manifests].count(0) == 1, "they are merged"
    assert lake.last_number() == 4


def test_manifests_of_a_spec_whose_column_no_schema_has_are_not_merged(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines can remove former schemas."""
    for number in range(2):
        lake.write(rows_of(range(number, number + 1)))
    without_kind(lake)
    load = CatalogTable.load

    def forgotten(table: CatalogTable) -> Any:
        found: Any = load(table)
        found.metadata = found.metadata.model_copy(update={"schemas": [found.schema()]})
        return found

    monkeypatch.setattr(CatalogTable, "load", forgotten)
    for number in (2, 3):
        lake.write(rows_of(range(number, number + 1)).select(["n"]))
    assert lake.numbers() == list(range(4))


def test_executors_need_pyiceberg_for_partitioned_tables_only(tmp_path: Path) -> None:
    travels = {}
    for columns in ((), ("kind",)):
        folder = tmp_path / f"by-{len(columns)}"
        folder.mkdir()
        lake = IcebergLake(folder, columns)
        lake.decide(rows_of(range(3)))
        lake.committer().finish(lake.wanted)
        assert lake.numbers() == [0, 1, 2]
        rules = lake.format.rules()
        assert rules is not None
        travels[columns] = b"IcebergPartitions" in pickle.dumps(rules.layout)
    assert travels == {(): False, ("kind",): True}


def test_statistics_are_those_of_the_columns(lake: IcebergLake) -> None:
    lake.decide(rows_of(range(10, 20)))
    lake.committer().finish(lake.wanted)
    [metrics] = lake.table().inspect.files()["readable_metrics"].to_pylist()
    assert (metrics["n"]["lower_bound"], metrics["n"]["upper_bound"]) == (10, 19)
    assert len(list(lake.table().scan(row_filter="n > 19").plan_files())) == 0


def required_column(lake: IcebergLake) -> None:
    with lake.table().update_schema(allow_incompatible_changes=True) as schema:
        schema.update_column("n", required=True)


def made_anew(lake: IcebergLake) -> None:
    schema = lake.table().schema().as_arrow()
    lake.catalog_table().catalog.drop_table(IDENTIFIER)
    lake.make(schema)


def removed(lake: IcebergLake) -> None:
    lake.catalog_table().catalog.drop_table(IDENTIFIER)


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (required_column, r"may not fulfil \['n'\]"),
        (made_anew, "is not the table for which batches were decided"),
        (removed, "was removed. Put it back"),
    ],
)
def test_a_table_that_was_altered_takes_nothing_that_does_not_fit(
    lake: IcebergLake, alter: Callable[[IcebergLake], None], said: str
) -> None:
    lake.decide(rows_of(range(2)))
    alter(lake)
    committer = lake.committer()
    for _ in range(2):
        with pytest.raises(SinkError, match=said):
            committer.finish(lake.wanted)
        with pytest.raises(SinkError, match="What was decided is safe in its files"):
            committer.check()
        lake.clock.advance(RETRY_SECONDS)
    if alter is not removed:
        assert lake.version() == 0


@pytest.mark.parametrize("is_decided", [True, False])
def test_a_table_of_version_3_is_refused_by_name(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch, is_decided: bool
) -> None:
    """Before anything is decided, or by the commit if the table was upgraded since. pyiceberg cannot write one."""
    lake.make(rows_of(range(1)).schema)
    if is_decided:
        lake.decide(rows_of(range(2)))
    load = CatalogTable.load

    def upgraded(table: CatalogTable) -> Any:
        found: Any = load(table)
        found.metadata = TableMetadataV3.model_construct(**dict(found.metadata) | {"format_version": 3})
        return found

    monkeypatch.setattr(CatalogTable, "load", upgraded)
    step = partial(lake.committer().finish, lake.wanted) if is_decided else partial(lake.decide, rows_of(range(2)))
    with pytest.raises(SinkError, match="is of version 3 of the format, and pyiceberg writes version 2"):
        step()


def test_pyiceberg_writes_no_table_of_version_3(lake: IcebergLake) -> None:
    """If this fails, pyiceberg has learned some of what the sink refuses such tables for: manifests, metadata, and
    the number of added rows, by which `next-row-id` grows."""
    lake.make(rows_of(range(1)).schema)
    table = lake.table()
    about = dict(table.metadata) | {"format_version": 3, "next_row_id": 0}
    table.metadata = TableMetadataV3.model_construct(**about)
    with pytest.raises(ValueError, match="table version: 3"):
        table.append(pa.Table.from_batches([rows_of(range(2))]))
    with pytest.raises(NotImplementedError, match="Writing V3 is not yet supported"):
        table.metadata.model_dump_json()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pyiceberg.table.update.snapshot.write_manifest", partial(as_version_2, write_manifest))
        patched.setattr(
            "pyiceberg.table.update.snapshot.write_manifest_list", partial(as_version_2, write_manifest_list)
        )
        transaction = table.transaction()
        transaction.append(pa.Table.from_batches([rows_of(range(2))]))
    assert [one.added_rows for one in transaction.table_metadata.snapshots] == [None]
    assert transaction.table_metadata.next_row_id is None


def as_version_2(write: Callable[..., Any], format_version: int, **about: Any) -> Any:
    return write(format_version=2, **about)


class Elsewhere(IcebergLake):
    @property
    def chains_path(self) -> str | None:
        return str(self.folder / "elsewhere")


def test_a_worker_whose_chains_are_elsewhere_commits_nothing(lake: IcebergLake, tmp_path: Path) -> None:
    """Two fleets that plan the same numbers at two places would each take the other's commit for its own."""
    lake.decide(rows_of(range(2)))
    lake.committer().finish(lake.wanted)
    other = Elsewhere(tmp_path, worker="w2")
    other.decide(rows_of(range(2, 4)))
    with pytest.raises(SinkError, match=r"whose chains are at .*lake/clicks, and not at .*elsewhere"):
        other.committer().finish(other.wanted)
    assert lake.numbers() == [0, 1]


def test_a_table_that_was_made_elsewhere_meanwhile_is_not_written_to(lake: IcebergLake, tmp_path: Path) -> None:
    assert lake.store.root.endswith("lake/clicks")  # asked before there is a table
    catalog = lake.catalog_table().catalog
    catalog.create_table(IDENTIFIER, rows_of(range(1)).schema, location=str(tmp_path / "moved"))
    with pytest.raises(SinkError, match="was made or moved since the worker began"):
        lake.decide(rows_of(range(2)))


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path, s3_access_key_id="vended", s3_session_token="for this table") as catalog:
        yield catalog


class RestLake(Elsewhere):
    uri = ""

    def catalog_table(self) -> CatalogTable:
        return CatalogTable(IDENTIFIER, {"type": "rest", "uri": self.uri}, partition_by=self.columns)


class BelowTable(RestLake):
    @property
    def chains_path(self) -> str | None:
        return None


def test_tables_of_rest_catalogs_have_chains_below_them_or_at_a_place_of_their_own(
    rest: RestCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before there is a table, such a catalog does not say where it will be."""
    monkeypatch.setattr(RestLake, "uri", rest.uri)
    with pytest.raises(ConfigurationError, match="make the table first, or name another place with chains_path"):
        BelowTable(tmp_path).decide(rows_of(range(2)))
    apart = RestLake(tmp_path)
    apart.decide(rows_of(range(2)))
    apart.committer().finish(apart.wanted)
    assert apart.numbers() == [0, 1]
    assert (tmp_path / "elsewhere" / "_chains").is_dir()
    with pytest.raises(Unsafe, match="whose chains are at"):
        BelowTable(tmp_path).last_number()


def test_chains_are_below_a_table_that_a_rest_catalog_has(
    rest: RestCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestLake, "uri", rest.uri)
    lake = BelowTable(tmp_path)
    lake.make(rows_of(range(1)).schema)
    lake.decide(rows_of(range(2)))
    lake.committer().finish(lake.wanted)
    assert lake.numbers() == [0, 1]
    assert lake.store.root == lake.table().location().removeprefix("file://")


class GlueLake(IcebergLake):
    def catalog_table(self) -> CatalogTable:
        s3 = S3Options("eu-west-1", access_key="test", secret_key="test")
        return CatalogTable(
            IDENTIFIER, {"type": "glue", "warehouse": str(self.folder)}, partition_by=self.columns, s3=s3
        )


def test_chains_are_where_glue_will_have_the_table(tmp_path: Path) -> None:
    with mock_aws():
        lake = GlueLake(tmp_path)
        assert lake.store.root == str(tmp_path / "lake.db" / "clicks")
        for number in range(3):
            lake.decide(rows_of(range(number, number + 1)))
            lake.committer().finish(lake.wanted)
        assert lake.numbers() == [0, 1, 2]
        assert lake.store.root == lake.table().location()
