"""The default sink: plain Parquet files, readable by anything, each record stored once.

Every part of a batch becomes one file (one for each partition value), named after the shard and the checkpoint the
part begins at. A replay of the part has the same records and the same name, so it replaces the file by its equal,
whoever writes it and whenever.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sinks.writing import MANIFEST_DDL, WriteFiles, WrittenFile
from kcl_dagster.spark.storage import S3Options, open_store
from kcl_dagster.spark.transform import Transform, apply, gathered, unchanged
from kcl_dagster.worker.batch import Batch, Part

SUFFIX: Final = ".parquet"


def file_name(part: Part) -> str:
    """The name of a part's file. It says where the part begins and not where it ends: a range that is narrowed
    after a failure then replaces what the failed attempt may have left."""
    lease = part.lease.replace(":", ".")  # object stores and Hadoop give colons a meaning
    return f"{lease}.{part.after.sequence}-{part.after.sub_sequence}{SUFFIX}"


class ParquetSink:
    """Stores batches below `path`: a local directory that driver and executors share, or `s3://bucket/prefix`.

    `partition_by` names columns of the transform's output that become folders (`day=2026-01-31/`). The output of
    one application belongs to one path.
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
        leases = [part.lease for part in batch.parts]
        names = {str(part.lease): file_name(part) for part in batch.parts}
        with write_failures(f"parquet at {self.path}"):
            pieces = apply(self._transform, data, leases)
            self._check_partitions(pieces[0])
            task = WriteFiles(self._store, names, self._partition_by)
            rows = gathered(pieces, data).mapInArrow(task, MANIFEST_DDL).collect()
        return [WrittenFile(row.lease_key, row.path, row.rows, row.bytes) for row in rows]

    def _check_partitions(self, output: DataFrame) -> None:
        missing = [name for name in self._partition_by if name not in output.columns]
        if missing:
            raise ConfigurationError(
                f"partition_by names {missing}, which the transform's output does not have: {output.columns}"
            )
