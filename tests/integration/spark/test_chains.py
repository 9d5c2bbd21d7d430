"""A consumer whose batches are decided in chains: from the stream to files, with real workers."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import kcl_dagster as kcl
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.runtime import system
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.spark.storage import S3Options, Store, open_store
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import TableLayout
from kcl_dagster.testing.consuming import EmbeddedAws, consume, embedded_aws

pytestmark = pytest.mark.spark

SHARDS, RECORDS = 16, 400
TABLE = "lake.clicks"


@pytest.fixture(scope="module")
def cloud() -> Iterator[EmbeddedAws]:
    with embedded_aws(
        streams=dict.fromkeys(["local-clicks", "s3-clicks", "delta-clicks", "iceberg-clicks"], SHARDS)
    ) as cloud:
        cloud.emulator.client("s3").create_bucket(Bucket="lake")
        yield cloud


def transform(records: DataFrame) -> DataFrame:
    """Not deterministic, and its rows do not say which lease they are of."""
    number = F.col("data").cast("string").cast("int").alias("n")
    return records.select(number, F.rand().alias("chance"), F.current_timestamp().alias("at"))


def consumer(stream: str, place: str, kind: str = "parquet") -> Consumer:
    application = kcl.Application(
        name=f"{stream}-app", streams=stream, batch={"max_seconds": 1.0, "idle_seconds": 0.1}
    )
    if kind == "iceberg":
        sink = kcl.iceberg(TABLE, catalog(place))
    else:
        sink = kcl.parquet(place) if kind == "parquet" else kcl.delta(place)
    return kcl.kcl_consumer(application=application, sink=sink, name="records")(transform)


def catalog(place: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{place}.db", "warehouse": place}


@dataclass(frozen=True)
class TableContent:
    """What readers see of a table, and how many commits it has."""

    numbers: Counter[int]
    files: set[str]
    version: int


def content_of(kind: str, place: str) -> TableContent:
    if kind == "delta":
        table = DeltaTable(place)
        found = pa.table(table.to_pyarrow_table())
        return TableContent(Counter(found["n"].to_pylist()), set(table.file_uris()), table.version())
    iceberg = CatalogTable(TABLE, catalog(place)).catalog.load_table(TABLE)
    files = {task.file.file_path for task in iceberg.scan().plan_files()}
    return TableContent(Counter(iceberg.scan().to_arrow()["n"].to_pylist()), files, len(iceberg.snapshots()))


def numbers(store: Store) -> Counter[int]:
    """In all files that readers see."""
    found: Counter[int] = Counter()
    for file in store.files():
        if file.path.endswith(".parquet"):
            found.update(pq.read_table(pa.BufferReader(store.get(file.path)))["n"].to_pylist())
    return found


@pytest.mark.parametrize("kind", [pytest.param("local", marks=pytest.mark.nightly), "s3"])
def test_every_record_is_stored_once_and_files_do_not_follow_shards(
    cloud: EmbeddedAws, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    place = str(tmp_path / "lake") if kind == "local" else "s3://lake/clicks"
    stream = f"{kind}-clicks"
    resource: Any = cloud.resource()
    store = open_store(place, S3Options(**resource.connection("s3", stream)))
    files = []
    for turn in range(3):
        cloud.put(stream, [str(turn * RECORDS + n).encode() for n in range(RECORDS)])
        before = {file.path for file in store.files()}
        assert consume(consumer(stream, place), resource, spark) == RECORDS
        files.append(len({file.path for file in store.files()} - before))
        assert numbers(store) == Counter(range((turn + 1) * RECORDS))
        assert list(store.files("_staged/", hidden=True)) == []
    assert max(files) < SHARDS
    application = consumer(stream, place).application
    table = LeaseTable(cloud.emulator.client("dynamodb"), application, TableLayout.single(application), system())
    lease = table.get(LeaseKey("shardId-000000000000"))
    assert lease is not None
    assert lease.claim is None


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_every_record_is_in_a_table_once_and_commits_do_not_follow_batches(
    cloud: EmbeddedAws, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """A run ends with a commit of what it has decided."""
    place, stream = str(tmp_path / "table"), f"{kind}-clicks"
    resource: Any = cloud.resource()
    contents, files = [TableContent(Counter(), set(), 0)], []
    for turn in range(3):
        cloud.put(stream, [str(turn * RECORDS + n).encode() for n in range(RECORDS)])
        assert consume(consumer(stream, place, kind), resource, spark) == RECORDS
        contents.append(content_of(kind, place))
        assert contents[-1].numbers == Counter(range((turn + 1) * RECORDS))
        files.append(len(contents[-1].files - contents[-2].files))
    assert max(files) < SHARDS
    assert contents[3].version - contents[2].version <= 3
    left = [path for path in Path(place).rglob("*.json") if path.parts[-3] in ("_chains", "_commits")]
    assert len(left) == 1, "the last plan"
