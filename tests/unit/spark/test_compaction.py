"""Compaction: the same records in fewer files, wherever it is cut off."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks import compaction
from kcl_dagster.spark.sinks.compaction import Compaction, compact
from kcl_dagster.spark.storage import LocalStore, StoredFile
from kcl_dagster.testing.clock import FakeClock

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
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


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

    def get(self, path: str) -> bytes:
        return self._store.get(path)

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
        run(root)
        assert contents(root) == before
        assert not any("_compaction" in name for name in names(root))
        if completed:
            return
    raise AssertionError("the compaction never ran through")


def test_readers_do_not_see_drafts_and_journals(tmp_path: Path) -> None:
    lake(tmp_path)
    (tmp_path / "_compaction").mkdir()
    (tmp_path / "_compaction" / "x.json").write_text(
        '{"target": "gone.parquet", "sources": ["shard.0-0.1.parquet"]}'
    )
    (tmp_path / ".draft.parquet").write_text("half a file")
    assert run(tmp_path).merged == 6
    (tmp_path / ".draft.parquet").unlink()
    assert contents(tmp_path).total() == 61
