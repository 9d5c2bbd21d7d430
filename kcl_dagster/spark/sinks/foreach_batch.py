"""A function of the user's own as a sink."""

from collections.abc import Callable

from pyspark.sql import DataFrame

from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.transform import Transform, guarded, unchanged
from kcl_dagster.worker.batch import Batch

StoreBatch = Callable[[DataFrame, Batch], None]


class ForeachBatchSink:
    """Hands the transformed records and the batch's identity to `store`, on the worker's main thread.

    At least once: after a crash the same parts come again, alone or in other company, with the same records. What
    `store` does is exactly once if it keys its output by part, or refuses for each (application, stream, shard) a
    `number` that is not above the last one it saw: the number never falls, whoever owns the shard.
    """

    def __init__(self, store: StoreBatch, *, transform: Transform = unchanged) -> None:
        self._store = store
        self._transform = guarded(transform)

    def write(self, data: DataFrame, batch: Batch) -> None:
        """See `worker.batch.Sink.write`."""
        with write_failures(getattr(self._store, "__name__", type(self._store).__name__)):
            self._store(self._transform(data), batch)
