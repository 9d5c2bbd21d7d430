"""Entries in every store: of several creates of one number, one succeeds."""

import errno
import os
import threading
from pathlib import Path

import pytest

from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.entry import ClosingEntry, PublishingEntry, StagedFile, StoredRange, decoded, encoded
from kcl_dagster.chains.publication import (
    batch_of,
    beginning_of,
    chain_id,
    file_name,
    publish,
    staged_for,
    staged_path,
)
from kcl_dagster.chains.settlement import settle
from kcl_dagster.chains.store import Entries, FileStore
from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import ConfigurationError, Unsafe
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ChainId, ClaimId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stored import BatchCounts, StoredRows
from kcl_dagster.spark.storage import LocalStore, S3Store
from tests.unit.chains.memory import MemoryFiles
from tests.unit.spark.buckets import Bucket

CHAIN = chain_id("clicks", "worker-000:ab12cd34", "1")
COUNTS = BatchCounts((StoredRows(60, 2, 100, 1, 0, "1", "9"),), 0, 120, 180)
ENTRY = PublishingEntry(
    "attempt",
    (StagedFile("kind=buy/x.parquet", 2, 100),),
    (StoredRange(LeaseKey("s-0"), ClaimId("c"), TRIM_HORIZON, Checkpoint("9", 1), 2, 100, 77, COUNTS),),
)


@pytest.fixture(params=["memory", "local", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore:
    if request.param == "memory":
        return MemoryFiles()
    if request.param == "local":
        return LocalStore(str(tmp_path))
    aws: Emulator = request.getfixturevalue("aws")
    return Bucket(aws).store


def test_an_entry_is_read_as_it_was_made(files: FileStore) -> None:
    entries = Entries(files)
    assert entries.create(CHAIN, 1, ENTRY)
    assert not entries.create(CHAIN, 1, ClosingEntry("another", "b"))
    assert entries.read(CHAIN, 1) == ENTRY
    assert entries.read(CHAIN, 2) is None
    assert entries.create(CHAIN, 11, ClosingEntry("another", "b"))
    assert entries.numbers(CHAIN) == [1, 11]
    assert entries.numbers(ChainId(f"{CHAIN}1")) == []
    entries.delete(CHAIN, [1, 5])
    assert entries.numbers(CHAIN) == [11]


def test_chains_are_listed_by_application(files: FileStore) -> None:
    entries = Entries(files)
    other = chain_id("clicks2", "worker-000:ab12cd34", "1")
    entries.create(CHAIN, 1, ENTRY)
    entries.create(CHAIN, 2, ENTRY)
    entries.create(other, 1, ENTRY)
    found = entries.chains(beginning_of("clicks"))
    assert {chain: number for chain, (number, _) in found.items()} == {CHAIN: 2}


def test_one_of_several_creates_at_once_succeeds(files: FileStore) -> None:
    entries, made = Entries(files), []

    def make(by: int) -> None:
        entry = ClosingEntry(str(by), str(by))
        if entries.create(CHAIN, 1, entry):
            made.append(entry)

    threads = [threading.Thread(target=make, args=(by,)) for by in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [entries.read(CHAIN, 1)]


def test_staged_files_are_published_once_and_again(files: FileStore) -> None:
    path = f"kind=buy/{file_name(CHAIN, 1, 0, 0)}"
    assert staged_for(path) == staged_path(CHAIN, path)
    put(files, staged_path(CHAIN, path), b"rows")
    entry = PublishingEntry("attempt", (StagedFile(path, 1, 4),), ())
    assert publish(files, CHAIN, entry)
    assert files.get(path) == b"rows"
    assert not publish(files, CHAIN, entry)
    assert files.get(path) == b"rows"
    assert [file.path for file in files.files(hidden=True)] == [path]


def test_a_chain_is_closed_and_what_was_not_decided_is_removed(files: FileStore) -> None:
    entries = Entries(files)
    chain = Chain(entries, CHAIN, lambda: os.urandom(4).hex())
    put(files, staged_path(CHAIN, "x.parquet"), b"rows")
    assert chain.decide([StagedFile("x.parquet", 1, 4)], ENTRY.ranges) is not None
    put(files, staged_path(CHAIN, "void.parquet"), b"rows")
    settled = settle(entries, CHAIN, "b", lambda: os.urandom(4).hex())
    assert settled.progress(LeaseKey("s-0"), ClaimId("c"), TRIM_HORIZON) == list(ENTRY.ranges)
    assert settled.progress(LeaseKey("s-0"), ClaimId("c"), Checkpoint("9", 1)) == []
    assert settled.progress(LeaseKey("s-0"), ClaimId("d"), TRIM_HORIZON) == []
    assert settled.progress(LeaseKey("s-0"), None, TRIM_HORIZON) == []
    assert chain.decide([StagedFile("void.parquet", 1, 4)], ENTRY.ranges) is None
    assert chain.is_over
    assert {file.path for file in files.files(hidden=True)} == {
        "x.parquet",
        *(f"_chains/{CHAIN}/{number:012d}.json" for number in (1, 2)),
    }


def put(files: FileStore, path: str, content: bytes) -> None:
    """Chains themselves only move files."""
    assert isinstance(files, MemoryFiles | LocalStore | S3Store)
    files.put(path, content)


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    with pytest.raises(ConfigurationError, match="without hard links"):
        LocalStore(str(tmp_path)).create("x", b"")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_no_missing_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "hardlink_to", full)
    with pytest.raises(OSError, match="No space left"):
        LocalStore(str(tmp_path)).create("x", b"")


@pytest.mark.parametrize("entry", [ENTRY, ClosingEntry("attempt", "worker-001")])
def test_entries_keep_their_form(entry: PublishingEntry | ClosingEntry) -> None:
    assert decoded(encoded(entry), "x") == entry
    assert b'"kind":' in encoded(entry)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"{",
        b'{"kind":"opened","attempt":"a","by":"b"}',
        encoded(ENTRY).replace(b'"sequence":"9"', b'"sequence":"nine"'),
        encoded(ClosingEntry("a", "b", version=3)),
    ],
)
def test_an_entry_that_cannot_be_read_is_never_passed_over(content: bytes) -> None:
    with pytest.raises(Unsafe, match="_chains/x"):
        decoded(content, "_chains/x")


def test_names_of_chains_are_safe_and_tell_applications_apart() -> None:
    names = ["clicks", "clicks2", "a" * 100, "a" * 101, "click/s", "click:s", "kl\u00e4icks"]
    assert len({beginning_of(name) for name in names}) == len(names)
    for name in names:
        chain = chain_id(name, "worker-000:ab12cd34", "5f:1")
        assert chain.startswith(beginning_of(name))
        path = f"day=1/{file_name(chain, 3, 1, 0)}"
        assert staged_for(path) == f"_staged/{chain}/{path}"
        former = f"day=1/{chain}.3_1_0.parquet"
        assert staged_for(former) == f"_staged/{chain}/{former}"
        assert (
            batch_of(path) == batch_of(file_name(chain, 3, 2, 7, attempt=5)) != batch_of(file_name(chain, 4, 1, 0))
        )
        assert batch_of(former) == f"{chain}.3"
        assert len(file_name(chain, 10**9, 99, 999, attempt=10**6)) < 120


def test_the_names_of_a_batch_sort_by_task_and_file() -> None:
    names = [
        file_name(CHAIN, 3, task, number, attempt=1000 - task) for task in (0, 2, 10, 999) for number in (0, 2, 10)
    ]
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert file_name(CHAIN, 3, 1, 0, attempt=1) != file_name(CHAIN, 3, 1, 0, attempt=2)


@pytest.mark.parametrize("path", ["x.parquet", "a.s-0.TRIM_HORIZON-0.5.parquet", "merged-5.parquet", f"{CHAIN}.x"])
def test_files_of_another_origin_were_not_staged(path: str) -> None:
    assert staged_for(path) is None
    assert batch_of(path) is None


def test_nothing_remains_of_a_chain_that_is_forgotten(files: FileStore) -> None:
    entries = Entries(files)
    entries.create(CHAIN, 1, ENTRY)
    if isinstance(files, LocalStore):
        files.put(staged_path(CHAIN, "kind=buy/y.parquet"), b"of a batch that was not decided")
    settle(entries, CHAIN, "b", lambda: "id")
    entries.forget(CHAIN)
    assert entries.numbers(CHAIN) == []
    if isinstance(files, LocalStore):
        assert list(Path(files.root, "_chains").iterdir()) == []
        assert not list(Path(files.root).glob("_staged/*"))
