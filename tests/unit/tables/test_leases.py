"""`LeaseTable` on the in-memory DynamoDB."""

import pytest

from kcl_dagster.testing.clock import FakeClock
from kcl_dagster.testing.dynamodb import FakeDynamoDB
from tests.unit.tables.contract import LeaseTableContract
from tests.unit.tables.kit import Tables, application, runtime


@pytest.fixture
def tables() -> Tables:
    clock = FakeClock()
    return Tables(FakeDynamoDB(clock), application(), runtime(clock))


class TestLeasesInMemory(LeaseTableContract):
    pass
