"""Leaders and orchestrator understand each other."""

from pathlib import Path

from kcl_dagster.leader.run_view import SlotRun
from kcl_dagster.leader.tick_report import Launch
from kcl_dagster.model.lease import WorkerId
from tests.chaos import orders


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    run = SlotRun("run-1", WorkerId("worker-000:run-1"), "running", 12.5)
    orders.write_runs(tmp_path / "runs.json", orders.Runs({"worker-000": run}, frozenset({"run-0"})))
    view = orders.read_runs(tmp_path / "runs.json").view()
    assert view.slots == {"worker-000": run}
    assert view.finished(["run-0", "run-1", "unknown"]) == {"run-0"}


def test_a_launch_is_asked_for_once_however_often_leaders_say_it(tmp_path: Path) -> None:
    path = tmp_path / "launches.jsonl"
    asked = orders.Asked(path)
    assert asked.new() == []
    first, second = Launch("worker-000", 1, "nobody"), Launch("worker-000", 2, "nobody")
    orders.ask(path, [first])
    orders.ask(path, [first, second])
    assert asked.new() == [first, second]
    orders.ask(path, [first])
    assert asked.new() == []


def test_a_line_that_is_still_being_written_is_read_later(tmp_path: Path) -> None:
    path = tmp_path / "launches.jsonl"
    asked = orders.Asked(path)
    orders.ask(path, [Launch("worker-000", 1, "nobody")])
    whole = path.read_text()
    path.write_text(whole[:-5])
    assert asked.new() == []
    path.write_text(whole)
    assert asked.new() == [Launch("worker-000", 1, "nobody")]
