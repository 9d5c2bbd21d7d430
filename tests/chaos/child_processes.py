"""What can be done to a process and to those below it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kcl_dagster.orchestration import processes
from kcl_dagster.orchestration.processes import Process

ROOT = Path(__file__).parents[2]


@dataclass
class Child:
    """A process of ours in a session of its own. It is told things on standard input, and what it says on standard
    output goes to `said`, everything else to `log`."""

    name: str
    process: "subprocess.Popen[str]"
    said: Path
    log: Path

    @classmethod
    def start(cls, name: str, module: str, arguments: Sequence[str], logs: Path) -> Self:
        said, log = logs / f"{name}.out", logs / f"{name}.log"
        with said.open("ab") as output, log.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        return cls(name, process, said, log)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def has_failed(self) -> bool:
        return not self.is_alive and self.process.returncode != 0

    def tell(self, line: str) -> None:
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.write(f"{line}\n")
                self.process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        if self.is_alive:
            self.process.send_signal(number)

    def below(self) -> list[Process]:
        """Its children, their children and so on."""
        return list(processes.descendants(self.pid, processes.snapshot()).values())

    def close(self) -> None:
        """When it has ended."""
        self.process.wait()
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()


def jvms(child: Child) -> list[Process]:
    """The driver's, not those of executors."""
    return [p for p in child.below() if p.parent == child.pid and _is_java(p)]


def executors(child: Child) -> list[Process]:
    return [p for p in child.below() if _is_java(p) and "CoarseGrainedExecutorBackend" in p.command]


def python_workers(child: Child) -> list[Process]:
    return [p for p in child.below() if "pyspark.daemon" in p.command]


def send(number: signal.Signals, those: Iterable[Process]) -> int:
    """Signal those that still live; how many they were."""
    reached = 0
    for process in those:
        if process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
                reached += 1
    return reached


def carriers(marker: str) -> list[Process]:
    """Every process that was started with `marker` in its environment; not this one."""
    everyone: Mapping[int, Process] = processes.snapshot()
    return [p for p in everyone.values() if p.pid != os.getpid() and processes.carries(p.pid, marker)]


def _is_java(process: Process) -> bool:
    return bool(process.arguments) and process.arguments[0].endswith("java")
