"""A fleet whose batches are decided in chains, of real processes with Spark, one of which is killed."""

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kcl_dagster.emulator import Endpoint
from kcl_dagster.leader.opening import open_leader
from kcl_dagster.leader.runs import RunView
from kcl_dagster.runtime import system
from kcl_dagster.spark.storage import S3Options, Store, open_store
from kcl_dagster.testing import EmulatorResource
from tests.acceptance.family import wait_for
from tests.integration.spark import chain_worker

pytestmark = pytest.mark.spark

SHARDS = 16
STREAM, PLACE = "chain-fleet", "s3://chain-fleet/clicks"
MOST_FILES = 2 * 2  # of a batch: two jobs with one task, if a part was read ahead; and two partition values


class Producer(threading.Thread):
    """Puts numbered records until it is stopped."""

    def __init__(self, kinesis: Any) -> None:
        super().__init__(daemon=True)
        self.kinesis = kinesis
        self.produced = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.1):
            numbers = range(self.produced, self.produced + 40)
            some = [{"Data": str(n).encode(), "PartitionKey": f"key-{n}"} for n in numbers]
            self.kinesis.put_records(StreamName=STREAM, Records=some)
            self.produced += len(some)


@contextmanager
def leading(resource: EmulatorResource) -> Iterator[None]:
    leader = open_leader(
        chain_worker.consumer(STREAM, PLACE).application,
        dynamodb=resource.client("dynamodb"),
        kinesis=resource.client("kinesis"),
        identity="test",
        runtime=system(),
    )
    over = threading.Event()

    def lead() -> None:
        while not over.wait(0.5):
            leader.tick(RunView(launches=False))

    thread = threading.Thread(target=lead)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def worker(sidecar: Endpoint, number: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    slot = f"worker-{number:03}"
    command = [sys.executable, "-m", "tests.integration.spark.chain_worker"]
    command += [sidecar.url, STREAM, PLACE, slot, f"{number:08d}-run"]
    with (folder / f"{slot}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"TMPDIR": str(folder)})
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def published(store: Store) -> list[str]:
    return [file.path for file in store.files() if file.path.endswith(".parquet")]


def by_worker(paths: list[str]) -> set[str]:
    return {found[0] for path in paths if (found := re.search(r"worker-\d+", path)) is not None}


def numbers(store: Store) -> Counter[int]:
    found: Counter[int] = Counter()
    for path in published(store):
        found.update(pq.read_table(pa.BufferReader(store.get(path)))["n"].to_pylist())
    return found


def test_a_worker_that_is_killed_loses_and_repeats_no_record(sidecar: Endpoint, tmp_path: Path) -> None:
    resource = EmulatorResource(endpoint_url=sidecar.url, region_name=chain_worker.REGION)
    kinesis = resource.client("kinesis")
    kinesis.create_stream(StreamName=STREAM, ShardCount=SHARDS)
    store = open_store(PLACE, S3Options(**resource.connection("s3", STREAM)))
    resource.client("s3").create_bucket(Bucket="chain-fleet")
    producer = Producer(kinesis)
    with (
        leading(resource),
        worker(sidecar, 0, tmp_path) as killed,
        worker(sidecar, 1, tmp_path) as other,
    ):
        producer.start()
        wait_for(lambda: by_worker(published(store)) == {"worker-000", "worker-001"}, "both store")

        def is_staging() -> bool:
            return any("worker-000" in file.path for file in store.files("_staged/", hidden=True))

        wait_for(is_staging, "the first worker stages a batch")
        killed.kill()
        assert killed.wait(60) == -9
        at_kill = producer.produced
        wait_for(lambda: producer.produced > at_kill + 400, "records flow")
        producer.over.set()
        producer.join()
        wait_for(lambda: len(numbers(store)) == producer.produced, "everything is stored")
        other.terminate()
        assert other.wait(60) == 0
    assert numbers(store) == Counter(range(producer.produced))
    assert list(store.files("_staged/", hidden=True)) == []
    batches = Counter(re.sub(r"_\d+_\d+\.parquet", "", path.rpartition("/")[2]) for path in published(store))
    assert max(batches.values()) <= MOST_FILES < SHARDS
    assert len(batches) > 4
