"""A consumer whose batches are decided in chains: from the stream to files, with real workers."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import kcl_dagster as kcl
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.sinks import Commit
from kcl_dagster.runtime import system
from kcl_dagster.spark.storage import S3Options, Store, open_store
from kcl_dagster.tables.layout import Layout
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.testing.consuming import EmbeddedAws, consume, embedded_aws

pytestmark = pytest.mark.spark

SHARDS, RECORDS = 16, 400


@pytest.fixture(scope="module")
def cloud() -> Iterator[EmbeddedAws]:
    with embedded_aws(streams={"local-clicks": SHARDS, "s3-clicks": SHARDS}) as cloud:
        cloud.emulator.client("s3").create_bucket(Bucket="lake")
        yield cloud


def transform(records: DataFrame) -> DataFrame:
    """Not deterministic, and its rows do not say which lease they are of."""
    number = F.col("data").cast("string").cast("int").alias("n")
    return records.select(number, F.rand().alias("chance"), F.current_timestamp().alias("at"))


def consumer(stream: str, place: str, commit: Commit) -> Consumer:
    application = kcl.Application(
        name=f"{stream}-app", streams=stream, batch={"max_seconds": 1.0, "idle_seconds": 0.1}
    )
    sink = kcl.parquet(place, commit=commit)
    return kcl.kcl_consumer(application=application, sink=sink, name="records")(transform)


def numbers(store: Store) -> Counter[int]:
    """In all files that readers see."""
    found: Counter[int] = Counter()
    for file in store.files():
        if file.path.endswith(".parquet"):
            found.update(pq.read_table(pa.BufferReader(store.get(file.path)))["n"].to_pylist())
    return found


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_every_record_is_stored_once_and_files_do_not_follow_shards(
    cloud: EmbeddedAws, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    place = str(tmp_path / "lake") if kind == "local" else "s3://lake/clicks"
    stream = f"{kind}-clicks"
    resource: Any = cloud.resource()
    store = open_store(place, S3Options(**resource.connection("s3", stream)))
    settings: list[Commit] = ["leases", "chains", "chains", "leases"]
    files = []
    for turn, commit in enumerate(settings):
        cloud.put(stream, [str(turn * RECORDS + n).encode() for n in range(RECORDS)])
        before = {file.path for file in store.files()}
        assert consume(consumer(stream, place, commit), resource, spark) == RECORDS
        files.append(len({file.path for file in store.files()} - before))
        assert numbers(store) == Counter(range((turn + 1) * RECORDS))
        assert list(store.files("_staged/", hidden=True)) == []
    assert min(files[0], files[3]) >= SHARDS, "a file for each shard"
    assert max(files[1], files[2]) < SHARDS
    application = consumer(stream, place, "chains").application
    table = LeaseTable(cloud.emulator.client("dynamodb"), application, Layout.single(application), system())
    lease = table.get(LeaseKey("shardId-000000000000"))
    assert lease is not None
    assert lease.claim is None
