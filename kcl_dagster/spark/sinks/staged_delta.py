"""Delta tables whose batches are decided in chains of entries: each record once, whatever the transform does.

The executors write the files of a batch once, under their final names. The table gets them with the next commit,
which one worker makes for all, see `worker.table_committer`. Until then no reader sees them. Files of batches that
came to nothing, such as those of a worker that was killed, are in no commit. A vacuum removes them; it must not
remove files that are younger than the longest time for which the table may take no commit.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from kcl_dagster.chains.entry import StagedFile
from kcl_dagster.chains.store import Entries, check_store
from kcl_dagster.errors import SinkError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.origins import made, origin_of
from kcl_dagster.spark.partitioning import partitioned
from kcl_dagster.spark.sinks.batch_files import ForTable
from kcl_dagster.spark.sinks.delta import delta_options
from kcl_dagster.spark.sinks.delta_commits import DeltaCommits
from kcl_dagster.spark.sinks.delta_log import DeltaLog, check_settings
from kcl_dagster.spark.sinks.delta_rules import DeltaRules
from kcl_dagster.spark.sinks.layout import Layout, TableFolders
from kcl_dagster.spark.sinks.staged_parquet import TARGET_BYTES
from kcl_dagster.spark.sinks.staging_job import StagingJob
from kcl_dagster.spark.storage import S3Options, Store, open_store
from kcl_dagster.spark.transform import Transform, checked, unchanged
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.staging import StagedBatch
from kcl_dagster.worker.table_committer import COMMIT_SECONDS, ChainedTable


class StagedDeltaSink:
    """Stages batches for the Delta table at `path`, a shared local directory or `s3://bucket/prefix`.

    The table, its rules and `partition_by` are those of `DeltaSink`. `commit_seconds`: between two commits.
    """

    def __init__(
        self,
        path: str,
        *,
        transform: Transform = unchanged,
        partition_by: Sequence[str] = (),
        s3: S3Options | None = None,
        storage_options: Mapping[str, str] | None = None,
        commit_seconds: float = COMMIT_SECONDS,
        target_bytes: int = TARGET_BYTES,
        runtime: Runtime | None = None,
    ) -> None:
        check_settings(partition_by)
        self._store = open_store(path, s3)
        self._transform, columns = partitioned(transform, partition_by)
        self._layout = TableFolders(columns)
        self._log = DeltaLog(self._store, dict(storage_options or delta_options(s3 or S3Options())), columns)
        self._target_bytes = target_bytes
        self._runtime = runtime or system()
        self._is_checked = False
        self.commit_seconds = commit_seconds

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

    @property
    def chained_table(self) -> ChainedTable:
        """See `worker.staging.TableBesideChains`."""
        return DeltaCommits(self._log, self._runtime)

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """See `worker.batch.KeepingCompleteness`."""
        self._log.keep_complete(application, known, wanted)

    def stage(self, data: DataFrame, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        """See `worker.staging.StagingSink.stage`. The table is made with the first rows."""
        with self._log.errors():
            self._check_store()
            table = self._log.refreshed()
            rules = None if table is None else DeltaRules.of(table, self._log.name)
        transform, for_table = self._transform, ForTable(None)
        layout: Layout = self._layout
        if rules is not None:
            transform, layout = rules.applied(self._transform), rules.layout
            for_table = ForTable(rules.target, rules.indexed_columns)
        job = StagingJob(self._log.name, self._store, layout, self._target_bytes, for_table)
        with write_failures(self._log.name):
            origin, data = origin_of(data), made(data)
            output = checked(transform(data))
            is_as_read = output is data
            files, counts = job.run(
                output, origin if is_as_read else None, batch, chain, number, is_as_read=is_as_read
            )
        if not files:
            return StagedBatch((), counts)
        assert job.schema is not None
        if rules is None:
            with self._log.errors():
                table = self._log.open(job.schema)
                assert table is not None
                rules = DeltaRules.of(table, self._log.name)
                rules.target.check(job.schema)
                is_other = rules.target.stored(job.schema) != job.schema or bool(rules.conditions)
                if is_other or set(rules.partition_columns) != set(self._layout.columns):
                    raise SinkError(
                        f"{self._log.name} was made by another writer while its first files were written: the next "
                        "attempt writes them by the rules of the table"
                    )
        staged = tuple(
            StagedFile(file.path, file.rows, file.bytes, file.partition, file.statistics) for file in files
        )
        return StagedBatch(staged, counts, rules.fulfilled(job.schema))

    def _check_store(self) -> None:
        """Before the first batch of this process."""
        if not self._is_checked:
            try:
                check_store(self._store, self._runtime.new_id())
            except OSError as error:
                raise SinkError(f"{self._log.name}: chains of entries cannot be kept: {error}") from error
            self._is_checked = True
