"""A PostgreSQL server of the test's own, on 127.0.0.1 and a free port, that can be stopped and frozen."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kcl_dagster.errors import ConfigurationError

USER = "dagster"
START_SECONDS = 60.0
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.1


def find_binaries() -> Path:
    """The folder of `initdb` and `postgres`. Debian keeps them out of PATH."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not versions:
        raise ConfigurationError("this test needs PostgreSQL's server (Debian, Ubuntu: apt-get install postgresql)")
    return versions[-1].parent


@dataclass
class Database:
    """Keeps its data when it is stopped. Used on one thread."""

    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None
    _binaries: Path = field(default_factory=find_binaries)

    @classmethod
    def create(cls, folder: Path) -> Self:
        """An empty database in an empty folder. PostgreSQL refuses to run as root; then it runs as `postgres`."""
        folder.mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        made = cls(folder, port)
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        made._run("initdb", "--auth=trust", f"--username={USER}", "-D", str(folder / "data"))
        return made

    @property
    def url(self) -> str:
        return f"postgresql+psycopg2://{USER}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """Of the server that runs."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Returns when it accepts connections."""
        options = ["-c", f"port={self.port}", "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self._binaries / "postgres"), "-D", str(self.folder / "data"), *options, "-c", "fsync=off"],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                user=self._user,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._accepts():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise ConfigurationError(f"PostgreSQL did not start; its log is {self.folder / 'log.txt'}")
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """As an administrator stops it: connections are closed, new ones refused."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(STOP_SECONDS)
            self.process = None

    def freeze(self) -> None:
        """Connections stay and nothing is answered, as when the server's machine or the network is gone."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def end(self) -> None:
        if self.process is not None:
            self._signal_all(signal.SIGKILL)
            self.process.wait(STOP_SECONDS)
            self.process = None

    def _signal_all(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        # Every connection has a process, which is the leader of a session of its own.
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in (self.process.pid, *map(int, children)):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _accepts(self) -> bool:
        return (
            subprocess.run(
                [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
            ).returncode
            == 0
        )

    def _run(self, program: str, *arguments: str) -> Sequence[str]:
        done = subprocess.run(
            [str(self._binaries / program), *arguments],
            capture_output=True,
            text=True,
            user=self._user,
            cwd=self.folder,
        )
        if done.returncode != 0:
            raise ConfigurationError(f"{program} failed: {done.stderr.strip()}")
        return done.stdout.splitlines()

    @property
    def _user(self) -> str | None:
        return "postgres" if os.geteuid() == 0 else None
