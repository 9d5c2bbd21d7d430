"""Real processes: who lives, whose child is whose, and that the reaper leaves nobody behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo import reaper
from kcl_dagster.orchestration import processes

pytestmark = pytest.mark.slow

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


def wait_for(condition: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def _has_begun(pid: int) -> bool:
    """Whether the process runs its program: between fork and exec the kernel knows no arguments for it."""
    found = processes.find(pid)
    return found is not None and bool(found.arguments)


def _is_over(pid: int) -> bool:
    """Whether the child has ended. It is not reaped, and so remains a zombie."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts Python processes and ends them with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(code: str, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", code, *arguments])
        started.append(process)
        wait_for(lambda: _has_begun(process.pid) or _is_over(process.pid))
        return process

    yield start_one
    for process in started:
        process.kill()
        process.wait()


def test_a_child_is_found_below_its_parent(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = start(SLEEP)
    everyone = processes.snapshot()
    assert child.pid in processes.descendants(os.getpid(), everyone)
    assert os.getpid() in [process.pid for process in processes.ancestors(child.pid, everyone)]


def test_a_zombie_is_not_alive(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = start("pass")
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # over, and not reaped
    assert processes.find(child.pid) is None


@pytest.mark.audit("D3")
def test_a_process_is_not_mistaken_for_the_next_with_its_number(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    found = processes.find(start(SLEEP).pid)
    assert found is not None
    assert found.is_alive()
    assert processes.parse(found.identity) == found
    assert processes.parse(f"{found.pid}@{found.started - 60}") is None
    assert processes.find(found.pid, found.started - 60) is None
    pid, _, since = found.identity.partition("@boot+")
    assert processes.parse(f"{pid}@boot+{float(since) - 60:.2f}") is None
    with pytest.raises(ValueError, match="PID@STARTED"):
        processes.parse(str(found.pid))


@pytest.mark.audit("D3")
def test_a_process_that_is_gone_is_neither_alive_nor_signalled() -> None:
    child = subprocess.Popen([sys.executable, "-c", SLEEP])
    found = processes.find(child.pid)
    assert found is not None
    child.kill()
    child.wait()
    assert not found.is_alive()
    found.send(signal.SIGKILL)  # nothing happens, whatever has the pid now


@pytest.mark.audit("D3")
@pytest.mark.parametrize(
    ("arguments", "is_dev"),
    [
        (["/venv/bin/python", "/venv/bin/dagster", "dev", "--port", "3000"], True),
        (["/venv/bin/python3.12", "-m", "dagster", "dev"], True),
        (["python", "-X", "dev", "-u", "-m", "dagster", "dev"], True),
        (["python", "/venv/bin/dg", "dev"], True),
        (["dagster", "dev"], True),
        (["dagster-daemon", "run"], False),
        (["/venv/bin/python", "/venv/bin/dagster", "definitions", "validate"], False),
        (["/venv/bin/dg", "check", "defs"], False),
        (["vim", "notes/dagster/dev"], False),
        (["tmux", "new-session", "-d", "dagster", "dev"], False),
        (["tmux", "new-session", "-d", "/venv/bin/dagster dev"], False),
        (["sh", "-c", "cd project && /venv/bin/dagster dev"], False),
        (["python", "-c", "print()", "/venv/bin/dagster", "dev"], False),
        (["python"], False),
        ([], False),
    ],
)
def test_the_dev_command_is_recognized_by_its_arguments(arguments: list[str], is_dev: bool) -> None:
    assert processes.is_dev_command(arguments) is is_dev


# A child of what stands in for `dagster dev` writes the pid of the root that it finds, or nothing.
FIND_ROOT = """
import sys
from kcl_dagster.orchestration import processes
root = processes.dev_root()
sys.stdout.write(str(root.pid) if root else "none")
"""
RUN_CHILD = f"""
import os, subprocess, sys
os.environ["DAGSTER_IS_DEV_CLI"] = "1"
print(os.getpid(), subprocess.run([sys.executable, "-c", {FIND_ROOT!r}], capture_output=True, text=True).stdout)
"""


def found_below(command: list[str], **environment: str) -> list[str]:
    """What `command` prints, which runs RUN_CHILD: its own pid, and the root that its child found."""
    inherited = {name: value for name, value in os.environ.items() if name != processes.DEV_VARIABLE}
    environment = {**inherited, "PYTHONPATH": str(Path.cwd()), **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.audit("D3")
def test_a_terminal_whose_command_line_contains_dagster_dev_is_not_the_root(tmp_path: Path) -> None:
    """A tmux server keeps the command line of its first session, and everything in the terminal is below it."""
    command = [sys.executable, "-c", RUN_CHILD, "new-session", "/venv/bin/dagster dev"]
    assert found_below(command)[1] == "none"
    script = tmp_path / "dagster"
    script.write_text(RUN_CHILD)
    pid, root = found_below([sys.executable, str(script), "dev"])
    assert root == pid


@pytest.mark.audit("D3")
def test_a_process_that_dagster_dev_did_not_start_has_no_root(tmp_path: Path) -> None:
    """A shell above the process was started by something else: the variable does not reach through it."""
    script = tmp_path / "dagster"
    child = [sys.executable, "-c", RUN_CHILD]
    script.write_text(f"import subprocess; subprocess.run({child!r})")
    assert found_below([sys.executable, str(script), "dev"])[1] == "none"


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
    found = processes.find(root.pid)
    assert found is not None
    watcher = reaper.start(found)
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
    found = processes.find(root.pid)
    assert found is not None
    reaper.start(found, "KCL_DEMO=the-test")
    root.kill()
    root.wait()
    wait_for(lambda: not orphan.is_alive(), seconds=10)


@pytest.mark.audit("D3")
def test_the_reaper_leaves_a_process_alone_that_got_the_pid_of_its_root(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    stranger = start(
        f"import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', {SLEEP!r}]);"
        "open(sys.argv[1], 'w').write(str(c.pid)); c.wait()",
        str(tmp_path / "pid"),
    )
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    child = processes.find(int((tmp_path / "pid").read_text()))
    found = processes.find(stranger.pid)
    assert child is not None
    assert found is not None
    reaper.reap(processes.parse(f"{found.pid}@{found.started - 60}"))
    assert found.is_alive()
    assert child.is_alive()
    child.send(signal.SIGKILL)
