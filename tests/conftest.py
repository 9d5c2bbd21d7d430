"""Fixtures that several suites share."""

import os
import signal
import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kcl_dagster.emulator import Emulator, Endpoint, Limits, ensure_sidecar, environment
from kcl_dagster.spark.session import SparkSettings, start_session


@pytest.fixture(scope="session")
def aws() -> Iterator[Emulator]:
    """The embedded AWS without rate limits, for the whole test process: use names of your own."""
    with Emulator(limits=Limits.none()) as emulator:
        yield emulator


@pytest.fixture(scope="session")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The embedded AWS as a process: for clients that hold Python's lock while they wait for an answer."""
    endpoint = ensure_sidecar(tmp_path_factory.mktemp("sidecar"), os.getpid(), limits=False)
    yield endpoint
    os.kill(endpoint.pid, signal.SIGTERM)


@pytest.fixture
def aws_environment(aws: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """`aws`, with every AWS SDK of this process and of the ones it starts pointed at it."""
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    for name, value in environment(aws.endpoint_url, "us-east-1").items():
        monkeypatch.setenv(name, value)
    return aws


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one session of this test process. A task that fails is tried again, as on a cluster."""
    folder = tmp_path_factory.mktemp("spark")
    settings = SparkSettings(
        slots=4,
        attempts=4,
        conf={
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    session = start_session(settings, "tests")
    yield session
    with warnings.catch_warnings():
        # py4j leaves the sockets of finished threads to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        session.stop()
