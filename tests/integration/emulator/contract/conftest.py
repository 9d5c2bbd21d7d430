"""The servers that the contract runs against: ours always, referees where this machine can run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import cast

import pytest
from mypy_boto3_dynamodb import DynamoDBClient
from mypy_boto3_kinesis import KinesisClient

from kcl_dagster.emulator import Emulator, Limits
from tests.integration.emulator.contract import referees
from tests.integration.emulator.contract.deviations import DEVIATIONS, KINESIS_LOCAL, MINISTACK, UNSTEADY
from tests.integration.emulator.contract.server import Server

OURS = "emulator"


def _servers(referee: str) -> list[object]:
    # One group, so that of several test processes only one starts the referee. A referee shows that the
    # contract is right, and the contract changes less often than the emulator.
    marks = [pytest.mark.referee, pytest.mark.nightly, pytest.mark.xdist_group(referee)]
    return [OURS, pytest.param(referee, marks=marks)]


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    with Emulator(limits=Limits.none()) as aws:
        yield aws


@pytest.fixture(scope="session", params=_servers(KINESIS_LOCAL))
def kinesis_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    yield from _serving(request, referees.kinesis_local)


@pytest.fixture(scope="session", params=_servers(MINISTACK))
def dynamodb_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    yield from _serving(request, referees.ministack)


@pytest.fixture
def kinesis(kinesis_server: Server) -> KinesisClient:
    return kinesis_server.kinesis()


@pytest.fixture
def dynamodb(dynamodb_server: Server) -> DynamoDBClient:
    return dynamodb_server.dynamodb()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        parameters = getattr(item, "callspec", None)
        name = getattr(item, "originalname", item.name)
        for server in () if parameters is None else parameters.params.values():
            reason = DEVIATIONS.get((str(server), name)) or DEVIATIONS.get((str(server), item.name))
            if reason is not None:
                steady = (str(server), name) not in UNSTEADY
                item.add_marker(pytest.mark.xfail(reason=f"{server}: {reason}", strict=steady))


def _serving(
    request: pytest.FixtureRequest, start: Callable[[], AbstractContextManager[Server]]
) -> Iterator[Server]:
    if request.param == OURS:
        emulator = cast("Emulator", request.getfixturevalue("emulator"))
        yield Server(OURS, emulator.endpoint_url, emulator.clock.advance, emulator.clock)
        return
    with ExitStack() as running:
        try:
            server = running.enter_context(start())
        except referees.Unavailable as reason:
            pytest.skip(str(reason))
        yield server
