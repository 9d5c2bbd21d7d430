"""A consumer written for Amazon's KCL for Python stops, and ours goes on."""

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from kcl_dagster.application import Application
from kcl_dagster.emulator import Emulator
from tests.interop import java_kcl
from tests.interop.conftest import LEASE_SECONDS, STREAM, Stream, Tables, until
from tests.interop.ours import leading, working
from tests.interop.test_handover import PATIENCE, texts

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


def test_what_the_python_kcl_left_is_read_and_nothing_twice(
    aws: Emulator, application: Application, stream: Stream, tables: Tables, tmp_path: Path
) -> None:
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
