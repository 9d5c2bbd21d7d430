"""However the demo is stopped, nothing of it is alive ten seconds later."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.acceptance.family import NOTHING_LEFT_SECONDS, Demo, demo, free_port, wait_for


def interrupt_the_group(running: Demo) -> None:
    """Ctrl-C in a terminal."""
    os.killpg(running.process.pid, signal.SIGINT)


def terminate_the_demo(running: Demo) -> None:
    running.process.terminate()


def kill_the_demo(running: Demo) -> None:
    running.process.kill()


def kill_dagster(running: Demo) -> None:
    os.kill(running.find("dagster dev").pid, signal.SIGKILL)


def kill_make(running: Demo) -> None:
    """Only make hears of it: its child has to notice."""
    running.process.kill()


# After SIGKILL the reaper ends the children, which has tests of its own. The other ways lead to one of these two.
WAYS = [
    interrupt_the_group,
    *(
        pytest.param(way, marks=pytest.mark.nightly)
        for way in (kill_the_demo, terminate_the_demo, kill_dagster, kill_make)
    ),
]


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stop", WAYS, ids=lambda way: way.__name__)
def test_nothing_is_left_ten_seconds_after(stop: object, tmp_path: Path) -> None:
    assert callable(stop)
    arguments = ("--port", str(free_port()), "--directory", str(tmp_path / "demo"))
    with demo(tmp_path, *arguments, under_make=stop is kill_make) as running:
        wait_for(lambda: "worker-0" in running.output, "a worker takes a lease")
        members = running.family()
        assert len(members) > 5, "supervisor, producer, emulator, Dagster and its services, workers, JVMs"
        stop(running)
        deadline = time.monotonic() + NOTHING_LEFT_SECONDS
        while running.process.poll() is None or running.family():
            left = [process.command[:120] for process in running.family().values()]
            assert time.monotonic() < deadline, f"still alive: {left}; the demo said: {running.output[-2000:]}"
            time.sleep(0.2)
