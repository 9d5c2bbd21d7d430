"""`LeaseTable` over HTTP, with real clocks and threads."""

import itertools

import pytest

from kcl_dagster import aws as edge
from kcl_dagster.emulator import Emulator
from kcl_dagster.runtime import system
from tests.unit.tables.contract import LeaseTableContract, RacingContract
from tests.unit.tables.kit import Tables, application

_numbers = itertools.count()

pytestmark = pytest.mark.server


@pytest.fixture
def tables(aws: Emulator) -> Tables:
    client = edge.client(
        "dynamodb", region="us-east-1", endpoint_url=aws.endpoint_url, access_key="x", secret_key="x"
    )
    return Tables(client, application(f"leases-{next(_numbers)}"), system())


class TestLeasesOverHttp(LeaseTableContract, RacingContract):
    pass
