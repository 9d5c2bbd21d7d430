"""Sinks as a user configures them: `kcl.parquet("s3://lake/clicks")`. The worker run opens them."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from dagster import EnvVar

from kcl_dagster.chains.store import check_store
from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.folder import foreign, misspelt
from kcl_dagster.model.change_rules import change_rules
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.model.partition_terms import columns_or_times, partition_terms
from kcl_dagster.orchestration.metadata import TABLE_NAME, URI
from kcl_dagster.orchestration.secret_options import refuse_literals, refuse_secret_in, resolved
from kcl_dagster.runtime import Runtime
from kcl_dagster.worker.batch import Batch, Sink
from kcl_dagster.worker.error_text import brief
from kcl_dagster.worker.parts_chain import PartsChain, PartsSink, RepeatingSink
from kcl_dagster.worker.settings import S3_BATCH_SECONDS
from kcl_dagster.worker.table_committer import COMMIT_SECONDS

if TYPE_CHECKING:
    from kcl_dagster.spark.sinks.contract import SparkSink
    from kcl_dagster.spark.sinks.iceberg_inspection import InspectedTable
    from kcl_dagster.spark.storage import Store

log = logging.getLogger(__name__)

_DELTA, _ICEBERG = "kcl.delta(storage_options=...)", "kcl.iceberg(catalog=...)"

_TABLES: Final = frozenset({"parquet", "deltalake", "iceberg"})
_COMPACTED: Final = frozenset({"parquet", "deltalake"})
_FLAT: Final = frozenset({"glue", "hive", "dynamodb"})  # types of Iceberg catalogs without nested databases
_CATALOGS: Final = frozenset({"bigquery", "dynamodb", "glue", "hive", "in-memory", "rest", "sql"})  # of pyiceberg
_UNITY: Final = "uc://"  # how delta-rs spells the name of a table in Unity
_THREE_PARTS: Final = re.compile(r"\w+\.\w+\.\w+")  # the name of a table in a catalog, or a folder
_TABLE_NAME: Final = re.compile(r"(?:\w+|`[^`]+`)(?:\.(?:\w+|`[^`]+`))*")  # in SQL of Spark
DeltaWriter = Literal["delta-rs", "spark"]
"""The program that commits to a Delta table: delta-rs, or Spark with Delta Lake."""

Transform = Callable[..., Any]
"""The user's function, from the records of a batch, a Spark DataFrame, to the rows that the sink stores. It can ask
for Dagster's context and for resources; see `kcl_consumer`. It runs once per batch, in the driver. It need not be
deterministic, because a batch is stored as a whole or not at all.
"""

Connection = Mapping[str, str]
OpenSink = Callable[[Transform, Connection], Sink[Any]]
"""Makes the sink from the user's transform and the S3 connection. Called once per worker run, in its process."""

OpenStagingSink = Callable[[Transform, Connection], "SparkSink"]
"""Makes a sink like `OpenSink`, but one whose batches are committed in chains. A chain is a log beside the data.
Each of its numbered entries publishes one batch.
"""

OpenStore = Callable[[Connection], "Store | None"]
"""Opens a store of files with the S3 connection, and changes nothing. Returns None if the place of the store is not
known before the first batch.
"""


@dataclass(frozen=True, slots=True)
class SinkChoice:
    """A sink that is not open yet: the result of `parquet`, `delta`, `iceberg` and `foreach_batch`.

    Example:
        .. code-block:: python

            kcl.SinkChoice("postgres", "events", open=lambda transform, s3: PostgresSink(transform))
    """

    kind: str
    """The kind of the records asset in Dagster."""

    place: str
    """The location of the records in Dagster."""

    open: OpenSink | None = field(default=None, repr=False, compare=False)
    """Opens the sink. Called once by each worker, in its process. Batches are delivered at least once. None if
    `open_staging` or `processors` is set."""

    processors: Callable[..., Any] | None = field(default=None, repr=False, compare=False)
    """Makes record processors. If it is set, there is no sink to open."""

    processes: int | None = None
    """The number of executor processes among which record processors are distributed. By default, it depends on
    the session."""

    storage_options: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    """The options with which the compaction of a Delta table opens it. EnvVars are not resolved yet."""

    catalog: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    """The properties of an Iceberg table's catalog, as the code gives them. EnvVars are not resolved yet."""

    open_staging: OpenStagingSink | None = field(default=None, repr=False, compare=False)
    """Opens a sink whose batches are committed in chains (logs of committed batches), each exactly once."""

    open_chains: "OpenStore | None" = field(default=None, repr=False, compare=False)
    """Opens the store of the chains, if `open_staging` is set."""

    about_table: Callable[[Connection], str] | None = field(default=None, repr=False, compare=False)
    """For a table in a catalog: returns a sentence about the table, and changes nothing. It raises a KclError if
    the sink would refuse the table."""

    commit_seconds: float | None = None
    """Seconds between two commits, for a table that gets one commit for many batches."""

    with_commit_seconds: "Callable[[float], SinkChoice] | None" = field(default=None, repr=False, compare=False)
    """Makes the same sink with another time between commits. None if the user chose the time, or if there are no
    commits."""

    batch_seconds: float | None = None
    """How long a batch is read, if neither the application nor the consumer sets that. None:
    `BatchSettings.max_seconds`."""

    takes_arrow: bool = False
    """Whether the sink of `open_staging` can run functions of Arrow tables."""

    identity: str = field(default="", repr=False, compare=False)
    """For a table in a catalog: distinguishes tables of the same name in several catalogs. Empty for a path."""

    tables: "Mapping[str, SinkChoice]" = field(default_factory=dict, repr=False, compare=False)
    """The sink of each table by name, for a consumer that stores into several. Empty if it stores into one."""

    @property
    def each(self) -> "Mapping[str, SinkChoice]":
        """The sink of each table. If there is only one table, its name is empty."""
        return self.tables or {"": self}

    @property
    def is_table(self) -> bool:
        """Whether this package writes the rows, and so knows their columns."""
        return all(one.kind in _TABLES for one in self.each.values())

    @property
    def is_in_catalog(self) -> bool:
        """Whether `place` is the name of a table in a catalog, and no path."""
        return bool(self.identity)

    @property
    def compacted(self) -> "Mapping[str, SinkChoice]":
        """The sinks of `each` whose files the operation `compact` merges. Files of a table in a catalog have to be
        merged by an engine."""
        return {
            name: one
            for name, one in self.each.items()
            if one.kind in _COMPACTED and not one.is_in_catalog and one.open_staging is not None
        }

    def delta_options(self) -> dict[str, str] | None:
        """`storage_options` with the values of their EnvVars. Called in the process that opens the table."""
        return None if self.storage_options is None else resolved(self.storage_options, _DELTA)


def place_of(sink: SinkChoice) -> dict[str, str]:
    """The location of a sink's rows, under Dagster's metadata names. Empty for a sink without a location, such
    as a function."""
    if sink.is_in_catalog:
        return {TABLE_NAME: sink.place}
    if sink.kind not in ("parquet", "deltalake"):
        return {}
    is_remote = "://" in sink.place
    return {URI: sink.place if is_remote else Path(sink.place).absolute().as_uri()}


def parquet(path: str, *, partition_by: Sequence[str] = (), evolve: Evolve = "add") -> SinkChoice:
    """Parquet files below a directory or an `s3://` prefix. Each record is in exactly one of the files.

    Args:
        path: A directory that driver and executors share, or `s3://bucket/prefix`. Several applications can store
            at the same path, because no two files get the same name.
        partition_by: Columns of the output that become folders, such as `kind=buy/`; or the month, day or hour of a
            column, in UTC: `day(arrival_timestamp)` gives `arrival_timestamp_day=2026-01-31/`.
        evolve: What to do with columns that no file below the path has. `add`: they are stored. `refuse`: the shard
            stops until you change the function. `ignore`: they are not stored. If a column of the output
            exists in the files with a type that cannot represent all values of the output's column, the shard
            always stops.

    Example:
        .. code-block:: python

            kcl.parquet("s3://lake/clicks", partition_by=["day"])
    """
    _refuse_path(path, "kcl.parquet")
    _refuse_evolve("kcl.parquet", evolve)
    columns_or_times(partition_by)

    def open_staging(transform: Transform, s3: Connection) -> "SparkSink":
        from kcl_dagster.spark.sinks.parquet import ParquetSink
        from kcl_dagster.spark.storage import S3Options

        return ParquetSink(path, transform=transform, partition_by=partition_by, s3=S3Options(**s3), evolve=evolve)

    return SinkChoice(
        "parquet",
        path,
        open_staging=open_staging,
        open_chains=_store_at(path),
        batch_seconds=S3_BATCH_SECONDS if "://" in path else None,
        takes_arrow=True,
    )


def delta(
    path: str,
    *,
    partition_by: Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    commit_seconds: float | None = None,
    evolve: Evolve = "refuse",
    merge_on: Sequence[str] = (),
    delete_when: str | None = None,
    order_by: str | None = None,
    writer: DeltaWriter = "delta-rs",
    chains_path: str | None = None,
) -> SinkChoice:
    """A Delta table that contains each record once. Needs the `delta` extra, or a Spark session with Delta Lake.

    Args:
        path: A directory that driver and executors share, or `s3://bucket/prefix`. With `writer="spark"`: the name
            of the table in Spark, such as `catalog.schema.table`.
        partition_by: Columns of the output by which a new table is partitioned; or the month, day or hour of a
            column in UTC, such as `day(arrival_timestamp)`, which the sink adds as a column of text.
        storage_options: Options of delta-rs; by default, the connection of the `KclResource`. A value can be a
            `dagster.EnvVar`, which the worker resolves. A secret must be an `EnvVar`: a literal raises
            ConfigurationError.
        commit_seconds: The longest time for which a batch waits for the next commit of the table, if no commit
            fails. Default: 30 s, or a value derived from the consumer's `visible_within`. Each commit costs readers
            and compactions time.
        evolve: What to do with columns that the table does not have. `refuse`: the shard stops until you change the
            table or the function. `add`: they are added to the table as nullable columns before the batch is
            stored. `ignore`: they are not stored. A type that the table's column cannot hold is always refused.
        merge_on: The key columns, if the output consists of change rows. Each change row updates the rows of the
            table with the same key, or is inserted if there are none. The last change of a key wins, in the order
            of its shard. By default, rows are appended.
        delete_when: An SQL condition on change rows. If it is true, the rows with the same key are deleted. Needs
            `merge_on`. A text is compared with a text: `op = '5'`.
        order_by: The column that decides which change is later, such as a version. Both the output and the table
            have this column. A change with a lower value than the table's row has no effect. Needs `merge_on`.
        writer: What commits to the table. `delta-rs`: the library, which needs a path. `spark`: Delta Lake in the
            Spark session of the worker, which needs the jars of Delta Lake. This writer supports catalogs such as
            Unity, and features of tables that delta-rs does not write. It can only append rows.
        chains_path: With `writer="spark"`, the place of the chains (logs of committed batches) and of the rows that
            wait for the next commit: a directory that all workers share, or `s3://bucket/prefix`.

    Example:
        .. code-block:: python

            kcl.delta("s3://lake/clicks", storage_options={"AWS_REGION": "eu-west-1"})
    """
    if writer not in get_args(DeltaWriter):
        raise ConfigurationError(f"writer of kcl.delta: {writer!r} is none of {', '.join(get_args(DeltaWriter))}")
    if writer == "spark":
        _refuse_of_spark(path, storage_options, merge_on, delete_when, order_by)
        return _delta_by_spark(
            path, chains_path, partition_by=partition_by, commit_seconds=commit_seconds, evolve=evolve
        )
    if chains_path is not None:
        raise ConfigurationError('chains_path of kcl.delta needs writer="spark": delta-rs has chains in the table')
    _refuse_no_path(path, "kcl.delta")
    refuse_secret_in(path, "kcl.delta")
    if path.startswith(_UNITY):
        raise ConfigurationError(
            f"kcl.delta: {path} is a name in Unity, and delta-rs writes by paths: give the location of the table, "
            "which DESCRIBE DETAIL shows, and the run's role access to its bucket; or catalog.schema.table with "
            'writer="spark"'
        )
    _refuse_path(path, "kcl.delta")
    if _THREE_PARTS.fullmatch(path) and not Path(path).exists():
        raise ConfigurationError(
            f"kcl.delta: {path} looks like the name of a table in a catalog, and delta-rs writes by paths: for the "
            f'table, add writer="spark" and chains_path; for a folder, write ./{path}'
        )
    refuse_literals(
        storage_options or {},
        _DELTA,
        "leave it out and delta-rs takes it from the environment or the role of the machine",
    )
    _refuse_seconds("kcl.delta", commit_seconds)
    _refuse_evolve("kcl.delta", evolve)
    columns_or_times(partition_by)
    change_rules(merge_on, delete_when, order_by, "kcl.delta")
    between_commits = COMMIT_SECONDS if commit_seconds is None else commit_seconds

    def again(seconds: float) -> SinkChoice:
        return delta(
            path,
            partition_by=partition_by,
            storage_options=storage_options,
            commit_seconds=seconds,
            evolve=evolve,
            merge_on=merge_on,
            delete_when=delete_when,
            order_by=order_by,
        )

    def open_staging(transform: Transform, s3: Connection) -> "SparkSink":
        from kcl_dagster.spark.sinks.delta import DeltaSink
        from kcl_dagster.spark.storage import S3Options

        return DeltaSink(
            path,
            transform=transform,
            partition_by=partition_by,
            s3=S3Options(**s3),
            storage_options=choice.delta_options(),
            commit_seconds=between_commits,
            evolve=evolve,
            merge_on=merge_on,
            delete_when=delete_when,
            order_by=order_by,
        )

    choice = SinkChoice(
        "deltalake",
        path,
        storage_options=storage_options,
        open_staging=open_staging,
        open_chains=_store_at(path),
        commit_seconds=between_commits,
        with_commit_seconds=again if commit_seconds is None else None,
    )
    return choice


def _refuse_of_spark(
    name: str,
    storage_options: Mapping[str, str] | None,
    merge_on: Sequence[str],
    delete_when: str | None,
    order_by: str | None,
) -> None:
    """Raise ConfigurationError for settings that `kcl.delta(writer="spark")` does not accept."""
    changes = {"merge_on": merge_on, "delete_when": delete_when, "order_by": order_by}
    given = [setting for setting, value in changes.items() if value]
    if given:
        raise ConfigurationError(f'{given[0]} of kcl.delta needs writer="delta-rs": Spark only appends rows here')
    if storage_options is not None:
        raise ConfigurationError("storage_options of kcl.delta are for delta-rs: configure the Spark session")
    if not _TABLE_NAME.fullmatch(name):
        raise ConfigurationError(
            f'kcl.delta: {name} is no name of a table in Spark, which writer="spark" needs: catalog.schema.table, '
            "or delta.`s3a://bucket/path` for a table that is in no catalog"
        )


def _delta_by_spark(
    name: str,
    chains_path: str | None,
    *,
    partition_by: Sequence[str],
    commit_seconds: float | None,
    evolve: Evolve,
) -> SinkChoice:
    if chains_path is None:
        raise ConfigurationError(
            'kcl.delta(writer="spark") needs chains_path: a directory that all workers share, or s3://bucket/prefix'
        )
    _refuse_path(chains_path, "kcl.delta(chains_path=...)")
    _refuse_seconds("kcl.delta", commit_seconds)
    _refuse_evolve("kcl.delta", evolve)
    columns_or_times(partition_by)
    between_commits = COMMIT_SECONDS if commit_seconds is None else commit_seconds

    def again(seconds: float) -> SinkChoice:
        return _delta_by_spark(name, chains_path, partition_by=partition_by, commit_seconds=seconds, evolve=evolve)

    def open_staging(transform: Transform, s3: Connection) -> "SparkSink":
        from kcl_dagster.spark.sinks.named_delta_sink import NamedDeltaSink
        from kcl_dagster.spark.storage import S3Options

        return NamedDeltaSink(
            name,
            chains_path,
            transform=transform,
            partition_by=partition_by,
            s3=S3Options(**s3),
            commit_seconds=between_commits,
            evolve=evolve,
        )

    return SinkChoice(
        "deltalake",
        name,
        identity=f"{name.lower()} by Spark",
        open_staging=open_staging,
        open_chains=_store_at(chains_path),
        commit_seconds=between_commits,
        with_commit_seconds=again if commit_seconds is None else None,
    )


def iceberg(
    identifier: str,
    catalog: Mapping[str, str] | None = None,
    *,
    catalog_name: str = "default",
    partition_by: Sequence[str] = (),
    commit_seconds: float | None = None,
    evolve: Evolve = "refuse",
    chains_path: str | None = None,
    merge_on: Sequence[str] = (),
    delete_when: str | None = None,
    order_by: str | None = None,
) -> SinkChoice:
    """An Iceberg table that contains each record once. Needs the `iceberg` extra.

    Args:
        identifier: `database.table`.
        catalog: Properties of pyiceberg, such as `{"type": "glue", "warehouse": "s3://bucket/prefix"}`, which uses
            region and keys of the `KclResource`, or `{"type": "rest", "uri": "https://..."}`. To create a table,
            Glue and SQL need `warehouse`, or a location of the database. Other properties come from pyiceberg's
            configuration (`.pyiceberg.yaml`, `PYICEBERG_CATALOG__...`). A value can be a `dagster.EnvVar`, which
            the worker resolves. A secret must be an `EnvVar`: a literal raises ConfigurationError.
        catalog_name: The name of the catalog in pyiceberg's configuration. In a SQL catalog, each name has its own
            tables.
        partition_by: The partitions of a new table: columns of the output, or Iceberg's own transforms of them,
            such as `day(arrival_timestamp)`, `bucket(16, user)` or `truncate(4, page)`. An existing table keeps its
            own partition spec.
        commit_seconds: The longest time for which a batch waits for the next commit of the table, if no commit
            fails. Default: 30 s, or a value derived from the consumer's `visible_within`. Each commit makes a
            snapshot, which costs readers and maintenance time.
        evolve: What to do with columns that the table does not have. `refuse`: the shard stops until you change the
            table or the function. `add`: they are added to the table as nullable columns before the batch is
            stored, and a column is widened (int to long, float to double, decimals) if the output needs it.
            `ignore`: they are not stored. Any other change of a type is always refused.
        chains_path: Where the chains (logs of committed batches) are, if not below the location of the table: a
            directory that all workers share, or `s3://bucket/prefix`. Needed if workers can write to the table only
            with credentials of the catalog, as in S3 Tables, or if a REST catalog does not have the table yet.
        merge_on: As for `kcl.delta`: the columns of the key, if the output is change rows.
        delete_when: As for `kcl.delta`. Needs `merge_on`.
        order_by: As for `kcl.delta`. Needs `merge_on`.

    Example:
        .. code-block:: python

            kcl.iceberg("lake.clicks", {"type": "glue", "warehouse": "s3://lake/warehouse"})
    """

    def configured(option: str) -> str:
        names = (catalog_name, option.replace(".", "__").replace("-", "_"))
        variable = "__".join(("PYICEBERG_CATALOG", *names)).upper()
        return f"leave it out and set pyiceberg's own variable, {variable}"

    refuse_literals(catalog or {}, _ICEBERG, configured, prefix=identifier)
    _refuse_identifier(identifier, (catalog or {}).get("type"))
    partition_terms(partition_by)
    _refuse_seconds("kcl.iceberg", commit_seconds)
    _refuse_evolve("kcl.iceberg", evolve)
    changes = change_rules(merge_on, delete_when, order_by, "kcl.iceberg")
    between_commits = COMMIT_SECONDS if commit_seconds is None else commit_seconds
    if chains_path is not None:
        _refuse_path(chains_path, "kcl.iceberg(chains_path=...)")

    def again(seconds: float) -> SinkChoice:
        return iceberg(
            identifier,
            catalog,
            catalog_name=catalog_name,
            partition_by=partition_by,
            commit_seconds=seconds,
            evolve=evolve,
            chains_path=chains_path,
            merge_on=merge_on,
            delete_when=delete_when,
            order_by=order_by,
        )

    def open_staging(transform: Transform, s3: Connection) -> "SparkSink":
        from kcl_dagster.spark.sinks.iceberg import IcebergSink
        from kcl_dagster.spark.storage import S3Options

        return IcebergSink(
            identifier,
            resolved(catalog or {}, _ICEBERG),
            catalog_name=catalog_name,
            transform=transform,
            partition_by=partition_by,
            s3=S3Options(**s3),
            chains_path=chains_path,
            commit_seconds=between_commits,
            evolve=evolve,
            merge_on=merge_on,
            delete_when=delete_when,
            order_by=order_by,
        )

    def inspected(s3: Connection) -> "InspectedTable":
        from kcl_dagster.spark.sinks.iceberg_inspection import InspectedTable
        from kcl_dagster.spark.storage import S3Options

        return InspectedTable(
            identifier, resolved(catalog or {}, _ICEBERG), catalog_name=catalog_name, s3=S3Options(**s3)
        )

    def open_chains(s3: Connection) -> "Store | None":
        if chains_path is not None:
            return _store_at(chains_path)(s3)
        from kcl_dagster.spark.sinks.chain_folder import ChainFolder

        table = inspected(s3)
        return ChainFolder(table).store if table.has_place else None

    def about_table(s3: Connection) -> str:
        return inspected(s3).about(chains_path, changes)

    return SinkChoice(
        "iceberg",
        identifier,
        catalog=catalog,
        identity=f"{identifier.lower()} in {catalog_name} {sorted((catalog or {}).items(), key=str)}",
        open_staging=open_staging,
        open_chains=open_chains,
        about_table=about_table,
        commit_seconds=between_commits,
        with_commit_seconds=again if commit_seconds is None else None,
    )


def _refuse_identifier(identifier: str, kind: str | None) -> None:
    """Raise ConfigurationError if no table of a catalog of this type can have this name."""
    parts = identifier.split(".")
    if len(parts) < 2 or not all(parts):
        raise ConfigurationError(f"kcl.iceberg: {identifier} is not of the form database.table")
    if isinstance(kind, str) and not isinstance(kind, EnvVar) and not _is_known(kind):
        raise ConfigurationError(
            f"kcl.iceberg: pyiceberg has no catalog of type {kind!r}: its types are {', '.join(sorted(_CATALOGS))}"
        )
    if kind in _FLAT and len(parts) > 2:
        raise ConfigurationError(
            f"kcl.iceberg: {identifier} has more than two parts, and a catalog of type {kind} has database.table: "
            "leave out the name of the catalog, which catalog_name sets"
        )


def _is_known(kind: str) -> bool:
    """Whether pyiceberg has catalogs of this type. If the type is not in our list, the installed version decides,
    because later versions can have more types."""
    if kind.lower() in _CATALOGS:
        return True
    try:
        from pyiceberg.catalog import CatalogType
    except ImportError:
        return True  # the worker reports the missing package
    return kind.lower() in {one.value for one in CatalogType}


def open_staging(choice: SinkChoice, transform: Transform, s3: Connection, runtime: Runtime) -> "SparkSink | None":
    """Open a sink whose batches are committed in chains. Returns None if the sink has no chains; its batches are
    announced in the leases instead.

    Raises ConfigurationError if the store cannot keep chains. This is checked before a lease names a chain, because
    a chain could not be closed in such a store.
    """
    if choice.open_staging is None:
        return None
    sink = choice.open_staging(transform, s3)
    try:
        check_store(sink.entries.files, runtime.new_id())
    except ConfigurationError:
        raise
    except (KclError, OSError) as error:  # the error can be temporary; otherwise the first batch fails
        log.warning("whether %s can keep chains is not known yet: %s", choice.place, brief(error))
    return sink


def open_for_parts(
    choice: SinkChoice, transform: Transform, s3: Connection, *, owner: str, name: str, runtime: Runtime
) -> PartsSink[Any]:
    """Open the sink for the parts of a replay or of dead letters. No lease records which of these parts are stored.
    If the sink has chains, a chain records this; see `worker.parts_chain`."""
    if choice.open_staging is not None:
        return PartsChain(choice.open_staging(transform, s3), owner, name, runtime)
    if choice.open is None:
        raise ConfigurationError(f"{choice.kind} {choice.place} is no sink of batches")
    return RepeatingSink(choice.open(transform, s3))


def _store_at(path: str) -> "OpenStore":
    def open_it(s3: Connection) -> "Store":
        from kcl_dagster.spark.storage import S3Options, open_store

        return open_store(path, S3Options(**s3))

    return open_it


def _refuse_seconds(what: str, seconds: Any) -> None:
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, (int, float))):
        raise ConfigurationError(f"commit_seconds of {what} must be a number of seconds, is {seconds!r}")
    if seconds is not None and not seconds > 0:
        raise ConfigurationError(f"commit_seconds of {what} must be more than 0, is {seconds}")


def _refuse_evolve(what: str, evolve: Evolve) -> None:
    if evolve not in get_args(Evolve):
        raise ConfigurationError(f"evolve of {what}: {evolve!r} is none of {', '.join(get_args(Evolve))}")


def processors(factory: Callable[..., Any], processes: int | None = None) -> SinkChoice:
    """The `SinkChoice` for record processors of the KCL, one per shard. `kcl_consumer` makes it for a decorated
    class."""
    return SinkChoice(
        "python", getattr(factory, "__qualname__", repr(factory)), processors=factory, processes=processes
    )


def _refuse_no_path(path: Any, owner: str) -> None:
    if not isinstance(path, str) or not path.strip():
        raise ConfigurationError(
            f"the path of {owner} must be a text, of a directory or s3://bucket/prefix, and is {path!r}"
        )


def _refuse_path(path: str, owner: str) -> None:
    _refuse_no_path(path, owner)
    refuse_secret_in(path, owner)
    reason = misspelt(path) or foreign(path)
    if reason is not None:
        raise ConfigurationError(f"the path of {owner}: {reason}")


def foreach_batch(store: Callable[[Any, Batch], None]) -> SinkChoice:
    """A function of yours as the sink. It is called with the transformed records (a DataFrame) and the batch's
    identity.

    Batches are delivered at least once: after a crash the same parts are delivered again, with the same records. If
    the function writes under keys that are made from `batch.parts`, each record is stored exactly once.

    Example:
        .. code-block:: python

            def store(rows: DataFrame, batch: Batch) -> None:
                rows.write.mode("append").saveAsTable("clicks")


            kcl.foreach_batch(store)
    """

    name = getattr(store, "__qualname__", repr(store))
    with suppress(ValueError):  # a function in C need not say what it takes
        if not _takes_two(signature(store)):
            raise ConfigurationError(f"foreach_batch: {name} must take two arguments, the rows and the batch")

    def open_sink(transform: Transform, s3: Connection) -> Sink[Any]:  # noqa: ARG001 - the shape of all sinks
        from kcl_dagster.spark.sinks.foreach_batch import ForeachBatchSink

        return ForeachBatchSink(store, transform=transform)

    return SinkChoice("python", name, open_sink)


def _takes_two(of: Signature) -> bool:
    try:
        of.bind(None, None)
    except TypeError:
        return False
    return True
