"""Iceberg tables by way of pyiceberg: executors write the files, the driver commits them.

All parts of a batch become visible at once. What the table holds of each shard stands in the table's properties,
written by the same commit as the files, so a part is never added twice. Commits are repeated here and not by
pyiceberg, which would add the files again on top of whatever came in between.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from kcl_dagster.errors import ConfigurationError, PackageMissing, SinkError
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.failures import write_failures
from kcl_dagster.spark.parquet_file import names_without_bounds, read_footer
from kcl_dagster.spark.partitioning import PartitionTerm, partitioned
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sinks.completeness import (
    RECENT_COMMITS,
    completeness_key,
    completeness_record,
    is_in_table,
)
from kcl_dagster.spark.sinks.iceberg_partitions import IcebergPartitions, spec_of
from kcl_dagster.spark.sinks.record import (
    Comparison,
    StoredPart,
    compare,
    owner_key,
    table_errors,
)
from kcl_dagster.spark.sinks.table_files import TableFiles, files_of
from kcl_dagster.spark.sinks.target import Target, nullable
from kcl_dagster.spark.sinks.writing import (
    Written,
    WrittenFile,
    file_stem,
    has_own_times,
    output_schema,
    write_files,
    written_before,
)
from kcl_dagster.spark.storage import S3Options, Store
from kcl_dagster.spark.transform import Transform, unchanged
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.batch import Batch, Part, PartCounts
from kcl_dagster.worker.error_text import REDACTED

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

DEFAULT_CATALOG: Final = "default"  # pyiceberg's own name for the one that is not named
COMMIT_ATTEMPTS: Final = 20  # every worker of the application commits to the one table
DATA_PATH: Final = "write.data.path"  # a table's property
LONGEST_PAUSE: Final = 1.0  # seconds between two attempts; a commit takes some tenths
_LOGIN: Final = re.compile(r"//[^/\s]*@")  # of a catalog's URI, which pyiceberg quotes
NO_RETRIES: Final = {"commit.retry.num-retries": "0"}


class IcebergSink:
    """Appends batches to the table `identifier` (`database.table`) of a pyiceberg catalog.

    `catalog` are pyiceberg's own properties (`{"type": "glue"}`, `{"type": "rest", "uri": ...}`), on top of what
    its configuration file and environment say of the catalog `catalog_name`. The table is made with the first
    batch, with the schema of the transform's output. It must have one application's batches and nothing else
    writing to it but maintenance.
    """

    def __init__(
        self,
        identifier: str,
        catalog: Mapping[str, str] | None = None,
        *,
        catalog_name: str = DEFAULT_CATALOG,
        transform: Transform = unchanged,
        partition_by: Sequence[str] = (),
        s3: S3Options | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        try:
            import pyiceberg.catalog  # noqa: F401
        except ImportError as error:
            raise PackageMissing("the iceberg sink needs pyiceberg: pip install 'kcl-dagster[iceberg]'") from error
        if LEASE_KEY in partition_by:
            raise ConfigurationError(f"leave {LEASE_KEY} out of partition_by: a table is not partitioned by shard")
        if "." not in identifier:
            raise ConfigurationError(f"{identifier} is not of the form database.table")
        self._identifier = identifier
        self._s3 = s3 or S3Options()
        self._own = iceberg_options(self._s3)
        self._open_catalog = partial(_catalog, catalog_name, self._own | dict(catalog or {}))
        self._catalog = self._open_catalog()
        self._beside: Catalog | None = None  # for `keep_complete`: a client need not be safe for threads
        self._kept = (-1, 0)  # epoch and moment that the table has by `keep_complete`
        self._transform, _ = partitioned(transform, ())
        if isinstance(partition_by, str):
            raise ConfigurationError(f"partition_by is a list of columns: [{partition_by!r}]")
        self._partition_by = tuple(partition_by)
        self._terms = [PartitionTerm.parse(entry) for entry in partition_by]
        self._runtime = runtime or system()
        self._drafts_into: Store | None = None
        self._is_unchanged = transform is unchanged
        self._written: Written | None = None

    @property
    def path(self) -> str:
        return self._identifier

    @property
    def _name(self) -> str:
        return f"iceberg table {self._identifier}"

    @property
    def drafts_into(self) -> Store | None:
        """See `spark.drafts.DraftedSink`. Where the table lies is known when the first batch is stored."""
        return self._drafts_into

    def write(self, data: DataFrame, batch: Batch) -> None:
        """See `worker.batch.Sink.write`."""
        self._written = None
        with table_errors(self._name):
            table = self._load()
            is_stored = table is not None and _compare(table, batch.parts).is_stored
            if is_stored and not has_own_times(batch.time_column):
                return
        if table is None:
            schema = output_schema(data, self._transform, [part.lease for part in batch.parts])
            with table_errors(self._name):
                table = self._create(schema)
        with table_errors(self._name):
            partitions = IcebergPartitions.of(self._name, table.spec(), table.schema())
            root = table.properties.get(DATA_PATH, f"{table.location().rstrip('/')}/data").rstrip("/")
            store = files_of(root, table.io.properties, self._own, self._s3)
            target = _target(table, self._name)
        attempt = self._runtime.new_id()[:8]  # files of an attempt that was not committed are never mistaken
        names = {part.lease: f"{file_stem(part)}.{attempt}.parquet" for part in batch.parts}
        with write_failures(self._name):
            transform = self._transform_for(table)
            if is_stored:
                self._written = written_before(data, transform, names, partitions, target, batch.time_column)
                return
            written = write_files(data, transform, store, names, partitions, target, batch.time_column)
        self._drafts_into = store if written.as_read and not isinstance(store, TableFiles) else None
        with table_errors(self._name):
            self._commit(batch, written.files, root, partitions)
        self._written = written

    def counted(self, part: Part) -> PartCounts | None:
        """See `worker.batch.Counting`. Of a batch that was stored by an earlier attempt, the records are known, and
        rows if they have times of their own."""
        if self._written is not None:
            return self._written.counts(part.lease)
        return PartCounts(None) if self._is_unchanged else None

    def version(self) -> dict[str, str]:
        """See `orchestration.table_versions.Versioned`. As text: a browser rounds numbers of that size."""
        from pyiceberg.exceptions import NoSuchTableError

        with table_errors(self._name):
            try:
                snapshot = self._open_catalog().load_table(self._identifier).current_snapshot()
            except NoSuchTableError:
                return {}
            return {} if snapshot is None else {"snapshot": str(snapshot.snapshot_id)}

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """See `worker.batch.KeepingCompleteness`. If the table has got no snapshot with the entry, makes it a
        property of the table. An empty snapshot would have to be expired, and would refuse batches that are being
        committed, in every catalog."""
        if known.through is None or (known.epoch, wanted) <= self._kept:
            return
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

        self._beside = self._beside or self._open_catalog()
        key = completeness_key(application)
        with table_errors(self._name):
            try:
                table = self._beside.load_table(self._identifier)
            except NoSuchTableError:
                return
            summaries = (snapshot.summary for snapshot in table.snapshots()[-RECENT_COMMITS:])
            entries = [table.properties.get(key), *(summary.get(key) for summary in summaries if summary)]
            kept = wanted
            if not is_in_table(entries, known.epoch, wanted):
                try:
                    with _tried_once(table).transaction() as transaction:
                        transaction.set_properties(completeness_record(application, known))
                except CommitFailedException:
                    return  # the table gets batches, and with them the entry
                kept = known.through
            self._kept = known.epoch, kept

    def holds(self, part: Part) -> bool:
        """See `worker.batch.Remembering`. Files without a commit do not count as stored."""
        with table_errors(self._name):
            table = self._load()
            return table is not None and _compare(table, [part]).is_stored

    def _commit(self, batch: Batch, files: Sequence[WrittenFile], root: str, partitions: IcebergPartitions) -> None:
        from pyiceberg.exceptions import CommitFailedException

        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            table = self._catalog.load_table(self._identifier)
            found = _compare(table, batch.parts)
            found.refuse_strange(self._name, files)
            parts, leases = found.missing, {part.lease for part in found.missing}
            if not parts:
                return
            if table.spec().spec_id != partitions.spec.spec_id:
                raise SinkError(f"{self._name} was partitioned in another way while the batch was written")
            record = {owner_key(part): str(StoredPart.of(part)) for part in parts}
            added = [_data_file(table, partitions, file, root) for file in files if file.lease_key in leases]
            try:
                with _tried_once(table).transaction() as transaction:
                    mapping = {} if table.metadata.name_mapping() else _name_mapping(table)
                    transaction.set_properties(record | mapping)
                    # Also without files: only a snapshot is refused where another one came in between, and a
                    # stalled writer's record would take the place of a later one.
                    summary = record | completeness_record(batch.application, batch.complete)
                    update = transaction.update_snapshot(snapshot_properties=summary)
                    merges = table.properties.get("commit.manifest-merge.enabled", "false").lower() == "true"
                    with update.merge_append() if merges else update.fast_append() as snapshot:
                        for file in added:
                            snapshot.append_data_file(file)
            except CommitFailedException:
                if attempt == COMMIT_ATTEMPTS:
                    raise
                self._runtime.clock.sleep(self._runtime.random.uniform(0, LONGEST_PAUSE))
            else:
                return

    def _load(self) -> "Table | None":
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None

    def _create(self, output: pa.Schema) -> "Table":
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
        from pyiceberg.schema import assign_fresh_schema_ids

        schema = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(nullable(output)))
        spec = spec_of(self._terms, schema)
        self._catalog.create_namespace_if_not_exists(self._identifier.rsplit(".", 1)[0])
        try:
            # In one request: not every catalog can stage a table that is made in several.
            return self._catalog.create_table(self._identifier, schema, partition_spec=spec)
        except TableAlreadyExistsError:
            return self._catalog.load_table(self._identifier)  # another worker's first batch

    def _transform_for(self, table: "Table") -> Transform:
        """A table that an earlier version made has columns of text for units of time, which it wants filled."""
        from pyiceberg.types import StringType

        texts = {field.name for field in table.schema().fields if isinstance(field.field_type, StringType)}
        filled = [
            entry
            for entry, term in zip(self._partition_by, self._terms, strict=True)
            if term.name != term.column and term.name in texts
        ]
        return partitioned(self._transform, filled)[0] if filled else self._transform


def _catalog(name: str, properties: Mapping[str, str]) -> "Catalog":
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **properties)
    except Exception as error:
        # Whatever a catalog's client raises when it is made: nothing has been asked of it yet.
        said = _LOGIN.sub(f"//{REDACTED}@", str(error))
        raise ConfigurationError(f"Iceberg catalog {name} cannot be used: {said}") from None


def _target(table: "Table", name: str) -> Target:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return Target(name, schema_to_pyarrow(table.schema(), include_field_ids=False), " (table.update_schema())")


def _name_mapping(table: "Table") -> dict[str, str]:
    """For readers: files have the columns' names and not their numbers."""
    return {"schema.name-mapping.default": table.schema().name_mapping.model_dump_json()}


def _data_file(table: "Table", partitions: IcebergPartitions, file: WrittenFile, root: str) -> "DataFile":
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    _target(table, str(partitions.table)).check_nulls(file.footer)
    schema, footer = table.schema(), read_footer(file.footer)
    plan, ids = compute_statistics_plan(schema, table.properties), parquet_path_to_id_mapping(schema)
    for name in names_without_bounds(footer):
        column = plan[ids[name]]
        if column.mode != MetricsMode(MetricModeTypes.NONE):
            plan[ids[name]] = replace(column, mode=MetricsMode(MetricModeTypes.COUNTS))
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer, stats_columns=plan, parquet_column_mapping=ids
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{root}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=partitions.record(file.partition),
        file_size_in_bytes=file.bytes,
        sort_order_id=None,
        spec_id=partitions.spec.spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _tried_once(table: "Table") -> "Table":
    """The table, for whose commits pyiceberg does not try again. It asks the properties of the table that it was
    given; the catalog is told only what is set, so those of the table itself, which others honour, stay."""
    properties = table.metadata.properties | NO_RETRIES
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


def _compare(table: "Table", parts: Sequence[Part]) -> Comparison:
    def newest(part: Part) -> int | None:
        text = table.properties.get(owner_key(part))
        return StoredPart.parse(text).number if text is not None else None

    def holds(part: Part) -> bool:
        key, wanted = owner_key(part), str(StoredPart.of(part))
        if table.properties.get(key) == wanted:
            return True
        return any(
            snapshot.summary is not None and snapshot.summary.get(key) == wanted for snapshot in table.snapshots()
        )

    return compare(parts, newest, holds)


def iceberg_options(s3: S3Options) -> dict[str, str]:
    """pyiceberg's words for how to reach S3."""
    options = {
        "s3.region": s3.region,
        "s3.endpoint": s3.endpoint_url,
        "s3.access-key-id": s3.access_key,
        "s3.secret-access-key": s3.secret_key,
        "s3.session-token": s3.session_token,
        "s3.role-arn": s3.role_arn,
        "s3.role-session-name": s3.session_name,
        # For what is not S3: Glue, and the signatures of REST catalogs of AWS.
        "client.region": s3.region,
        "client.profile-name": s3.profile,
        "client.access-key-id": s3.access_key,
        "client.secret-access-key": s3.secret_key,
        "client.session-token": s3.session_token,
    }
    return {name: value for name, value in options.items() if value is not None}
