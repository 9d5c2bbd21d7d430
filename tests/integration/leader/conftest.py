import pytest

from kcl_dagster.application import Application, FleetSettings
from tests.integration.leader.town import Town


@pytest.fixture
def town() -> Town:
    """Four shards for two workers, or three if need be."""
    fleet = FleetSettings(max_workers=3, shards_per_worker=2)
    return Town(Application(name="orders-app", streams="orders", fleet=fleet))
