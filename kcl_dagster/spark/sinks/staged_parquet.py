"""Parquet files of batches that are decided in a chain of entries: each record once, whatever the transform does.

The output of a batch is one set of files: rows of several shards are in one file, and rows need no `lease_key`. The
executors stage the files; they get the names by which readers find them when the batch is decided. Records that are
stored as they were read are staged by the fetch itself, from the second batch on: then it is known what the
transform does, and for which chain files are staged.
"""

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pyspark.sql import DataFrame

from kcl_dagster.chains.entry import StagedFile
from kcl_dagster.chains.publication import staged_of_batch
from kcl_dagster.chains.store import Entries, check_store
from kcl_dagster.errors import KclError, SinkError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.origins import made, origin_of
from kcl_dagster.spark.partitioning import partition_columns
from kcl_dagster.spark.sinks.batch_files import BatchFile, StageFiles, batch_files
from kcl_dagster.spark.sinks.completeness import write_file
from kcl_dagster.spark.sinks.layout import Folders
from kcl_dagster.spark.sinks.staging_job import StagingJob
from kcl_dagster.spark.staged_ranges import FetchStaging, StagedRecords
from kcl_dagster.spark.storage import S3Options, Store, open_store
from kcl_dagster.spark.transform import Transform, checked, guarded, unchanged
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, PartCounts
from kcl_dagster.worker.processing_watch import uninterrupted
from kcl_dagster.worker.staging import StagedBatch

TARGET_BYTES: Final = 128 * 1024 * 1024  # what query engines read best
# Numbers of batches are in the names of staged files. Those that fetches stage are above all that workers count.
FIRST_NUMBER_OF_FETCHES: Final = 10**12


class StagedParquetSink:
    """Stages batches below `path`: a local directory that driver and executors share, or `s3://bucket/prefix`.

    Paths and `partition_by` are those of `ParquetSink`, and both may store below one path. `target_bytes`: a file
    that is as large is closed, and the next one begun.
    """

    def __init__(
        self,
        path: str,
        *,
        transform: Transform = unchanged,
        partition_by: Sequence[str] = (),
        s3: S3Options | None = None,
        target_bytes: int = TARGET_BYTES,
        runtime: Runtime | None = None,
    ) -> None:
        self._store = open_store(path, s3)
        self._transform = guarded(transform)
        self._times, columns = partition_columns(partition_by)
        self._layout = Folders.of(columns)
        self._target_bytes = target_bytes
        self._runtime = runtime or system()
        self._is_checked = False
        self._chain: ChainId | None = None
        self._is_as_read = transform is unchanged
        self._fetches = itertools.count(FIRST_NUMBER_OF_FETCHES)

    @property
    def path(self) -> str:
        return self._store.root

    @property
    def stores_into(self) -> Store:
        """See `spark.storage.StoringSink`."""
        return self._store

    @property
    def entries(self) -> Entries:
        """See `worker.staging.StagingSink`."""
        return Entries(self._store)

    def staging(self) -> FetchStaging | None:
        """See `spark.staged_ranges.StagesInFetches`. Files that are staged for a chain that has ended meanwhile
        are not used."""
        if self._chain is None or not self._is_as_read:
            return None
        number = next(self._fetches)
        steps = (self._times,) if self._times.units else ()
        files = StageFiles(
            self._store, self._layout, self._chain, number, self._target_bytes, steps=steps, is_as_read=True
        )
        return FetchStaging(self._chain, number, self._store, files)

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:  # noqa: ARG002 - of tables
        """See `worker.batch.KeepingCompleteness`."""
        write_file(self._store, application, known)

    def stage(self, data: DataFrame, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        """See `worker.staging.StagingSink.stage`."""
        try:
            with write_failures(f"parquet at {self.path}"):
                self._check_store()
                return self._stage(data, batch, chain, number)
        except BaseException:
            with suppress(KclError, OSError), uninterrupted():  # what is left is removed when the chain is settled
                self._store.delete(staged_of_batch(self._store, chain, number))
            raise

    def _check_store(self) -> None:
        """Before the first batch of this process."""
        if not self._is_checked:
            try:
                check_store(self._store, self._runtime.new_id())
            except OSError as error:
                raise SinkError(f"parquet at {self.path}: chains of entries cannot be kept: {error}") from error
            self._is_checked = True

    def _stage(self, data: DataFrame, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        self._chain = chain
        origin, data = origin_of(data), made(data)
        output = checked(self._transform(data))
        job = StagingJob(f"parquet at {self.path}", self._store, self._layout, self._target_bytes)
        is_as_read = self._is_as_read = output is data
        if is_as_read and isinstance(origin, StagedRecords) and (staged := origin.files(chain)) is not None:
            files = [file for manifest in staged for file in batch_files(manifest)]
            job.check_rows(files, batch)
            origin.take()
            return StagedBatch(_staged_files(files), as_read_counts(files, batch))
        output = self._times.of_frame(output)
        as_written = origin if output is data else None
        files, counts = job.run(output, as_written, batch, chain, number, is_as_read=is_as_read)
        return StagedBatch(_staged_files(files), counts)


def _staged_files(files: Sequence[BatchFile]) -> tuple[StagedFile, ...]:
    return tuple(StagedFile(file.path, file.rows, file.bytes) for file in files)


def as_read_counts(files: Sequence[BatchFile], batch: Batch) -> dict[LeaseKey, PartCounts]:
    """Of records that are stored as they were read: rows are counted by the fetch. The bytes of the files are
    shared out by records, and files are counted with the first lease."""
    size, records = sum(file.bytes for file in files), max(1, batch.records)
    return {
        part.lease: PartCounts(None, size * part.records // records, len(files) if place == 0 else 0)
        for place, part in enumerate(batch.parts)
    }
