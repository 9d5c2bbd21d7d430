"""The emulator as a process: starting, being found, and going away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest

from kcl_dagster.emulator import Endpoint, SidecarError, ensure_sidecar
from kcl_dagster.emulator.sidecar import READY_FILE
from kcl_dagster.emulator.watch import is_alive

pytestmark = pytest.mark.server

COMMAND = [sys.executable, "-m", "kcl_dagster.emulator"]
WAIT_SECONDS = 300.0  # a start takes a second, and on a busy machine a minute


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts emulators, and makes sure that none is left."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def watched() -> Iterator[subprocess.Popen[bytes]]:
    """A process for the emulator to watch."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def sidecar_dir(tmp_path: Path) -> Iterator[Path]:
    """A state directory, whose emulator is ended afterwards."""
    yield tmp_path / "state"
    try:
        pid = json.loads((tmp_path / "state" / READY_FILE).read_text())["pid"]
    except (OSError, ValueError):
        return
    if is_alive(pid):
        os.kill(pid, signal.SIGKILL)


def test_it_prints_its_endpoint_and_serves(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start()
    endpoint = _line(process)
    session = boto3.Session("x", "x", region_name="us-east-1")
    kinesis = session.client("kinesis", endpoint_url=endpoint)
    assert kinesis.list_streams()["StreamNames"] == []


@pytest.mark.parametrize(
    ("number", "ignoring"), [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False)]
)
def test_it_ends_cleanly_on_a_signal(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals, ignoring: bool
) -> None:
    ready = tmp_path / "ready.json"
    # A shell starts background jobs with SIGINT ignored; ours must hear it all the same.
    ignore = (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignoring else None
    process = start("--ready-file", str(ready), preexec_fn=ignore)
    endpoint = _line(process)
    facts = json.loads(_until(ready.exists, ready.read_text))
    assert (facts["endpoint"], facts["pid"]) == (endpoint, process.pid)
    process.send_signal(number)
    _, said = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, said) == (0, "")
    assert not ready.exists()


def test_a_port_in_use_is_one_clear_line(start: Callable[..., subprocess.Popen[str]]) -> None:
    port = _line(start()).rpartition(":")[2]
    second = start("--port", port)
    out, said = second.communicate(timeout=WAIT_SECONDS)
    assert second.returncode == 2
    assert out == ""
    assert said == f"kcl_dagster.emulator: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("package", ["moto", "h2", "cbor2"])
def test_a_missing_package_is_one_clear_line(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None;"
        "from kcl_dagster.emulator.__main__ import main; sys.exit(main([]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert run.returncode == 2
    assert run.stderr == (
        f"kcl_dagster.emulator: the embedded AWS needs {package}: pip install 'kcl-dagster[emulator]'\n"
    )


@pytest.mark.parametrize("end", ["killed", "zombie"])
def test_it_outlives_the_process_it_watches_only_by_the_grace(
    start: Callable[..., subprocess.Popen[str]], watched: subprocess.Popen[bytes], end: str
) -> None:
    process = start("--watch-pid", str(watched.pid), "--grace-seconds", "0.2")
    _line(process)
    watched.kill()
    if end == "killed":
        watched.wait()  # a child that nobody waited for is a zombie
    process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0


def test_it_does_not_start_for_a_process_that_is_gone(start: Callable[..., subprocess.Popen[str]]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    process = start("--watch-pid", str(gone.pid), "--grace-seconds", "0")
    process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0


# Sidecars


def test_all_who_ask_at_once_get_the_same_one(sidecar_dir: Path) -> None:
    code = (
        "import sys, pathlib; from kcl_dagster.emulator import ensure_sidecar;"
        "e = ensure_sidecar(pathlib.Path(sys.argv[1]), int(sys.argv[2])); print(e.url, e.pid)"
    )
    command = [sys.executable, "-c", code, str(sidecar_dir), str(os.getpid())]
    with ThreadPoolExecutor(3) as askers:
        answers = list(
            askers.map(
                lambda _: subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS), range(3)
            )
        )
    assert [answer.stderr for answer in answers] == [""] * 3
    [answer] = {answer.stdout for answer in answers}
    assert ensure_sidecar(sidecar_dir, os.getpid()) == Endpoint(answer.split()[0], int(answer.split()[1]))


def test_a_dead_one_is_replaced(sidecar_dir: Path) -> None:
    first = ensure_sidecar(sidecar_dir, os.getpid())
    os.kill(first.pid, signal.SIGKILL)
    _until(lambda: not is_alive(first.pid))
    second = ensure_sidecar(sidecar_dir, os.getpid())
    assert second.pid != first.pid
    assert is_alive(second.pid)


def test_a_hanging_one_is_replaced(sidecar_dir: Path) -> None:
    first = ensure_sidecar(sidecar_dir, os.getpid())
    os.kill(first.pid, signal.SIGSTOP)
    second = ensure_sidecar(sidecar_dir, os.getpid())
    assert second.pid != first.pid
    _until(lambda: not is_alive(first.pid))


@pytest.mark.parametrize(
    "stale",
    ["", "not json", "{}", '{"endpoint": "http://127.0.0.1:9", "pid": %d, "region": "us-east-1"}'],
    ids=["empty", "garbage", "incomplete", "somebody else's pid"],
)
def test_a_stale_ready_file_is_not_believed(sidecar_dir: Path, stale: str) -> None:
    sidecar_dir.mkdir()
    (sidecar_dir / READY_FILE).write_text(stale % os.getpid() if "%d" in stale else stale)
    endpoint = ensure_sidecar(sidecar_dir, os.getpid())
    assert endpoint.pid != os.getpid()
    assert is_alive(endpoint.pid)


@pytest.mark.audit("D3")
def test_a_process_that_only_looks_like_the_emulator_is_not_ended(
    sidecar_dir: Path, watched: subprocess.Popen[bytes]
) -> None:
    """An editor, say, that got the pid in a stale file and has kcl_dagster.emulator in its command line."""
    code = "import time; time.sleep(60)"
    editor = subprocess.Popen([sys.executable, "-c", code, "kcl_dagster.emulator"])
    sidecar_dir.mkdir()
    facts = {"endpoint": "http://127.0.0.1:9", "pid": editor.pid, "started": 1.0, "region": "us-east-1"}
    (sidecar_dir / READY_FILE).write_text(json.dumps(facts))
    try:
        endpoint = ensure_sidecar(sidecar_dir, watched.pid)
        assert endpoint.pid != editor.pid
        assert editor.poll() is None
    finally:
        editor.kill()
        editor.wait()


def test_it_ends_after_the_process_it_was_started_for(sidecar_dir: Path, watched: subprocess.Popen[bytes]) -> None:
    endpoint = ensure_sidecar(sidecar_dir, watched.pid)
    watched.kill()
    watched.wait()
    _until(lambda: not is_alive(endpoint.pid))
    assert not (sidecar_dir / READY_FILE).exists()


def test_what_keeps_it_from_starting_is_told(
    sidecar_dir: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    port = int(_line(start()).rpartition(":")[2])
    with pytest.raises(SidecarError, match="Address already in use"):
        ensure_sidecar(sidecar_dir, os.getpid(), port=port)


def test_its_environment_leads_every_sdk_to_it() -> None:
    assert Endpoint("http://127.0.0.1:1", 2).environment() == {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "emulator",
        "AWS_SECRET_ACCESS_KEY": "emulator",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line.startswith("http://127.0.0.1:"), process.communicate()
    return line


def _until(holds: Callable[[], bool], result: Callable[[], Any] = lambda: None) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return result()
