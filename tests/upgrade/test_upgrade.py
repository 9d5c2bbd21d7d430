"""An application of a former version is upgraded: no record is lost or stored twice, and its files remain.

Rows and files are those of `states/`, which `former_state` has made with the former version's own code. Some of the
leases are pinned to batches that were stored, or were not, or were stored in half when their worker was killed.
"""

import hashlib
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import kcl_dagster as kcl
from kcl_dagster.emulator import Emulator
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.sink_choices import SinkChoice
from kcl_dagster.testing.consuming import EmbeddedAws, consume
from tests.upgrade.saved_state import (
    APPLICATION,
    BUCKET,
    FIXTURES,
    STREAM,
    TABLE,
    SavedState,
    emulator,
    load,
    put,
    restore_tables,
)

pytestmark = [pytest.mark.spark, pytest.mark.server]


def unchanged(records: DataFrame) -> DataFrame:
    return records


def transform(records: DataFrame) -> DataFrame:
    """As before, and every record can be processed. The former version added `lease_key` to tables, which are not
    taken without it."""
    number = F.col("data").cast("string").substr(1, 5).cast("int").alias("n")
    kind = F.when(F.col("n") % 2 == 0, "even").otherwise("odd")
    return records.select("lease_key", number).withColumn("kind", kind)


@dataclass(frozen=True)
class Upgraded:
    """The application, with the present version."""

    kind: str
    folder: Path
    aws: Emulator
    state: SavedState

    @property
    def place(self) -> str:
        return str(self.folder / "lake")

    def restore(self) -> None:
        kinesis = self.aws.client("kinesis")
        kinesis.create_stream(StreamName=STREAM, ShardCount=self.state.shards)
        put(kinesis, self.state.records)
        restore_tables(self.aws.client("dynamodb"), self.state.tables)
        stored = FIXTURES / self.kind / "stored"
        if self.state.metadata_location is None:
            shutil.copytree(stored, self.place)
            return
        s3 = self.aws.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        for file in stored.rglob("*"):
            if file.is_file():
                s3.put_object(Bucket=BUCKET, Key=str(file.relative_to(stored)), Body=file.read_bytes())
        self.catalog().create_namespace("lake")
        self.catalog().register_table(TABLE, self.state.metadata_location)

    def catalog_properties(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.place}.db", "warehouse": f"s3://{BUCKET}"}

    def catalog(self) -> Catalog:
        access = {"s3.endpoint": self.aws.endpoint_url, "s3.region": "us-east-1"}
        keys = {"s3.access-key-id": "test", "s3.secret-access-key": "test"}
        return load_catalog("default", **self.catalog_properties(), **access, **keys)

    def consumer(self) -> Consumer:
        application = kcl.Application(
            name=APPLICATION,
            streams=STREAM,
            timings={"lease_duration": 6.0, "heartbeat": 1.0, "handoff_timeout": 5.0, "leader_lock": 5.0},
            batch={"max_seconds": 1.0, "idle_seconds": 0.1, "failure": {"action": "skip", "attempts": 1}},
        )
        function = unchanged if self.kind == "folder" else transform
        return kcl.kcl_consumer(application=application, sink=self._sink(), name="records")(function)

    def _sink(self) -> SinkChoice:
        match self.kind:
            case "folder":
                return kcl.parquet(self.place)
            case "parquet":
                return kcl.parquet(self.place, partition_by=["kind"])
            case "delta":
                return kcl.delta(self.place, partition_by=["kind"])
        return kcl.iceberg(TABLE, self.catalog_properties(), partition_by=["kind"])

    def rows(self) -> pa.Table:
        """What readers see."""
        if self.kind == "delta":
            return pa.table(DeltaTable(self.place).to_pyarrow_table())
        if self.kind == "iceberg":
            return self.catalog().load_table(TABLE).scan().to_arrow()
        return ds.dataset(self.place, partitioning="hive").to_table()

    def numbers(self) -> Counter[int]:
        if self.kind == "folder":
            return Counter(int(data[:5]) for data in self.rows()["data"].to_pylist())
        return Counter(self.rows()["n"].to_pylist())

    def data_files(self) -> Mapping[str, str]:
        """The digests of all that readers see, by path."""
        if self.kind == "iceberg":
            s3 = self.aws.client("s3")
            paths = [task.file.file_path for task in self.catalog().load_table(TABLE).scan().plan_files()]
            keys = [path.removeprefix(f"s3://{BUCKET}/") for path in paths]
            content = {key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}
        else:
            found = (
                DeltaTable(self.place).file_uris() if self.kind == "delta" else Path(self.place).rglob("*.parquet")
            )
            content = {str(file): Path(file).read_bytes() for file in found}
        return {path: hashlib.sha256(one).hexdigest() for path, one in content.items()}

    def to_remain(self, former: Mapping[str, str]) -> Mapping[str, str]:
        """A table knows which batches it has. In a folder, files of batches that were begun are made anew."""
        if self.kind in ("delta", "iceberg"):
            return former
        begun = self.state.pinned
        return {path: digest for path, digest in former.items() if not any(lease in path for lease in begun)}

    def pinned(self) -> list[str]:
        rows = self.aws.client("dynamodb").scan(TableName=APPLICATION, ConsistentRead=True)["Items"]
        return sorted(row["leaseKey"]["S"] for row in rows if "pendingCheckpoint" in row)


@pytest.mark.parametrize(
    "kind", ["parquet", "iceberg", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("delta", "folder"))]
)
def test_each_record_is_stored_once_and_former_files_remain(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    with emulator() as aws:
        upgraded = Upgraded(kind, tmp_path, aws, load(kind))
        upgraded.restore()
        former, seen = upgraded.data_files(), upgraded.numbers()
        everything = Counter(range(len(upgraded.state.records)))
        assert set(seen.values()) == {1}
        assert len(seen) < len(everything)
        assert upgraded.pinned() == sorted(upgraded.state.pinned)

        cloud = EmbeddedAws(aws)
        consume(upgraded.consumer(), cloud.resource(), spark)

        assert upgraded.numbers() == everything
        assert upgraded.to_remain(former).items() <= upgraded.data_files().items()
        assert upgraded.pinned() == []
