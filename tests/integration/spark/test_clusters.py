"""The engine on clusters whose executors die: what was counted is what is stored, each record once."""

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

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("cluster_run.py")
READY_SECONDS = 120.0


def run(master: str, folder: Path, *rounds: str) -> dict[str, Any]:
    with Emulator(limits=Limits.none()) as aws:
        answer = subprocess.run(
            [sys.executable, str(PROGRAM), master, aws.endpoint_url, str(folder), *rounds],
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert answer.returncode == 0, answer.stderr[-4000:]
    verdict: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return verdict


def check(verdict: dict[str, Any]) -> None:
    assert verdict["produced"] > 0
    assert verdict["counted"] == verdict["stored"] == verdict["distinct"] == verdict["produced"], verdict


def test_executors_may_die_at_any_moment_of_a_batch(tmp_path: Path) -> None:
    verdict = run(
        "local-cluster[2,1,1024]", tmp_path / "lake", "none", "fetch", "before-write", "write", "before-write"
    )
    check(verdict)
    # Losing the only copy of a batch is what makes it necessary to read it again.
    assert verdict["retries"] >= 1


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """A standalone cluster of one master and two workers, made of what the pyspark package ships."""
    home = str(Path(pyspark.__file__).parent)
    port = free_port()
    environment = os.environ | {
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
    }
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [f"{home}/bin/spark-class", *arguments], env=environment, stdout=log, stderr=log, cwd=tmp_path
            )
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            return process

        start(
            "master",
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        )
        wait_for(tmp_path / "master.log", "I have been elected leader")
        for name in ("one", "two"):
            options = [
                "--host",
                "127.0.0.1",
                "--webui-port",
                "0",
                "-c",
                "1",
                "-m",
                "1g",
                "-d",
                str(tmp_path / name),
            ]
            start(name, "org.apache.spark.deploy.worker.Worker", *options, url)
            wait_for(tmp_path / f"{name}.log", "Successfully registered with master")
        yield url


def wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while text not in log.read_text(errors="replace"):
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
        time.sleep(0.1)


def test_a_standalone_cluster_runs_the_same_code(standalone: str, tmp_path: Path) -> None:
    check(run(standalone, tmp_path / "lake", "none", "before-write"))
