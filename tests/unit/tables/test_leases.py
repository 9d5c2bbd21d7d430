"""`LeaseTable` on the in-memory DynamoDB."""

import pytest

from kcl_dagster.application import PolicySettings
from kcl_dagster.errors import LeaseLost
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.contract import LeaseTableContract
from tests.unit.tables.kit import Tables, application, at, new_lease, runtime


@pytest.fixture
def tables() -> Tables:
    clock = FakeClock()
    return Tables(FakeDynamoDB(clock), application(), runtime(clock))


class TestLeasesInMemory(LeaseTableContract):
    pass


def test_the_policy_kcl_takes_a_missed_renewal_for_this_one_and_a_missed_checkpoint_for_a_loss() -> None:
    clock = FakeClock()
    app = application(policy=PolicySettings(name="kcl"))
    tables = Tables(FakeDynamoDB(clock), app, runtime(clock))
    lease = tables.holding(new_lease())
    missed = tables.leases.renew(lease)
    assert tables.leases.renew(lease) == missed
    with pytest.raises(LeaseLost):
        tables.leases.checkpoint(lease, at())
