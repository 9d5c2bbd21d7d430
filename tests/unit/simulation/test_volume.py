"""The simulator bounds how much a fleet tells (L9)."""

import logging

from tests.simulation.properties import Violations
from tests.simulation.volume import HOUR, MOST_AN_HOUR, LogLines, Volume


def test_what_is_told_too_often_within_an_hour_is_a_violation_once() -> None:
    now = 0.0
    violations = Violations(lambda: now)
    volume = Volume(violations, lambda: now)
    for number in range(MOST_AN_HOUR):
        now = float(number)
        volume.event("worker-000", "batch failed", "shard-1")
        volume.event("worker-000", "batch failed", "shard-2")
    assert violations.found == []
    volume.event("worker-000", "batch failed", "shard-1")
    volume.event("worker-000", "batch failed", "shard-1")
    assert [violation.name for violation in violations.found] == ["L9"]
    assert "shard-1" in violations.found[0].what


def test_what_was_told_an_hour_ago_does_not_count() -> None:
    now = 0.0
    violations = Violations(lambda: now)
    volume = Volume(violations, lambda: now)
    for number in range(2 * MOST_AN_HOUR):
        now = number * HOUR / MOST_AN_HOUR
        volume.event("worker-000", "batch failed")
    assert violations.found == []
    assert volume.highest == MOST_AN_HOUR


def test_log_lines_count_by_their_text_and_process() -> None:
    violations = Violations(lambda: 0.0)
    lines = LogLines(Volume(violations, lambda: 0.0), lambda: "daemon-0.0")
    for number in range(MOST_AN_HOUR + 1):
        lines.handle(logging.LogRecord("kcl_dagster.x", logging.WARNING, "x.py", 1, "number %s", (number,), None))
    assert [violation.name for violation in violations.found] == ["L9"]
