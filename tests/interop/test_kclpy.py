"""A consumer written for Amazon's KCL for Python stops, and ours goes on; or it runs here, unchanged."""

import importlib
import inspect
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcl_dagster.application import Application
from kcl_dagster.emulator import Emulator
from kcl_dagster.worker import kclpy
from tests.interop import java_kcl, kclpy_source
from tests.interop.conftest import LEASE_SECONDS, STREAM, Stream, Tables, until
from tests.interop.ours import leading, working
from tests.interop.test_handover import PATIENCE, texts
from tests.unit.worker.kit import World

PROCESSOR = Path(__file__).parent / "python" / "processor.py"
DAEMON = "software.amazon.kinesis.multilang.MultiLangDaemon"


def properties(aws: Emulator, application: Application, python: Path) -> str:
    settings = {
        "executableName": f"{python} {PROCESSOR}",
        "applicationName": application.name,
        "streamName": STREAM,
        "workerId": "kclpy-1",
        "regionName": "us-east-1",
        "kinesisEndpoint": aws.endpoint_url,
        "dynamoDBEndpoint": aws.endpoint_url,
        "AwsCredentialsProvider": "EnvironmentVariableCredentialsProvider",
        "initialPositionInStream": "TRIM_HORIZON",
        "retrievalMode": "POLLING",
        "metricsLevel": "NONE",
        "failoverTimeMillis": int(LEASE_SECONDS * 1000),
    }
    return "".join(f"{name} = {value}\n" for name, value in settings.items())


@pytest.fixture(scope="module")
def newest() -> Path:
    """The folder with the newest `amazon_kclpy`, its samples beside it."""
    try:
        return kclpy_source.folder()
    except java_kcl.Unavailable as why:
        pytest.skip(f"no newest amazon_kclpy here: {why}")


@pytest.mark.parametrize("version", ["3.1.3", kclpy_source.VERSION])
def test_what_the_python_kcl_left_is_read_and_nothing_twice(
    aws: Emulator,
    application: Application,
    stream: Stream,
    tables: Tables,
    tmp_path: Path,
    newest: Path,
    version: str,
) -> None:
    """Java is 3.1.3 with both: PyPI has no newer release of the KCL with its MultiLangDaemon."""
    try:
        kcl = java_kcl.legacy()
    except java_kcl.Unavailable as why:
        pytest.skip(f"no Java KCL here: {why}")
    stream.create(2)
    stream.put(50)
    processed = tmp_path / "processed"
    processed.touch()
    file = tmp_path / "kcl.properties"
    file.write_text(properties(aws, application, java_kcl.CACHE / "venv" / "bin" / "python"))
    environment = {**os.environ, **aws.environment(), "PROCESSED": str(processed)}
    if version != "3.1.3":
        environment["PYTHONPATH"] = str(newest)  # comes before what is installed
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", kcl.classpath, DAEMON, "--properties-file", str(file)]

    def seen() -> list[str]:
        return [line.split("\t")[2] for line in processed.read_text().splitlines()]

    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as daemon,
    ):
        try:
            until(lambda: len(seen()) == 50, 2 * PATIENCE, "the Python KCL consumes")
            until(lambda: "TRIM_HORIZON" not in _checkpoints(tables), 30.0, "and checkpoints")
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(PATIENCE)
        finally:
            daemon.kill()
    stream.put(30)
    with leading(aws, application) as leader, working(aws, application) as ours:
        # The daemon keeps the leader lock when it is told to end, so its two minutes have to pass.
        until(lambda: len(ours.rows()) >= 30, 300.0, "we go on", leader, ours)
        leader.resign()
        ours.stop()
    assert Counter([*seen(), *texts(ours)]) == Counter(stream.produced)


def _checkpoints(tables: Tables) -> set[str]:
    return {item["checkpoint"]["S"] for item in tables.leases().values()}


@pytest.fixture(params=["ours", "theirs"])
def package(request: pytest.FixtureRequest, newest: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Whose `amazon_kclpy` the samples import: the stand-in, or the original."""
    monkeypatch.syspath_prepend(newest / "samples")
    if request.param == "theirs":
        monkeypatch.syspath_prepend(newest)
    _forget()
    assert kclpy.install_stand_in() == (request.param == "ours")
    yield request.param
    _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in {"amazon_kclpy", "sample_kclpy_app"}]:
        del sys.modules[name]


def test_the_sample_of_the_newest_package_runs_unchanged(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    sample = importlib.import_module("sample_kclpy_app").RecordProcessor
    world = World()
    shard = "shardId-000000000000"
    world.stream.put(shard, *"abcdefgh")
    world.stream.split(shard)
    run = world.worker("w1", processors=sample)
    world.assign(run)
    run.until_idle()
    told = capsys.readouterr().err
    assert told.count("Record (Partition Key") == 8
    assert "Shard has ended" in told
    assert "xception" not in told
    assert world.lease(shard).is_finished


def test_what_a_processor_may_use_of_the_newest_package_is_there(newest: Path) -> None:
    """Public names of what processors are given, and of what they import."""
    names = ["kcl", "messages", "checkpoint_error", "v3.processor"]
    _forget()
    sys.path.insert(0, str(newest))
    try:
        theirs = {name: importlib.import_module(f"amazon_kclpy.{name}") for name in names}
    finally:
        sys.path.remove(str(newest))
        _forget()
    kclpy.install_stand_in()
    ours = {name: importlib.import_module(f"amazon_kclpy.{name}") for name in names}
    _forget()
    for module, classes in USED.items():
        for name in classes:
            missing = _public(getattr(theirs[module], name)) - _public(getattr(ours[module], name)) - INTERNAL
            assert not missing, f"{module}.{name} has no {', '.join(sorted(missing))}"


USED = {
    "kcl": ["Checkpointer", "CheckpointError", "KCLProcess"],
    "checkpoint_error": ["CheckpointError"],
    "messages": [
        "InitializeInput",
        "ProcessRecordsInput",
        "LeaseLostInput",
        "ShardEndedInput",
        "ShutdownRequestedInput",
        "Record",
    ],
    "v3.processor": ["RecordProcessorBase"],
}
INTERNAL = {"dispatch"}  # called by the process that reads the daemon's messages


def _public(kind: Any) -> set[str]:
    found = {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}
    found |= {"[]"} if hasattr(kind, "__getitem__") else set()
    return found | set(getattr(kind, "__dataclass_fields__", {}))
