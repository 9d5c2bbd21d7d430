"""Dagster as it is deployed: code server, daemon and webserver, each restarted when it ends."""

import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from demo.started_process import StartedProcess

LOCATION = "kcl_dagster"
RESTART_SECONDS = 5.0  # as systemd and Kubernetes wait before they start a process again


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@dataclass
class Service:
    """A process that a supervisor keeps running."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    started: StartedProcess | None = None
    restarts: int = 0
    _ended_at: float | None = None

    def step(self, now: float) -> None:
        """Start it, again if it has ended for a while."""
        if self.started is not None and not self.started.ended:
            return
        if self.started is not None:
            if self._ended_at is None:
                self._ended_at = now
            if now - self._ended_at < RESTART_SECONDS:
                return
            self.restarts += 1
        self._ended_at = None
        self.started = StartedProcess.start(self.name, self.command, self.environment, self.log)


@dataclass
class Topology:
    """All of Dagster's processes. `step` keeps them running."""

    home: Path
    logs: Path
    environment: Mapping[str, str]
    database_url: str
    port: int = field(default_factory=free_port)
    services: dict[str, Service] = field(default_factory=dict)

    def prepare(self, settings: str) -> None:
        """`settings`: what dagster.yaml says apart from its storage."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "dagster.yaml").write_text(
            f"{settings}\nstorage: {{postgres: {{postgres_url: '{self.database_url}'}}}}\n"
        )
        code = free_port()
        workspace = self.home / "workspace.yaml"
        workspace.write_text(
            f"load_from:\n  - grpc_server: {{host: 127.0.0.1, port: {code}, location_name: {LOCATION}}}\n"
        )
        here = ["--host", "127.0.0.1", "--port"]
        self._add(
            "code-server",
            ["dagster", "api", "grpc", "-m", "definitions", *here, str(code), "--location-name", LOCATION],
        )
        self._add("webserver", ["dagster_webserver", "-w", str(workspace), *here, str(self.port)])
        self._add("daemon", ["dagster._daemon", "run", "-w", str(workspace)])

    def _add(self, name: str, module: Sequence[str]) -> None:
        command = [sys.executable, "-m", *module]
        self.services[name] = Service(name, command, self.environment, self.logs / f"{name}.log")

    def step(self) -> None:
        now = time.monotonic()
        for service in self.services.values():
            service.step(now)
