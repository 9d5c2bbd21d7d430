"""The production test's own parts: what it measures, what it deploys, and how runs are launched."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from kcl_dagster.orchestration import processes
from tests.production import releases
from tests.production.arrivals import Arrivals, Silence
from tests.production.launcher import DETACHED, TAG, ProcessRunLauncher

CONSTANTS: dict[str, str | float] = {
    "APPLICATION": "some-app",
    "STREAM": "some-stream",
    "RELEASE": 7,
    "LEASE_SECONDS": 12.5,
}


def test_the_longest_gap_of_any_shard_counts() -> None:
    silence = Silence()
    for now, shards in [(0.0, "ab"), (1.0, "a"), (2.0, "ab"), (9.0, "a"), (10.0, "b")]:
        silence.stored(shards, now)
    assert silence.longest(0.0, 10.0) == 8.0


def test_a_gap_counts_for_the_phase_in_which_most_of_it_lies() -> None:
    silence = Silence()
    for now in (0.0, 4.0, 10.0, 11.0):
        silence.stored("a", now)
    assert [silence.longest(*phase) for phase in ((0.0, 3.0), (3.0, 6.0), (6.0, 11.0))] == [4, 0, 6]


def test_a_shard_of_which_nothing_is_stored_any_more_is_silent_up_to_the_end() -> None:
    silence = Silence()
    silence.stored("ab", 0.0)
    silence.stored("a", 1.0)
    assert silence.longest(0.0, 50.0) == 50.0


def test_a_file_is_seen_once_with_its_shards_and_its_release(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path)
    rows = pa.table({"shard_id": ["a", "b", "b"], "release": [1, 1, 2]})
    parquet.write_table(rows, tmp_path / "one.parquet")
    parquet.write_table(rows, tmp_path / "_staged.parquet")
    arrivals._look()
    arrivals._look()
    assert arrivals.rows() == 3
    assert arrivals.releases() == {"a": 1, "b": 2}
    assert arrivals.stored_since(0.0, shards=2)
    assert not arrivals.stored_since(0.0, shards=3)


def test_a_release_is_the_consumer_with_other_constants(tmp_path: Path) -> None:
    folder = releases.write(tmp_path / "code", **CONSTANTS)
    text = (folder / "consumer.py").read_text()
    assert [f"{name} = {value!r}" in text.splitlines() for name, value in CONSTANTS.items()] == [True] * 4
    assert list(folder.iterdir()) == [folder / "consumer.py"]


def test_a_constant_that_the_consumer_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="NO_SUCH"):
        releases.write(tmp_path, NO_SUCH=1)


def test_a_run_is_the_child_of_no_process_of_dagster(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
    done = subprocess.run(["sh", "-c", DETACHED, str(log), *command], stdout=subprocess.PIPE, text=True, check=True)
    process = processes.find(int(done.stdout))
    assert process is not None
    ours = processes.descendants(processes.current().pid, processes.snapshot())
    try:
        assert process.pid not in ours
        launcher = ProcessRunLauncher(str(tmp_path))
        run: Any = SimpleNamespace(tags={TAG: process.identity})
        assert launcher.check_run_worker_health(run).status.value == "RUNNING"
    finally:
        process.send(9)
        deadline = time.monotonic() + 30
        while process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert launcher.check_run_worker_health(run).status.value == "NOT_FOUND"
