"""An Iceberg table in its catalog, as a sink uses it: executors write the files, and pyiceberg commits them.

Commits are repeated here and not by pyiceberg, which would add the files again on top of whatever came in between.
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
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.partitioning import PartitionTerm, partitioned
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sinks.completeness import (
    RECENT_COMMITS,
    completeness_key,
    completeness_record,
    is_in_table,
)
from kcl_dagster.spark.sinks.expired_files import remove_expired
from kcl_dagster.spark.sinks.iceberg_partitions import spec_of
from kcl_dagster.spark.sinks.snapshot_expiry import NOTHING_OLD, Unreferenced, old_snapshots
from kcl_dagster.spark.sinks.table_errors import table_errors
from kcl_dagster.spark.sinks.table_files import TableFiles, files_of
from kcl_dagster.spark.sinks.target import nullable
from kcl_dagster.spark.storage import S3Options, Store
from kcl_dagster.spark.transform import Transform
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.error_text import REDACTED

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import CommitTableResponse, Table, Transaction

DEFAULT_CATALOG: Final = "default"  # pyiceberg's own name for the one that is not named
COMMIT_ATTEMPTS: Final = 20  # other writers commit to the one table
LONGEST_PAUSE: Final = 1.0  # seconds between two attempts; a commit takes some tenths
MERGES: Final = "commit.manifest-merge.enabled"  # a table's property
_LOGIN: Final = re.compile(r"//[^/\s]*@")  # of a catalog's URI, which pyiceberg quotes
_NO_RETRIES: Final = {"commit.retry.num-retries": "0"}


@dataclass(frozen=True, slots=True)
class Addition:
    """What one commit adds to a table. `summary`: of its snapshot. `maintains`: whether the commit merges small
    manifests, if the table does not say it, and expires old snapshots, see `snapshot_expiry`."""

    files: Sequence["DataFile"]
    properties: Mapping[str, str]
    summary: Mapping[str, str]
    maintains: bool = False
    removed: Sequence["DataFile"] = ()
    """Files of the table whose place the others take, all of which are of its current partition spec then."""


class CatalogTable:
    """The table `identifier` (`database.table`) of a pyiceberg catalog.

    `catalog` are pyiceberg's own properties (`{"type": "glue"}`, `{"type": "rest", "uri": ...}`), on top of what
    its configuration file and environment say of the catalog `catalog_name`. `partition_by`: of a table that is
    made here. `keep_complete` may be called on another thread.
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
        if isinstance(partition_by, str):
            raise ConfigurationError(f"partition_by is a list of columns: [{partition_by!r}]")
        self.identifier = identifier
        self.s3 = s3 or S3Options()
        self._own = iceberg_options(self.s3)
        self.open_catalog = partial(_catalog, catalog_name, self._own | dict(catalog or {}))
        self.catalog = self.open_catalog()
        self.beside: Catalog | None = None  # for `keep_complete`: a client need not be safe for threads
        self._kept = (-1, 0)  # epoch and moment that the table has by `keep_complete`
        self._partition_by = tuple(partition_by)
        self._terms = [PartitionTerm.parse(entry) for entry in partition_by]

    @property
    def name(self) -> str:
        return f"iceberg table {self.identifier}"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """For what is done with the table."""
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
        """Make the table for an output of this schema, unless another worker has."""
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
        from pyiceberg.schema import assign_fresh_schema_ids

        schema = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(nullable(output)))
        spec = spec_of(self._terms, schema)
        self.catalog.create_namespace_if_not_exists(self._namespace)
        try:
            # In one request: not every catalog can stage a table that is made in several.
            return self.catalog.create_table(
                self.identifier, schema, location=location, partition_spec=spec, properties=dict(properties or {})
            )
        except TableAlreadyExistsError:
            return self.catalog.load_table(self.identifier)  # another worker's first batch

    def location(self) -> str:
        """Where the table lies, or where it will if it is made here. Raises ConfigurationError if there is no table
        and only the catalog's server knows."""
        from pyiceberg.catalog import MetastoreCatalog

        table = self.load()
        if table is not None:
            return table.location()
        if isinstance(self.catalog, MetastoreCatalog):
            self.catalog.create_namespace_if_not_exists(self._namespace)
            name = self.identifier.rpartition(".")[2]
            return self.catalog._resolve_table_location(None, self._namespace, name)  # noqa: SLF001 - no other way
        raise ConfigurationError(
            f"{self.name} does not exist, and its catalog decides where it lies when it is made. Chains of entries "
            "need a place before that: make the table first, or name another place with chains_path"
        )

    def add(self, columns: pa.Schema) -> None:
        """Add these columns to the table, or widen those that it has."""
        table = self.catalog.load_table(self.identifier)
        with tried_once(table).update_schema() as update:
            update.union_by_name(columns)

    @property
    def _namespace(self) -> str:
        return self.identifier.rpartition(".")[0]

    def store(self, table: "Table", root: str) -> Store | TableFiles:
        """How the files below `root` are written."""
        return files_of(root, table.io.properties, self._own, self.s3)

    def transform_for(self, table: "Table", transform: Transform) -> Transform:
        """A table that an earlier version made has columns of text for units of time, which it wants filled."""
        from pyiceberg.types import StringType

        texts = {field.name for field in table.schema().fields if isinstance(field.field_type, StringType)}
        filled = [
            entry
            for entry, term in zip(self._partition_by, self._terms, strict=True)
            if term.name != term.column and term.name in texts
        ]
        return partitioned(transform, filled)[0] if filled else transform

    def append(self, runtime: Runtime, prepare: Callable[["Table"], Addition | None]) -> bool:
        """Commit what `prepare` adds to the table as it is now, and again if another commit came in between. None:
        there is nothing to add any more. False: there is no table. Raises what pyiceberg raises: the commit may
        have been made then."""
        from pyiceberg.exceptions import CommitFailedException

        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            table = self.load()
            addition = None if table is None else prepare(table)
            if table is None or addition is None:
                return table is not None
            try:
                _append(table, addition)
            except (CommitFailedException, ValueError):  # ValueError: others have expired the same snapshots
                if attempt == COMMIT_ATTEMPTS:
                    raise
                runtime.clock.sleep(runtime.random.uniform(0, LONGEST_PAUSE))
            else:
                break
        return True

    def version(self) -> dict[str, str]:
        """See `spark.sinks.contract.SparkSink`. As text: a browser rounds numbers of that size."""
        from pyiceberg.exceptions import NoSuchTableError

        with self.errors():
            try:
                snapshot = self.open_catalog().load_table(self.identifier).current_snapshot()
            except NoSuchTableError:
                return {}
            return {} if snapshot is None else {"snapshot": str(snapshot.snapshot_id)}

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """See `worker.staging.StagingSink`. If the table has got no snapshot with the entry, makes it a
        property of the table. An empty snapshot would have to be expired, and would refuse batches that are being
        committed, in every catalog."""
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
                    return  # the table gets batches, and with them the entry
                kept = known.through
            self._kept = known.epoch, kept


def recent_summaries(table: "Table", key: str) -> list[str | None]:
    """What the last snapshots have in their summaries under this key."""
    summaries = (snapshot.summary for snapshot in table.snapshots()[-RECENT_COMMITS:])
    return [summary.get(key) for summary in summaries if summary]


def _append(table: "Table", addition: Addition) -> None:
    """One snapshot; one for each partition spec, if the spec was changed since files were written."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    own = table.spec().spec_id
    merges = table.properties.get(MERGES, str(addition.maintains)).lower() == "true"
    files = sorted(addition.files, key=lambda file: (file.spec_id == own, file.spec_id))
    by_spec = [(spec, list(some)) for spec, some in groupby(files, key=lambda file: file.spec_id)] or [(own, [])]
    old = old_snapshots(table.metadata) if addition.maintains else NOTHING_OLD
    statistics = table.metadata.statistics
    table = tried_once(table, {MERGES: str(merges).lower()}, old.ids)
    with table.transaction() as transaction:
        mapping = {} if table.metadata.name_mapping() else _name_mapping(table)
        transaction.set_properties(dict(addition.properties) | mapping)
        if old.ids:
            ExpireSnapshots(transaction).by_ids(old.ids).commit()
        if addition.removed:
            _replace(transaction, addition)
            by_spec = []
        for spec, some in by_spec:
            # pyiceberg writes manifests for the spec that is the table's in the metadata that it was given.
            table.metadata = table.metadata.model_copy(update={"default_spec_id": spec})
            update = transaction.update_snapshot(snapshot_properties=dict(addition.summary))
            with update.merge_append() if merges else update.fast_append() as snapshot:
                for file in some:
                    snapshot.append_data_file(file)
    remove_expired(old, statistics, table)


def _replace(transaction: "Transaction", addition: Addition) -> None:
    from kcl_dagster.spark.sinks.iceberg_replacement import replacement

    with replacement(transaction, addition.summary) as snapshot:
        for file in addition.removed:
            snapshot.delete_data_file(file)
        for file in addition.files:
            snapshot.append_data_file(file)


def _name_mapping(table: "Table") -> dict[str, str]:
    """For readers: files have the columns' names and not their numbers."""
    return {"schema.name-mapping.default": table.schema().name_mapping.model_dump_json()}


def tried_once(
    table: "Table", properties: Mapping[str, str] | None = None, expired: Collection[int] = ()
) -> "Table":
    """The table, for whose commits pyiceberg does not try again. It asks the properties of the table that it was
    given; the catalog is told only what is set, so those of the table itself, which others honour, stay.

    For the same reason it is given the last snapshot only, and those that are `expired`: it copies the metadata for
    each step of a commit.
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
    """A catalog that looks up a commit which was refused. Its client may have sent the request again after an
    answer was lost, and what is refused then is the second one. pyiceberg would delete the manifests of the first
    one, which the table has.

    It refuses to expire snapshots that have got a tag or a branch meanwhile, see `Unreferenced`."""

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


def _catalog(name: str, properties: Mapping[str, str]) -> "Catalog":
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **properties)
    except Exception as error:
        # Whatever a catalog's client raises when it is made: nothing has been asked of it yet.
        said = _LOGIN.sub(f"//{REDACTED}@", str(error))
        raise ConfigurationError(f"Iceberg catalog {name} cannot be used: {said}") from None


def iceberg_options(s3: S3Options) -> dict[str, str]:
    """pyiceberg's words for how to reach S3. Raises ConfigurationError for what pyiceberg cannot do."""
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
        # For what is not S3: Glue, and the signatures of REST catalogs of AWS.
        "client.region": s3.region,
        "client.profile-name": s3.profile,
        "client.access-key-id": s3.access_key,
        "client.secret-access-key": s3.secret_key,
        "client.session-token": s3.session_token,
    }
    return {name: value for name, value in options.items() if value is not None}
