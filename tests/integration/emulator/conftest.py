"""Marks of this folder."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "referee: runs against a server that somebody else wrote, where it can be installed"
    )
