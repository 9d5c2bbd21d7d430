"""A short storm over real workers ends with a verdict; however it ends, nothing is left."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcl_dagster.orchestration import processes
from tests.acceptance.family import ROOT, wait_for

NOTHING_LEFT_SECONDS = 15.0
VERDICT = re.compile(r"^(\S+): produced (\d+), stored (\d+), duplicates 0, lost 0, out of order 0$", re.MULTILINE)


class Chaos:
    """A run as a process of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path, mark: str) -> None:
        self.process = process
        self._output = output
        self._mark = mark

    @property
    def told(self) -> str:
        return self._output.read_text()

    def family(self) -> list[processes.Process]:
        return [p for pid, p in processes.snapshot().items() if processes.carries(pid, self._mark)]


@contextmanager
def chaos(directory: Path, *arguments: str) -> Iterator[Chaos]:
    mark = f"KCL_ACCEPTANCE={os.getpid()}-{directory.name}"
    name, _, value = mark.partition("=")
    output = directory / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos", "--directory", str(directory), *arguments],
            cwd=ROOT,
            env={**os.environ, name: value},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running = Chaos(process, output, mark)
    try:
        yield running
    finally:
        for member in running.family():
            os.kill(member.pid, signal.SIGKILL)
        process.wait()


# test_demo.py kills a real worker and splits a real shard; the simulator injects all of these faults on many seeds.
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("sink", ["parquet", "delta", "iceberg"])
def test_every_record_is_stored_once_through_a_storm(sink: str, tmp_path: Path) -> None:
    only = "kill_worker,freeze_driver,kill_leader,split,lost_answers,sink_fails"
    with chaos(tmp_path, "--sink", sink, "--seed", "1", "--minutes", "0.4", "--only", only) as running:
        code = running.process.wait(1100)
        assert code == 0, running.told
        verdict = VERDICT.search(running.told)
        assert verdict is not None, running.told
        assert verdict[1] == sink
        assert verdict[2] == verdict[3] != "0"
        assert "kill -9 a worker's driver: worker-00" in running.told
        assert "make chaos SEED=1 MINUTES=0.4" in running.told
        wait_for(lambda: not running.family(), "nothing of it is left", NOTHING_LEFT_SECONDS)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "number",
    [
        # After SIGKILL the supervisor cannot clean up, and the reaper has to.
        *(pytest.param(number, marks=pytest.mark.nightly) for number in (signal.SIGINT, signal.SIGTERM)),
        signal.SIGKILL,
    ],
    ids=lambda number: number.name,
)
def test_nothing_is_left_of_a_run_that_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    with chaos(tmp_path, "--sink", "parquet", "--minutes", "9") as running:
        wait_for(lambda: len(running.family()) >= 7, "supervisor, reaper, two leaders and three workers are there")
        time.sleep(1.0)  # into the middle of starting their JVMs
        running.process.send_signal(number)
        wait_for(lambda: not running.family(), "nothing of it is left", NOTHING_LEFT_SECONDS)
        assert running.process.wait() != 0
