"""Chains in a real folder and on S3: a worker that ends is followed by another one."""

import itertools
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from kcl_dagster.chains.entry import FIRST, StagedFile
from kcl_dagster.chains.publication import file_name, staged_path
from kcl_dagster.chains.store import Entries
from kcl_dagster.emulator import Emulator
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.sinks.former_parts import FolderParts
from kcl_dagster.spark.storage import LocalStore, Store
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.staging import Destination, StagedBatch
from tests.unit.spark.buckets import Bucket
from tests.unit.worker.kit import Data, Fuse, Killed, World

pytestmark = pytest.mark.slow

A, B = LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001")


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(str(tmp_path))
    aws: Emulator = request.getfixturevalue("aws")
    return Bucket(aws).store


@dataclass
class StagingFolder:
    """One file for each batch, with the rows of all its shards."""

    store: Store
    fuse: Fuse

    @property
    def entries(self) -> Entries:
        return Entries(self.store)

    @property
    def destinations(self) -> dict[str, Destination]:
        return {FIRST: Destination(self.store)}

    @property
    def former_parts(self) -> FolderParts:
        return FolderParts(self.store)

    def begin_reading(self, chain: ChainId, time_column: str | None) -> None:
        """See `worker.staging.StagingSink`."""

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """Not looked at."""

    def stage(self, data: Data, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        path = f"day=1/{file_name(chain, number, 0, 0)}"
        content = json.dumps(data).encode()
        self.store.put(staged_path(chain, path), content)
        self.fuse.point()
        return StagedBatch((StagedFile(path, sum(part.records for part in batch.parts), len(content)),), {})


def stored(store: Store) -> Counter[tuple[str, int, str]]:
    rows = [row for file in store.files() for row in json.loads(store.get(file.path))]
    return Counter((shard, sequence, data) for shard, sequence, data in rows)


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_worker_that_ends_is_followed_by_another(store: Store, rounds: int) -> None:
    """It ends after it has staged its next batch. What it had decided is in no row."""
    world = World(shards=2)
    for shard in (A, B):
        world.stream.put(shard, *(f"record {number}" for number in range(18)))
    names = map("w{}".format, itertools.count(1))
    for _ in range(2):
        sink = StagingFolder(store, Fuse())
        run = world.worker(next(names), chains=sink)
        world.assign(run)
        for _ in range(rounds):
            run.round()
        sink.fuse.burns_at = sink.fuse.passed + 1
        with pytest.raises(Killed):
            run.until_idle()
        world.stream.put(A, "one more")
    run = world.worker(next(names), chains=StagingFolder(store, Fuse()))
    world.assign(run)
    run.until_idle()
    run.worker.shut_down()
    assert stored(store) == Counter(world.stream.everything())
    assert [file.path for file in store.files("_staged/", hidden=True)] == []
    if isinstance(store, LocalStore):  # of the last chain, which was not closed
        assert len(list(Path(store.root, "_staged").iterdir())) <= 1, "settled chains leave no folders"
    assert all(world.lease(shard).claim is None for shard in (A, B))
    assert all(world.lease(shard).checkpoint is not None for shard in (A, B))
