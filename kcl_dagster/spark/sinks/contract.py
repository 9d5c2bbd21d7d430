"""The interface of this package's sinks for the engine, the worker and the leader."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kcl_dagster.model.claim import ChainId
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.sinks.staging_job import Staging
from kcl_dagster.spark.staged_ranges import FetchStaging
from kcl_dagster.spark.storage import Store
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.staging import StagedBatch, StagingSink


class SparkSink(StagingSink[Records], Protocol):
    """Stages batches whose rows are in Spark: writes their files, which become visible later, when the batch is
    published."""

    @property
    def stores_into(self) -> Sequence[Store]:
        """The stores into which executors write the files. Empty if a catalog decides on the location."""

    def staging(self) -> FetchStaging | None:
        """Return the object with which the next fetch stages its records; None if this fetch stages nothing. See
        `spark.engine.StagingOfFetches`."""

    def version(self) -> Mapping[str, Any]:
        """The newest version of the table, as fields of `KclWindowMetadataSet`. Empty if there is no table.
        Takes one or two requests; can be called by any thread."""

    def staged(self, data: Records, batch: Batch, chain: ChainId, number: int) -> Staging[StagedBatch]:
        """Stage a batch like `stage`, but with a Spark job that the sinks of several tables can share."""
