"""The sinks of `cluster_run`: their batches are decided in a chain and published as a worker does it, and what
readers find in the end is counted.

Of a worker, the leases are missing: each batch is taken for written to their rows at once.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.entry import StoredRange
from kcl_dagster.chains.publication import chain_id
from kcl_dagster.model.claim import ClaimId
from kcl_dagster.runtime import system
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.engine import StagingOfFetches
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.spark.sinks.contract import SparkSink
from kcl_dagster.spark.sinks.delta import DeltaSink
from kcl_dagster.spark.sinks.iceberg import IcebergSink
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.transform import Transform, unchanged
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.publishing import publisher_of

APPLICATION = "app"
TABLE = "lake.clicks"  # of Iceberg
COMMIT_SECONDS = 2.0  # a commit has several batches, and there are several commits
TASKS = 3  # of a transform that moves records
AS_READ, STAGED, CHANGED = "", "staged-", "changed-"  # how a round stores its batch, as its name begins


def as_it_came(records: DataFrame) -> DataFrame:
    """A transform that stores raw records."""
    return records


def changed(records: DataFrame) -> DataFrame:
    """Not deterministic: it adds a column, and another attempt moves the records to other tasks."""
    return records.withColumn("chance", F.rand()).repartition(TASKS, F.rand())


TRANSFORMS: dict[str, Transform] = {AS_READ: unchanged, STAGED: as_it_came, CHANGED: changed}


def catalog(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder)}


def sink_of(kind: str, folder: Path, transform: Transform) -> SparkSink:
    """`evolve`: rounds with and without the transform write to one table."""
    settings: dict[str, Any] = {"transform": transform, "commit_seconds": COMMIT_SECONDS, "evolve": "add"}
    if kind == "delta":
        return DeltaSink(str(folder), **settings)
    if kind == "iceberg":
        return IcebergSink(TABLE, catalog(folder), **settings)
    return ParquetSink(str(folder), transform=transform)


def rows_of(kind: str, folder: Path) -> pa.Table:
    """What readers find."""
    if kind == "delta":
        return pa.table(DeltaTable(str(folder)).to_pyarrow_table())
    if kind == "iceberg":
        return CatalogTable(TABLE, catalog(folder)).catalog.load_table(TABLE).scan().to_arrow()
    schema = pa.unify_schemas([file.physical_schema for file in ds.dataset(folder).get_fragments()])
    return ds.dataset(folder, schema=schema).to_table()


class ChainedSink:
    """A folder or a table below `folder`, and the chain of one worker. `transforms`: instead of the usual ones."""

    def __init__(self, kind: str, folder: Path, transforms: Mapping[str, Transform] | None = None) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._kind = kind
        self._sinks = {
            way: sink_of(kind, folder, transform)
            for way, transform in (TRANSFORMS | dict(transforms or {})).items()
        }
        self._numbers = itertools.count(1)  # of batches
        runtime, sink = system(), self.sink
        self._chain = Chain(sink.entries, chain_id(APPLICATION, "w1", runtime.new_id()), runtime.new_id)
        self._sinks[STAGED].begin_reading(self._chain.id, None)
        self._publisher = publisher_of(sink.entries, sink.destinations, APPLICATION, runtime)

    @property
    def sink(self) -> SparkSink:
        return self._sinks[AS_READ]

    @property
    def staging(self) -> StagingOfFetches:
        return self._sinks[STAGED].staging

    def store(self, way: str, data: Records, batch: Batch) -> None:
        """Stage and decide a batch, publish what is due, and delete the entries that are published."""
        chain = self._chain
        staged = self._sinks[way].stage(data, batch, chain.id, next(self._numbers))
        ranges = [
            StoredRange(part.lease, ClaimId("1"), part.after, part.through, part.records, part.bytes)
            for part in batch.parts
        ]
        entry = chain.decide(staged.files, ranges, staged.rules)
        assert entry is not None
        self._publisher.publish(chain.id, chain.last, entry)
        self._publisher.step({chain.id: chain.last})
        chain.written({part.lease: part.through for part in batch.parts})
        chain.delete_entries(self._publisher.visible(chain.id))

    def finish(self) -> dict[str, Any]:
        """Publish all that is decided, and count what readers find: `stored` rows with so many `distinct` records;
        `chances`: the different values that the transform has added."""
        self._publisher.finish({self._chain.id: self._chain.last})
        rows = rows_of(self._kind, self.folder)
        chances = rows["chance"].drop_null() if "chance" in rows.column_names else []
        return {
            "batches": self._chain.last,
            "stored": rows.num_rows,
            "distinct": len({int(data) for data in rows["data"].to_pylist()}),
            "changed rows": len(chances),
            "chances": len(pc.unique(chances)) if len(chances) else 0,
            "version": self.sink.version(),
        }
