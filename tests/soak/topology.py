"""Dagster as it is deployed: code servers, daemon and webserver, each restarted when it ends."""

import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from demo.started_process import StartedProcess
from kcl_dagster.orchestration.processes import Process

LOOK_SECONDS = 0.5
RESTART_SECONDS = 5.0  # as systemd and Kubernetes wait before they start a process again


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def end(family: Iterable[Process], patience: float) -> None:
    """End processes: with SIGTERM, and with SIGKILL those that are alive after `patience` seconds."""
    family = list(family)
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 1.0)):
        for process in family:
            process.send(number)
        deadline = time.monotonic() + seconds
        while any(process.is_alive() for process in family) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)


@dataclass
class Service:
    """A process that a supervisor keeps running, unless it `is_away`."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    started: StartedProcess | None = None
    restarts: int = 0
    is_away: bool = False
    _ended_at: float | None = None

    def step(self, now: float) -> None:
        """Start it, again if it has ended for a while."""
        if self.started is not None and not self.started.ended:
            return
        if self.started is not None:
            if self._ended_at is None:
                self._ended_at = now
            if self.is_away or now - self._ended_at < RESTART_SECONDS:
                return
            self.restarts += 1
        self._ended_at = None
        self.started = StartedProcess.start(self.name, self.command, self.environment, self.log)


@dataclass(frozen=True, slots=True)
class CodeServer:
    """Of one code location. `command`: of Dagster, without host, port and name. `python`: of its environment."""

    location: str
    command: Sequence[str]
    python: str = sys.executable

    @property
    def service(self) -> str:
        return f"code-server-{self.location}"


@dataclass
class Topology:
    """All of Dagster's processes. `step` keeps them running. `entered` is given the name of a service and its
    command, and returns the command with which it is started."""

    home: Path
    logs: Path
    environment: Mapping[str, str]
    entered: Callable[[str, Sequence[str]], Sequence[str]] = lambda _, command: command
    port: int = field(default_factory=free_port)
    services: dict[str, Service] = field(default_factory=dict)
    _ports: dict[str, int] = field(default_factory=dict)

    def prepare(self, settings: str, code_servers: Sequence[CodeServer]) -> None:
        """`settings`: what is in dagster.yaml."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "dagster.yaml").write_text(settings)
        here = ["--host", "127.0.0.1", "--port"]
        workspace = self.home / "workspace.yaml"
        locations = []
        for server in code_servers:
            self._ports[server.location] = port = free_port()
            address = {"host": "127.0.0.1", "port": port, "location_name": server.location}
            locations.append({"grpc_server": address})
            self._add(server.service, self.serve(server))
        workspace.write_text(yaml.safe_dump({"load_from": locations}))
        python = [sys.executable, "-m"]
        self._add("webserver", [*python, "dagster_webserver", "-w", str(workspace), *here, str(self.port)])
        self._add("daemon", [*python, "dagster._daemon", "run", "-w", str(workspace)])

    def serve(self, server: CodeServer) -> list[str]:
        """The command of a code server, at the port of its location."""
        port = str(self._ports[server.location])
        address = ["--host", "127.0.0.1", "--port", port, "--location-name", server.location]
        return [server.python, "-m", "dagster", *server.command, *address]

    def deploy(self, server: CodeServer) -> None:
        """Stop the code server of the location as a deploy does; the supervisor starts it with the command."""
        service = self.services[server.service]
        service.command = self.entered(service.name, self.serve(server))
        if service.started is not None:
            service.started.stop(signal.SIGTERM)

    def _add(self, name: str, command: Sequence[str]) -> None:
        entered = self.entered(name, command)
        self.services[name] = Service(name, entered, self.environment, self.logs / f"{name}.log")

    def step(self) -> None:
        now = time.monotonic()
        for service in self.services.values():
            service.step(now)

    def roots(self) -> list[int]:
        """The ids of the processes that are running."""
        return self.roots_of(*self.services)

    def roots_of(self, *names: str) -> list[int]:
        services = [self.services[name] for name in names]
        return [one.started.process.pid for one in services if one.started and not one.started.ended]
