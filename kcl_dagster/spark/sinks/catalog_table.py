"""An Iceberg table in its catalog, as a sink uses it. Executors write the files, and pyiceberg commits them.

If another commit was made first, this module loads the table again and repeats its own commit. pyiceberg's own
retry is switched off, because it would add the same files to the new state of the table. If another worker has
carried out the same commit, the table would then have the files twice.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from kcl_dagster.errors import ConfigurationError, PackageMissing
from kcl_dagster.model.partition_terms import partition_terms
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.partition_columns import partitioned
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sinks.added_columns import added_columns, refuse_reserved
from kcl_dagster.spark.sinks.completeness import (
    RECENT_COMMITS,
    completeness_key,
    completeness_record,
    is_in_table,
)
from kcl_dagster.spark.sinks.expired_files import remove_expired
from kcl_dagster.spark.sinks.iceberg_name_mapping import name_mapping
from kcl_dagster.spark.sinks.iceberg_partitions import spec_of
from kcl_dagster.spark.sinks.snapshot_expiry import NOTHING_OLD, Unreferenced, old_snapshots
from kcl_dagster.spark.sinks.table_columns import nullable, refuse_same_names
from kcl_dagster.spark.sinks.table_errors import table_errors
from kcl_dagster.spark.sinks.table_files import TableFiles, files_of
from kcl_dagster.spark.storage import S3Options, Store
from kcl_dagster.spark.transform import Transform
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.error_text import REDACTED

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import CommitTableResponse, Table, Transaction

DEFAULT_CATALOG: Final = "default"  # pyiceberg's own name for a catalog without a given name
COMMIT_ATTEMPTS: Final = 20  # attempts at one commit, because other writers commit to the same table
LONGEST_PAUSE: Final = 1.0  # seconds between two attempts; a commit takes some tenths of a second
MERGES: Final = "commit.manifest-merge.enabled"  # a property of Iceberg tables
_LOGIN: Final = re.compile(r"//[^/\s]*@")  # user and password in a catalog's URI, which errors of pyiceberg quote
_SIGNS: Final = "get_frozen_credentials"  # the method of botocore that pyiceberg calls on the credentials
_NO_RETRIES: Final = {"commit.retry.num-retries": "0"}


@dataclass(frozen=True, slots=True)
class Addition:
    """The content of one commit to a table.

    - `properties`: properties of the table that the commit sets.
    - `summary`: entries for the summary of the snapshot.
    - `maintains`: whether the commit expires old snapshots (see `snapshot_expiry`) and merges small manifests. For
      the merging of manifests, a setting of the table takes precedence.
    """

    files: Sequence["DataFile"]
    properties: Mapping[str, str]
    summary: Mapping[str, str]
    maintains: bool = False
    removed: Sequence["DataFile"] = ()
    """Files of the table that are replaced by `files`. If there are any, all `files` have the table's current
    partition spec."""
    needs_mapping: bool = False
    """Whether some of the files have no ids of columns, so that readers need the table's mapping of names."""


class CatalogTable:
    """The table `identifier` (`database.table`) of a pyiceberg catalog.

    `catalog`: pyiceberg's properties of a catalog (`{"type": "glue"}`, `{"type": "rest", "uri": ...}`). They take
    precedence over the properties of `catalog_name` in pyiceberg's configuration file and environment variables.
    `partition_by`: the partitioning, if this object makes the table. `keep_complete` can be called on another
    thread.
    """

    def __init__(
        self,
        identifier: str,
        catalog: Mapping[str, str] | None = None,
        *,
        catalog_name: str = DEFAULT_CATALOG,
        partition_by: Sequence[str] = (),
        s3: S3Options | None = None,
    ) -> None:
        try:
            import pyiceberg.catalog  # noqa: F401
        except ImportError as error:
            raise PackageMissing("the iceberg sink needs pyiceberg: pip install 'kcl-dagster[iceberg]'") from error
        if LEASE_KEY in partition_by:
            raise ConfigurationError(f"leave {LEASE_KEY} out of partition_by: a table is not partitioned by shard")
        if "." not in identifier:
            raise ConfigurationError(f"{identifier} is not of the form database.table")
        self.identifier = identifier
        self.s3 = s3 or S3Options()
        self._own = iceberg_options(self.s3)
        self.open_catalog = partial(self._open, catalog_name, self._own | dict(catalog or {}))
        self.catalog = self.open_catalog()
        # A second client for `keep_complete`, which can run on another thread. A client need not be thread-safe.
        self.beside: Catalog | None = None
        self._kept = (-1, 0)  # the epoch and the moment that `keep_complete` has found or stored in the table
        self._terms = partition_terms(partition_by)
        self._partition_by = tuple(partition_by)

    def _open(self, name: str, properties: Mapping[str, str]) -> "Catalog":
        try:
            return self._opened(name, properties)
        except Exception as error:
            # A catalog's client can raise any class of error here. The catalog is not in use yet, so its
            # configuration counts as the cause.
            said = _LOGIN.sub(f"//{REDACTED}@", str(error))
            if isinstance(error, AttributeError) and _SIGNS in said:  # pyiceberg does not check for credentials
                said = "there are no AWS credentials with which its requests could be signed"
            raise ConfigurationError(f"Iceberg catalog {name} cannot be used: {said}") from None

    def _opened(self, name: str, properties: Mapping[str, str]) -> "Catalog":
        from pyiceberg.catalog import load_catalog

        return load_catalog(name, **properties)

    @property
    def name(self) -> str:
        return f"iceberg table {self.identifier}"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """A context for work with the table, see `table_errors`."""
        with table_errors(self.name):
            yield

    def load(self) -> "Table | None":
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self.catalog.load_table(self.identifier)
        except NoSuchTableError:
            return None

    def create(
        self, output: pa.Schema, location: str | None = None, properties: Mapping[str, str] | None = None
    ) -> "Table":
        """Make the table for an output of this schema, or load it if another worker has made it. Raises SinkError
        if engines could not read a table with these names of columns."""
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
        from pyiceberg.schema import assign_fresh_schema_ids

        self._refuse_catalog_in_name()
        refuse_same_names(self.name, output, pa.schema([]))
        refuse_reserved(output.names, self.name)
        schema = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(nullable(output)))
        spec = spec_of(self._terms, schema)
        self.catalog.create_namespace_if_not_exists(self._namespace)
        try:
            # The table is made by one request, because not every catalog supports making it in several steps.
            return self.catalog.create_table(
                self.identifier, schema, location=location, partition_spec=spec, properties=dict(properties or {})
            )
        except TableAlreadyExistsError:
            return self.catalog.load_table(self.identifier)  # another worker has made it for its first batch
        except ValueError:
            if location is None:
                self._check_place()
            raise

    def location(self) -> str:
        """The location of the table, or the location at which `create` would make it. If there is no table, and the
        catalog's server chooses the locations of new tables, raises ConfigurationError."""
        from pyiceberg.catalog import MetastoreCatalog

        table = self.load()
        if table is not None:
            return table.location()
        if isinstance(self.catalog, MetastoreCatalog):
            self._refuse_catalog_in_name()
            self._make_database()
            self._check_place()
            name = self.identifier.rpartition(".")[2]
            return self.catalog._resolve_table_location(None, self._namespace, name)  # noqa: SLF001 - no public method
        raise ConfigurationError(
            f"{self.name} does not exist, and its catalog decides where it lies when it is made. Chains of entries "
            "need a place before that: make the table first, or name another place with chains_path"
        )

    def _make_database(self) -> None:
        self.catalog.create_namespace_if_not_exists(self._namespace)

    def _refuse_catalog_in_name(self) -> None:
        """Raise ConfigurationError if the name of a new table begins with the name of the catalog, as in the SQL of
        engines. In a catalog with nested databases, such a name would make a database with the catalog's name."""
        first, *inside = self.identifier.split(".")
        if len(inside) < 2 or first != self.catalog.name or self.catalog.namespace_exists(self._namespace):
            return
        raise ConfigurationError(
            f"{self.name} does not exist, and its name begins with the name of the catalog: write "
            f"{'.'.join(inside)}. If the catalog has a database {first}, make {self._namespace} in it first"
        )

    def _check_place(self) -> None:
        """Raise ConfigurationError if the catalog has no location for a new table. pyiceberg itself raises only a
        ValueError, which does not say what to do. Catalogs whose server chooses the locations are not checked."""
        from pyiceberg.catalog import LOCATION, WAREHOUSE_LOCATION, MetastoreCatalog

        catalog = self.catalog
        if not isinstance(catalog, MetastoreCatalog) or catalog.properties.get(WAREHOUSE_LOCATION):
            return
        if not catalog.load_namespace_properties(self._namespace).get(LOCATION):
            raise ConfigurationError(
                f"{self.name} does not exist, and catalog {catalog.name} has no location for new tables: add "
                f'"{WAREHOUSE_LOCATION}": "s3://bucket/prefix" to the properties of the catalog, give the database '
                f"{self._namespace} a location, or make the table first"
            )

    def add(self, columns: pa.Schema) -> None:
        """Add these columns to the table, and widen the types of columns that the table already has."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        table = self.catalog.load_table(self.identifier)
        known = schema_to_pyarrow(table.schema(), include_field_ids=False)
        added = added_columns(columns, known, self.name)
        with tried_once(table).update_schema() as update:
            update.union_by_name(added)

    @property
    def _namespace(self) -> str:
        return self.identifier.rpartition(".")[0]

    def store(self, table: "Table", root: str) -> Store | TableFiles:
        """The store with which files below `root` are written."""
        return files_of(root, table.io.properties, self._own, self.s3)

    def transform_for(self, table: "Table", transform: Transform) -> Transform:
        """Wrap the transform for a table that an earlier version of this package has made. Such a table has text
        columns for units of time, and the wrapped transform fills them."""
        from pyiceberg.types import StringType

        texts = {field.name for field in table.schema().fields if isinstance(field.field_type, StringType)}
        filled = [
            entry
            for entry, term in zip(self._partition_by, self._terms, strict=True)
            if term.name != term.column and term.name in texts
        ]
        return partitioned(transform, filled)[0] if filled else transform

    def append(self, runtime: Runtime, prepare: Callable[["Table"], Addition | None]) -> bool:
        """Load the table and commit the addition that `prepare` returns for it. If another commit came in between,
        load and commit again. If `prepare` returns None, there is nothing to add, and no commit is made.

        Returns False if there is no table. If an error of pyiceberg is raised, the commit may have been made.
        """
        from pyiceberg.exceptions import CommitFailedException

        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            table = self.load()
            addition = None if table is None else prepare(table)
            if table is None or addition is None:
                return table is not None
            try:
                _append(table, addition)
            except (CommitFailedException, ValueError):  # ValueError: another writer has expired the same snapshots
                if attempt == COMMIT_ATTEMPTS:
                    raise
                runtime.clock.sleep(runtime.random.uniform(0, LONGEST_PAUSE))
            else:
                break
        return True

    def version(self) -> dict[str, str]:
        """The id of the current snapshot, for `spark.sinks.contract.SparkSink.version`. The id is a text, because a
        browser rounds numbers of this size."""
        from pyiceberg.exceptions import NoSuchTableError

        with self.errors():
            try:
                snapshot = self.open_catalog().load_table(self.identifier).current_snapshot()
            except NoSuchTableError:
                return {}
            return {} if snapshot is None else {"snapshot": str(snapshot.snapshot_id)}

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """Store the moment through which the application is complete, see `worker.staging.StagingSink`. If no
        recent snapshot has the moment in its summary, the moment is stored as a property of the table. It is not
        stored with a snapshot without data, for two reasons: such a snapshot would have to be expired later, and it
        would make a concurrent commit of a batch fail."""
        if known.through is None or (known.epoch, wanted) <= self._kept:
            return
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

        self.beside = self.beside or self.open_catalog()
        key = completeness_key(application)
        with self.errors():
            try:
                table = self.beside.load_table(self.identifier)
            except NoSuchTableError:
                return
            entries = [table.properties.get(key), *recent_summaries(table, key)]
            kept = wanted
            if not is_in_table(entries, known.epoch, wanted):
                try:
                    with tried_once(table).transaction() as transaction:
                        transaction.set_properties(completeness_record(application, known))
                except CommitFailedException:
                    return  # another commit was made; commits of batches store the moment, or the next call does
                kept = known.through
            self._kept = known.epoch, kept


def recent_summaries(table: "Table", key: str) -> list[str | None]:
    """The values of this key in the summaries of the last snapshots; None for a summary without the key."""
    summaries = (snapshot.summary for snapshot in table.snapshots()[-RECENT_COMMITS:])
    return [summary.get(key) for summary in summaries if summary]


def _append(table: "Table", addition: Addition) -> None:
    """Commit the addition in one transaction. The commit makes one snapshot. If the table's partition spec was
    changed since some files were written, it makes one snapshot for each spec of the files."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    from kcl_dagster.spark.sinks.iceberg_snapshots import addition as added

    own = table.spec().spec_id
    merges = table.properties.get(MERGES, str(addition.maintains)).lower() == "true"
    files = sorted(addition.files, key=lambda file: (file.spec_id == own, file.spec_id))
    by_spec = [(spec, list(some)) for spec, some in groupby(files, key=lambda file: file.spec_id)] or [(own, [])]
    old = old_snapshots(table.metadata) if addition.maintains else NOTHING_OLD
    statistics = table.metadata.statistics
    table = tried_once(table, {MERGES: str(merges).lower()}, old.ids)
    with table.transaction() as transaction:
        mapping = name_mapping(table) if addition.needs_mapping else {}
        transaction.set_properties(dict(addition.properties) | mapping)
        if old.ids:
            ExpireSnapshots(transaction).by_ids(old.ids).commit()
        if addition.removed:
            _replace(transaction, addition)
            by_spec = []
        for spec, some in by_spec:
            # pyiceberg writes manifests for the default spec of the metadata, so the spec of these files is set as
            # the default there.
            table.metadata = table.metadata.model_copy(update={"default_spec_id": spec})
            with added(transaction, addition.summary) as snapshot:
                for file in some:
                    snapshot.append_data_file(file)
    remove_expired(old, statistics, table)


def _replace(transaction: "Transaction", addition: Addition) -> None:
    from kcl_dagster.spark.sinks.iceberg_snapshots import replacement

    with replacement(transaction, addition.summary) as snapshot:
        for file in addition.removed:
            snapshot.delete_data_file(file)
        for file in addition.files:
            snapshot.append_data_file(file)


def tried_once(
    table: "Table", properties: Mapping[str, str] | None = None, expired: Collection[int] = ()
) -> "Table":
    """Change the table object so that pyiceberg tries each commit of the table only once. Returns the object.

    `properties`: further properties for pyiceberg. pyiceberg reads these settings from the metadata of the object,
    and sends only its updates to the catalog. So the properties in the catalog remain as they are.

    Of the snapshots, the object keeps only the `expired` ones and those to which branches and tags refer. This
    saves time, because pyiceberg copies the metadata for each step of a commit.
    """
    metadata = table.metadata
    needed = {*expired, *(ref.snapshot_id for ref in metadata.refs.values()), metadata.current_snapshot_id}
    table.metadata = metadata.model_copy(
        update={
            "properties": metadata.properties | _NO_RETRIES | dict(properties or {}),
            "snapshots": [one for one in metadata.snapshots if one.snapshot_id in needed],
            "snapshot_log": [one for one in metadata.snapshot_log if one.snapshot_id in needed],
        }
    )
    table.catalog = cast("Catalog", _LooksUp(table.catalog))
    return table


@dataclass(frozen=True, slots=True)
class _LooksUp:
    """A catalog that loads the table if a commit was refused, and checks whether the commit was made nevertheless.

    If the response to a request was lost, the catalog's client may have sent the request again. It is then possible
    that the first request has succeeded, and the second one was refused. Without this class, pyiceberg would delete
    the manifests of the commit, although the table refers to them.

    This class also refuses to expire snapshots that have got a tag or a branch meanwhile, see `Unreferenced`."""

    catalog: "Catalog"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.catalog, name)

    def commit_table(
        self, table: "Table", requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> "CommitTableResponse":
        from pyiceberg.catalog import MetastoreCatalog
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table import CommitTableResponse
        from pyiceberg.table.update import AddSnapshotUpdate, RemoveSnapshotsUpdate

        expired = [one.snapshot_ids for one in updates if isinstance(one, RemoveSnapshotsUpdate)]
        if expired:
            unreferenced = Unreferenced(frozenset(chain.from_iterable(expired)))
            if isinstance(self.catalog, MetastoreCatalog):
                requirements = (*requirements, unreferenced)
            else:
                unreferenced.validate(self.catalog.load_table(table.name()).metadata)
        try:
            return self.catalog.commit_table(table, requirements, updates)
        except CommitFailedException:
            added = [one.snapshot.snapshot_id for one in updates if isinstance(one, AddSnapshotUpdate)]
            now = self.catalog.load_table(table.name())
            if not added or any(now.snapshot_by_id(snapshot) is None for snapshot in added):
                raise
            return CommitTableResponse(metadata=now.metadata, metadata_location=now.metadata_location)


def iceberg_options(s3: S3Options) -> dict[str, str]:
    """Convert options for S3 to pyiceberg's properties. Raises ConfigurationError for options that pyiceberg does
    not support."""
    if s3.external_id is not None:
        raise ConfigurationError(
            "pyiceberg assumes roles without an external id: give the run's own credentials access to the table, "
            "or a role that asks for none as s3_role_arn"
        )
    if s3.kms_key is not None:
        raise ConfigurationError(
            "pyiceberg writes the files of a table's metadata without naming a key: leave s3_kms_key out, and make "
            "the key the default of the bucket"
        )
    options = {
        "s3.region": s3.region,
        "s3.endpoint": s3.endpoint_url,
        "s3.access-key-id": s3.access_key,
        "s3.secret-access-key": s3.secret_key,
        "s3.session-token": s3.session_token,
        "s3.role-arn": s3.role_arn,
        "s3.role-session-name": s3.session_name,
        # Properties for other services: Glue, and the signatures of requests to REST catalogs of AWS.
        "client.region": s3.region,
        "client.profile-name": s3.profile,
        "client.access-key-id": s3.access_key,
        "client.secret-access-key": s3.secret_key,
        "client.session-token": s3.session_token,
    }
    return {name: value for name, value in options.items() if value is not None}
