"""A fleet whose batches are decided in chains, of real processes with Spark, one of which is killed."""

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kcl_dagster.emulator import Endpoint
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.runtime import system
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.spark.sinks.delta_compaction import open_table
from kcl_dagster.spark.storage import S3Options, S3Store, open_store
from kcl_dagster.testing import EmulatorResource
from tests.acceptance.family import wait_for
from tests.integration.spark import chain_worker

if TYPE_CHECKING:
    from pyiceberg.table import Table

pytestmark = pytest.mark.spark

SHARDS = 16
BUCKET = "chain-fleet"
MOST_FILES = 2 * 2  # of a batch: two jobs with one task, if a part was read ahead; and two partition values


class Producer(threading.Thread):
    """Puts numbered records until it is stopped."""

    def __init__(self, kinesis: Any, stream: str) -> None:
        super().__init__(daemon=True)
        self.kinesis = kinesis
        self.stream = stream
        self.produced = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.1):
            numbers = range(self.produced, self.produced + 40)
            some = [{"Data": str(n).encode(), "PartitionKey": f"key-{n}"} for n in numbers]
            self.kinesis.put_records(StreamName=self.stream, Records=some)
            self.produced += len(some)


@contextmanager
def leading(resource: EmulatorResource, kind: str) -> Iterator[None]:
    leader = open_leader(
        chain_worker.consumer(kind, stream_of(kind), place_of(kind)).application,
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
def worker(sidecar: Endpoint, kind: str, number: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    slot = f"worker-{number:03}"
    command = [sys.executable, "-m", "tests.integration.spark.chain_worker"]
    command += [kind, sidecar.url, stream_of(kind), place_of(kind), slot, f"{number:08d}-run"]
    env = os.environ | in_environment(folder) | {"TMPDIR": str(folder)}
    with (folder / f"{slot}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def stream_of(kind: str) -> str:
    return f"chain-fleet-{kind}"


def place_of(kind: str) -> str:
    return f"s3://{BUCKET}/{chain_worker.TABLE.replace('.', '/') if kind == 'iceberg' else kind}"


def catalog(folder: Path) -> dict[str, str]:
    """Of Iceberg. The table is below the warehouse."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"s3://{BUCKET}"}


def in_environment(folder: Path) -> dict[str, str]:
    return {f"PYICEBERG_CATALOG__DEFAULT__{name.upper()}": value for name, value in catalog(folder).items()}


@dataclass(frozen=True)
class Lake:
    """What a fleet of this kind stores."""

    kind: str
    store: S3Store
    folder: Path

    def iceberg(self) -> "Table | None":
        return CatalogTable(chain_worker.TABLE, catalog(self.folder), s3=self.store.options).load()

    def written(self) -> list[str]:
        """All files under their final names, whether readers see them or not."""
        return [file.path for file in self.store.files() if file.path.endswith(".parquet")]

    def published(self) -> list[str]:
        """What readers see."""
        if self.kind == "parquet":
            return self.written()
        if self.kind == "iceberg":
            iceberg = self.iceberg()
            paths = [] if iceberg is None else [task.file.file_path for task in iceberg.scan().plan_files()]
        else:
            table = open_table(self.store.root, self.store.options)
            paths = [] if table is None else table.file_uris()
        return [path.removeprefix(f"{self.store.root}/") for path in paths]

    def is_staging(self, worker: str) -> bool:
        """Whether a worker has written files that readers do not see yet."""
        if self.kind == "parquet":
            return any(worker in file.path for file in self.store.files("_staged/", hidden=True))
        return any(worker in path for path in set(self.written()) - set(self.published()))

    def numbers(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for path in self.published():
            found.update(pq.read_table(pa.BufferReader(self.store.get(path)))["n"].to_pylist())
        return found

    def batches(self) -> Counter[str]:
        """How many files each batch has."""
        return Counter(re.sub(r"_\d+_\d+\.parquet", "", path.rpartition("/")[2]) for path in self.published())

    def commits(self) -> int:
        """Of a table."""
        if self.kind == "iceberg":
            iceberg = self.iceberg()
            assert iceberg is not None
            return len(iceberg.snapshots())
        table = open_table(self.store.root, self.store.options)
        assert table is not None
        return table.version()

    def hidden(self, folder: str) -> list[str]:
        return [file.path for file in self.store.files(folder, hidden=True)]


def by_worker(paths: list[str]) -> set[str]:
    return {found[0] for path in paths if (found := re.search(r"worker-\d+", path)) is not None}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_worker_that_is_killed_loses_and_repeats_no_record(sidecar: Endpoint, tmp_path: Path, kind: str) -> None:
    stream = stream_of(kind)
    resource = EmulatorResource(endpoint_url=sidecar.url, region_name=chain_worker.REGION)
    kinesis = resource.client("kinesis")
    kinesis.create_stream(StreamName=stream, ShardCount=SHARDS)
    store = open_store(place_of(kind), S3Options(**resource.connection("s3")))
    assert isinstance(store, S3Store)
    lake = Lake(kind, store, tmp_path)
    with suppress(resource.client("s3").exceptions.BucketAlreadyOwnedByYou):
        resource.client("s3").create_bucket(Bucket=BUCKET)
    producer = Producer(kinesis, stream)
    with (
        leading(resource, kind),
        worker(sidecar, kind, 0, tmp_path) as killed,
        worker(sidecar, kind, 1, tmp_path) as other,
    ):
        producer.start()
        wait_for(lambda: by_worker(lake.published()) == {"worker-000", "worker-001"}, "both store")

        wait_for(lambda: lake.is_staging("worker-000"), "the first worker stages a batch")
        killed.kill()
        assert killed.wait(60) == -9
        at_kill = producer.produced
        wait_for(lambda: producer.produced > at_kill + 400, "records flow")
        producer.over.set()
        producer.join()
        wait_for(lambda: len(lake.numbers()) == producer.produced, "everything is stored")
        other.terminate()
        assert other.wait(60) == 0
    assert lake.numbers() == Counter(range(producer.produced))
    assert lake.hidden("_staged/") == []
    batches = lake.batches()
    assert max(batches.values()) <= MOST_FILES < SHARDS
    assert len(batches) > 4
    if kind != "parquet":
        check_table(lake)


def check_table(lake: Lake) -> None:
    """One commit has the files of many batches, and nothing is left beside the table but the last plan, and the
    chain of the worker that was killed."""
    assert lake.commits() < len(lake.batches())
    assert len(lake.hidden("_commits/")) == 1
    assert {path.split("/")[1].split("~")[1][:10] for path in lake.hidden("_chains/")} <= {"worker-000"}
