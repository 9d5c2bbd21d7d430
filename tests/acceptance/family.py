"""The demo as a process, and everything it starts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from kcl_dagster.orchestration import processes
from kcl_dagster.orchestration.processes import Process

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 900.0  # Spark and Dagster on a busy machine
NOTHING_LEFT_SECONDS = 10.0  # promised, whatever way the demo is stopped


def free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"within {seconds:g} s: {what}"
        time.sleep(0.2)


@dataclass
class Demo:
    """A demo that runs in a directory of its own, in a process group of its own, as a shell would start it."""

    process: subprocess.Popen[bytes]
    directory: Path
    mark: str

    @property
    def output(self) -> str:
        return (self.directory / "output.txt").read_text()

    def family(self) -> dict[int, Process]:
        """All processes that carry the test's mark: whatever the demo started, and the demo itself."""
        everyone = processes.snapshot()
        return {pid: found for pid, found in everyone.items() if processes.carries(pid, self.mark)}

    def find(self, part: str) -> Process:
        """The first of the family, by age, with this in its command."""
        return min((p for p in self.family().values() if part in p.command), key=lambda p: p.started)


@contextmanager
def demo(directory: Path, *arguments: str, under_make: bool = False) -> Iterator[Demo]:
    """Run the demo; whatever is left of it at the end is killed. `under_make`: as the child of a process that is
    called make, and is the one that `Demo.process` names."""
    mark = f"KCL_ACCEPTANCE={os.getpid()}-{directory.name}"
    name, _, value = mark.partition("=")
    command = [sys.executable, "-m", "demo", *arguments]
    if under_make:
        command = ["make", "-c", 'MAKELEVEL=1 "$0" "$@" & wait', *command]
    with (directory / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command,
            executable="/bin/sh" if under_make else None,
            cwd=ROOT,
            env={**os.environ, name: value, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running = Demo(process, directory, mark)
    try:
        yield running
    finally:
        for pid in running.family():
            os.kill(pid, signal.SIGKILL)
        process.wait()
