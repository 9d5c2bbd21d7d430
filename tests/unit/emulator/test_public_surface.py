"""What the emulator offers, and that its examples are true."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

import kcl_dagster.emulator
import kcl_dagster.emulator.embedded
import kcl_dagster.emulator.kinesis.service


def test_the_public_names() -> None:
    assert sorted(kcl_dagster.emulator.__all__) == [
        "AdjustableClock",
        "Emulator",
        "Endpoint",
        "ExtraMissingError",
        "FaultRule",
        "Faults",
        "KinesisError",
        "KinesisService",
        "Limits",
        "SidecarError",
        "ensure_sidecar",
        "environment",
    ]


@pytest.mark.parametrize(
    "module",
    [kcl_dagster.emulator, kcl_dagster.emulator.embedded, kcl_dagster.emulator.kinesis.service],
    ids=lambda module: str(module.__name__),
)
def test_the_examples_in_the_docstrings_are_true(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_clock_is_only_advanced() -> None:
    clock = kcl_dagster.emulator.AdjustableClock(lambda: 100.0)
    clock.advance(5)
    assert clock() == 105
    with pytest.raises(ValueError, match="only be advanced"):
        clock.advance(-1)
