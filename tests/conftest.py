"""Fixtures that several suites share."""

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import pyspark
import pytest
from botocore.loaders import JSONFileLoader
from hypothesis import HealthCheck, settings
from packaging.version import Version
from pyspark.sql import SparkSession

from kcl_dagster.emulator import Emulator, Endpoint, Limits, environment
from kcl_dagster.spark.session import SparkSettings, start_session
from tests.audit.rows import ROWS

# The JVMs of tests end before Java's optimizing compiler pays off, which takes a third of their CPU time. Every JVM
# that a test starts reads this variable.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# A busy machine takes long for an example, and long to draw one. Neither is a defect.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# Each session of botocore parses the descriptions of its services and endpoints anew. A process of tests has many
# sessions, and parses a file once.
_load_file = JSONFileLoader().load_file


@cache
def _loaded(file_path: str) -> Any:
    return _load_file(file_path)


def _load_once(self: JSONFileLoader, file_path: str) -> Any:
    return _loaded(file_path)


JSONFileLoader.load_file = _load_once  # type: ignore[method-assign]

SIDECAR_SECONDS = 300.0  # a cold start takes a second, and on a busy machine a minute


def pytest_configure(config: pytest.Config) -> None:
    if Version(pyspark.__version__) < Version("4.1"):
        # It leaves the sockets through which results come to the garbage collector.
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    if sys.version_info >= (3, 12):
        module = "dagster._core.storage.event_log.sql_event_log"
        config.addinivalue_line(
            "filterwarnings", f"ignore:datetime.datetime.utcfromtimestamp:DeprecationWarning:{module}"
        )
    if sys.version_info >= (3, 13):
        # Python tells which connections the pools of SQLAlchemy leave to the garbage collector.
        config.addinivalue_line("filterwarnings", "ignore:unclosed database in <sqlite3:ResourceWarning")
    if sys.version_info >= (3, 14):
        module = "dagster._utils.aiodataloader"
        config.addinivalue_line(
            "filterwarnings", f"ignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning:{module}"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share the session run in one process, where several run side by side."""
    for item in items:
        shares = "spark" in getattr(item, "fixturenames", ())  # others start sessions in processes of their own
        if shares and item.config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group("spark"))
        for mark in item.iter_markers("audit"):
            if not mark.args or set(mark.args) - set(ROWS):
                raise pytest.UsageError(f"{item.nodeid} names rows that the audit does not have: {mark.args}")


@pytest.fixture(scope="session")
def aws() -> Iterator[Emulator]:
    """The embedded AWS without rate limits, for the whole test process: use names of your own."""
    with Emulator(limits=Limits.none()) as emulator:
        yield emulator


@pytest.fixture(scope="session")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The embedded AWS as a process: for clients that hold Python's lock while they wait for an answer."""
    ready = tmp_path_factory.mktemp("sidecar") / "ready.json"
    command = [sys.executable, "-m", "kcl_dagster.emulator", "--no-limits", "--ready-file", str(ready)]
    command += ["--port", "0", "--watch-pid", str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + SIDECAR_SECONDS
        while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        found = json.loads(ready.read_text())
        yield Endpoint(found["endpoint"], found["pid"], found["region"], found["started"])
        process.terminate()


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
        attempts=2,
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
