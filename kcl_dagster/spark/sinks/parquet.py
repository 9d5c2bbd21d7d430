"""The default sink: plain Parquet files, readable by anything, each record stored once.

Every part of a batch becomes one file (one for each partition value), named after the shard and the checkpoint the
part begins at. A replay of the part has the same records and the same name, so it replaces the file by its equal,
whoever writes it and whenever.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sinks.writing import WrittenFile, file_stem, write_files
from kcl_dagster.spark.storage import S3Options, open_store
from kcl_dagster.spark.transform import Transform, unchanged
from kcl_dagster.worker.batch import Batch


class ParquetSink:
    """Stores batches below `path`: a local directory that driver and executors share, or `s3://bucket/prefix`.

    `partition_by` names columns of the transform's output that become folders (`day=2026-01-31/`). A path belongs
    to one application.
    """

    def __init__(
        self,
        path: str,
        *,
        transform: Transform = unchanged,
        partition_by: Sequence[str] = (),
        s3: S3Options | None = None,
    ) -> None:
        if LEASE_KEY in partition_by:
            raise ConfigurationError(f"files are named by shard already: leave {LEASE_KEY} out of partition_by")
        self._store = open_store(path, s3)
        self._transform = transform
        self._partition_by = tuple(partition_by)

    @property
    def path(self) -> str:
        return self._store.root

    def write(self, data: DataFrame, batch: Batch) -> None:
        """See `worker.batch.Sink.write`."""
        self.write_files(data, batch)

    def write_files(self, data: DataFrame, batch: Batch) -> list[WrittenFile]:
        """Like `write`, and says what was written."""
        names = {part.lease: f"{file_stem(part)}.parquet" for part in batch.parts}
        with write_failures(f"parquet at {self.path}"):
            return write_files(data, self._transform, self._store, names, self._partition_by)
