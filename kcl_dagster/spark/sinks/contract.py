"""What the engine, the worker and the leader know of a sink of this package."""

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
    """Stages batches whose rows are in Spark."""

    @property
    def stores_into(self) -> Sequence[Store]:
        """Where executors write the files, as far as no catalog says it."""

    def staging(self) -> FetchStaging | None:
        """See `spark.engine.StagingOfFetches`."""

    def version(self) -> Mapping[str, Any]:
        """The newest version of the table, as fields of `KclWindowMetadataSet`. Empty where there is no table. One
        or two requests; any thread may call it."""

    def staged(self, data: Records, batch: Batch, chain: ChainId, number: int) -> Staging[StagedBatch]:
        """As `stage` does, by a job of Spark that others may share."""
