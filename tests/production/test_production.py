"""The production test's own parts: what it measures, what it deploys, and how runs are launched."""

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.orchestration import processes
from tests.production import accounts, former, releases
from tests.production.arrivals import Arrivals, Silence
from tests.production.launcher import ProcessRunLauncher
from tests.production.mixed_fleet import MixedFleet
from tests.production.run_host import RunHost

CONSTANTS: dict[str, Any] = {
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


def test_the_version_before_gets_no_argument_that_it_does_not_know(tmp_path: Path) -> None:
    former, present = (
        (releases.write(tmp_path / str(is_former), is_former=is_former) / "consumer.py").read_text().splitlines()
        for is_former in (True, False)
    )
    assert [line.split("=")[0].strip() for line in present if line not in former] == ["compaction"]
    assert set(former) < set(present)


@pytest.mark.skipif(former.why_impossible() is not None, reason="the history of the repository is not here")
def test_the_version_before_has_its_own_code_and_the_present_libraries(tmp_path: Path) -> None:
    version = former.install(tmp_path / "former")
    found = subprocess.run(
        [version.python, "-c", "import dagster, kcl_dagster; print(kcl_dagster.__file__, dagster.__file__)"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": ""},
    )
    own, shared = map(Path, found.stdout.split())
    assert own.is_relative_to(tmp_path / "former" / "environment")
    assert shared == Path(dagster.__file__)


def test_a_run_is_started_asked_for_and_stopped_by_the_host(tmp_path: Path) -> None:
    job: Any = SimpleNamespace(run_id="one", is_finished=False)
    launcher = ProcessRunLauncher(str(tmp_path / "runs.sock"))
    instance: Any = type("Instance", (), {})()
    instance.get_run_by_id, instance.report_run_canceling = lambda _: job, lambda _: None
    launcher.register_instance(instance)

    def status() -> str:
        return launcher.check_run_worker_health(job).status.value

    with RunHost(tmp_path / "runs.sock", tmp_path, {}):
        assert status() == "NOT_FOUND"
        assert not launcher.terminate("one")
        launcher._ask("start", "one", command=["sh", "-c", "echo $DAGSTER_RUN_JOB_NAME; sleep 60"], job="some_job")
        assert status() == "RUNNING"
        log = tmp_path / "run-one.log"
        _wait(lambda: log.read_text() == "some_job\n")
        assert launcher.terminate("one")
        _wait(lambda: status() == "NOT_FOUND")


@pytest.mark.skipif(accounts.why_impossible() is not None, reason="it takes root, and mount namespaces")
def test_users_see_the_code_and_their_own_files_and_share_no_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    dagster_home = tmp_path / "dagster"
    dagster_home.mkdir()
    (dagster_home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    made = accounts.make(tmp_path, dagster_home)
    made.share(dagster_home)

    def shell(account: accounts.Account, script: str) -> str:
        done = subprocess.run(account.entered(["sh", "-c", script]), capture_output=True, text=True)
        return done.stdout + done.stderr

    for account in made.all():
        assert shell(account, "whoami; id -u; umask; cd; pwd; ls /tmp | grep -v pytest") == (
            f"{account.name}\n{account.id}\n0077\n{account.folder}\n"
        )
        assert shell(account, f"touch /tmp/mine {dagster_home}/mine && cat {dagster_home}/dagster.yaml") == (
            "telemetry: {enabled: false}\n"
        )
        assert "cannot touch" in shell(account, f"touch {accounts.ROOT}/mine")
        assert "cannot touch" in shell(account, f"touch {tmp_path}/mine")
    assert "Permission denied" in shell(made.leader, f"ls {made.worker.folder}")
    assert not Path("/tmp/mine").exists()
    assert sorted(path.name for path in dagster_home.iterdir()) == ["dagster.yaml"]


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


OLD, NEW = WorkerId("worker-000:former"), WorkerId("worker-001:present")


def _mixed(victims: list[bool]) -> MixedFleet:
    """Two leases, of which each version owns one. Its processes live."""
    ours = processes.current()
    workers = {"worker-000": replace(ours, arguments=("former-python",)), "worker-001": ours}
    arrivals = SimpleNamespace(releases=lambda: {"a": 0, "b": 1})
    deployed: Any = SimpleNamespace(workers=workers, arrivals=arrivals, kill=lambda slot: slot)
    deployed.owners = lambda: {lease.actual_owner for lease in deployed.leases.values()}
    deployed.leases = {LeaseKey(key): Lease(LeaseKey(key), key, owner=OLD) for key in "ab"}
    mixed = MixedFleet(deployed, "former-python", victims)
    mixed.begin()
    deployed.leases[LeaseKey("b")] = Lease(LeaseKey("b"), "b", owner=NEW)
    return mixed


def test_a_lease_that_goes_back_to_the_version_before_is_a_problem() -> None:
    mixed = _mixed([])
    assert list(mixed.step()) == mixed.problems == []
    mixed.deployed.leases[LeaseKey("b")] = Lease(LeaseKey("b"), "b", owner=OLD)
    assert list(mixed.step()) == []
    assert mixed.problems == [f"b went back to {OLD}, of the version before"]


def test_victims_are_killed_one_after_the_other_while_both_versions_store() -> None:
    mixed = _mixed([False, True])
    killed = [line for _ in range(3) for line in mixed.step()]
    assert killed == ["a new worker: worker-001", "a former worker: worker-000"]
    assert not mixed.is_over()
    del mixed.deployed.workers["worker-000"]
    assert mixed.is_over()
