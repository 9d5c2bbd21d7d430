"""Real processes: who lives, whose child is whose, and that the reaper leaves nobody behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcl_dagster.orchestration import processes, reaper

SLEEP = "import time; time.sleep(60)"
# Starts a grandchild in a session of its own and reports its pid; ignores what a terminal would send.
FAMILY = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(60)
"""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts Python processes and ends them with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(code: str, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", code, *arguments])
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_a_child_is_found_below_its_parent(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = start(SLEEP)
    everyone = processes.snapshot()
    assert child.pid in processes.descendants(os.getpid(), everyone)
    assert os.getpid() in [process.pid for process in processes.ancestors(child.pid, everyone)]


def test_a_zombie_is_not_alive(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = start("pass")
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # over, and not reaped
    assert processes.find(child.pid) is None


def test_a_process_is_not_mistaken_for_the_next_with_its_number(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    found = processes.find(start(SLEEP).pid)
    assert found is not None
    assert found.is_alive()
    assert not processes.Process(found.pid, found.parent, "another start", found.command).is_alive()


def test_ps_says_the_same_as_proc(
    start: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start(SLEEP)
    by_proc = processes.find(child.pid)
    monkeypatch.setattr(processes, "PROC", Path("/nonexistent"))
    by_ps = processes.find(child.pid)
    assert by_proc is not None
    assert by_ps is not None
    assert (by_ps.pid, by_ps.parent, by_ps.command) == (by_proc.pid, by_proc.parent, by_proc.command)


@pytest.mark.parametrize(
    ("command", "is_dev"),
    [
        ("/venv/bin/python /venv/bin/dagster dev --port 3000", True),
        ("/venv/bin/python -m dagster dev", True),
        ("python /venv/bin/dg dev", True),
        ("dagster dev", True),
        ("dagster-daemon run", False),
        ("/venv/bin/python /venv/bin/dagster definitions validate", False),
        ("/venv/bin/dg check defs", False),
        ("vim notes/dagster/dev", False),
    ],
)
def test_the_dev_command_is_recognized(command: str, is_dev: bool) -> None:
    assert processes.is_dev_command(command) is is_dev


def test_the_reaper_ends_a_family_that_ignores_signals(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    root = start(
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {FAMILY!r}, sys.argv[1]])",
        str(tmp_path / "pid"),
    )
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    grandchild = int((tmp_path / "pid").read_text())
    family = processes.descendants(root.pid, processes.snapshot())
    assert grandchild in family
    watcher = reaper.start(root.pid)
    time.sleep(2 * reaper.SNAPSHOT_SECONDS)  # what it has not seen once it cannot know
    os.kill(root.pid, signal.SIGKILL)
    root.wait()
    wait_for(lambda: not any(process.is_alive() for process in family.values()), seconds=10)
    wait_for(lambda: processes.find(watcher) is None)


def test_the_reaper_finds_by_its_marker_what_lost_its_parent(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCL_DEMO", "the-test")
    orphan_maker = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
"""
    start(orphan_maker, str(tmp_path / "pid")).wait()
    orphan = processes.find(int((tmp_path / "pid").read_text()))
    assert orphan is not None
    monkeypatch.delenv("KCL_DEMO")
    root = start(SLEEP)
    reaper.start(root.pid, "KCL_DEMO=the-test")
    root.kill()
    root.wait()
    wait_for(lambda: not orphan.is_alive(), seconds=10)
