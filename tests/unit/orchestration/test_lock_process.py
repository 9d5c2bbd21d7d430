"""Whether the process that led is gone, as far as this machine can tell."""

import os
import subprocess
import sys

import psutil
import pytest
from psutil import _pslinux

from kcl_dagster.machine import started_after_boot, this_machine
from kcl_dagster.orchestration import processes
from kcl_dagster.orchestration.lock_process import lock_process


@pytest.mark.audit("F8")
def test_a_process_of_this_machine_is_known_to_be_gone_when_it_is() -> None:
    us = lock_process()
    assert not us.is_dead(us.name)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = processes.find(child.pid)
    assert found is not None
    name = f"{this_machine()}/{found.identity}"
    assert not us.is_dead(name)
    child.communicate()
    assert us.is_dead(name)


@pytest.mark.audit("F8")
def test_another_process_with_the_same_pid_is_not_the_one_that_led() -> None:
    us = lock_process("here")
    pid = processes.current().pid
    assert us.is_dead(f"here/{pid}@{processes.current().started - 1000:.2f}")


def test_a_process_lives_on_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    us = lock_process()
    boot = _pslinux.boot_time()
    monkeypatch.setattr(_pslinux, "boot_time", lambda: boot + 3600.0)  # what the kernel says once the clock was set
    assert psutil.Process().create_time() == pytest.approx(boot + 3600.0 + (started_after_boot(os.getpid()) or 0))
    assert not us.is_dead(us.name)
    assert lock_process().name == us.name


@pytest.mark.parametrize("name", ["elsewhere/9@1.0", "here/", "here/x", "here/x@y", "here/1@boot+", "here", ""])
def test_what_cannot_be_judged_is_not_dead(name: str) -> None:
    assert not lock_process("here").is_dead(name)
