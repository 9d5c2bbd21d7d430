"""The demo waits for as long as the fleet gets on, and then judges what there is."""

from types import SimpleNamespace
from typing import Any

import pytest

from demo.supervisor import READY_PATIENCE_SECONDS, Supervisor


class Demo(Supervisor):
    """One worker that reads, and a second that becomes visible at `second_at`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, second_at: float) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.split: list[float] = []
        fleet: Any = SimpleNamespace(leases=dict, workers=self.workers)
        reporter: Any = SimpleNamespace(line=self.lines.append, event=self.lines.append)
        settings: Any = SimpleNamespace(duration=90.0)
        self._fleet, self._reporter, self._settings = fleet, reporter, settings
        self._stored: Any = lambda: int(self.now)
        self._end, self._failed, self.second_at = None, False, second_at
        monkeypatch.setattr("demo.supervisor.time.monotonic", lambda: self.now)

    def workers(self) -> dict[str, Any]:
        names = ["worker-000"] if self.now < self.second_at else ["worker-000", "worker-001"]
        return dict.fromkeys(names)

    def _look(self) -> None:
        self.now += 1.0

    def _report(self, leases: str) -> None:
        """The ledger belongs to a real demo."""

    def _ready(self, _: Any) -> bool:
        return False


def test_a_demo_whose_workers_are_late_ends_with_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = Demo(monkeypatch, second_at=170.0)
    demo._watch()
    assert not demo._failed
    assert demo.now >= 170.0 + READY_PATIENCE_SECONDS  # the second worker was progress
    assert any("left out: split, kill" in line for line in demo.lines)


def test_one_worker_that_stores_for_ever_does_not_keep_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = Demo(monkeypatch, second_at=float("inf"))
    demo._watch()
    assert demo.now <= 90.0 + READY_PATIENCE_SECONDS
