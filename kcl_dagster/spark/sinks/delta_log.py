"""The log of a Delta table, as a sink uses it between batches."""

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
from kcl_dagster.spark.sinks.table_errors import table_errors
from kcl_dagster.spark.sinks.target import nullable
from kcl_dagster.spark.storage import S3Options, Store
from kcl_dagster.tables.completeness_row import WrittenThrough

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOG_RETRIES: Final = 15  # delta-rs's own: other shards' workers append to the same log


def check_settings(partition_by: Sequence[str]) -> None:
    """Raise PackageMissing if deltalake is not installed. Raise ConfigurationError if the table is to be
    partitioned by lease key."""
    try:
        import deltalake  # noqa: F401 - it is an extra, and asked for when the consumer is defined
    except ImportError as error:
        raise PackageMissing("the delta sink needs deltalake: pip install 'kcl-dagster[delta]'") from error
    if LEASE_KEY in partition_by:
        raise ConfigurationError(f"leave {LEASE_KEY} out of partition_by: a table is not partitioned by shard")


@dataclass(slots=True)
class DeltaLog:
    """The table at the root of a store. It is kept open: what is read again is what was committed since.

    `columns`: by which a table is partitioned that is made here. `keep_complete` may be called on another thread.
    """

    store: Store
    options: Mapping[str, str] = field(repr=False)
    columns: Sequence[str] = ()
    _table: "DeltaTable | None" = None
    _newest: tuple[int, bytes] | None = None  # version of the open table, and what its log says there
    _kept: tuple[int, int] = (-1, 0)  # epoch and moment that the table has by `keep_complete`

    @property
    def name(self) -> str:
        return f"delta at {self.store.root}"

    @property
    def url(self) -> str:
        return url_of(self.store.root)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """For what is done with the table that is kept open. If it fails, the next attempt opens the table anew: it
        may have been removed, or made anew, and the one that is open then never succeeds again. Not before the next
        attempt, whose files are written by the rules of the table that it opens."""
        try:
            with table_errors(self.name):
                yield
        except SinkError:
            self._table = None
            raise

    def open(self, schema: pa.Schema | None = None, columns: Sequence[str] | None = None) -> "DeltaTable | None":
        """The table; made if there is none and `schema` is given. `columns`: by which it is partitioned then, if
        not by those of the sink."""
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
        """Make the table after an output whose files were written while there was none. Raises SinkError if another
        writer has made one meanwhile, by rules that the files do not follow."""
        table = self.open(output)
        assert table is not None
        rules = DeltaRules.of(table, self.name, changes)
        rules.target.check(output)
        is_other = nullable(rules.target.stored(output)) != nullable(output)  # it is made without such promises
        has_rules = bool(rules.conditions or rules.target.required)
        is_partitioned_otherwise = changes is None and set(rules.partition_columns) != set(self.columns)
        if is_other or has_rules or is_partitioned_otherwise:
            raise SinkError(
                f"{self.name} was made by another writer while its first files were written: the next attempt "
                "writes them by the rules of the table"
            )
        return rules

    def refreshed(self) -> "DeltaTable | None":
        """The table as it is now. Raises SinkError if it is another one than before."""
        table = self.open()
        if table is None:
            return None
        self._refuse_another(table)
        table.update_incremental()
        if self._newest is None or self._newest[0] != table.version():
            self._newest = self._commit_of(table)
        return table

    def committed(self, table: "DeltaTable") -> None:
        """A commit was made with this table."""
        self._newest = self._commit_of(table)

    def _refuse_another(self, table: "DeltaTable") -> None:
        """Raise SinkError if the log does not go on from the version that is known of it: the table was removed or
        made anew. delta-rs does not notice where the log of the new table is as long as that of the old one, and
        would append to the new one by the schema and the batch numbers of the old one."""
        if self._newest is not None and self._newest != self._commit_of(table):
            raise SinkError(
                f"{self.name} is not the table that it was: it was removed or made anew since the last batch. The "
                "next attempt writes to the table that is there"
            )

    def _commit_of(self, table: "DeltaTable") -> tuple[int, bytes] | None:
        """The newest version that is known of a table, and the file of its log that made it. None: it has been
        removed, as those are that a checkpoint has replaced."""
        version = table.version()
        content = found_content(self.store, f"_delta_log/{version:020}.json")
        return None if content is None else (version, md5(content, usedforsecurity=False).digest())

    def add(self, columns: pa.Schema) -> None:
        """Add those of these columns that the table does not have. Those that it has in another type remain as they
        are: delta-rs widens none."""
        from deltalake import CommitProperties, DeltaTable, Schema

        table = DeltaTable(self.url, storage_options=dict(self.options))
        known = {field.name for field in table.schema().fields}
        fields = [field for field in Schema.from_arrow(columns).fields if field.name not in known]
        if fields:
            table.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=LOG_RETRIES))

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """See `worker.staging.StagingSink`. If the table has got no commit with the entry, adds one that has no
        data. Opens the table anew: batches may use the other one meanwhile."""
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
        "AWS_SERVER_SIDE_ENCRYPTION": None if s3.kms_key is None else "aws:kms",
        "AWS_SSE_KMS_KEY_ID": s3.kms_key,
        "AWS_ALLOW_HTTP": "true" if (s3.endpoint_url or "").startswith("http://") else None,
        # Two committers of one version: S3 lets the first one win.
        "AWS_CONDITIONAL_PUT": "etag",
    }
    return {name: value for name, value in options.items() if value is not None}
