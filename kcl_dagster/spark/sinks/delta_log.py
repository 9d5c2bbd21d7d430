"""The Delta table of a sink: it is opened or made for the first batch, and remains open between batches."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kcl_dagster.chains.store import found_content
from kcl_dagster.errors import ConfigurationError, PackageMissing, SinkError
from kcl_dagster.model.change_rules import ChangeRules
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sinks.completeness import (
    RECENT_COMMITS,
    completeness_key,
    completeness_record,
    is_in_table,
)
from kcl_dagster.spark.sinks.delta_rules import DeltaRules
from kcl_dagster.spark.sinks.table_columns import nullable
from kcl_dagster.spark.sinks.table_errors import table_errors
from kcl_dagster.spark.storage import S3Options, Store
from kcl_dagster.tables.completeness_row import WrittenThrough

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOG_RETRIES: Final = 15  # of a commit by delta-rs, because other workers append to the same log


def check_settings(partition_by: Sequence[str]) -> None:
    """Raise PackageMissing if deltalake is not installed. Raise ConfigurationError if the table is to be
    partitioned by lease key."""
    try:
        import deltalake  # noqa: F401 - an optional dependency, checked when the consumer is defined
    except ImportError as error:
        raise PackageMissing("the delta sink needs deltalake: pip install 'kcl-dagster[delta]'") from error
    if LEASE_KEY in partition_by:
        raise ConfigurationError(f"leave {LEASE_KEY} out of partition_by: a table is not partitioned by shard")


@dataclass(slots=True)
class DeltaLog:
    """The table at the root of a store. The table remains open, so that only new commits are read for each batch.

    `columns`: the partition columns, if this object makes the table. `keep_complete` can be called on another
    thread.
    """

    store: Store
    options: Mapping[str, str] = field(repr=False)
    columns: Sequence[str] = ()
    _table: "DeltaTable | None" = None
    _newest: tuple[int, bytes] | None = None  # the version of the open table, and the digest of its commit
    _kept: tuple[int, int] = (-1, 0)  # the epoch and the moment that `keep_complete` has found or stored

    @property
    def name(self) -> str:
        return f"delta at {self.store.root}"

    @property
    def url(self) -> str:
        return url_of(self.store.root)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """A context for work with the open table. If the work fails, the table is closed, and the next attempt
        opens it again. This is needed if the table was removed or made again, because work with the old open table
        would then always fail.

        The table is not opened again within the same attempt, because the files of the attempt follow the rules of
        the table that was open. The next attempt writes files by the rules of the table that it opens.
        """
        try:
            with table_errors(self.name):
                yield
        except SinkError:
            self._table = None
            raise

    def open(self, schema: pa.Schema | None = None, columns: Sequence[str] | None = None) -> "DeltaTable | None":
        """Return the table. If there is none and `schema` is given, make it. `columns`: the partition columns of a
        new table; by default the partition columns of the sink."""
        from deltalake import DeltaTable

        if self._table is not None:
            return self._table
        self._newest = None
        if DeltaTable.is_deltatable(self.url, dict(self.options)):
            self._table = DeltaTable(self.url, storage_options=dict(self.options))
        elif schema is not None:
            self._table = DeltaTable.create(
                self.url,
                nullable(schema),
                mode="ignore",
                partition_by=list(self.columns if columns is None else columns) or None,
                storage_options=dict(self.options),
            )
        return self._table

    def rules_of_new_table(self, output: pa.Schema, changes: ChangeRules | None = None) -> DeltaRules:
        """Make the table for an output whose files were written before there was a table. Returns the table's
        rules. Raises SinkError if another writer has made the table meanwhile, with rules that the files do not
        follow."""
        table = self.open(output)
        assert table is not None
        rules = DeltaRules.of(table, self.name, changes)
        rules.target.check(output)
        # The columns of tables that this package makes are nullable.
        is_other = nullable(rules.target.stored(output)) != nullable(output)
        has_rules = bool(rules.conditions or rules.target.required)
        is_partitioned_otherwise = changes is None and set(rules.partition_columns) != set(self.columns)
        if is_other or has_rules or is_partitioned_otherwise:
            raise SinkError(
                f"{self.name} was made by another writer while its first files were written: the next attempt "
                "writes them by the rules of the table"
            )
        return rules

    def refreshed(self) -> "DeltaTable | None":
        """Return the table with all commits that were made until now. Raises SinkError if it is another table than
        before."""
        table = self.open()
        if table is None:
            return None
        self._refuse_another(table)
        table.update_incremental()
        if self._newest is None or self._newest[0] != table.version():
            self._newest = self._commit_of(table)
        return table

    def committed(self, table: "DeltaTable") -> None:
        """Record the version of a commit that was made with this table object."""
        self._newest = self._commit_of(table)

    def _refuse_another(self, table: "DeltaTable") -> None:
        """Raise SinkError if the last known commit is not in the log any more: the table was removed or made again.

        delta-rs does not detect this if the new table has at least as many versions as the old one. delta-rs would
        then append to the new table with the schema and the batch numbers of the old one.
        """
        if self._newest is not None and self._newest != self._commit_of(table):
            raise SinkError(
                f"{self.name} is not the table that it was: it was removed or made anew since the last batch. The "
                "next attempt writes to the table that is there"
            )

    def _commit_of(self, table: "DeltaTable") -> tuple[int, bytes] | None:
        """The newest version that the table object knows, and a digest of the version's file in the log. None if
        the file was removed. Files of the log are removed after a checkpoint of the log has replaced them."""
        version = table.version()
        content = found_content(self.store, f"_delta_log/{version:020}.json")
        return None if content is None else (version, md5(content, usedforsecurity=False).digest())

    def add(self, columns: pa.Schema) -> None:
        """Add the columns that the table does not have. Columns that the table has with another type remain
        unchanged, because delta-rs does not widen types."""
        from deltalake import CommitProperties, DeltaTable, Schema

        table = DeltaTable(self.url, storage_options=dict(self.options))
        known = {field.name for field in table.schema().fields}
        fields = [field for field in Schema.from_arrow(columns).fields if field.name not in known]
        if fields:
            table.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=LOG_RETRIES))

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """Store the moment through which the application is complete, see `worker.staging.StagingSink`. If no
        recent commit of the table has the moment, a commit without data stores it. This method opens
        the table anew, and does not use the table object of the batches, which other threads can use meanwhile."""
        if known.through is None or (known.epoch, wanted) <= self._kept:
            return
        from deltalake import CommitProperties, DeltaTable

        with table_errors(self.name):
            if not DeltaTable.is_deltatable(self.url, dict(self.options)):
                return
            table = DeltaTable(self.url, storage_options=dict(self.options))
            entries = (commit.get(completeness_key(application)) for commit in table.history(RECENT_COMMITS))
            kept = wanted
            if not is_in_table(entries, known.epoch, wanted):
                columns = DeltaRules.of(table, self.name).partition_columns
                properties = CommitProperties(
                    custom_metadata=completeness_record(application, known), max_commit_retries=LOG_RETRIES
                )
                table.create_write_transaction(
                    [], "append", table.schema(), partition_by=list(columns) or None, commit_properties=properties
                )
                kept = known.through
            self._kept = known.epoch, kept


def url_of(root: str) -> str:
    return root if root.startswith("s3://") else f"file://{root}"


def delta_options(s3: S3Options) -> dict[str, Any]:
    """Convert options for S3 to options of delta-rs. Raises ConfigurationError for options that delta-rs does not
    support."""
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
        "AWS_SERVER_SIDE_ENCRYPTION": None if s3.kms_key is None else "aws:kms",
        "AWS_SSE_KMS_KEY_ID": s3.kms_key,
        "AWS_ALLOW_HTTP": "true" if (s3.endpoint_url or "").startswith("http://") else None,
        # If two writers commit the same version, S3 refuses the second one.
        "AWS_CONDITIONAL_PUT": "etag",
    }
    return {name: value for name, value in options.items() if value is not None}
