"""Delta Lake tables, without a JVM library: executors write the files, the driver commits them with delta-rs.

All parts of a batch become visible at once. Each shard is an application of the table's own transaction log, with
the batch number as its version: if the version of a part is in the log, no worker can add the part again.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame

from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import ConfigurationError, SinkError
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.partitioning import partitioned
from kcl_dagster.spark.sinks.completeness import completeness_record
from kcl_dagster.spark.sinks.delta_commits import DeltaCommits
from kcl_dagster.spark.sinks.delta_log import LOG_RETRIES, DeltaLog, check_settings, url_of
from kcl_dagster.spark.sinks.delta_rules import DeltaRules
from kcl_dagster.spark.sinks.layout import TableFolders
from kcl_dagster.spark.sinks.record import (
    Comparison,
    StoredPart,
    compare,
    owner_key,
    table_errors,
)
from kcl_dagster.spark.sinks.writing import (
    Written,
    WrittenFile,
    file_stem,
    has_own_times,
    write_files,
    written_before,
)
from kcl_dagster.spark.storage import S3Options, Store, open_store
from kcl_dagster.spark.transform import Transform, unchanged
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, Part, PartCounts
from kcl_dagster.worker.table_committer import COMMIT_SECONDS, ChainedTable

if TYPE_CHECKING:
    from deltalake import DeltaTable

COMMIT_ATTEMPTS: Final = 5  # a commit fails when another writer of the same shard came first, or the log is busy


class DeltaSink:
    """Appends batches to the Delta table at `path`, a shared local directory or `s3://bucket/prefix`.

    The table is made with the first batch, with the schema of the transform's output, and partitioned by
    `partition_by`. A table that is there already is written to by its own rules, see `delta_rules`. Compaction and
    vacuum are `deltalake`'s own: `DeltaTable(path).optimize.compact()`.
    """

    def __init__(
        self,
        path: str,
        *,
        transform: Transform = unchanged,
        partition_by: Sequence[str] = (),
        s3: S3Options | None = None,
        storage_options: Mapping[str, str] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        check_settings(partition_by)
        self._store = open_store(path, s3)
        self._transform, columns = partitioned(transform, partition_by)
        self._layout = TableFolders(columns)
        self._options = dict(storage_options or delta_options(s3 or S3Options()))
        self._log = DeltaLog(self._store, self._options, columns)
        self._runtime = runtime or system()
        self._is_unchanged = transform is unchanged
        self._written: Written | None = None

    @property
    def path(self) -> str:
        return self._store.root

    @property
    def _name(self) -> str:
        return self._log.name

    @property
    def entries(self) -> Entries:
        """See `worker.staging.BesideChains`."""
        return Entries(self._store)

    @property
    def chained_table(self) -> ChainedTable:
        """See `worker.staging.TableBesideChains`."""
        return DeltaCommits(self._log, self._runtime)

    @property
    def commit_seconds(self) -> float:
        """Of what chains have left; batches in leases make a commit each."""
        return COMMIT_SECONDS

    @property
    def stores_into(self) -> Store:
        """See `spark.storage.StoringSink`."""
        return self._store

    def write(self, data: DataFrame, batch: Batch) -> None:
        """See `worker.batch.Sink.write`."""
        self._written = None
        with self._log.errors():
            is_stored = self._compare(batch.parts).is_stored
            if is_stored and not has_own_times(batch.time_column):
                return
            table = self._log.open()
            rules = None if table is None else DeltaRules.of(table, self._name)
        attempt = self._runtime.new_id()[:8]  # files of an attempt that was not committed are never mistaken
        # delta-rs does not find a file that has `~` in its name when it compacts, as those of some applications do.
        names = {part.lease: f"{file_stem(part).replace('~', '!')}.{attempt}.parquet" for part in batch.parts}
        with write_failures(self._name):
            transform = self._transform if rules is None else rules.applied(self._transform)
            layout, target = (self._layout, None) if rules is None else (rules.layout, rules.target)
            if is_stored:
                self._written = written_before(data, transform, names, layout, target, batch.time_column)
                return
            written = write_files(data, transform, self._store, names, layout, target, batch.time_column)
        with self._log.errors():
            self._commit(batch, written.files)
        self._written = written

    def counted(self, part: Part) -> PartCounts | None:
        """See `worker.batch.Counting`. Of a batch that was stored by an earlier attempt, the records are known, and
        rows if they have times of their own."""
        if self._written is not None:
            return self._written.counts(part.lease)
        return PartCounts(None) if self._is_unchanged else None

    def version(self) -> dict[str, int]:
        """See `orchestration.table_versions.Versioned`."""
        from deltalake import DeltaTable

        url = self._log.url
        with table_errors(self._name):
            if not DeltaTable.is_deltatable(url, self._options):
                return {}
            return {"table_version": DeltaTable(url, storage_options=self._options).version()}

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """See `worker.batch.KeepingCompleteness`."""
        self._log.keep_complete(application, known, wanted)

    def holds(self, part: Part) -> bool:
        """See `worker.batch.Remembering`. Files without a commit do not count as stored."""
        with self._log.errors():
            return self._compare([part]).is_stored

    def _commit(self, batch: Batch, files: Sequence[WrittenFile]) -> None:
        from deltalake.exceptions import CommitFailedError

        for attempt in range(COMMIT_ATTEMPTS):
            found = self._compare(batch.parts)
            found.refuse_strange(self._name, files)
            if not found.missing:
                return
            try:
                self._append(found.missing, files, completeness_record(batch.application, batch.complete))
            except CommitFailedError as error:
                # A former or next owner may have added the very same part: look again.
                if attempt + 1 == COMMIT_ATTEMPTS:
                    raise SinkError(f"{self._name}: the commit failed {attempt + 1} times: {error}") from error
            else:
                return

    def _append(self, parts: Sequence[Part], files: Sequence[WrittenFile], more: Mapping[str, str]) -> None:
        """`more`: metadata of the commit, beside what the table has to remember of the parts."""
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction

        leases = {part.lease for part in parts}
        mine = [file for file in files if file.lease_key in leases]
        table = self._log.open(files[0].schema if files else None)
        if table is None:
            return  # no output yet, so no table: there is nothing to remember
        rules = DeltaRules.of(table, self._name)
        for file in mine:
            rules.check(file)
        now = round(self._runtime.clock.now() * 1000)
        table.create_write_transaction(
            [
                AddAction(file.path, file.bytes, dict(file.partition), now, True, rules.statistics(file))
                for file in mine
            ],
            "append",
            table.schema(),
            partition_by=list(rules.partition_columns) or None,
            commit_properties=CommitProperties(
                custom_metadata={owner_key(part): str(StoredPart.of(part)) for part in parts} | dict(more),
                app_transactions=[Transaction(owner_key(part), part.number) for part in parts],
                max_commit_retries=LOG_RETRIES,
            ),
        )
        self._log.committed(table)

    def _compare(self, parts: Sequence[Part]) -> Comparison:
        table = self._log.refreshed()
        if table is None:
            return Comparison(tuple(parts), ())

        def holds(part: Part) -> bool:
            key, wanted = owner_key(part), str(StoredPart.of(part))
            return any(commit.get(key) == wanted for commit in table.history())

        return compare(parts, lambda part: table.transaction_version(owner_key(part)), holds)


def open_table(path: str, s3: S3Options, storage_options: Mapping[str, str] | None = None) -> "DeltaTable | None":
    """The table of a sink at `path`, of the same options; None when there is none."""
    from deltalake import DeltaTable

    url, options = url_of(open_store(path, s3).root), dict(storage_options or delta_options(s3))
    return DeltaTable(url, storage_options=options) if DeltaTable.is_deltatable(url, options) else None


def delta_options(s3: S3Options) -> dict[str, Any]:
    """delta-rs's words for how to reach S3. Raises ConfigurationError for what delta-rs cannot do."""
    if s3.external_id is not None:
        raise ConfigurationError(
            "delta-rs assumes roles without an external id: give the run's own credentials access to the table, or "
            "a role that asks for none as s3_role_arn"
        )
    options = {
        "AWS_REGION": s3.region,
        "AWS_ENDPOINT_URL": s3.endpoint_url,
        "AWS_ACCESS_KEY_ID": s3.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.secret_key,
        "AWS_PROFILE": s3.profile,
        "AWS_SESSION_TOKEN": s3.session_token,
        "AWS_IAM_ROLE_ARN": s3.role_arn,
        "AWS_IAM_ROLE_SESSION_NAME": s3.session_name,
        "AWS_ALLOW_HTTP": "true" if (s3.endpoint_url or "").startswith("http://") else None,
        # Two committers of one version: S3 lets the first one win.
        "AWS_CONDITIONAL_PUT": "etag",
    }
    return {name: value for name, value in options.items() if value is not None}
