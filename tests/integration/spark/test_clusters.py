"""The engine and the sinks on clusters whose executors die: readers find what was produced, each record once."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest

from kcl_dagster.emulator import Limits
from kcl_dagster.emulator.embedded import Emulator
from tests.integration.spark.ports import free_port

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(2000)]

PROGRAMS = "tests.integration.spark"
ROOT = Path(__file__).parents[3]
READY_SECONDS = 300.0
RUN_SECONDS = 1500  # on a busy machine; a minute otherwise


def run(master: str, folder: Path, sinks: str, *rounds: str) -> dict[str, Any]:
    """`folder`: of the test; the driver is started in a folder that no executor is started in."""
    verdict = run_program(folder, "cluster_run", master, sinks, *rounds)
    check(verdict, sinks)
    return verdict


def run_program(folder: Path, name: str, master: str, *arguments: str) -> dict[str, Any]:
    own = folder / "driver"
    own.mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with Emulator(limits=Limits.none()) as aws:
        program = [sys.executable, "-m", f"{PROGRAMS}.{name}", master, aws.endpoint_url, str(folder / "lake")]
        answer = subprocess.run(
            [*program, *arguments], capture_output=True, text=True, timeout=RUN_SECONDS, cwd=own, env=environment
        )
    assert answer.returncode == 0, answer.stderr[-4000:]
    verdict: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return verdict


def check(verdict: dict[str, Any], sinks: str) -> None:
    """What readers find is what was produced, each record once, with the values of the transform where it ran."""
    assert ",".join(verdict["sinks"]) == sinks
    for found in verdict["sinks"].values():
        assert found["produced"] > 0
        assert found["counted"] == found["stored"] == found["distinct"] == found["produced"], verdict
        assert found["changed"] == found["changed rows"] == found["chances"], verdict
        assert found["left behind"] == []
        assert "does not see what executors on" in found["unshared"]
        assert "Give the sink s3://bucket/prefix" in found["unshared"]


def retries(verdict: dict[str, Any]) -> list[int]:
    return [found["retries"] for found in verdict["sinks"].values()]


# For each way to write, the kill that loses most: every copy of what was read, or a half-written file.
SHORT = ("before-write", "staged-none", "staged-write")
ALL = (
    *("fetch", "before-write", "write", "staged-none", "staged-fetch", "staged-before-write", "staged-write"),
    *("changed-fetch", "changed-before-write", "changed-write"),
)
OF_TABLES = ("fetch", "before-write", "write", "changed-fetch", "changed-before-write", "changed-write")


@pytest.mark.parametrize(
    ("sinks", "when"),
    [
        pytest.param("parquet", SHORT, marks=pytest.mark.nightly, id="worst"),
        pytest.param("parquet", ALL, marks=pytest.mark.nightly, id="all"),
        pytest.param("delta,iceberg", OF_TABLES, marks=pytest.mark.nightly, id="tables"),
    ],
)
def test_executors_may_die_at_any_moment_of_a_batch(tmp_path: Path, sinks: str, when: tuple[str, ...]) -> None:
    verdict = run("local-cluster[2,1,1024]", tmp_path, sinks, "none", *when)
    # Losing the only copy of a batch is what makes it necessary to read it again.
    assert min(retries(verdict)) >= 1


@pytest.mark.nightly
@pytest.mark.parametrize("session", ["ours", "another"])
def test_a_transform_may_move_records_by_chance(tmp_path: Path, session: str) -> None:
    """Spark evaluates what was lost of a shuffle again, and differently. Results of both must not be in one batch:
    it is void, and nothing but Spark is to blame."""
    verdict = run_program(tmp_path, "random_shuffle_run", "local-cluster[3,1,1024]", session)
    assert verdict["killed"]
    assert verdict["read"] == verdict["stored"] == verdict["distinct"], verdict
    assert verdict["errors"][:1] == ["ProcessLost"], verdict


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator["Daemons"]:
    with ExitStack() as stack:
        yield Daemons(stack, tmp_path)


class Daemons:
    """Spark's own processes, of what the pyspark package ships."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._home = str(Path(pyspark.__file__).parent)
        self._environment = os.environ | {
            "SPARK_HOME": self._home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "512m",  # a Connect server refuses to start with less
            "SPARK_NO_DAEMONIZE": "1",
        }

    def start(self, name: str, ready: str, *arguments: str) -> None:
        """Run a class of Spark's until the test ends; returns when its log says `ready`."""
        path = self._folder / f"{name}.log"
        log = self._stack.enter_context(path.open("wb"))
        process = subprocess.Popen(
            [f"{self._home}/bin/spark-class", *arguments],
            env=self._environment,
            stdout=log,
            stderr=log,
            cwd=self._folder,
        )
        self._stack.callback(process.wait, 30)
        self._stack.callback(process.terminate)
        wait_for(path, ready, process)


@pytest.fixture
def standalone(daemons: Daemons, tmp_path: Path) -> str:
    """A standalone cluster of one master and two workers."""
    port = str(free_port())
    master = "org.apache.spark.deploy.master.Master"
    daemons.start(
        "master", "I have been elected leader", master, "--host", "127.0.0.1", "--port", port, "--webui-port", "0"
    )
    url = f"spark://127.0.0.1:{port}"
    for name, host in (("one", "127.0.0.1"), ("two", "127.0.0.2")):  # Spark has no twin of a task on the same host
        options = ["--host", host, "--webui-port", "0", "-c", "1", "-m", "1g", "-d", str(tmp_path / name)]
        worker = "org.apache.spark.deploy.worker.Worker"
        daemons.start(name, "Successfully registered with master", worker, *options, url)
    return url


@pytest.fixture
def connect(daemons: Daemons) -> str:
    """A Spark Connect server over a local Spark."""
    port = free_port()
    daemons.start(
        "connect",
        "Spark Connect server started",
        "org.apache.spark.deploy.SparkSubmit",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--name",
        "connect",
        "--master",
        "local[2]",
        "--conf",
        f"spark.connect.grpc.binding.port={port}",
        "--conf",
        "spark.ui.enabled=false",
        "spark-internal",
    )
    return f"sc://127.0.0.1:{port}"


def wait_for(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while text not in log.read_text(errors="replace"):
        running = process.poll() is None and time.monotonic() < deadline
        assert running, log.read_text(errors="replace")[-2000:]
        time.sleep(0.1)


# The same as above on another master. What differs is Spark's own: how it launches executors.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("sinks", "when"),
    [
        ("parquet", ("before-write", "staged-none", "staged-before-write", "changed-before-write")),
        ("delta,iceberg", ("before-write", "write", "changed-before-write", "changed-write")),
    ],
    ids=["folder", "tables"],
)
def test_a_standalone_cluster_runs_the_same_code(
    standalone: str, tmp_path: Path, sinks: str, when: tuple[str, ...]
) -> None:
    run(standalone, tmp_path, sinks, "none", *when)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("sinks", "when"),
    [
        ("parquet", ("none", "stall", "staged-none", "staged-stall", "none", "staged-none")),
        ("delta,iceberg", ("none", "stall", "changed-stall", "none")),
    ],
    ids=["folder", "tables"],
)
def test_a_task_may_have_a_twin(standalone: str, tmp_path: Path, sinks: str, when: tuple[str, ...]) -> None:
    """Speculation is off in our sessions; in those of others it need not be."""
    verdict = run(standalone, tmp_path, sinks, *when)
    assert verdict["twins"].keys() >= {kind for kind in when if kind.endswith("stall")}


@pytest.mark.parametrize(
    ("sinks", "when"),
    [
        pytest.param("parquet,delta", ("none", "staged-none", "changed-none"), id="each way"),
        pytest.param(
            "parquet,delta,iceberg",
            ("none", "staged-none", "changed-none", "staged-none"),
            marks=pytest.mark.nightly,
            id="all",
        ),
    ],
)
def test_spark_connect_runs_the_same_code(connect: str, tmp_path: Path, sinks: str, when: tuple[str, ...]) -> None:
    run(connect, tmp_path, sinks, *when)


@pytest.mark.nightly
def test_record_processors_outlive_an_executor(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.integration.spark.processor_hosts_run",
        "local-cluster[2,1,1024]",
        str(tmp_path),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr[-4000:]
    verdict = json.loads(answer.stdout.splitlines()[-1])
    assert (verdict["executors"], verdict["processes"]) == (2, 2)
    assert verdict["moved"] >= 1
    assert verdict["complete"]
    assert verdict["in order"]
    assert verdict["skipped"] == 0
