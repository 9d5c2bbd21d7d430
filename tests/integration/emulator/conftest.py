"""Marks of this folder, and an emulator of its own for each test that bends one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kcl_dagster.emulator import Emulator, Limits


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "referee: runs against a server that somebody else wrote, where it can be installed"
    )
    # Known to pytest only where pytest-xdist is switched on.
    config.addinivalue_line("markers", "xdist_group(name): tests that one test process runs")


@pytest.fixture
def aws() -> Iterator[Emulator]:
    """A fresh embedded AWS without limits."""
    with Emulator(limits=Limits.none()) as emulator:
        yield emulator
