"""Installing and starting the referees, in a cache of this repository, on 127.0.0.1."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.emulator.contract.deviations import KINESIS_LOCAL, MINISTACK
from tests.integration.emulator.contract.server import Server

CACHE = Path(__file__).parents[4] / ".cache" / "referees"
LOOPBACK = Path(__file__).with_name("loopback.cjs")
KINESIS_LOCAL_VERSION = "0.6.2"
KINESIS_LOCAL_STEPS = (
    "CREATE_STREAM",
    "DELETE_STREAM",
    "DEREGISTER_STREAM_CONSUMER",
    "MERGE_SHARDS",
    "REGISTER_STREAM_CONSUMER",
    "SPLIT_SHARD",
    "UPDATE_SHARD_COUNT",
)
MINISTACK_VERSION = "1.5.33"
INSTALL_SECONDS = 240
START_SECONDS = 60


class Unavailable(Exception):
    """This machine cannot run the referee; the message says why."""


@contextmanager
def kinesis_local() -> Iterator[Server]:
    """kinesis-mock compiled to JavaScript: the only other local Kinesis that reshards correctly."""
    home = CACHE / f"kinesis-local-{KINESIS_LOCAL_VERSION}"
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not installed")
    _install(home, ["npm", "install", "--no-audit", "--no-fund", f"kinesis-local@{KINESIS_LOCAL_VERSION}"])
    package = home / "node_modules" / "kinesis-local"
    port, tls_port = _free_port(), _free_port()
    quick = dict.fromkeys((f"{step}_DURATION" for step in KINESIS_LOCAL_STEPS), "5ms")
    environment = {
        "KINESIS_MOCK_CERT_PATH": str(package / "server.json"),
        "KINESIS_MOCK_PLAIN_PORT": str(port),
        "KINESIS_MOCK_TLS_PORT": str(tls_port),
        "SHARD_LIMIT": "2000",
        "LOG_LEVEL": "ERROR",
        **quick,
    }
    command = ["node", "--max-semi-space-size=256", "-r", str(LOOPBACK), str(package / "main.js")]
    with _running(KINESIS_LOCAL, command, environment, home, port) as server:
        yield server


@contextmanager
def ministack() -> Iterator[Server]:
    """Used for DynamoDB only. It pins another botocore, hence the environment of its own."""
    home = CACHE / f"ministack-{MINISTACK_VERSION}"
    python = home / "venv" / "bin" / "python"
    requirements = [f"ministack=={MINISTACK_VERSION}", "cbor2"]
    _install(
        home,
        [sys.executable, "-m", "venv", str(home / "venv")],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements],
    )
    port = _free_port()
    environment = {"GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "SERVICES": "dynamodb"}
    with _running(MINISTACK, [str(home / "venv" / "bin" / "ministack")], environment, home, port) as server:
        yield server


def _install(home: Path, *commands: list[str]) -> None:
    """Run the commands once, whichever of several test processes comes first."""
    home.mkdir(parents=True, exist_ok=True)
    done = home / "installed"
    with (home / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return
        for command in commands:
            try:
                subprocess.run(
                    command, cwd=home, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS
                )
            except subprocess.CalledProcessError as error:
                said = (error.stderr or error.stdout).strip().splitlines()
                raise Unavailable(f"{home.name} cannot be installed: {said[0] if said else error}") from error
            except (OSError, subprocess.TimeoutExpired) as error:
                raise Unavailable(f"{home.name} cannot be installed: {error}") from error
        done.touch()


@contextmanager
def _running(name: str, command: list[str], environment: dict[str, str], home: Path, port: int) -> Iterator[Server]:
    log = home / f"{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=home, env={**os.environ, **environment}, stdout=output, stderr=output
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_it_answers(url, process, log)
        yield Server(name, url)
    finally:
        process.kill()  # it has nothing to keep
        process.wait()
        log.unlink()


def _wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended: {log.read_text(errors='replace')[-2000:]}")
        try:
            urllib.request.urlopen(url, timeout=2).close()
        except urllib.error.HTTPError as error:
            error.close()
            return  # any answer will do
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"{process.args!r} did not answer within {START_SECONDS} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
