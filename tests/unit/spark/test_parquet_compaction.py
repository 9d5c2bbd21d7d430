"""Compaction: the same records in fewer files, wherever it is cut off."""

import io
import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kcl_dagster.aws import RequestRefused, Unanswered
from kcl_dagster.chains.entry import PublishingEntry, StagedFile
from kcl_dagster.chains.publication import chain_id, file_name, publish, staged_path
from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import AccessDenied, ConfigurationError, EndpointUnreachable, Unsafe
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.parquet_file import ParquetFile
from kcl_dagster.spark.sinks import parquet_compaction
from kcl_dagster.spark.sinks.compaction_groups import MERGED, groups
from kcl_dagster.spark.sinks.parquet_compaction import DRAFTS, LOCKS, Compaction, compact
from kcl_dagster.spark.storage import LocalStore, StoredFile
from kcl_dagster.spark.store_lock import LOCK_SECONDS, StoreLock
from tests.doubles.clock import FakeClock
from tests.unit.spark.buckets import Bucket

pytestmark = pytest.mark.slow

CLOCK = FakeClock()
LAST = "shard.99-0.7.parquet"
OLD = CLOCK.now() - 7200


def lake(root: Path, files: int = 6, folder: str = "", rows: int = 10, age: float = OLD) -> None:
    """Small files as the sink leaves them, and the last of their shard beside the folders."""
    root.mkdir(exist_ok=True)
    pq.write_table(pa.table({"value": ["last"]}), root / LAST)
    os.utime(root / LAST, (age + files, age + files))
    for number in range(files):
        path = root / folder / f"shard.{number}-0.{number + 1}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = [f"{folder}{number}.{row}" for row in range(rows)]
        pq.write_table(pa.table({"value": values}), path)
        os.utime(path, (age + number, age + number))


def contents(root: Path) -> Counter[str]:
    files = [str(path) for path in root.rglob("*.parquet")]
    return Counter(ds.dataset(files).to_table().column("value").to_pylist()) if files else Counter()


def run(root: Path, **more: Any) -> Compaction:
    """One merge after the other, so that what happens meanwhile happens at one moment."""
    return compact(str(root), runtime=Runtime(clock=CLOCK), **{"merges_at_once": 1, **more})


def names(root: Path) -> list[str]:
    """Of all files but those of the lock."""
    found = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.startswith(LOCKS))


def test_small_files_of_a_folder_become_one(tmp_path: Path) -> None:
    lake(tmp_path, folder="day=1")
    lake(tmp_path, folder="day=2")
    before = contents(tmp_path)
    assert run(tmp_path).merged == 12
    assert contents(tmp_path) == before
    assert [name.split("/")[0] for name in names(tmp_path)] == ["day=1", "day=2", LAST]


def test_records_keep_their_order(tmp_path: Path) -> None:
    lake(tmp_path, files=3)
    run(tmp_path)
    (merged,) = tmp_path.glob("merged-*.parquet")
    assert pq.read_table(merged).column("value").to_pylist() == [f"{f}.{r}" for f in range(3) for r in range(10)]


def test_what_may_still_be_rewritten_is_left_alone(tmp_path: Path) -> None:
    lake(tmp_path, age=CLOCK.now() - 60)
    assert run(tmp_path) == Compaction(0, 0, 0)
    assert len(names(tmp_path)) == 7


def test_the_last_part_of_each_shard_may_be_failing_for_days_and_is_left_alone(tmp_path: Path) -> None:
    lake(tmp_path, files=3)
    for name in ("day=1", "day=2"):  # one part, in two folders
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"value": [f"{name} newer"]}), tmp_path / name / "shard.100-7.101.parquet")
        os.utime(tmp_path / name / "shard.100-7.101.parquet", (OLD + 9, OLD + 9))
    for number, start in enumerate(("TRIM_HORIZON-0", "5-0", "5-3")):
        pq.write_table(pa.table({"value": [f"other {number}"]}), tmp_path / f"other.shard.{start}.{number}.parquet")
        os.utime(tmp_path / f"other.shard.{start}.{number}.parquet", (OLD + number, OLD + number))
    before = contents(tmp_path)
    assert run(tmp_path).merged == 3 + 1 + 2
    assert contents(tmp_path) == before
    assert [name for name in names(tmp_path) if "merged" not in name] == [
        "day=1/shard.100-7.101.parquet",
        "day=2/shard.100-7.101.parquet",
        "other.shard.5-3.2.parquet",
    ]


def test_the_file_of_a_lease_that_was_written_last_is_left_alone(tmp_path: Path) -> None:
    """Version 0.1 numbered leases from 1. This one was made anew at an earlier place, and may be pinned to #2."""
    for age, name in enumerate(
        ("shard.20-0.2.parquet", "shard.10-0.1.parquet", "shard.5-0.3.parquet", "shard.100-0.7.parquet")
    ):
        pq.write_table(pa.table({"value": [name]}), tmp_path / name)
        os.utime(tmp_path / name, (OLD - age, OLD - age))
    before = contents(tmp_path)
    assert run(tmp_path).merged == 2
    assert contents(tmp_path) == before
    assert [name for name in names(tmp_path) if "merged" not in name] == [
        "shard.100-0.7.parquet",
        "shard.20-0.2.parquet",
    ]


@pytest.mark.parametrize("begins", ["TRIM_HORIZON-0", "0-5"])
def test_the_newest_part_is_left_alone_where_a_reset_made_it_begin_before_older_ones(
    tmp_path: Path, begins: str
) -> None:
    """Its worker may have died between the write and the commit, and whoever comes next writes it again."""
    lake(tmp_path, files=3)
    uncommitted = tmp_path / f"shard.{begins}.1763000000000.parquet"
    pq.write_table(pa.table({"value": ["again"]}), uncommitted)
    os.utime(uncommitted, (OLD, OLD))
    content = uncommitted.read_bytes()
    assert run(tmp_path).merged == 3
    uncommitted.write_bytes(content)
    assert contents(tmp_path)["again"] == 1


def test_files_are_merged_up_to_the_target(tmp_path: Path) -> None:
    lake(tmp_path)
    size = (tmp_path / "shard.0-0.1.parquet").stat().st_size
    done = run(tmp_path, target_bytes=round(size * 3.5))
    assert (done.merged, done.into) == (6, 2)
    assert contents(tmp_path).total() == 61


def test_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    lake(tmp_path)
    run(tmp_path)
    for path in tmp_path.rglob("*.parquet"):
        os.utime(path, (OLD, OLD))
    assert run(tmp_path) == Compaction(0, 0, 0)


def test_columns_that_were_added_later_are_null_before(tmp_path: Path) -> None:
    lake(tmp_path, files=1)
    pq.write_table(pa.table({"value": ["new"], "extra": [1]}), tmp_path / "later.1_0_0.parquet")
    os.utime(tmp_path / "later.1_0_0.parquet", (OLD, OLD + 50))
    run(tmp_path)
    (merged,) = tmp_path.glob("merged-*.parquet")
    assert pq.read_table(merged).column("extra").to_pylist() == [None] * 10 + [1]


@pytest.mark.audit("B6")
def test_files_from_before_and_after_a_change_of_type_are_merged_apart(tmp_path: Path) -> None:
    lake(tmp_path, files=3)
    for number in range(3):
        path = tmp_path / f"changed.{number}-0.{number + 1}.parquet"
        pq.write_table(pa.table({"value": [number], "extra": ["x"]}), path)
        os.utime(path, (OLD + number, OLD + number))
    pq.write_table(pa.table({"value": ["last"]}), tmp_path / "changed.99-0.9.parquet")
    os.utime(tmp_path / "changed.99-0.9.parquet", (OLD + 9, OLD + 9))
    assert run(tmp_path).merged == 6
    merged = [pq.read_table(path)["value"].to_pylist() for path in tmp_path.glob("merged-*.parquet")]
    assert sorted(merged, key=len) == [[0, 1, 2], [f"{f}.{r}" for f in range(3) for r in range(10)]]
    assert run(tmp_path) == Compaction(0, 0, 0)


@pytest.mark.audit("B6")
def test_a_file_that_cannot_be_read_does_not_end_every_compaction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake(tmp_path)
    (tmp_path / "broken.1_0_0.parquet").write_bytes(b"PAR1, and nothing else")
    os.utime(tmp_path / "broken.1_0_0.parquet", (OLD, OLD))
    assert run(tmp_path).merged == 6
    assert (tmp_path / "broken.1_0_0.parquet").exists()
    assert "broken.1_0_0.parquet is left alone" in caplog.text


@pytest.mark.audit("D4")
@pytest.mark.parametrize(
    "plan",
    [
        {"target": "merged-1.parquet", "sources": ["../precious.parquet"]},
        {"target": "merged-1.parquet", "sources": ["{outside}"]},
        {"target": "../lake/merged-1.parquet", "sources": ["shard.0-0.1.parquet"]},
        {"target": "merged-1.parquet", "sources": ["_drafts/x.parquet"]},
        {"target": "merged-1.parquet", "sources": ["a/shard.0-0.1.parquet"]},
        {"target": "shard.0-0.1.parquet", "sources": ["shard.1-0.2.parquet"]},
        {"target": 5},
    ],
)
def test_a_journal_that_names_anything_else_is_refused(tmp_path: Path, plan: dict[str, Any]) -> None:
    root, outside = tmp_path / "lake", tmp_path / "precious.parquet"
    lake(root)
    for path in (
        outside,
        root / "merged-1.parquet",
        root / "_drafts" / "x.parquet",
        root / "a" / "shard.0-0.1.parquet",
    ):
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"value": [path.name]}), path)
        os.utime(path, (CLOCK.now(), CLOCK.now()))
    journal = root / "_compaction" / "1.json"
    journal.parent.mkdir()
    journal.write_text(json.dumps(plan).replace("{outside}", str(outside)))
    before = names(tmp_path)
    with pytest.raises(Unsafe, match=r"_compaction/1\.json names other files"):
        run(root)
    assert [name for name in names(tmp_path) if LOCKS not in name] == before


def test_a_journal_that_reaches_out_through_a_link_deletes_nothing(tmp_path: Path) -> None:
    root, outside = tmp_path / "lake", tmp_path / "outside"
    lake(root)
    outside.mkdir()
    for name in ("merged-1.parquet", "precious.parquet"):
        (outside / name).write_bytes(b"x")
    (root / "link").symlink_to(outside)
    journal = root / "_compaction" / "1.json"
    journal.parent.mkdir()
    journal.write_text(json.dumps({"target": "link/merged-1.parquet", "sources": ["link/precious.parquet"]}))
    with pytest.raises(Unsafe, match="by a symbolic link"):
        run(root)
    assert names(outside) == ["merged-1.parquet", "precious.parquet"]


@pytest.mark.parametrize("settings", [{"target_bytes": 0}, {"min_age_seconds": -1.0}])
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="make no sense"):
        run(tmp_path, **settings)


class PowerCut(Exception):
    """The machine went away."""


class Failing:
    """A store that stops before its n-th change."""

    def __init__(self, root: str, changes: int) -> None:
        self._store = LocalStore(root)
        self._left = changes
        self.root = root

    def _step(self) -> None:
        if self._left == 0:
            raise PowerCut
        self._left -= 1

    def put(self, path: str, content: Any) -> None:
        self._step()
        self._store.put(path, content)

    def put_new(self, path: str, content: bytes) -> bool:
        self._step()
        return self._store.put_new(path, content)

    def get(self, path: str) -> bytes:
        return self._store.get(path)

    def found(self, path: str) -> StoredFile | None:
        return self._store.found(path)

    def unfinished(self, prefix: str = "") -> Iterator[StoredFile]:
        return self._store.unfinished(prefix)

    def files(self, prefix: str = "", *, hidden: bool = False) -> list[StoredFile]:
        return list(self._store.files(prefix, hidden=hidden))

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._step()
            self._store.delete([path])


def test_a_compaction_that_is_cut_off_anywhere_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for changes in range(30):
        root = tmp_path / str(changes)
        lake(root, files=4, folder="a")
        lake(root, files=4, folder="b")
        before = contents(root)
        with monkeypatch.context() as patched:
            patched.setattr(parquet_compaction, "open_store", lambda path, s3, n=changes: Failing(path, n))
            try:
                run(root)
                completed = True
            except PowerCut:
                completed = False
        # Readers may see the records of one merge twice for a while, and never miss any.
        seen = contents(root)
        assert set(seen) == set(before)
        assert max(seen.values()) <= 2
        CLOCK.advance(LOCK_SECONDS)
        run(root)
        assert contents(root) == before
        assert not any("_compaction" in name for name in names(root))
        if completed:
            return
    raise AssertionError("the compaction never ran through")


@dataclass(frozen=True)
class Slow(LocalStore):
    """Something happens while it is read."""

    meanwhile: list[Callable[[], object]] = field(default_factory=list)

    def get(self, path: str) -> bytes:
        content = super().get(path)
        if path.endswith(".parquet") and self.meanwhile:
            self.meanwhile.pop(0)()
        return content


def while_it_merges(monkeypatch: pytest.MonkeyPatch, root: Path, *meanwhile: Callable[[], object]) -> None:
    """Of the next compaction that is opened; the ones after it are as ever."""
    store = Slow(str(root), list(meanwhile))
    opened = [store]
    monkeypatch.setattr(
        parquet_compaction, "open_store", lambda *_: opened.pop() if opened else LocalStore(str(root))
    )


def test_of_two_compactions_at_once_the_second_one_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake(tmp_path)
    before = contents(tmp_path)

    def second() -> None:
        with pytest.raises(Unsafe, match="the second one has to wait: the first one works at"):
            run(tmp_path, by="the second one")

    while_it_merges(monkeypatch, tmp_path, second)
    assert run(tmp_path, by="the first one").merged == 6
    assert contents(tmp_path) == before


def test_a_compaction_that_takes_long_is_not_overtaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake(tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(parquet_compaction, "GETS_AT_ONCE", 1)  # each takes its time here, one after the other

    def later() -> None:
        with pytest.raises(Unsafe):
            run(tmp_path)
        CLOCK.advance(LOCK_SECONDS * 0.6)

    while_it_merges(monkeypatch, tmp_path, *[later] * 6)
    assert run(tmp_path).merged == 6
    assert contents(tmp_path) == before


def test_a_compaction_that_slept_and_was_followed_by_another_merges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake(tmp_path)
    before = contents(tmp_path)

    def sleeping() -> None:
        CLOCK.advance(LOCK_SECONDS)
        assert run(tmp_path).merged == 6

    while_it_merges(monkeypatch, tmp_path, *[lambda: None] * 5, sleeping)
    # A process that sleeps renews nothing. Its other threads would, after the clock has been advanced.
    monkeypatch.setattr(StoreLock, "renew", lambda lock: None)
    with pytest.raises(Unsafe, match="another one has taken over"):
        run(tmp_path)
    assert contents(tmp_path) == before
    run(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("computing", "storing"), [(290, 620), (890, 20), (950, 20)])
def test_a_compaction_does_not_begin_a_change_when_its_lock_is_about_to_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computing: float, storing: float
) -> None:
    """The process is paused while it computes a merge, and the request that stores the merged file is slow. Another
    compaction begins before this request ends."""
    lake(tmp_path)
    before, put, merged = contents(tmp_path), LocalStore.put, parquet_compaction._merged
    refusals = []

    def computed(sources: Any) -> Any:
        CLOCK.advance(computing)
        return merged(sources)

    def slow(store: LocalStore, path: str, content: memoryview | bytes) -> None:
        if path.startswith(MERGED):
            monkeypatch.undo()
            CLOCK.advance(storing)
            with pytest.raises(Unsafe) as caught:
                run(tmp_path, by="the other one")
            refusals.append(str(caught.value))
        put(store, path, content)

    monkeypatch.setattr(parquet_compaction, "_merged", computed)
    monkeypatch.setattr(LocalStore, "put", slow)
    assert run(tmp_path).merged == 6
    assert ["the other one has to wait" in refusal for refusal in refusals] == [True]
    assert contents(tmp_path) == before


def test_other_files_beside_the_journals_are_ignored(aws: Emulator) -> None:
    """The S3 console and copy tools create an empty object for a folder."""
    bucket = Bucket(aws, CLOCK)
    store = bucket.store
    for folder in ("", f"{LOCKS}/", "_compaction/", "_chains/", "_staged/", "_kcl_dagster_columns/", "day=1/"):
        aws.client("s3").put_object(Bucket=bucket.name, Key=f"lake/{folder}", Body=b"")
    store.put("_compaction/one.json~", b"{")
    for number in range(3):
        file = ParquetFile(pa.schema([("value", pa.string())]))
        file.write(pa.record_batch([[str(number)]], names=["value"]))
        name = file_name(chain_id("clicks", "worker-000", "1"), number, 0, 0)
        store.put(f"day=1/{name}", file.finish())
    # The objects have the time of the server.
    later = FakeClock(max(file.modified for file in store.files()) + 7200)
    assert compact(bucket.url, s3=bucket.options, runtime=Runtime(clock=later)).merged == 3
    store.put("_compaction/one.json", b"{")
    with pytest.raises(Unsafe, match=r"lake/_compaction/one\.json names other files"):
        compact(bucket.url, s3=bucket.options, runtime=Runtime(clock=later))


def test_a_journal_that_another_compaction_has_finished_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake(tmp_path)
    journal = tmp_path / "_compaction" / "one.json"
    journal.parent.mkdir()
    journal.write_text("{}")
    get = LocalStore.get

    def gone(store: LocalStore, path: str) -> bytes:
        journal.unlink(missing_ok=True)
        return get(store, path)

    monkeypatch.setattr(LocalStore, "get", gone)
    assert run(tmp_path).merged == 6


def test_a_compaction_that_loses_its_lock_after_its_journal_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake(tmp_path)
    before, put = contents(tmp_path), LocalStore.put

    def then_sleeps(store: LocalStore, path: str, content: memoryview | bytes) -> None:
        put(store, path, content)
        if path.startswith("_compaction/"):
            monkeypatch.setattr(LocalStore, "put", put)
            CLOCK.advance(LOCK_SECONDS)
            assert run(tmp_path).merged == 6

    monkeypatch.setattr(LocalStore, "put", then_sleeps)
    with pytest.raises(Unsafe, match="another one has taken over"):
        run(tmp_path)
    assert contents(tmp_path) == before


def test_a_publisher_of_a_chain_that_slept_finds_nothing_to_publish_again(tmp_path: Path) -> None:
    """On S3 a file may be copied to its final name and be staged still when its publisher pauses."""
    lake(tmp_path, files=0)
    chain, store = chain_id("clicks", "worker-000", "1"), LocalStore(str(tmp_path))
    entries = []
    for number in (1, 2):
        path = file_name(chain, number, 0, 0)
        pq.write_table(pa.table({"value": [f"record {number}"]}), tmp_path / path)
        os.utime(tmp_path / path, (OLD, OLD))
        store.put(staged_path(chain, path), (tmp_path / path).read_bytes())
        entries.append(PublishingEntry("attempt", (StagedFile(path, 1, 1),), ()))
    before = contents_without_staged(tmp_path)
    assert run(tmp_path).merged == 2
    for entry in entries:
        assert not publish(store, chain, entry)
    assert contents_without_staged(tmp_path) == before


def contents_without_staged(root: Path) -> Counter[str]:
    files = [str(path) for path in root.glob("*.parquet")]
    return Counter(ds.dataset(files).to_table().column("value").to_pylist())


def test_several_merges_are_at_work_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in "abc":
        lake(tmp_path, folder=folder)
    before = contents(tmp_path)
    together, put = threading.Barrier(3, timeout=30), LocalStore.put

    def meeting(store: LocalStore, path: str, content: memoryview | bytes) -> None:
        if MERGED in path:
            together.wait()  # raises if the others do not come
        put(store, path, content)

    monkeypatch.setattr(LocalStore, "put", meeting)
    assert run(tmp_path, merges_at_once=3).into == 3
    assert contents(tmp_path) == before


def test_a_store_that_fails_one_of_several_merges_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in range(20):
        lake(tmp_path, files=2, folder=f"{folder:02d}")
    before, put = contents(tmp_path), LocalStore.put

    def refusing(store: LocalStore, path: str, content: memoryview | bytes) -> None:
        if path.startswith("03/"):
            raise EndpointUnreachable("nothing answers")
        put(store, path, content)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put", refusing)
        with pytest.raises(EndpointUnreachable):
            run(tmp_path)
    merged = sum(MERGED in name for name in names(tmp_path))
    assert merged <= 5  # those before it, and those that were at work
    assert run(tmp_path).into == 20 - merged
    assert contents(tmp_path) == before


def test_a_compaction_that_is_interrupted_begins_no_further_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the end of its run: the signal arrives on the main thread, and none of the merges fails."""
    for folder in range(20):
        lake(tmp_path, files=2, folder=f"{folder:02d}")
    before, put, arrived = contents(tmp_path), LocalStore.put, threading.Event()

    def interrupt(*_: object) -> None:
        arrived.set()
        raise KeyboardInterrupt

    def interrupted(store: LocalStore, path: str, content: memoryview | bytes) -> None:
        if MERGED in path and not arrived.is_set():
            signal.pthread_kill(int(threading.main_thread().ident or 0), signal.SIGINT)
            assert arrived.wait(30)
        put(store, path, content)

    former = signal.signal(signal.SIGINT, interrupt)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(LocalStore, "put", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run(tmp_path)
    finally:
        signal.signal(signal.SIGINT, former)
    merged = sum(MERGED in name for name in names(tmp_path))
    assert merged <= 5  # those that were at work, or about to be
    assert run(tmp_path).into == 20 - merged
    assert contents(tmp_path) == before


def test_a_compaction_leaves_the_rest_to_the_next_one_after_some_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in "abc":
        lake(tmp_path, files=2, folder=folder)
    before = contents(tmp_path)
    while_it_merges(monkeypatch, tmp_path, lambda: CLOCK.advance(parquet_compaction.MOST_SECONDS))
    assert run(tmp_path, merges_at_once=1).merged == 2
    assert run(tmp_path).merged == 4
    assert contents(tmp_path) == before


def test_work_of_a_merge_does_not_grow_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, files = [], LocalStore.files

    def counting(store: LocalStore, prefix: str = "", *, hidden: bool = False) -> Iterator[StoredFile]:
        for file in files(store, prefix, hidden=hidden):
            listed.append(file.path)
            yield file

    monkeypatch.setattr(LocalStore, "files", counting)
    beside = []
    for files_of_folder in (8, 80):
        root = tmp_path / str(files_of_folder)
        lake(root, files=files_of_folder + 1)  # the last one is left alone
        size = next(file.bytes for file in LocalStore(str(root)).files())
        listed.clear()
        assert run(root, target_bytes=int(size * 2.5)).into == files_of_folder // 2
        beside.append(sum(path.endswith(".parquet") for path in listed) - files_of_folder)
    assert beside[0] == beside[1]


def test_files_are_read_several_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake(tmp_path)
    together, read = threading.Barrier(3, timeout=30), LocalStore.get

    def meeting(store: LocalStore, path: str) -> bytes:
        if path.endswith(".parquet"):
            together.wait()  # raises if the others do not come
        return read(store, path)

    monkeypatch.setattr(LocalStore, "get", meeting)
    assert run(tmp_path).merged == 6


def test_drafts_of_workers_at_work_are_left_alone(tmp_path: Path) -> None:
    lake(tmp_path)
    store = LocalStore(str(tmp_path))
    store.put(f"{DRAFTS}/fresh.draft", b"x")
    age = CLOCK.now() - 60
    os.utime(tmp_path / DRAFTS / "fresh.draft", (age, age))
    run(tmp_path)
    assert [file.path for file in store.files(f"{DRAFTS}/", hidden=True)] == [f"{DRAFTS}/fresh.draft"]


def test_sources_that_s3_does_not_delete_are_not_forgotten(aws: Emulator) -> None:
    bucket, kept = Bucket(aws), "shard.1-0.2.parquet"
    for number in range(4):
        content = io.BytesIO()
        pq.write_table(pa.table({"value": [number]}), content)
        bucket.store.put(f"shard.{number}-0.{number + 1}.parquet", content.getvalue())

    def again() -> Compaction:
        bucket.clock.advance(7200)
        return compact(bucket.url, s3=bucket.options, runtime=Runtime(clock=bucket.clock))

    bucket.keep(kept)
    for _ in range(2):
        (failed,) = again().failed
        assert "lack s3:DeleteObject" in failed
        assert kept in failed
    bucket.let_go()
    assert again().finished == 1
    files = [file.path for file in bucket.store.files()]
    tables = [pq.read_table(io.BytesIO(bucket.store.get(path))) for path in files]
    assert sorted(pa.concat_tables(tables)["value"].to_pylist()) == [0, 1, 2, 3]


def test_readers_do_not_see_drafts_and_journals(tmp_path: Path) -> None:
    lake(tmp_path)
    (tmp_path / "_compaction").mkdir()
    (tmp_path / "_compaction" / "x.json").write_text(
        '{"target": "merged-gone.parquet", "sources": ["shard.0-0.1.parquet"]}'
    )
    (tmp_path / ".draft.parquet").write_text("half a file")
    assert run(tmp_path).merged == 6
    (tmp_path / ".draft.parquet").unlink()
    assert contents(tmp_path).total() == 61


def write(path: Path, rows: pa.Table, age: float = OLD) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)
    os.utime(path, (age, age))


def chained(root: Path, files: int = 4, folder: str = "") -> None:
    """Files as chains name them."""
    for number in range(files):
        write(root / folder / f"clicks-0.w-1.{number}_0_0.parquet", pa.table({"value": [f"{folder}{number}"]}))


@pytest.mark.parametrize(
    "name",
    [
        "part-00000-3b3ea9a0-9a06-4b3c-9b63-7f1fbe6e8d5c-c000.snappy.parquet",
        "part-00000-3b3ea9a0-9a06-4b3c-9b63-7f1fbe6e8d5c.c000.snappy.parquet",
        "export.parquet",
        "2026-11-23.parquet",
        "part-0.parquet",
        "merged.parquet",
        "clicks-0.w-1.0_0_0~0a1b2c3d.parquet",
    ],
)
def test_files_of_other_programs_are_left_alone(tmp_path: Path, name: str) -> None:
    chained(tmp_path)
    for folder in (tmp_path, tmp_path / "day=1", tmp_path / "day=2"):
        write(folder / name, pa.table({"value": ["theirs"]}))
        write(folder / name.replace("0", "1"), pa.table({"value": ["theirs"]}))
    before = contents(tmp_path)
    theirs = sorted(path for path in names(tmp_path) if not re.fullmatch(r"clicks-0\.w-1\.\d_0_0\.parquet", path))
    assert run(tmp_path).merged == 4
    assert contents(tmp_path) == before
    assert sorted(path for path in names(tmp_path) if "merged-" not in path) == theirs


@pytest.mark.parametrize(
    "mark",
    [
        "_delta_log/00000000000000000000.json",
        "metadata/00000-1.metadata.json",
        "_spark_metadata/0",
        "_chains/clicks-0~w-1/000000000001.json",
        "_staged/clicks-0~w-1/clicks-0.w-1.7_0_0.parquet",
        "_compaction_turns/000000000001.json",
        "_kcl_dagster_layouts/flat",
    ],
)
def test_folders_of_others_below_the_path_are_left_alone(tmp_path: Path, mark: str) -> None:
    chained(tmp_path, folder="day=1")
    chained(tmp_path, folder="theirs")
    chained(tmp_path, folder="theirs/day=1")
    (tmp_path / "theirs" / mark).parent.mkdir(parents=True)
    (tmp_path / "theirs" / mark).write_bytes(b"{}")
    theirs = names(tmp_path / "theirs")
    assert run(tmp_path).merged == 4
    assert names(tmp_path / "theirs") == theirs


@pytest.mark.parametrize("mark", ["_delta_log/00000000000000000000.json", "metadata/00000-1.metadata.json"])
def test_a_table_is_not_compacted_as_a_folder(tmp_path: Path, mark: str) -> None:
    chained(tmp_path)
    (tmp_path / mark).parent.mkdir()
    (tmp_path / mark).write_bytes(b"{}")
    before = names(tmp_path)
    with pytest.raises(ConfigurationError, match="is a Delta or Iceberg table, and no folder of Parquet"):
        run(tmp_path)
    assert names(tmp_path) == before


@pytest.mark.parametrize("application", ["", "clicks_replay_2026-11-23-10_00~0f0f0f0f."])
def test_parts_of_former_replays_keep_their_names(tmp_path: Path, application: str) -> None:
    """By which a replay that is repeated recognises what it has stored."""

    def replay() -> None:
        for number in range(1, 5):
            name = f"{application}2026-11-23-10-00.shardId-000000000000.{number}00-0.{number}.parquet"
            write(tmp_path / name, pa.table({"value": [f"{number}"]}))

    replay()
    assert run(tmp_path) == Compaction(0, 0, 0)
    replay()
    assert max(contents(tmp_path).values()) == 1


def test_columns_that_allow_nulls_and_columns_that_do_not_are_merged(tmp_path: Path) -> None:
    """Spark's literals are columns without nulls: the consumer's code got one later."""
    strict = pa.schema([pa.field("value", pa.string()), pa.field("version", pa.int32(), nullable=False)])
    write(tmp_path / "day=1" / "a-0.w.1_0_0.parquet", pa.table({"value": ["1"]}))
    write(tmp_path / "day=1" / "a-0.w.2_0_0.parquet", pa.table({"value": ["2"], "version": [2]}, strict), OLD + 1)
    chained(tmp_path, folder="day=2")
    done = run(tmp_path)
    assert (done.merged, done.into, done.failed) == (6, 2, ())
    (merged,) = (tmp_path / "day=1").glob("*.parquet")
    assert pq.ParquetFile(merged).read().to_pydict() == {"value": ["1", "2"], "version": [None, 2]}


@dataclass(frozen=True)
class Unreadable(LocalStore):
    """Some files cannot be read, as where a rule of the bucket has archived them, or S3 denies it."""

    error: Exception = field(default_factory=lambda: OSError("archived"))

    def get(self, path: str) -> bytes:
        if path.startswith("day=1/"):
            raise self.error
        return super().get(path)


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (RequestRefused("the object is archived", "InvalidObjectState", {}), 3),
        (AccessDenied("no right to use the key"), 3),
        (OSError("input/output error"), 3),
        (FileNotFoundError("deleted by a rule"), 0),
        (RequestRefused("deleted by a rule", "NoSuchKey", {}), 0),
    ],
)
def test_files_that_cannot_be_read_do_not_keep_others_from_being_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, failed: int
) -> None:
    chained(tmp_path, 3, "day=1")
    chained(tmp_path, 3, "day=2")
    monkeypatch.setattr(parquet_compaction, "open_store", lambda *_: Unreadable(str(tmp_path), error=error))
    done = run(tmp_path)
    assert done.merged == 3
    assert len(done.failed) == failed
    assert all("day=1/clicks" in one and str(error) in one for one in done.failed)


def test_pages_that_cannot_be_read_keep_one_file_from_being_merged(tmp_path: Path) -> None:
    """Its footer can be read."""
    chained(tmp_path)
    broken = tmp_path / "clicks-0.w-1.2_0_0.parquet"
    content = bytearray(broken.read_bytes())
    content[4:24] = b"\xff" * 20
    broken.write_bytes(content)
    os.utime(broken, (OLD, OLD))
    done = run(tmp_path)
    assert (done.merged, len(done.failed)) == (3, 1)
    assert broken.exists()
    assert contents_of_merged(tmp_path) == ["0", "1", "3"]


def contents_of_merged(root: Path) -> list[str]:
    (merged,) = root.glob("merged-*.parquet")
    values: list[str] = pq.ParquetFile(merged).read()["value"].to_pylist()
    return values


def test_a_store_that_answers_nothing_ends_the_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chained(tmp_path, 3, "day=1")
    silent = Unreadable(str(tmp_path), error=Unanswered("nothing came back"))
    monkeypatch.setattr(parquet_compaction, "open_store", lambda *_: silent)
    with pytest.raises(Unanswered):
        run(tmp_path)


def test_columns_that_differ_in_case_only_are_never_in_one_file(tmp_path: Path) -> None:
    """Spark refuses to read such a file."""
    for number, name in enumerate(["Page", "page", "Page", "page"]):
        write(tmp_path / f"clicks-0.w-1.{number}_0_0.parquet", pa.table({name: ["x"]}), OLD + number)
    assert run(tmp_path).merged == 4
    assert sorted(pq.ParquetFile(path).schema_arrow.names for path in tmp_path.glob("*.parquet")) == [
        ["Page"],
        ["page"],
    ]


def test_what_writers_say_of_their_own_file_is_not_said_of_the_merged_one(tmp_path: Path) -> None:
    """Spark takes the columns of a file from there."""
    for number, more in enumerate([{}, {"extra": [1]}]):
        said = {b"org.apache.spark.sql.parquet.row.metadata": b"{}"}
        rows = pa.table({"value": ["x"], **more}).replace_schema_metadata(said)
        write(tmp_path / f"clicks-0.w-1.{number}_0_0.parquet", rows)
    assert run(tmp_path).merged == 2
    (merged,) = tmp_path.glob("*.parquet")
    assert b"org.apache.spark.sql.parquet.row.metadata" not in pq.ParquetFile(merged).metadata.metadata


@pytest.mark.parametrize("what", ["deleted", "rewritten"])
def test_what_is_deleted_or_redacted_meanwhile_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    chained(tmp_path, 3, "day=1")
    chained(tmp_path, 3, "day=2")

    def redact() -> None:
        path = tmp_path / "day=1" / "clicks-0.w-1.0_0_0.parquet"
        if what == "deleted":
            path.unlink()
        else:
            write(path, pa.table({"value": [""]}), OLD + 1)

    while_it_merges(monkeypatch, tmp_path, lambda: None, lambda: None, redact)
    monkeypatch.setattr(parquet_compaction, "GETS_AT_ONCE", 1)
    assert run(tmp_path).merged == 3
    assert "day=10" not in contents(tmp_path)
    assert contents(tmp_path)["day=11"] == 1


def test_records_keep_their_order_over_several_compactions(tmp_path: Path) -> None:
    for number in range(6):
        write(tmp_path / f"clicks-0.w-1.{number}_0_0.parquet", pa.table({"value": [f"{number}"]}), OLD + number)
        if number == 2:
            run(tmp_path)
    (merged,) = tmp_path.glob("merged-*.parquet")
    os.utime(merged, (OLD + 1000, OLD + 1000))  # it is newer than what was written since
    run(tmp_path)
    assert contents_of_merged(tmp_path) == ["0", "1", "2", "3", "4", "5"]


def test_the_files_of_a_batch_are_merged_in_the_order_of_their_names(tmp_path: Path) -> None:
    """The tasks of a batch do not end in their order."""
    chain = chain_id("clicks", "worker-000", "1")
    ages = iter((3.0, 1.0, 2.0, 4.5, 6.0, 5.0))
    for batch in (7, 10**12):
        for task in (0, 1, 10):
            name = file_name(chain, batch, task, 0, attempt=1000 - task)
            write(tmp_path / name, pa.table({"value": [f"{batch} {task}"]}), OLD + next(ages))
    run(tmp_path)
    assert contents_of_merged(tmp_path) == [f"{batch} {task}" for batch in (7, 10**12) for task in (0, 1, 10)]


def test_the_files_of_a_batch_are_in_one_group() -> None:
    """S3 publishes the files of a batch concurrently, so their times do not have the order of their names."""
    chain = chain_id("clicks", "worker-000", "1")
    sizes = {(1, 0): 40, (2, 0): 20, (2, 1): 40, (2, 2): 20, (3, 0): 45, (3, 1): 45, (3, 2): 45}
    files = [
        StoredFile(file_name(chain, batch, task, 0), size, OLD + 10 * batch - task)
        for (batch, task), size in sizes.items()
    ]
    found = [
        [(file.path.split(".")[2][:8], file.bytes) for file in group] for group in groups(files, 100, OLD + 99)
    ]
    assert found == [
        [("2_000000", 20), ("2_000001", 40), ("2_000002", 20)],
        [("3_000000", 45), ("3_000001", 45), ("3_000002", 45)],
    ]


def test_without_the_right_to_delete_no_merged_file_is_shown(aws: Emulator) -> None:
    """Its sources would remain, and readers would find all records twice."""
    bucket = Bucket(aws)
    for number in range(4):
        content = io.BytesIO()
        pq.write_table(pa.table({"value": [number]}), content)
        bucket.store.put(f"shard.{number}-0.{number + 1}.parquet", content.getvalue())
    bucket.keep("*.parquet")
    bucket.clock.advance(7200)
    with pytest.raises(AccessDenied):
        compact(bucket.url, s3=bucket.options, runtime=Runtime(clock=bucket.clock))
    assert len(list(bucket.store.files())) == 4


def test_what_is_compressed_well_is_merged_some_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        rows = pa.table({"value": ["x" * 100] * 20_000})
        write(tmp_path / f"clicks-0.w-1.{number}_0_0.parquet", rows)
    monkeypatch.setattr(parquet_compaction, "ROWS_AT_ONCE", 1000)
    monkeypatch.setattr("kcl_dagster.spark.parquet_file.ROW_GROUP_BYTES", 400_000)
    before = pa.total_allocated_bytes()
    most = [0]
    written = ParquetFile.write

    def write_rows(file: Any, batch: pa.RecordBatch) -> None:
        written(file, batch)
        most[0] = max(most[0], pa.total_allocated_bytes() - before)

    monkeypatch.setattr(ParquetFile, "write", write_rows)
    assert run(tmp_path).merged == 3
    assert 0 < most[0] < 3_000_000  # of six, and what pyarrow reads ahead
    (merged,) = tmp_path.glob("*.parquet")
    assert pq.ParquetFile(merged).metadata.num_rows == 60_000
