"""The simulator deploys other versions of the consumer's code."""

from collections import deque
from dataclasses import replace

import pytest

from tests.simulation.consumer import FIRST_VERSION, Change
from tests.simulation.faults import Fault, FaultKind
from tests.simulation.fleet import Simulation
from tests.simulation.scenario import draw
from tests.simulation.trace import Trace

pytestmark = pytest.mark.slow

SEED = 8  # two streams, unstretched
LIES_AT, DEPLOYED_AT, ACTIVE_SECONDS, UNTIL_STOPPED_SECONDS = 30.0, 40.0, 150.0, 500.0


def with_deploy(change: Change, active: float = ACTIVE_SECONDS) -> Simulation:
    """A fleet whose batches are stored and not committed when other code is deployed."""
    lies = Fault(id=1, kind=FaultKind.SINK_LIES, at=LIES_AT, target="", seconds=DEPLOYED_AT - LIES_AT + 1.0)
    deploy = Fault(
        id=2, kind=FaultKind.DEPLOYED, at=DEPLOYED_AT, target="", number=list(Change).index(change), seconds=0.0
    )
    scenario = replace(draw(SEED).without_faults(), faults=(lies, deploy), active=active)
    return Simulation(scenario, Trace(keep=True, lines=deque()))


@pytest.mark.parametrize("change", [change for change in Change if change.is_sound])
def test_a_fleet_goes_on_with_the_new_code(change: Change) -> None:
    simulation = with_deploy(change)
    assert simulation.run().violations == []
    assert simulation.code == FIRST_VERSION.changed(change)


@pytest.mark.parametrize(
    ("change", "error"), [(Change.TYPE_CHANGED, "SinkError"), (Change.VALUES_TOO_LONG, "RecordRefused")]
)
def test_code_that_the_lake_refuses_stops_its_shards_visibly_until_the_next_deploy(
    change: Change, error: str
) -> None:
    simulation = with_deploy(change, UNTIL_STOPPED_SECONDS)
    outcome = simulation.run()
    assert outcome.violations == []
    stopped = [line for line in outcome.lines if "shard stopped" in line and error in line]
    assert stopped
    assert simulation.code.is_sound
    assert not simulation.lake.missing()


def test_deploys_are_drawn_after_everything_else() -> None:
    scenarios = [draw(seed) for seed in range(1, 40)]
    deployed = [scenario for scenario in scenarios if _deploys(scenario.faults)]
    assert 0 < len(deployed) < len(scenarios)
    assert all(list(Change)[_deploys(scenario.faults)[-1].number].is_sound for scenario in deployed)
    for scenario in deployed:
        ids = {fault.id for fault in scenario.faults}
        earlier = {fault.id for fault in draw(scenario.seed, incidents=False).faults}
        assert earlier <= ids


def _deploys(faults: tuple[Fault, ...]) -> list[Fault]:
    return [fault for fault in faults if fault.kind is FaultKind.DEPLOYED]
