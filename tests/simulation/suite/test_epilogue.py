"""The acts that a fleet at rest is put through find what they are there for."""

from collections.abc import Callable
from random import Random

import pytest

from kcl_dagster.errors import SinkError
from kcl_dagster.leader.memory import Memory
from kcl_dagster.leader.observation import Sight
from kcl_dagster.leader.stages import Tick
from kcl_dagster.tables.coordination import LEADER_KEY
from kcl_dagster.worker.taking import Taker
from tests.simulation import epilogue
from tests.simulation.fleet import Simulation
from tests.simulation.lake import LakeSink
from tests.simulation.scenario import draw

Act = Callable[[Simulation, Random], None]
ONLY_A_LEADER_HELPS = 20  # with a worker killed, its leases need a leader to be served again
BESIDE_JAVA = 18  # Java workers stay to the end
SEED = 16  # one daemon, unstretched, an application whose policy may be held to rest


def violations(act: Act, monkeypatch: pytest.MonkeyPatch, seed: int = SEED) -> list[str]:
    """Of a fleet without faults that is put through one act."""
    monkeypatch.setattr(epilogue, "play", lambda simulation: act(simulation, Random(1)))
    scenario = draw(seed, incidents=False).without_faults()
    return [violation.name for violation in Simulation(scenario).run().violations]


@pytest.mark.parametrize("act", epilogue.ACTS)
def test_a_sound_fleet_passes(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    assert violations(act, monkeypatch) == []


def test_a_lease_of_a_java_worker_counts_as_served_while_a_stage_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draw(BESIDE_JAVA, incidents=False).java
    assert violations(epilogue.with_a_broken_stage, monkeypatch, BESIDE_JAVA) == []


def test_a_lock_that_was_given_up_is_acquired_while_the_report_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_a_free_lock(simulation: Simulation, random: Random) -> None:
        monkeypatch.setattr(epilogue, "BREAKABLE", (("dynamodb", "put_item"),))
        simulation.effects._delete(*simulation.effects._memory_table(), LEADER_KEY)
        epilogue.with_a_broken_stage(simulation, random)

    monkeypatch.setattr(Taker, "step", lambda *_: [])
    assert violations(with_a_free_lock, monkeypatch, ONLY_A_LEADER_HELPS) == []


def test_leases_of_a_stream_that_was_made_anew_need_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_a_former_stream(simulation: Simulation, random: Random) -> None:
        lease = next(iter(simulation.ledger.leases.values()))
        left = lease._replace(key="left", owner=None, giver=None, is_finished=False, stream="1:clicks:1")
        simulation.ledger.leases[left.key] = left
        simulation.lake.former["clicks", 1] = {}
        epilogue.with_a_broken_stage(simulation, random)

    assert violations(with_a_former_stream, monkeypatch) == []


def test_workers_that_need_a_leader_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_a_leader(simulation: Simulation, random: Random) -> None:
        def refuse(*_: object) -> None:
            raise SinkError("nobody leads")

        monkeypatch.setattr(LakeSink, "write", refuse)
        epilogue.without_a_leader(simulation, random)

    assert violations(without_a_leader, monkeypatch) == ["L6"]


def test_a_foreign_leader_that_sends_healthy_workers_away_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def evict(tick: Tick, sight: Sight) -> None:
        for seen in sight.workers:
            tick.leader.tables.workers.request_drain(seen.id)

    def with_a_foreign_leader(simulation: Simulation, random: Random) -> None:
        monkeypatch.setattr(Tick, "_send_away", evict)
        epilogue.with_a_foreign_leader(simulation, random)

    assert violations(with_a_foreign_leader, monkeypatch) == ["L7"]


def test_a_stage_that_stops_the_others_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Tick._stage

    def give_up(tick: Tick, name: str, work: Callable[[], str | None]) -> bool:
        return all(stage.ok for stage in tick.stages) and sound(tick, name, work)

    monkeypatch.setattr(Tick, "_stage", give_up)
    monkeypatch.setattr(epilogue, "BREAKABLE", (("kinesis", ""),))  # sync, which comes before others
    # A leader that cannot lead gives up its lock, and workers then take leases without one: that would cover it up.
    monkeypatch.setattr(Taker, "step", lambda *_: [])
    assert violations(epilogue.with_a_broken_stage, monkeypatch, ONLY_A_LEADER_HELPS)[:1] == ["L5"]


def test_a_leader_that_believes_an_old_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_repeated_ticks(simulation: Simulation, random: Random) -> None:
        def believe_everything(memory: Memory, _document: object, _at: float) -> None:
            monkeypatch.setattr(type(memory.standing), "stood_for", lambda *_: 1e9)

        monkeypatch.setattr(Memory, "absorb", believe_everything)
        epilogue.with_repeated_ticks(simulation, random)

    # It takes the leader lock or a lease before its time, whichever comes first.
    assert violations(with_repeated_ticks, monkeypatch)[0] in {"S8", "S9"}
