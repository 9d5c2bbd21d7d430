"""Consumers into Iceberg and Delta beside another engine that maintains the tables, for some minutes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kcl_dagster.orchestration import processes
from tests.acceptance.family import ROOT, wait_for
from tests.lakehouse.beside.__main__ import NOT_HERE

NOTHING_LEFT_SECONDS = 30.0
LAST_LINE = re.compile(
    r"produced (\d+), Iceberg stored (\d+), Delta stored (\d+), duplicates 0, lost 0, out of order 0; "
    r"commits (\d+) and (\d+), commit time last third over first third: Iceberg [\d.]+, Delta [\d.]+"
)


@dataclass
class Beside:
    process: "subprocess.Popen[bytes]"
    output: Path
    mark: str

    @property
    def told(self) -> str:
        return self.output.read_text()

    def wait(self, seconds: float) -> int:
        code = self.process.wait(seconds)
        if code == NOT_HERE:
            pytest.skip(self.told.splitlines()[-1])
        return code

    def family(self) -> list[processes.Process]:
        return [p for pid, p in processes.snapshot().items() if processes.carries(pid, self.mark)]


@contextmanager
def beside(folder: Path, *arguments: str) -> Iterator[Beside]:
    mark = f"KCL_ACCEPTANCE={os.getpid()}-{folder.name}"
    name, _, value = mark.partition("=")
    output = folder / "output.txt"
    command = [sys.executable, "-m", "tests.lakehouse.beside", "--directory", str(folder / "run"), *arguments]
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, name: value},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running = Beside(process, output, mark)
    try:
        yield running
    finally:
        for member in running.family():
            member.send(signal.SIGKILL)
        process.wait()


# `make lakehouse` runs a part of this for each catalog; this is the worker, its leader and default settings.
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(3000)  # the first run fetches 800 MB of packages
def test_every_record_is_stored_once_while_another_engine_compacts_and_expires(tmp_path: Path) -> None:
    with beside(tmp_path, "--minutes", "2", "--every", "30") as running:
        assert running.wait(2900) == 0, running.told
        lines = running.told.splitlines()
        found = LAST_LINE.fullmatch(lines[-1])
        assert found is not None, running.told
        assert found[1] == found[2] == found[3] != "0"
        named = {json.loads(line)["figure"]: json.loads(line)["value"] for line in lines if line.startswith("{")}
        assert (named["Iceberg, commits"], named["Delta, commits"]) == (int(found[4]), int(found[5]))
        assert named["Iceberg, time of a commit, median"] > 0
        wait_for(lambda: not running.family(), "nothing of it is left", NOTHING_LEFT_SECONDS)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_of_a_run_that_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    with beside(tmp_path, "--minutes", "9") as running:

        def is_under_way() -> bool:
            if running.process.poll() is not None:
                running.wait(0)
                raise AssertionError(running.told)
            return any("tests.lakehouse.beside.worker" in process.command for process in running.family())

        wait_for(is_under_way, "its workers have been started", 2000)
        running.process.send_signal(number)
        wait_for(lambda: not running.family(), "nothing of it is left", 3 * NOTHING_LEFT_SECONDS)
        assert running.process.wait() != 0
