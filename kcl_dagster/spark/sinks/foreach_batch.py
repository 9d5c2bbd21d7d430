"""A sink that calls a function of the user."""

from collections.abc import Callable

from pyspark.sql import DataFrame

from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.transform import Transform, guarded, unchanged
from kcl_dagster.worker.batch import Batch

StoreBatch = Callable[[DataFrame, Batch], None]


class ForeachBatchSink:
    """Calls `store` with the transformed records and the batch's identity, on the worker's main thread.

    Delivery is at least once: after a crash, the same parts are delivered again with the same records. A part is
    the records of one shard in a batch. When it is delivered again, it can be alone in its batch, or together with
    other parts than before. Each record is stored exactly once in either of two cases:

    - `store` writes its output under a key that identifies the part.
    - For each (application, stream, shard), `store` rejects a part whose `number` is not above the number of the
      last part that it has stored. The number never decreases, even if the shard's owner changes.
    """

    def __init__(self, store: StoreBatch, *, transform: Transform = unchanged) -> None:
        self._store = store
        self._transform = guarded(transform)

    def write(self, data: Records, batch: Batch) -> None:
        """Implements `worker.batch.Sink.write`."""
        with write_failures(getattr(self._store, "__name__", type(self._store).__name__)):
            self._store(self._transform(data.frame), batch)
