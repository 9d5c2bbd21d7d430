"""Telling the living from the dead."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from kcl_dagster.emulator.watch import is_alive


def test_this_process_is_alive() -> None:
    assert is_alive(os.getpid())


def test_a_process_of_somebody_else_is_alive() -> None:
    assert is_alive(1)


def test_a_process_that_ended_is_dead_even_before_its_parent_notices() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 20
    while is_alive(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.returncode is None  # nobody has waited for it yet
    process.wait()
    assert not is_alive(process.pid)
