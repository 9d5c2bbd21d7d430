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
from pyspark.sql.types import StringType

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
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sealing import Sealed
from kcl_dagster.spark.sinks.batch_files import MANIFEST_DDL, BatchFile, RowsOfLease, StageFiles, batch_files
from kcl_dagster.spark.sinks.completeness import write_file
from kcl_dagster.spark.sinks.layout import Folders
from kcl_dagster.spark.sinks.writing import has_own_times, warn_of_large_batch, warn_of_no_times
from kcl_dagster.spark.staged_ranges import FetchStaging, StagedRecords
from kcl_dagster.spark.storage import S3Options, Store, open_store
from kcl_dagster.spark.transform import Transform, checked, guarded, unchanged
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, FileCounts, PartCounts
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
        is_as_read = self._is_as_read = output is data
        if is_as_read and isinstance(origin, StagedRecords) and (staged := origin.files(chain)) is not None:
            files = [file for manifest in staged for file in batch_files(manifest)]
            self._check_rows(files, batch, is_as_read=True)
            origin.take()
            return StagedBatch(_staged_files(files), as_read_counts(files, batch))
        output = self._times.of_frame(output)
        if not self._layout.is_flat:
            self._layout.check(output.schema)
        if output is data and isinstance(origin, Sealed):
            rows, unseal = origin.frame, origin.unseal()  # opened where it is written
        else:
            rows, unseal = output, None
        time_column = batch.time_column
        task = StageFiles(
            self._store,
            self._layout,
            chain,
            number,
            self._target_bytes,
            unseal,
            time_column,
            lease_column=LEASE_KEY if _has_texts(output, LEASE_KEY) else None,
            only_lease=batch.parts[0].lease if len(batch.parts) == 1 else None,
        )
        manifest = rows.mapInArrow(task, MANIFEST_DDL).collect()
        files = batch_files([row.asDict() for row in manifest])
        self._check_rows(files, batch, is_as_read=is_as_read)
        warn_of_large_batch(self.path, len(files))
        counts = {} if time_column is None else counts_of(files, batch)
        if has_own_times(time_column) and files and time_column not in output.columns:
            warn_of_no_times(self.path, str(time_column))
        return StagedBatch(_staged_files(files), counts)

    def _check_rows(self, files: Sequence[BatchFile], batch: Batch, *, is_as_read: bool) -> None:
        """Of records that are stored as they were read, it is known how many there are."""
        rows = sum(file.rows for file in files)
        if is_as_read and rows != batch.records:
            raise SinkError(
                f"parquet at {self.path}: a batch of {batch.records} records would be stored in {rows} rows"
            )


def _staged_files(files: Sequence[BatchFile]) -> tuple[StagedFile, ...]:
    return tuple(StagedFile(file.path, file.rows, file.bytes) for file in files)


def _has_texts(output: DataFrame, column: str) -> bool:
    return column in output.columns and isinstance(output.schema[column].dataType, StringType)


def counts_of(files: Sequence[BatchFile], batch: Batch) -> dict[LeaseKey, PartCounts]:
    """What the files hold of each lease of the batch; empty where that is not known: the output does not say which
    lease a row is of, or it names others than those of the batch."""
    found: dict[LeaseKey, list[tuple[FileCounts, RowsOfLease]]] = {part.lease: [] for part in batch.parts}
    for file in files:
        if file.leases is None or not file.leases.keys() <= found.keys():
            return {}
        for place, (lease, held) in enumerate(file.leases.items()):
            minutes = held.minutes or ()
            timeless = held.rows - sum(one.rows for one in minutes)
            size = file.bytes * held.rows // file.rows
            found[lease].append((FileCounts(size, minutes, timeless, files=1 if place == 0 else 0), held))
    return {lease: _of_lease(shares) for lease, shares in found.items()}


def as_read_counts(files: Sequence[BatchFile], batch: Batch) -> dict[LeaseKey, PartCounts]:
    """Of records that are stored as they were read: rows are counted by the fetch. The bytes of the files are
    shared out by records, and files are counted with the first lease."""
    size, records = sum(file.bytes for file in files), max(1, batch.records)
    return {
        part.lease: PartCounts(None, size * part.records // records, len(files) if place == 0 else 0)
        for place, part in enumerate(batch.parts)
    }


def _of_lease(shares: Sequence[tuple[FileCounts, RowsOfLease]]) -> PartCounts:
    counts = tuple(one for one, _ in shares)
    if all(held.minutes is not None for _, held in shares):
        return PartCounts(counts)
    rows = sum(held.rows for _, held in shares)
    return PartCounts(None, sum(one.bytes for one in counts), sum(one.files for one in counts), rows)
