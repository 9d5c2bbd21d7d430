"""Where the processes of runs are started, as by a container runtime: not by the daemon, and not as its user.

The launcher asks by lines of JSON over a socket. So a run is the child of no process of Dagster, and may belong to
a user to whom the daemon could not change.
"""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer
from typing import Any, Self

Command = Sequence[str]


@dataclass
class RunHost:
    """`environment`: of all runs. `entered`: the command with which a command is run as the user of workers."""

    socket: Path
    logs: Path
    environment: Mapping[str, str]
    entered: Callable[[Command], Command] = lambda command: command
    owner: int | None = None
    """The id of the user that may ask; None: the user of this process."""

    _runs: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _server: Any = None

    def __enter__(self) -> Self:
        self._server = _Server(str(self.socket), _handler(self))
        self.socket.chmod(0o600)
        if self.owner is not None:
            os.chown(self.socket, self.owner, self.owner)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, asked: Mapping[str, Any]) -> bool:
        """`start`: always true. `stop`: whether the run was there. `is_alive`."""
        run = asked["run"]
        match asked["what"]:
            case "start":
                self._start(run, asked["command"], asked["job"])
                return True
            case "stop":
                is_there = self._is_alive(run)
                if is_there:
                    self._runs[run].send_signal(signal.SIGTERM)
                return is_there
            case "is_alive":
                return self._is_alive(run)
            case what:
                msg = f"the host of runs cannot {what}"
                raise ValueError(msg)

    def _start(self, run: str, command: Command, job: str) -> None:
        with (self.logs / f"run-{run}.log").open("ab") as log:
            self._runs[run] = subprocess.Popen(
                list(self.entered(command)),
                env={**os.environ, **self.environment, "DAGSTER_RUN_JOB_NAME": job},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _is_alive(self, run: str) -> bool:
        return run in self._runs and self._runs[run].poll() is None


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


def _handler(host: RunHost) -> type[StreamRequestHandler]:
    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            answer = host.answer(json.loads(self.rfile.readline()))
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    return Handler
