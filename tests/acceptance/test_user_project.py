"""A project of a user's own, made from the wheel alone: fifteen lines, and records land."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from kcl_dagster.emulator import Emulator
from kcl_dagster.orchestration import processes
from tests.acceptance.family import PATIENCE_SECONDS, free_port

ROOT = Path(__file__).parents[2]

PROJECT = '''\
import os

import kcl_dagster as kcl


@kcl.kcl_consumer(application="orders-to-lake", stream="orders", sink=kcl.parquet(os.environ["LAKE"]))
def orders(records):
    """Orders, as they come."""
    return records.selectExpr("cast(data as string) as body", "sequence_number")


defs = kcl.build_kcl_definitions(orders, resources={"kcl": kcl.KclResource()})
'''
# A shell that runs the tests in the background ignores Ctrl-C on behalf of all they start.
HEARS_INTERRUPTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "dagster", *sys.argv[1:]])
"""
ORDERS = [json.dumps({"order": number}) for number in range(300)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked; what it depends on comes from this environment."""
    dist, site = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    return site


@pytest.fixture
def dagster_dev(installed: Path, aws: Emulator, tmp_path: Path) -> Iterator[Path]:
    """`dagster dev` on the project, in a directory of its own, until the test is over. Yields the lake."""
    (tmp_path / "project.py").write_text(PROJECT)
    log = (tmp_path / "dagster.log").open("wb")
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HEARS_INTERRUPTS,
            "dev",
            "-f",
            "project.py",
            "-h",
            "127.0.0.1",
            "-p",
            str(free_port()),
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            **aws.environment(),
            "LAKE": str(tmp_path / "lake"),
            "PYTHONPATH": os.pathsep.join([str(installed), sysconfig.get_paths()["purelib"]]),
            "DAGSTER_DISABLE_TELEMETRY": "1",
        },
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    yield tmp_path / "lake"
    family = processes.descendants(process.pid, processes.snapshot())
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(120)
    finally:
        log.close()
        for relative in family.values():
            if relative.is_alive():
                os.kill(relative.pid, signal.SIGKILL)
        process.kill()
        process.wait()


def bodies(lake: Path) -> list[str]:
    files = sorted(path for path in lake.glob("*.parquet") if not path.name.startswith("."))
    return [body for path in files for body in parquet.read_table(path, columns=["body"])["body"].to_pylist()]


def test_the_project_is_short() -> None:
    assert len([line for line in PROJECT.splitlines() if line.strip()]) <= 15


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(1200)
def test_records_of_a_users_own_stream_land_once(aws: Emulator, dagster_dev: Path) -> None:
    kinesis = aws.client("kinesis")
    kinesis.create_stream(StreamName="orders", ShardCount=1)
    kinesis.put_records(
        StreamName="orders", Records=[{"Data": order.encode(), "PartitionKey": "customer"} for order in ORDERS]
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(landed := bodies(dagster_dev)) < len(ORDERS):
        log = dagster_dev.with_name("dagster.log")
        assert time.monotonic() < deadline, f"{len(landed)} records after a while: {log.read_text()[-3000:]}"
        time.sleep(0.5)
    assert landed == ORDERS
