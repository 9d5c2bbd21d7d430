"""Delta Lake tables, without a JVM library: executors write the files, the driver commits them with delta-rs.

All parts of a batch become visible at once. Each shard is an application of the table's own transaction log, with
the batch number as its version: if the version of a part is in the log, no worker can add the part again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import md5
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from kcl_dagster.errors import ConfigurationError, PackageMissing, SinkError
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.partitioning import partitioned
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sinks.completeness import (
    RECENT_COMMITS,
    completeness_key,
    completeness_record,
    is_in_table,
)
from kcl_dagster.spark.sinks.delta_rules import DeltaRules
from kcl_dagster.spark.sinks.layout import TableFolders
from kcl_dagster.spark.sinks.record import (
    Comparison,
    StoredPart,
    compare,
    owner_key,
    table_errors,
)
from kcl_dagster.spark.sinks.target import nullable
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

if TYPE_CHECKING:
    from deltalake import DeltaTable

COMMIT_ATTEMPTS: Final = 5  # a commit fails when another writer of the same shard came first, or the log is busy
LOG_RETRIES: Final = 15  # delta-rs's own: other shards' workers append to the same log


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
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise PackageMissing("the delta sink needs deltalake: pip install 'kcl-dagster[delta]'") from error
        if LEASE_KEY in partition_by:
            raise ConfigurationError(f"leave {LEASE_KEY} out of partition_by: a table is not partitioned by shard")
        self._store = open_store(path, s3)
        self._transform, columns = partitioned(transform, partition_by)
        self._layout = TableFolders(columns)
        self._options = dict(storage_options or delta_options(s3 or S3Options()))
        self._runtime = runtime or system()
        self._table: DeltaTable | None = None
        self._newest: tuple[int, bytes] | None = None  # version of the open table, and what its log says there
        self._as_read = transform is unchanged and not partition_by
        self._is_unchanged = transform is unchanged
        self._written: Written | None = None
        self._kept = (-1, 0)  # epoch and moment that the table has by `keep_complete`

    @property
    def path(self) -> str:
        return self._store.root

    @property
    def _name(self) -> str:
        return f"delta at {self.path}"

    @property
    def stores_into(self) -> Store:
        """See `spark.storage.StoringSink`."""
        return self._store

    @property
    def drafts_into(self) -> Store | None:
        """See `spark.drafts.DraftedSink`. What a user's transform does is known when the first batch is stored."""
        return self._store if self._as_read else None

    def write(self, data: DataFrame, batch: Batch) -> None:
        """See `worker.batch.Sink.write`."""
        self._written = None
        with self._on_table():
            is_stored = self._compare(batch.parts).is_stored
            if is_stored and not has_own_times(batch.time_column):
                return
            table = self._open()
            rules = None if table is None else DeltaRules.of(table, self._name)
        attempt = self._runtime.new_id()[:8]  # files of an attempt that was not committed are never mistaken
        names = {part.lease: f"{file_stem(part)}.{attempt}.parquet" for part in batch.parts}
        with write_failures(self._name):
            transform = self._transform if rules is None else rules.applied(self._transform)
            layout, target = (self._layout, None) if rules is None else (rules.layout, rules.target)
            if is_stored:
                self._written = written_before(data, transform, names, layout, target, batch.time_column)
                return
            written = write_files(data, transform, self._store, names, layout, target, batch.time_column)
        self._as_read = written.as_read
        with self._on_table():
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

        url = _url(self.path)
        with table_errors(self._name):
            if not DeltaTable.is_deltatable(url, self._options):
                return {}
            return {"table_version": DeltaTable(url, storage_options=self._options).version()}

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """See `worker.batch.KeepingCompleteness`. If the table has got no commit with the entry, adds one that has
        no data. Opens the table anew: `write` may use the other one meanwhile."""
        if known.through is None or (known.epoch, wanted) <= self._kept:
            return
        from deltalake import CommitProperties, DeltaTable

        url = _url(self.path)
        with table_errors(self._name):
            if not DeltaTable.is_deltatable(url, self._options):
                return
            table = DeltaTable(url, storage_options=self._options)
            entries = (commit.get(completeness_key(application)) for commit in table.history(RECENT_COMMITS))
            kept = wanted
            if not is_in_table(entries, known.epoch, wanted):
                columns = DeltaRules.of(table, self._name).partition_columns
                properties = CommitProperties(
                    custom_metadata=completeness_record(application, known), max_commit_retries=LOG_RETRIES
                )
                table.create_write_transaction(
                    [], "append", table.schema(), partition_by=list(columns) or None, commit_properties=properties
                )
                kept = known.through
            self._kept = known.epoch, kept

    def holds(self, part: Part) -> bool:
        """See `worker.batch.Remembering`. Files without a commit do not count as stored."""
        with self._on_table():
            return self._compare([part]).is_stored

    @contextmanager
    def _on_table(self) -> Iterator[None]:
        """For what is done with the table that is kept open. If it fails, the next attempt opens the table anew: it
        may have been removed, or made anew, and the one that is open then never succeeds again. Not before the next
        attempt, whose files are written by the rules of the table that it opens."""
        try:
            with table_errors(self._name):
                yield
        except SinkError:
            self._table = None
            raise

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
        table = self._open(files[0].schema if files else None)
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
        self._newest = self._commit_of(table)

    def _compare(self, parts: Sequence[Part]) -> Comparison:
        table = self._open()
        if table is None:
            return Comparison(tuple(parts), ())
        self._refuse_another(table)
        table.update_incremental()
        if self._newest is None or self._newest[0] != table.version():
            self._newest = self._commit_of(table)

        def holds(part: Part) -> bool:
            key, wanted = owner_key(part), str(StoredPart.of(part))
            return any(commit.get(key) == wanted for commit in table.history())

        return compare(parts, lambda part: table.transaction_version(owner_key(part)), holds)

    def _refuse_another(self, table: "DeltaTable") -> None:
        """Raise SinkError if the log does not go on from the version that is known of it: the table was removed or
        made anew. delta-rs does not notice where the log of the new table is as long as that of the old one, and
        would append to the new one by the schema and the batch numbers of the old one."""
        if self._newest is not None and self._newest != self._commit_of(table):
            raise SinkError(
                f"{self._name} is not the table that it was: it was removed or made anew since the last batch. The "
                "next attempt writes to the table that is there"
            )

    def _commit_of(self, table: "DeltaTable") -> tuple[int, bytes] | None:
        """The newest version that is known of a table, and the file of its log that made it. None: it has been
        removed, as those are that a checkpoint has replaced."""
        version = table.version()
        path = f"_delta_log/{version:020}.json"
        found = [file.path for file in self._store.files(path, hidden=True)]
        return (version, md5(self._store.get(path), usedforsecurity=False).digest()) if path in found else None

    def _open(self, schema: pa.Schema | None = None) -> "DeltaTable | None":
        """The table; made if there is none and `schema` is given."""
        from deltalake import DeltaTable

        if self._table is not None:
            return self._table
        self._newest = None
        url = _url(self.path)
        if DeltaTable.is_deltatable(url, self._options):
            self._table = DeltaTable(url, storage_options=self._options)
        elif schema is not None:
            self._table = DeltaTable.create(
                url,
                nullable(schema),
                mode="ignore",
                partition_by=list(self._layout.columns) or None,
                storage_options=self._options,
            )
        return self._table


def open_table(path: str, s3: S3Options, storage_options: Mapping[str, str] | None = None) -> "DeltaTable | None":
    """The table of a sink at `path`, of the same options; None when there is none."""
    from deltalake import DeltaTable

    url, options = _url(open_store(path, s3).root), dict(storage_options or delta_options(s3))
    return DeltaTable(url, storage_options=options) if DeltaTable.is_deltatable(url, options) else None


def _url(root: str) -> str:
    return root if root.startswith("s3://") else f"file://{root}"


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
