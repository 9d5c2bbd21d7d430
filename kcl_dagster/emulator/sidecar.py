"""Runs the emulator as a separate process that several processes share."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from kcl_dagster.emulator import watch
from kcl_dagster.emulator.control_endpoint import HEALTH
from kcl_dagster.emulator.embedded import environment
from kcl_dagster.emulator.kinesis.service import DEFAULT_REGION

READY_FILE = "emulator.json"
LOCK_FILE = "emulator.lock"
LOG_FILE = "emulator.log"
START_SECONDS = 60.0  # on a busy machine, the first import of the packages takes long
HEALTH_SECONDS = 2.0
LOOK_SECONDS = 0.05


class SidecarError(RuntimeError):
    """The emulator process could not be started. The message contains its output."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address and the process of a running emulator."""

    url: str
    pid: int
    region: str = DEFAULT_REGION
    started: float | None = field(default=None, compare=False)
    """The time at which the process started, in epoch seconds. It distinguishes the process from a later process
    with the same id."""

    def environment(self) -> dict[str, str]:
        """Return the environment variables that other processes need to use this emulator."""
        return environment(self.url, self.region)


def ensure_sidecar(state_dir: Path, watch_pid: int, port: int = 0, *, limits: bool = True) -> Endpoint:
    """Return the emulator of `state_dir`. Start it if it is not running.

    Several processes can call this function at once. One of them starts the emulator, and all of them get the same
    emulator. The new process is detached. It ends by itself soon after the process `watch_pid` has ended. Raises
    `SidecarError`.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    with _exclusive(state_dir / LOCK_FILE):
        running = find_sidecar(state_dir)
        if running is not None:
            return running
        _end_leftover(state_dir)
        return _start(state_dir, watch_pid, port, limits)


def find_sidecar(state_dir: Path) -> Endpoint | None:
    """Return the emulator of `state_dir` if it runs and responds. None if it does not, even if there is a ready
    file."""
    endpoint = _read(state_dir / READY_FILE)
    if endpoint is not None:
        _reap(endpoint.pid)
    if endpoint is None or not watch.is_alive(endpoint.pid) or _pid_behind(endpoint.url) != endpoint.pid:
        return None
    return endpoint


def end_sidecar(endpoint: Endpoint) -> None:
    """End an emulator at once, because it has no state to save. A later process with the same id is not ended."""
    process = watch.find(endpoint.pid, endpoint.started) if endpoint.started is not None else None
    if process is not None:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()
        _reap(endpoint.pid, wait=True)


def _start(state_dir: Path, watch_pid: int, port: int, limits: bool) -> Endpoint:
    ready = state_dir / READY_FILE
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "kcl_dagster.emulator", "--port", str(port)]
    command += ["--ready-file", str(ready), "--watch-pid", str(watch_pid)]
    watched = watch.started(watch_pid)
    if watched is not None:
        command += ["--watch-started", f"{watched:.2f}"]
    if not limits:
        command.append("--no-limits")
    log = state_dir / LOG_FILE
    pid = _spawn(command, log)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        endpoint = _read(ready)
        if endpoint is not None:
            return endpoint
        _reap(pid)
        if not watch.is_alive(pid):
            raise SidecarError(log.read_text(errors="replace").strip() or f"the emulator ended, see {log}")
        time.sleep(LOOK_SECONDS)
    os.kill(pid, signal.SIGKILL)
    _reap(pid, wait=True)
    raise SidecarError(f"the emulator did not listen within {START_SECONDS:.0f} s, see {log}")


def _spawn(command: list[str], log: Path) -> int:
    """Start the command in a session of its own. Returns the id of the process. `subprocess` is not used, because
    it would warn about a process whose end is never awaited."""
    output = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files: list[Any] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), output, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(command[0], command, os.environ, file_actions=files, setsid=True)


def _reap(pid: int, *, wait: bool = False) -> None:
    """Remove the process from the process table, if it is a child of this process and has ended."""
    with suppress(ChildProcessError):
        os.waitpid(pid, 0 if wait else os.WNOHANG)


def _end_leftover(state_dir: Path) -> None:
    """End an emulator that is running but does not respond. Otherwise, it would keep its port."""
    endpoint = _read(state_dir / READY_FILE)
    if endpoint is not None:
        end_sidecar(endpoint)


def _pid_behind(url: str) -> int | None:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=HEALTH_SECONDS)
    try:
        connection.request("GET", HEALTH)
        return int(json.loads(connection.getresponse().read())["pid"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()


def _read(ready: Path) -> Endpoint | None:
    try:
        facts = json.loads(ready.read_text())
        return Endpoint(str(facts["endpoint"]), int(facts["pid"]), str(facts["region"]), float(facts["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
