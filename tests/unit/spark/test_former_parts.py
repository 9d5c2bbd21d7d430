"""What versions that decided batches in leases have stored: found, or withdrawn for good."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyiceberg.exceptions import CommitFailedException

from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import AccessDenied, SinkError
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.sinks import former_parts
from kcl_dagster.spark.sinks.catalog_table import tried_once
from kcl_dagster.spark.sinks.delta_log import DeltaLog
from kcl_dagster.spark.sinks.former_parts import OWNER_FILE, FolderParts
from kcl_dagster.spark.storage import LocalStore, Store
from kcl_dagster.worker.batch import Part
from kcl_dagster.worker.staging import FormerParts
from tests.unit.spark.buckets import Bucket
from tests.unit.spark.chained_lakes import LAKES, DeltaLake, IcebergLake, Lake, rows_of

pytestmark = pytest.mark.slow

NUMBER = 1_798_761_600_000  # of the first batch of a lease: the time in milliseconds
ROWS = range(100, 103)


def part(number: int, after: int = 100, through: int = 109, *, instead_of: int | None = None) -> Part:
    """`number` and `instead_of` count from `NUMBER`."""
    whole = None if instead_of is None else NUMBER + instead_of
    shard, stream = "shardId-000000000000", StreamIdentifier.single("clicks")
    at, to = Checkpoint(str(after)), Checkpoint(str(through))
    return Part("app", LeaseKey(shard), stream, shard, at, to, NUMBER + number, 10, 9, whole)


# Folders


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(str(tmp_path))
    return Bucket(request.getfixturevalue("aws")).store


def fill(store: Store, names: Sequence[str]) -> None:
    for name in names:
        store.put(name, b"records")


def left(store: Store) -> list[str]:
    return sorted(file.path for file in store.files())


PLACE = "shardId-000000000000.100-0"


@pytest.mark.parametrize("below", ["", "kind=a/", "day=2026-11-23/kind=b %2F c/"])
def test_files_of_a_part_are_withdrawn_whatever_their_former_names_are(folder: Store, below: str) -> None:
    """Version 0.1 names every file without the application. A digest at the end tells folders apart."""
    mine = [
        f"{below}{name}"
        for number in (NUMBER, NUMBER + 1)
        for name in (
            f"app.{PLACE}.{number}.parquet",
            f"{PLACE}.{number}.parquet",
            f"app.{PLACE}.{number}~0123abcd.parquet",
        )
    ]
    others = [
        f"{below}{name}"
        for name in (
            f"other.{PLACE}.{NUMBER}.parquet",
            f"app.{PLACE}.{NUMBER - 1}.parquet",
            f"app.{PLACE}.{NUMBER + 2}.parquet",
            f"app.{PLACE.replace('100-0', '100-1')}.{NUMBER}.parquet",
            f"app.{PLACE.replace('0.100', '1.100')}.{NUMBER}.parquet",
            f"app.{PLACE}.{NUMBER}.parquet.crc",
            f"app.{PLACE}.{NUMBER}~0123ABCD.parquet",
            f"app-0123.w1-1.{NUMBER}_0_0.parquet",
            "part-00000.parquet",
        )
    ]
    fill(folder, [*mine, *others])
    parts = FolderParts(folder)
    for _ in range(2):
        parts.withdraw(part(1, instead_of=0))
        assert left(folder) == sorted(others)


def test_no_part_of_a_folder_counts_as_stored(folder: Store) -> None:
    fill(folder, [f"app.{PLACE}.{NUMBER}.parquet"])
    assert FolderParts(folder).stored_to(part(0)) is None


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"after": TRIM_HORIZON}, f"app.shardId-000000000000.TRIM_HORIZON-0.{NUMBER}.parquet"),
        ({"after": Checkpoint("100", 7)}, f"app.shardId-000000000000.100-7.{NUMBER}.parquet"),
        (
            {"lease": LeaseKey("123456789012:clicks:17:shardId-000000000000")},
            f"app.123456789012.clicks.17.{PLACE}.{NUMBER}.parquet",
        ),
        ({"application": "clicks in Zürich"}, f"clicks_in_Z_rich~b2d4e789.{PLACE}.{NUMBER}.parquet"),
        ({"application": "x" * 41}, f"{'x' * 31}~3164596d.{PLACE}.{NUMBER}.parquet"),
    ],
)
def test_names_say_where_a_part_begins_and_of_which_lease_and_application_it_is(
    tmp_path: Path, changed: dict[str, Any], name: str
) -> None:
    store = LocalStore(str(tmp_path))
    fill(store, [name])
    FolderParts(store).withdraw(replace(part(0), **changed))
    assert left(store) == []


@pytest.mark.parametrize(("owner", "is_left"), [(None, False), ("app", False), ("other", True)])
def test_a_part_of_version_0_1_has_files_where_no_other_application_has_such_names(
    folder: Store, owner: str | None, is_left: bool
) -> None:
    """Its numbers begin at 1, so those of another application may be equal."""
    old = replace(part(0), number=7)
    name = f"{PLACE}.7.parquet"
    fill(folder, [name])
    if owner is not None:
        folder.put(OWNER_FILE, owner.encode())
    for one in (old, replace(old, application="app/replay/2026-11-23-00:00")):
        FolderParts(folder).withdraw(one)
        assert left(folder) == ([name] if is_left else [])


def test_a_file_that_s3_keeps_is_not_withdrawn(aws: Emulator) -> None:
    bucket = Bucket(aws)
    name = f"app.{PLACE}.{NUMBER}.parquet"
    fill(bucket.store, [name])
    bucket.keep(name)
    with pytest.raises(AccessDenied, match=name):
        FolderParts(bucket.store).withdraw(part(0))
    bucket.let_go()
    FolderParts(bucket.store).withdraw(part(0))
    assert left(bucket.store) == []


class Keeping(LocalStore):
    def delete(self, paths: Sequence[str]) -> None:
        raise PermissionError(13, "Permission denied", paths[0])


def test_a_file_that_cannot_be_removed_is_the_sinks_error(tmp_path: Path) -> None:
    store = Keeping(str(tmp_path))
    fill(store, [f"app.{PLACE}.{NUMBER}.parquet"])
    with pytest.raises(SinkError, match=f"files of batch {NUMBER} of shardId-000000000000 could not be removed"):
        FolderParts(store).withdraw(part(0))


# Tables


@dataclass
class Former(ABC):
    """A worker of a former version, as far as its commits go. It looks whether the table has a part already, and
    adds it if not; if its commit is refused, it looks again."""

    lake: Any
    refused: type[Exception] = Exception

    def store(self, part: Part, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Whether it has added the rows of the part. `meanwhile`: after its first look at the table."""
        for attempt in range(3):
            table = self.opened()
            newest = self.newest(table, part)
            if newest is not None and newest >= part.number:
                return False
            if attempt == 0:
                meanwhile()
            try:
                self.append(table, part)
            except self.refused:
                continue
            return True
        raise AssertionError("refused each time")

    @abstractmethod
    def opened(self) -> Any:
        """The table as it is now."""

    @abstractmethod
    def newest(self, table: Any, part: Part) -> int | None:
        """The number of the last part of the shard."""

    @abstractmethod
    def append(self, table: Any, part: Part) -> None:
        """A commit with the rows of the part, on top of the table as it was when it was opened."""

    @abstractmethod
    def forget(self) -> None:
        """Remove all of the table's history but the last commit."""


def key_of(part: Part) -> str:
    return f"kcl-dagster/{part.application}/{part.stream}/{part.shard_id}"


def record_of(part: Part) -> dict[str, str]:
    return {key_of(part): json.dumps([part.number, str(part.after), str(part.through)])}


OUTPUT = pa.Table.from_batches([rows_of(ROWS)])


class FormerDelta(Former):
    lake: DeltaLake

    def opened(self) -> Any:
        return self.lake.table()

    def newest(self, table: Any, part: Part) -> int | None:
        return table.transaction_version(key_of(part))  # type: ignore[no-any-return]  # untyped

    def append(self, table: Any, part: Part) -> None:
        properties = CommitProperties(record_of(part), 15, [Transaction(key_of(part), part.number)])
        write_deltalake(table, OUTPUT, mode="append", commit_properties=properties)

    def forget(self) -> None:
        self.lake.table().alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
        table = self.lake.table()
        table.create_checkpoint()
        table.cleanup_metadata()
        assert len(self.lake.table().history()) < table.version() + 1


class FormerIceberg(Former):
    lake: IcebergLake

    def opened(self) -> Any:
        return self.lake.table()

    def newest(self, table: Any, part: Part) -> int | None:
        text = table.properties.get(key_of(part))
        return None if text is None else int(json.loads(text)[0])

    def append(self, table: Any, part: Part) -> None:
        with tried_once(table).transaction() as transaction:
            transaction.set_properties(record_of(part))
            transaction.append(OUTPUT, snapshot_properties=record_of(part))

    def forget(self) -> None:
        table = self.lake.table()
        gone = [one.snapshot_id for one in table.snapshots()][:-1]
        table.maintenance.expire_snapshots().by_ids(gone).commit()


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """A table that has three rows already, and is partitioned."""
    found = LAKES[request.param](tmp_path)
    found.write(rows_of(range(3)))
    return found


@pytest.fixture
def former(lake: Lake) -> Former:
    if isinstance(lake, DeltaLake):
        return FormerDelta(lake, CommitFailedError)
    return FormerIceberg(lake, CommitFailedException)


def parts_of(lake: Lake) -> FormerParts:
    """As a process of its own has them."""
    return lake.process().former_parts


@pytest.fixture
def parts(lake: Lake) -> FormerParts:
    return parts_of(lake)


def times_stored(lake: Lake) -> int:
    """How often the rows of a former part are in the table."""
    [times] = {lake.numbers().count(number) for number in ROWS}
    assert [number for number in lake.numbers() if number not in ROWS] == [0, 1, 2]
    return times


def test_the_last_part_of_a_shard_is_known_by_its_end(former: Former, parts: FormerParts) -> None:
    assert former.store(part(0))
    assert parts.stored_to(part(0)) == Checkpoint("109")


def test_a_part_that_ends_within_an_aggregate_is_known_by_that_place(former: Former, parts: FormerParts) -> None:
    whole = replace(part(0), after=Checkpoint("100", 3), through=Checkpoint("109", 4))
    assert former.store(whole)
    assert parts.stored_to(whole) == Checkpoint("109", 4)
    assert parts.stored_to(replace(part(1, instead_of=0), after=whole.after)) == Checkpoint("109", 4)


def test_a_part_before_the_last_one_is_known_by_the_history_of_the_table(
    former: Former, parts: FormerParts
) -> None:
    for number in range(3):
        assert former.store(part(number, 100 + 10 * number, 109 + 10 * number))
    assert parts.stored_to(part(1, 110, 119)) == Checkpoint("119")
    assert parts.stored_to(part(0)) == Checkpoint("109")


def test_a_part_is_found_behind_many_commits_of_others(
    former: Former, parts: FormerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(former_parts, "RECENT_COMMITS", 2)
    assert former.store(part(0))
    for number in range(4):
        assert former.store(replace(part(number), shard_id="shardId-000000000001"))
    assert parts.stored_to(part(0)) == Checkpoint("109")


def test_a_table_is_not_asked_for_its_history_where_the_part_is_newer(
    former: Former, parts: FormerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes minutes to read where there are the commits of a month."""
    assert former.store(part(0))

    def history(*_: object) -> Any:
        raise AssertionError("not needed")

    monkeypatch.setattr(DeltaTable, "history", history)
    assert parts.stored_to(part(1, 110, 119)) is None


def test_parts_whose_history_was_removed_are_not_taken_for_missing_ones(
    lake: Lake, former: Former, parts: FormerParts
) -> None:
    for number in range(2):
        assert former.store(part(number, 100 + 10 * number, 109 + 10 * number))
    former.forget()
    with pytest.raises(SinkError, match="not in what is left of the table's history"):
        parts.stored_to(part(0))
    if isinstance(lake, IcebergLake):  # a property has the last one
        assert parts.stored_to(part(1, 110, 119)) == Checkpoint("119")
    else:
        with pytest.raises(SinkError, match="not in what is left of the table's history"):
            parts.stored_to(part(1, 110, 119))


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_piece_whose_whole_was_stored_is_stored_to_the_end_of_the_whole(
    former: Former, parts: FormerParts, number: int
) -> None:
    assert former.store(part(0))
    assert parts.stored_to(part(number, 100, 104, instead_of=0)) == Checkpoint("109")


def test_a_piece_of_which_a_larger_piece_was_stored_ends_where_that_does(
    former: Former, parts: FormerParts
) -> None:
    assert former.store(part(1, 100, 104))
    assert parts.stored_to(part(2, 100, 102, instead_of=0)) == Checkpoint("104")


def test_a_part_that_came_to_nothing_is_not_stored(former: Former, parts: FormerParts) -> None:
    assert parts.stored_to(part(0)) is None, "there is no part of the shard"
    assert former.store(part(0))
    assert parts.stored_to(part(1, 110, 119)) is None
    assert parts.stored_to(part(2, 110, 114, instead_of=1)) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"application": "other"},
        {"shard_id": "shardId-000000000001"},
        {"stream": StreamIdentifier.parse("123456789012:clicks:17")},
    ],
)
def test_parts_of_others_say_nothing(former: Former, parts: FormerParts, changed: dict[str, Any]) -> None:
    assert former.store(part(0))
    assert parts.stored_to(replace(part(0), **changed)) is None


@pytest.mark.parametrize("strange", [part(0, 50, 59), part(0, 50, 59, instead_of=-1)])
def test_a_row_that_was_put_back_by_hand_is_an_error(former: Former, parts: FormerParts, strange: Part) -> None:
    """Also if a former lease of the shard had a batch that began there."""
    assert former.store(part(-5, 50, 59))
    assert former.store(part(0))
    assert former.store(part(1, 110, 119))
    for ask in (parts.stored_to, parts.withdraw):
        with pytest.raises(SinkError, match=f"batch {NUMBER + 1} .* already.*pinned to batch {NUMBER}.*reset the"):
            ask(strange)


# Withdrawing


PIN, WITHDRAWN = part(0), part(1, instead_of=0)
"""A worker gives the lease another number before it withdraws the part."""


def test_a_part_that_is_withdrawn_is_never_stored(lake: Lake, former: Former, parts: FormerParts) -> None:
    parts.withdraw(WITHDRAWN)
    assert parts.stored_to(WITHDRAWN) is None
    assert parts_of(lake).stored_to(WITHDRAWN) is None
    assert not former.store(PIN)
    assert not former.store(WITHDRAWN)
    assert times_stored(lake) == 0
    assert former.store(part(2)), "the next batch of the lease"
    assert times_stored(lake) == 1
    assert parts.stored_to(part(2)) == Checkpoint("109")


def test_a_worker_that_was_paused_before_its_commit_stores_nothing_after_that(
    lake: Lake, former: Former, parts: FormerParts
) -> None:
    assert not former.store(PIN, meanwhile=lambda: parts.withdraw(WITHDRAWN))
    assert times_stored(lake) == 0


def test_a_part_that_was_stored_meanwhile_is_not_withdrawn(former: Former, parts: FormerParts, lake: Lake) -> None:
    assert former.store(PIN)
    before = lake.version()
    with pytest.raises(SinkError, match="was stored meanwhile, to 109"):
        parts.withdraw(WITHDRAWN)
    assert lake.version() == before
    assert parts.stored_to(WITHDRAWN) == Checkpoint("109"), "the next attempt goes on behind it"


def test_a_part_that_is_stored_while_it_is_withdrawn_is_stored(
    lake: Lake, former: Former, parts: FormerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former worker commits between the look at the table and the commit that withdraws the part."""
    refuse = former_parts._refuse_stored
    commits = [PIN]

    def slow(*args: Any) -> None:
        refuse(*args)
        if commits:
            assert former.store(commits.pop())

    monkeypatch.setattr(former_parts, "_refuse_stored", slow)
    with pytest.raises(SinkError):
        parts.withdraw(WITHDRAWN)
    assert parts.stored_to(WITHDRAWN) == Checkpoint("109")
    with pytest.raises(SinkError, match="was stored meanwhile"):
        parts.withdraw(WITHDRAWN)
    assert times_stored(lake) == 1


def test_a_part_is_withdrawn_although_other_commits_come_in_between(
    lake: Lake, former: Former, parts: FormerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = former_parts._refuse_stored
    other = replace(PIN, shard_id="shardId-000000000001")
    commits = [other]

    def slow(*args: Any) -> None:
        refuse(*args)
        if commits:
            assert former.store(commits.pop())

    monkeypatch.setattr(former_parts, "_refuse_stored", slow)
    parts.withdraw(WITHDRAWN)
    assert not former.store(PIN)
    assert parts.stored_to(other) == Checkpoint("109")
    assert times_stored(lake) == 1


def test_a_part_that_is_withdrawn_again_needs_no_other_commit(lake: Lake, parts: FormerParts) -> None:
    """A worker that ended before it changed the row of the lease is followed by another one."""
    parts.withdraw(WITHDRAWN)
    before = lake.version()
    for following in (parts, parts_of(lake)):
        following.withdraw(WITHDRAWN)
    assert lake.version() == before
    parts.withdraw(part(2, instead_of=0))
    assert parts.stored_to(part(2, instead_of=0)) is None


def test_a_row_that_was_put_back_to_before_a_part_was_withdrawn_is_an_error(parts: FormerParts) -> None:
    """Its records were read again since, and stored."""
    parts.withdraw(WITHDRAWN)
    with pytest.raises(SinkError, match="put back by hand"):
        parts.stored_to(PIN)


def test_a_stored_part_is_known_although_a_later_one_was_withdrawn(former: Former, parts: FormerParts) -> None:
    assert former.store(part(0))
    parts.withdraw(part(2, 110, 119, instead_of=1))
    assert parts.stored_to(part(0)) == Checkpoint("109")


def test_what_is_withdrawn_does_not_concern_batches_of_chains(lake: Lake, parts: FormerParts) -> None:
    lake.decide(rows_of(range(3, 5)))
    parts.withdraw(WITHDRAWN)
    lake.committer().finish(lake.wanted)
    assert lake.numbers() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", LAKES)
def test_where_there_is_no_table_nothing_is_stored_and_none_is_made(kind: str, tmp_path: Path) -> None:
    lake = LAKES[kind](tmp_path)
    parts = parts_of(lake)
    assert parts.stored_to(PIN) is None
    parts.withdraw(WITHDRAWN)
    assert lake.format.rules() is None


def test_a_delta_table_that_was_made_anew_is_the_sinks_error_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = DeltaLake(tmp_path)
    lake.write(rows_of(range(3)))
    parts = parts_of(lake)
    assert FormerDelta(lake, CommitFailedError).store(part(0))
    assert parts.stored_to(part(0)) == Checkpoint("109")
    monkeypatch.setattr(DeltaLog, "_commit_of", lambda *_: (0, b"another"))
    with pytest.raises(SinkError, match="is not the table that it was"):
        parts.stored_to(part(0))
    monkeypatch.undo()
    assert parts.stored_to(part(0)) == Checkpoint("109")
