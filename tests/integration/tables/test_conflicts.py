"""Leases that are made side by side, against an emulator whose transactions conflict as DynamoDB's do."""

import itertools
import threading

import pytest

from kcl_dagster import aws as edge
from kcl_dagster.emulator import Emulator
from kcl_dagster.model.standing import Standing
from kcl_dagster.runtime import system
from kcl_dagster.tables.lock import LeaderLock
from tests.unit.tables.kit import Tables, application, new_lease

_numbers = itertools.count()

pytestmark = pytest.mark.server


@pytest.fixture
def tables(aws: Emulator) -> Tables:
    client = edge.client(
        "dynamodb", region="us-east-1", endpoint_url=aws.endpoint_url, access_key="x", secret_key="x"
    )
    return Tables(client, application(f"conflicts-{next(_numbers)}"), system())


@pytest.mark.audit("C7")
def test_leases_that_two_threads_make_under_one_guard_are_all_made(tables: Tables) -> None:
    lock = LeaderLock(tables.client, tables.application, tables.layout, tables.runtime, "us")
    assert lock.hold(Standing()).held
    guard = lock.guard()
    failures: list[BaseException] = []

    def make(first: int) -> None:
        try:
            for number in range(first, first + 5):
                assert tables.leases.create(new_lease(f"shardId-{number:012d}"), guard)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=make, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert len(tables.leases.scan().leases) == 15
