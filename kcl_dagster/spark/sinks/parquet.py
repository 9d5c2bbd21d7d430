"""A folder of Parquet files, whose batches are committed in chains (logs of committed batches). Each record is
stored once, whatever the transform does.

A file can have rows of several shards, and rows need no `lease_key`. The executors stage the files: they write them
under temporary names. When the batch is committed, the files get the names by which readers find them. The fetch
itself stages the files in two cases:

- The transform only returns its argument, so records are stored as they were read.
- The transform is a function of Arrow tables. Fetches then stage the files from the second batch of a chain on.
"""

import itertools
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from kcl_dagster.chains.entry import FIRST, StagedFile
from kcl_dagster.chains.publication import staged_of_batch, staged_path
from kcl_dagster.chains.store import Entries, check_store
from kcl_dagster.errors import KclError, SinkError, TransformError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.arrow_columns import Types, united
from kcl_dagster.spark.arrow_transform import ApplyFunction, ArrowTransform, as_read
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.failures import Marks, write_failures
from kcl_dagster.spark.partition_columns import partition_columns
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sinks.batch_files import (
    MANIFEST_TYPE,
    BatchFile,
    RequireColumns,
    StageFiles,
    Step,
    batch_files,
    work_of,
)
from kcl_dagster.spark.sinks.column_types import ColumnTypes
from kcl_dagster.spark.sinks.completeness import write_file
from kcl_dagster.spark.sinks.folder_columns import FolderColumns
from kcl_dagster.spark.sinks.former_parts import FolderParts
from kcl_dagster.spark.sinks.partition_folders import Folders
from kcl_dagster.spark.sinks.staging_job import (
    Staging,
    StagingJob,
    counts_of,
    has_own_times,
    stage,
    warn_of_large_batch,
    warn_of_no_times,
)
from kcl_dagster.spark.staged_ranges import FetchStaging
from kcl_dagster.spark.storage import S3Options, Store, open_store
from kcl_dagster.spark.transform import Transform, checked, guarded, returns_its_argument, unchanged
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, PartCounts
from kcl_dagster.worker.processing_watch import uninterrupted
from kcl_dagster.worker.staging import Destination, StagedBatch

TARGET_BYTES: Final = 128 * 1024 * 1024  # the size that query engines read best
# Names of staged files contain the number of the batch. If a fetch stages files, it does not know this number, and
# uses a number above the numbers of all batches.
FIRST_NUMBER_OF_FETCHES: Final = 10**12
# In the first attempt, tasks can use different types for a column. The second attempt uses one type for all tasks.
# During each attempt, another worker can store a wider type.
ATTEMPTS_AT_TYPES: Final = 3


class ParquetSink:
    """Stages batches below `path`: a local directory that driver and executors share, or `s3://bucket/prefix`.

    - `partition_by`: columns of the output whose values become folders (`kind=buy/`), or units of time of such
      columns (`day(arrival_timestamp)`), see `spark.partitioning`.
    - `target_bytes`: a file of this size is closed, and the next one is begun.

    Applications can share a path.
    """

    def __init__(
        self,
        path: str,
        *,
        transform: Transform = unchanged,
        partition_by: Sequence[str] = (),
        s3: S3Options | None = None,
        target_bytes: int = TARGET_BYTES,
        evolve: Evolve = "add",
        runtime: Runtime | None = None,
    ) -> None:
        self._store = open_store(path, s3)
        self._arrow = transform if isinstance(transform, ArrowTransform) else None
        self._transform = guarded(transform)
        self._times, columns = partition_columns(partition_by)
        self._layout = Folders.of(columns)
        partitions = frozenset(self._layout.columns)
        self._columns = FolderColumns(self._name, ColumnTypes(self._store), partitions, evolve)
        self._target_bytes = target_bytes
        self._runtime = runtime or system()
        self._is_checked = False
        self._chain: ChainId | None = None
        self._staged_chain: ChainId | None = None
        self._time_column: str | None = None
        self._is_as_read = returns_its_argument(transform)
        self._fetches = itertools.count(FIRST_NUMBER_OF_FETCHES)

    @property
    def path(self) -> str:
        return self._store.root

    @property
    def _name(self) -> str:
        return f"parquet at {self.path}"

    @property
    def stores_into(self) -> tuple[Store]:
        """Implements `spark.sinks.contract.SparkSink.stores_into`."""
        return (self._store,)

    def version(self) -> dict[str, int]:
        """Return an empty dict, because folders have no version."""
        return {}

    @property
    def entries(self) -> Entries:
        """Implements `worker.staging.StagingSink.entries`."""
        return Entries(self._store)

    @property
    def destinations(self) -> dict[str, Destination]:
        """Implements `worker.staging.StagingSink.destinations`."""
        return {FIRST: Destination(self._store, place=self.path)}

    @property
    def former_parts(self) -> FolderParts:
        """Implements `worker.staging.StagingSink.former_parts`."""
        return FolderParts(self._store)

    def staging(self) -> FetchStaging | None:
        """Return the object with which the next fetch stages its records; None if this fetch stages nothing. Files
        that are staged for a chain that has ended meanwhile are not used."""
        chain = self._chain
        if chain is None or not self._is_staged_by_fetches(chain):
            return None
        number = next(self._fetches)
        if self._arrow is None:
            steps = (self._times,) if self._times.units else ()
            files = self._files(chain, number, steps=steps, is_as_read=True)
        else:
            files = self._files_of_tables(self._arrow, chain, number, self._columns.types.known())
        return FetchStaging(chain, number, self._store, files)

    def _is_staged_by_fetches(self, chain: ChainId) -> bool:
        """Whether fetches for this chain stage the files.

        A fetch that stages files also calls the consumer's function of Arrow tables. The first batch of a chain
        calls this function after its fetch. Then the worker has recorded in its claims that batches are begun. If a
        record ends the worker's process in a later fetch, the next owner of the lease therefore counts a loss.
        """
        if self._arrow is not None:
            return chain == self._staged_chain
        return self._is_as_read and self._columns.take_records()

    def _files(self, chain: ChainId, number: int, **more: Any) -> StageFiles:
        marks = Marks(sink=self._name)
        return StageFiles(self._store, self._layout, chain, number, self._target_bytes, marks=marks, **more)

    def _files_of_tables(self, arrow: ArrowTransform, chain: ChainId, number: int, types: Types) -> StageFiles:
        function = ApplyFunction(arrow, types, self._columns.partitions, self._columns.evolve)
        return self._files(
            chain,
            number,
            time_column=self._time_column,
            lease_column=LEASE_KEY,
            steps=(as_read, function, self._times, RequireColumns(self._layout.columns)),
        )

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:  # noqa: ARG002 - for tables
        """Implements `worker.staging.StagingSink.keep_complete`."""
        write_file(self._store, application, known)

    def begin_reading(self, chain: ChainId, time_column: str | None) -> None:
        """Implements `worker.staging.StagingSink.begin_reading`."""
        self._chain, self._time_column = chain, time_column

    def stage(self, data: Records, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        """Implements `worker.staging.StagingSink.stage`."""
        return stage(self.staged(data, batch, chain, number))

    def staged(self, data: Records, batch: Batch, chain: ChainId, number: int) -> Staging[StagedBatch]:
        """Implements `spark.sinks.contract.SparkSink.staged`."""
        try:
            with write_failures(self._name):
                self._check_store()
                return (yield from self._stage(data, batch, chain, number))
        except BaseException:
            with suppress(KclError, OSError), uninterrupted():  # settling the chain removes the remaining files
                self._store.delete(staged_of_batch(self._store, chain, number))
            raise

    def _check_store(self) -> None:
        """Before the first batch of this process, check that the store supports chains. Raises ConfigurationError
        if it does not, and SinkError if the check could not be made."""
        if not self._is_checked:
            try:
                check_store(self._store, self._runtime.new_id())
            except OSError as error:
                raise SinkError(f"parquet at {self.path}: chains of entries cannot be kept: {error}") from error
            self._is_checked = True

    def _stage(self, data: Records, batch: Batch, chain: ChainId, number: int) -> Staging[StagedBatch]:
        self._staged_chain = chain
        if self._arrow is not None:
            return self._stage_tables(self._arrow, data, batch, chain, number)
        taken = data.staged
        if self._is_as_read and taken is not None and (staged := taken.files(chain)) is not None:
            files = [file for manifest in staged for file in batch_files(manifest)]
            StagingJob(self._name, self._store, self._layout, self._target_bytes).check_rows(files, batch)
            if self._columns.stored(files):
                taken.take()
                return StagedBatch(_staged_files(files), as_read_counts(files, batch))
        records = data.frame
        output = checked(self._transform(records))
        is_as_read = output is records
        output = self._times.of_frame(output)
        steps: tuple[Step, ...] = ()
        if not (output is records and self._columns.take_records()):
            output, steps = self._columns.fitted(output)
        job = StagingJob(self._name, self._store, self._layout, self._target_bytes, steps=steps)
        files, counts = yield from job.run(output, batch, chain, number, is_as_read=is_as_read, worked=data.worked)
        if not self._columns.stored(files):
            raise SinkError(
                f"{self._name}: another worker has stored columns meanwhile, and the files of this batch have "
                "another type of a column, or a column that evolve forbids. The batch is tried again with the "
                "stored columns"
            )
        return StagedBatch(_staged_files(files), counts)

    def _stage_tables(
        self, arrow: ArrowTransform, data: Records, batch: Batch, chain: ChainId, number: int
    ) -> StagedBatch:
        taken, known = data.staged, self._columns.types.known()
        if taken is not None and (staged := taken.files(chain)) is not None:
            files = [file for manifest in staged for file in batch_files(manifest)]
            types = united((file.columns for file in files), known)
            if _have_types(files, types) and self._columns.add(types):
                taken.take()
                return self._staged_tables(files, batch)
            known = self._columns.agreed(known | types)
        only_lease = batch.parts[0].lease if len(batch.parts) == 1 else None
        for _ in range(ATTEMPTS_AT_TYPES):
            task = replace(self._files_of_tables(arrow, chain, number, known), only_lease=only_lease)
            began = time.monotonic()
            manifest = [row.asDict() for row in data.frame.mapInArrow(task, MANIFEST_TYPE).collect()]
            data.worked(work_of(manifest, time.monotonic() - began))
            files = batch_files(manifest)
            types = united((file.columns for file in files), known)
            if _have_types(files, types) and self._columns.add(types):
                return self._staged_tables(files, batch)
            self._store.delete([staged_path(chain, file.path) for file in files])
            known = self._columns.agreed(known | types)
        raise TransformError("the types of the columns differ with each call of the function: cast them in it")

    def _staged_tables(self, files: Sequence[BatchFile], batch: Batch) -> StagedBatch:
        has_times = any(batch.time_column in file.columns.names for file in files)
        return self._staged(files, batch, has_times=has_times or batch.time_column in self._layout.columns)

    def _staged(self, files: Sequence[BatchFile], batch: Batch, *, has_times: bool) -> StagedBatch:
        warn_of_large_batch(self.path, len(files))
        counts = {} if batch.time_column is None else counts_of(files, batch)
        if has_own_times(batch.time_column) and files and not has_times:
            warn_of_no_times(self.path, str(batch.time_column))
        return StagedBatch(_staged_files(files), counts)


def _have_types(files: Sequence[BatchFile], types: Types) -> bool:
    return all(one.type == types[one.name] for file in files for one in file.columns)


def _staged_files(files: Sequence[BatchFile]) -> tuple[StagedFile, ...]:
    return tuple(StagedFile(file.path, file.rows, file.bytes) for file in files)


def as_read_counts(files: Sequence[BatchFile], batch: Batch) -> dict[LeaseKey, PartCounts]:
    """The counts for records that are stored as they were read. The fetch has counted their rows. The bytes of the
    files are divided among the leases by the number of records, and the files are counted with the first lease."""
    size, records = sum(file.bytes for file in files), max(1, batch.records)
    return {
        part.lease: PartCounts(None, size * part.records // records, len(files) if place == 0 else 0)
        for place, part in enumerate(batch.parts)
    }
