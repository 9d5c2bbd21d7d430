"""Somebody dies in the midst of a handoff: before or after any of its requests. The lease ends up with a worker."""

from collections.abc import Callable
from typing import Any, Literal

import pytest

from kcl_dagster.application import Application, FleetSettings, Timings
from tests.integration.leader.town import TICK, Town, Worker

Who = Literal["old owner", "next owner", "leader"]
LEASE_DURATION, HANDOFF_TIMEOUT = 15.0, 10.0
# The leader has to see that a worker is dead, end the handoff in any case, and its own death costs some ticks.
PATIENCE = 3 * LEASE_DURATION + HANDOFF_TIMEOUT + 10 * TICK
HANDOFF_TICKS = 6


class Killed(BaseException):
    """The process ends here."""


class Scene:
    """One worker that has everything, another that has just come, and a leader that shares the leases out."""

    def __init__(self, victim: Who, point: int, *, after: bool) -> None:
        timings = Timings(lease_duration=LEASE_DURATION, handoff_timeout=HANDOFF_TIMEOUT, leader_lock=20.0)
        fleet = FleetSettings(min_workers=2, max_workers=2)
        self.town = Town(Application(name="orders-app", streams="orders", timings=timings, fleet=fleet), shards=4)
        self.town.tick()
        self.old = self.town.start("worker-000")
        self.town.step(3)
        assert len(self.old.shards()) == 4
        self.next = self.town.start("worker-001")
        self.victim, self.point, self.after = victim, point, after
        self.acting: Who | None = None
        self.requests = 0
        self.has_died = False
        self.town.dynamodb.fails = self._request

    def _request(self, method: str, request: dict[str, Any]) -> bool:
        if self.acting == self.victim and not self.has_died:
            self.requests += 1
            if self.requests == self.point:
                self.has_died = True
                if self.after:
                    self.acting = None
                    getattr(self.town.dynamodb, method)(**request)
                raise Killed
        return False

    def _act(self, who: Who, action: Callable[[], object], die: Callable[[], object]) -> None:
        self.acting = who
        try:
            action()
        except Killed:
            die()
        finally:
            self.acting = None

    def step(self) -> None:
        town = self.town
        town.clock.advance(TICK)
        self._act("old owner", self.old.step, lambda: town.kill(self.old, seen=False))
        self._act("next owner", self.next.step, lambda: town.kill(self.next, seen=False))
        self._act("leader", town.tick, town.restart_leader)

    def is_well(self) -> bool:
        """Every lease is with a worker that lives and knows of it, and none is on its way."""
        alive: list[Worker] = [worker for worker in (self.old, self.next) if worker.alive]
        held = {key for worker in alive for key in worker.shards()}
        leases = self.town.scan().values()
        return held == {lease.key for lease in leases} and not any(lease.in_handoff for lease in leases)


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("victim", ["old owner", "next owner", "leader"])
def test_a_death_at_any_request_of_a_handoff_leaves_every_lease_with_a_worker(victim: Who, after: bool) -> None:
    point, died = 0, True
    while died:
        point += 1
        scene = Scene(victim, point, after=after)
        for _ in range(HANDOFF_TICKS):
            scene.step()
        died = scene.has_died
        until = scene.town.clock.monotonic() + PATIENCE
        while not scene.is_well():
            assert scene.town.clock.monotonic() < until, (point, scene.town.scan())
            scene.step()
    assert point > HANDOFF_TICKS, "it asked the tables something at every step"
