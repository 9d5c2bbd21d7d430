"""Which processes are running, and which process started which.

A process is identified by its pid and the time at which it started. The pid alone is not enough: when a process has
ended, the system can give its pid to another process. That process must be neither waited for nor ended.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, Self

import psutil

from kcl_dagster.machine import START_TOLERANCE_SECONDS, started_after_boot

# `dagster dev` and `dg dev` set this variable in their own process after it was started. Processes that they start,
# directly or indirectly, have the variable from the beginning.
DEV_VARIABLE: Final = "DAGSTER_IS_DEV_CLI"
DEV_COMMANDS: Final = frozenset({"dagster", "dg"})

_BOOT: Final = "boot+"  # in an identity: the start time is counted from the boot of the machine
_TICK: Final = 0.01  # seconds; an identity has two decimals

_ATTRIBUTES: Final = ("pid", "ppid", "create_time", "cmdline", "status")
_PYTHON: Final = re.compile(r"python[0-9.]*(\.exe)?")
_FLAGS_WITH_VALUE: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})


@dataclass(frozen=True, slots=True)
class Process:
    """A process that is running and not a zombie. `started` is in epoch seconds."""

    pid: int
    parent: int
    started: float
    arguments: tuple[str, ...]
    handle: psutil.Process = field(repr=False, compare=False)

    @classmethod
    def of(cls, handle: psutil.Process) -> Self | None:
        """The process. None if it has ended or is a zombie. A zombie can remain for as long as its parent runs."""
        try:
            facts = handle.as_dict(_ATTRIBUTES, ad_value=None)
        except psutil.NoSuchProcess:
            return None
        if facts["status"] in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD} or facts["create_time"] is None:
            return None
        return cls(facts["pid"], facts["ppid"] or 0, facts["create_time"], tuple(facts["cmdline"] or ()), handle)

    @property
    def command(self) -> str:
        return " ".join(self.arguments)

    @property
    def identity(self) -> str:
        """A text by which another process can find this process with `parse`, even after the clock was set."""
        after_boot = started_after_boot(self.pid)
        return f"{self.pid}@{self.started:.2f}" if after_boot is None else f"{self.pid}@{_BOOT}{after_boot:.2f}"

    def is_alive(self) -> bool:
        """Whether the process is running. False if another process has the pid. Setting the clock has no effect."""
        try:
            return bool(self.handle.is_running()) and self.handle.status() not in {
                psutil.STATUS_ZOMBIE,
                psutil.STATUS_DEAD,
            }
        except psutil.NoSuchProcess:
            return False

    def is_same(self, other: "Process | None") -> bool:
        return other is not None and bool(self.handle == other.handle)

    def send(self, signal_number: int) -> None:
        """Send a signal. Does nothing if the process has ended, or if this process has no right to signal it."""
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            self.handle.send_signal(signal_number)


def find(pid: int, started: float | None = None) -> Process | None:
    """The running process with this id. None if `started` is given and the process did not start then."""
    try:
        process = Process.of(psutil.Process(pid))
    except (psutil.NoSuchProcess, ValueError):
        return None
    if process is None or started is None or abs(process.started - started) <= START_TOLERANCE_SECONDS:
        return process
    return None


def current() -> Process:
    found = Process.of(psutil.Process())
    assert found is not None
    return found


def parse(identity: str) -> Process | None:
    """The running process that `identity` names. Raises ValueError if the text is no identity."""
    pid, at, started = identity.partition("@")
    if not at:
        msg = f"{identity!r} is not of the form PID@STARTED"
        raise ValueError(msg)
    if not started.startswith(_BOOT):
        return find(int(pid), float(started))
    wanted, process = float(started.removeprefix(_BOOT)), find(int(pid))
    after_boot = None if process is None else started_after_boot(process.pid)
    return process if after_boot is not None and abs(after_boot - wanted) <= _TICK else None


def snapshot() -> dict[int, Process]:
    found = (Process.of(handle) for handle in psutil.process_iter())
    return {process.pid: process for process in found if process is not None}


def descendants(root: int, processes: Mapping[int, Process]) -> dict[int, Process]:
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: dict[int, Process] = {}
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in found and child.pid != root:
                found[child.pid] = child
                waiting.append(child.pid)
    return found


def ancestors(pid: int, processes: Mapping[int, Process]) -> list[Process]:
    found: list[Process] = []
    seen = {pid}
    current = processes.get(pid)
    while current is not None and current.parent not in seen:
        seen.add(current.parent)
        current = processes.get(current.parent)
        if current is not None:
            found.append(current)
    return found


def dev_root(pid: int | None = None) -> Process | None:
    """The `dagster dev` or `dg dev` process that started a process (this one by default). None in production.

    The search goes from the process to its parent, to the parent's parent, and so on. It ends at the first process
    that has the arguments of `dagster dev`, or that was started without Dagster's variable. So a terminal
    multiplexer, an editor or a shell above `dagster dev` is never returned, whatever its command line contains.
    """
    pid = os.getpid() if pid is None else pid
    if not _has_variable(pid, DEV_VARIABLE):
        return None
    for process in ancestors(pid, snapshot()):
        if is_dev_command(process.arguments):
            return process
        if not _has_variable(process.pid, DEV_VARIABLE):
            return None
    return None


def is_dev_command(arguments: Sequence[str]) -> bool:
    """Whether these are the arguments of `dagster dev` or `dg dev`: as a script, with Python, or as a module."""
    if not arguments:
        return False
    program, *rest = arguments
    if _PYTHON.fullmatch(PurePath(program).name):
        while rest and rest[0].startswith("-") and rest[0] != "-m":
            rest = rest[2:] if rest[0] in _FLAGS_WITH_VALUE else rest[1:]
        if rest[:1] == ["-m"]:
            return len(rest) > 2 and rest[1] in DEV_COMMANDS and rest[2] == "dev"
        if not rest:
            return False
        program, *rest = rest
    return PurePath(program).name.removesuffix(".exe") in DEV_COMMANDS and rest[:1] == ["dev"]


def carries(pid: int, marker: str) -> bool:
    """Whether the process was started with `marker` (NAME=value) in its environment. False if that is unknown."""
    name, _, value = marker.partition("=")
    return _environment(pid).get(name) == value


def _has_variable(pid: int, name: str) -> bool:
    """Whether the variable is set. For another process: at its start. For this process: now."""
    return name in (os.environ if pid == os.getpid() else _environment(pid))


def _environment(pid: int) -> Mapping[str, str]:
    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}
