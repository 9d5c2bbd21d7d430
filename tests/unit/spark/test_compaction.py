"""Compaction: the same records in fewer files, wherever it is cut off."""

import io
import json
import os
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

from kcl_dagster.chains.entry import PublishingEntry, StagedFile
from kcl_dagster.chains.publication import chain_id, file_name, publish, staged_path
from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import AccessDenied, ConfigurationError, Unsafe
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks import compaction
from kcl_dagster.spark.sinks.compaction import DRAFTS, TURNS, Compaction, compact
from kcl_dagster.spark.storage import LocalStore, StoredFile
from kcl_dagster.spark.turn import TURN_SECONDS
from tests.doubles.clock import FakeClock
from tests.unit.spark.buckets import Bucket

CLOCK = FakeClock()
LAST = "shard.99-0.7.parquet"
OLD = CLOCK.now() - 7200


def lake(root: Path, files: int = 6, folder: str = "", rows: int = 10, age: float = OLD) -> None:
    """Small files as the sink leaves them, and the last of their shard beside the folders."""
    root.mkdir(exist_ok=True)
    pq.write_table(pa.table({"value": ["last"]}), root / LAST)
    os.utime(root / LAST, (age, age))
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
    return compact(str(root), runtime=Runtime(clock=CLOCK), **more)


def names(root: Path) -> list[str]:
    """Of all files but the one that says whose turn it was."""
    found = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.startswith(TURNS))


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
        os.utime(tmp_path / name / "shard.100-7.101.parquet", (OLD, OLD))
    for number, start in enumerate(("TRIM_HORIZON-0", "5-0", "5-3")):
        pq.write_table(pa.table({"value": [f"other {number}"]}), tmp_path / f"other.shard.{start}.{number}.parquet")
        os.utime(tmp_path / f"other.shard.{start}.{number}.parquet", (OLD, OLD))
    before = contents(tmp_path)
    assert run(tmp_path).merged == 3 + 1 + 2
    assert contents(tmp_path) == before
    assert [name for name in names(tmp_path) if "merged" not in name] == [
        "day=1/shard.100-7.101.parquet",
        "day=2/shard.100-7.101.parquet",
        "other.shard.5-3.2.parquet",
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
    pq.write_table(pa.table({"value": ["new"], "extra": [1]}), tmp_path / "later.parquet")
    os.utime(tmp_path / "later.parquet", (OLD, OLD + 50))
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
    assert run(tmp_path).merged == 6
    merged = [pq.read_table(path)["value"].to_pylist() for path in tmp_path.glob("merged-*.parquet")]
    assert sorted(merged, key=len) == [[0, 1, 2], [f"{f}.{r}" for f in range(3) for r in range(10)]]
    assert run(tmp_path) == Compaction(0, 0, 0)


@pytest.mark.audit("B6")
def test_a_file_that_cannot_be_read_does_not_end_every_compaction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake(tmp_path)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1, and nothing else")
    os.utime(tmp_path / "broken.parquet", (OLD, OLD))
    assert run(tmp_path).merged == 6
    assert (tmp_path / "broken.parquet").exists()
    assert "broken.parquet is left alone" in caplog.text


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
    assert [name for name in names(tmp_path) if TURNS not in name] == before


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
            patched.setattr(compaction, "open_store", lambda path, s3, n=changes: Failing(path, n))
            try:
                run(root)
                completed = True
            except PowerCut:
                completed = False
        # Readers may see the records of one merge twice for a while, and never miss any.
        seen = contents(root)
        assert set(seen) == set(before)
        assert max(seen.values()) <= 2
        CLOCK.advance(TURN_SECONDS)
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
    monkeypatch.setattr(compaction, "open_store", lambda *_: opened.pop() if opened else LocalStore(str(root)))


def test_of_two_compactions_at_once_the_second_one_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake(tmp_path)
    before = contents(tmp_path)

    def second() -> None:
        with pytest.raises(Unsafe, match="the second one has to wait: the first one is at work"):
            run(tmp_path, by="the second one")

    while_it_merges(monkeypatch, tmp_path, second)
    assert run(tmp_path, by="the first one").merged == 6
    assert contents(tmp_path) == before


def test_a_compaction_that_takes_long_is_not_overtaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake(tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(compaction, "GETS_AT_ONCE", 1)  # each takes its time here, one after the other

    def later() -> None:
        with pytest.raises(Unsafe):
            run(tmp_path)
        CLOCK.advance(TURN_SECONDS * 0.6)

    while_it_merges(monkeypatch, tmp_path, *[later] * 6)
    assert run(tmp_path).merged == 6
    assert contents(tmp_path) == before


def test_a_compaction_that_slept_and_was_followed_by_another_merges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake(tmp_path)
    before = contents(tmp_path)

    def sleeping() -> None:
        CLOCK.advance(TURN_SECONDS)
        assert run(tmp_path).merged == 6

    while_it_merges(monkeypatch, tmp_path, *[lambda: None] * 5, sleeping)
    with pytest.raises(Unsafe, match="another one has taken over"):
        run(tmp_path)
    assert contents(tmp_path) == before
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
        with pytest.raises(AccessDenied, match=kept):
            again()
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
