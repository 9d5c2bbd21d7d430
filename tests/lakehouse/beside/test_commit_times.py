"""What is said of the times of commits."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lakehouse.beside.commit_times import CommitTime, Trend, append, figures, read

ONE = CommitTime(number=1, entries=6, seconds=0.5, cpu=0.25, is_made=True)


def test_the_trend_compares_the_medians_of_the_first_and_the_last_third() -> None:
    trend = Trend.of([9.0, 1.0, 1.0, 5.0, 5.0, 5.0, 2.0, 2.0, 30.0])
    assert trend == Trend(1.0, 2.0)
    assert trend.ratio == 2.0


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0]])
def test_there_is_no_trend_of_less_than_three(values: list[float]) -> None:
    assert Trend.of(values) is None


def test_what_is_appended_is_read_again_without_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "commits.jsonl"
    assert read(path) == []
    two = replace(ONE, number=2, is_made=False)
    for one in (ONE, two):
        append(path, one)
    with path.open("a") as file:
        file.write('{"number": 3')
    assert read(path) == [ONE, two]


def test_a_commit_that_failed_is_counted_and_has_no_time() -> None:
    commits = [replace(ONE, number=n, seconds=float(n)) for n in (1, 2, 3)]
    commits.insert(1, replace(ONE, number=2, seconds=60.0, is_made=False))
    found = {line["figure"]: line["value"] for line in map(json.loads, figures("Delta", commits))}
    assert found["Delta, commits"] == 3
    assert found["Delta, commits that failed and were tried again"] == 1
    assert found["Delta, time of a commit, longest"] == 3.0
    assert found["Delta, time of a commit, last third over first third"] == 3.0
    assert found["Delta, CPU of a commit, last third over first third"] == 1.0


def test_a_table_without_commits_has_figures_without_values() -> None:
    values = {line["figure"]: line["value"] for line in map(json.loads, figures("Iceberg", []))}
    assert values.pop("Iceberg, commits") == values.pop("Iceberg, commits that failed and were tried again") == 0
    assert set(values.values()) == {None}
