"""Runs may take minutes to start, beside others that start Spark."""

from pathlib import Path

import pytest
import yaml
from dagster._grpc import utils

from demo.supervisor import START_OF_A_RUN_SECONDS

ROOT = Path(__file__).parents[3]
SEEN_SECONDS = 192.0  # on two busy cores, from the request of a run to its first line


def test_neither_the_launcher_nor_the_monitor_gives_a_starting_run_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monitoring = yaml.safe_load((ROOT / "dagster.yaml").read_text())["run_monitoring"]
    assert monitoring["start_timeout_seconds"] > SEEN_SECONDS
    monkeypatch.setenv("DAGSTER_GRPC_TIMEOUT_SECONDS", str(START_OF_A_RUN_SECONDS))
    assert utils.default_grpc_timeout() > SEEN_SECONDS, "the name under which Dagster's launcher asks for it"
