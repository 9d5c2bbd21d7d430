"""The default sink: plain Parquet files, readable by anything, each record stored once.

Every part of a batch becomes one file (one for each partition value), named after the application, the shard, the
checkpoint the part begins at, and its number. A replay of the part has the same records and the same name, so it
replaces the file, whichever worker writes it and whenever. If the transform was changed in between, the replay may
write to other folders, or nothing: the files of the former attempts are removed after that.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from pyspark.sql import DataFrame

from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import ConfigurationError, SinkError
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.partitioning import partitioned
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sinks.completeness import write_file
from kcl_dagster.spark.sinks.folder_layouts import is_always_flat, mark
from kcl_dagster.spark.sinks.folder_owner import claim
from kcl_dagster.spark.sinks.layout import Folders
from kcl_dagster.spark.sinks.letter_case import Spellings, plain_name
from kcl_dagster.spark.sinks.writing import (
    Written,
    file_stem,
    is_named_without_application,
    stems,
    stems_replaced,
    write_files,
)
from kcl_dagster.spark.storage import S3Options, Store, open_store
from kcl_dagster.spark.transform import Transform, unchanged
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, Part, PartCounts
from kcl_dagster.worker.processing_watch import uninterrupted


class ParquetSink:
    """Stores batches below `path`: a local directory that driver and executors share, or `s3://bucket/prefix`.

    `partition_by` names columns of the transform's output that become folders (`kind=buy/`), or units of their time
    (`day(arrival_timestamp)`), see `spark.partitioning`. Applications may share a path; no file name is used twice.
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
        self._transform, columns = partitioned(transform, partition_by)
        self._layout = Folders.of(columns)
        self._claimed: str | None = None
        self._is_marked = False
        self._written: Written | None = None

    @property
    def path(self) -> str:
        return self._store.root

    @property
    def stores_into(self) -> Store:
        """See `spark.storage.StoringSink`."""
        return self._store

    @property
    def entries(self) -> Entries:
        """See `worker.staging.BesideChains`."""
        return Entries(self._store)

    def write(self, data: DataFrame, batch: Batch) -> None:
        """See `worker.batch.Sink.write`."""
        self.write_files(data, batch)

    def counted(self, part: Part) -> PartCounts | None:
        """See `worker.batch.Counting`."""
        return None if self._written is None else self._written.counts(part.lease)

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:  # noqa: ARG002 - of tables
        """See `worker.batch.KeepingCompleteness`."""
        write_file(self._store, application, known)

    def withdraw(self, part: Part) -> None:
        """See `worker.batch.Withdrawing`."""
        self._remove([*stems(part), *stems_replaced(part)])

    def write_files(self, data: DataFrame, batch: Batch) -> Written:
        """Like `write`, and says what was written. Raises SinkError where version 0.1 made leases of another
        application that stores here, too: see `sinks.folder_owner`."""
        self._written = None
        for part in batch.parts:
            owner = part.application.partition("/")[0]  # the replays of an application count its parts from 1, too
            if is_named_without_application(part) and owner != self._claimed:
                claim(self._store, owner)
                self._claimed = owner
        if not self._is_marked:
            mark(self._store, has_folders=bool(self._layout.columns))
            self._is_marked = True
        names = {part.lease: f"{file_stem(part)}.parquet" for part in batch.parts}
        with write_failures(f"parquet at {self.path}"):
            self._remove([stem for part in batch.parts for stem in stems_replaced(part)])
            column = batch.time_column
            written = write_files(data, self._transform, self._store, names, self._layout, time_column=column)
            # Not before: if the worker dies here, a retry finds its way; removed first, the records would be lost.
            kept = {file.path for file in written.files}
            self._remove([stem for part in batch.parts if part.is_repeated for stem in stems(part)], kept)
        self._written = written
        return written

    def _remove(self, stems: Sequence[str], kept: AbstractSet[str] = frozenset()) -> None:
        """`kept` are the files that a repeated batch has just stored. Other files are looked for in all folders,
        unless no sink has ever stored into one."""
        names = {f"{stem}.parquet" for stem in stems}
        try:
            with uninterrupted():
                left = sorted(names - kept)
                if names and not is_always_flat(self._store):  # rare enough to look into all folders
                    files = (file.path for file in self._store.files())
                    stored = Spellings(self.path, kept)
                    left = [path for path in files if plain_name(path) in names and path not in stored]
                if left:
                    self._store.delete(left)
        except OSError as error:
            raise SinkError(f"parquet at {self.path}: {sorted(names)} could not be removed: {error}") from error
