"""A Delta table that is addressed by its name in the catalog of a Spark session. Spark's own Delta library writes
it.

The sink needs no access to the files of the table, and no credentials for the catalog: all requests are SQL and
DataFrames of the session. SQL does not show all rules of a table, such as which columns are identity columns. So
before the first batch with new columns is decided, the sink makes a commit with these columns and without rows.
Delta refuses this commit if the columns do not fit. Rows are checked by `named_delta_rules`.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from kcl_dagster.errors import ConfigurationError, SinkError
from kcl_dagster.spark.arrow_columns import refuse_open
from kcl_dagster.spark.failures import line_of_java, write_failures
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sinks.column_names import quoted
from kcl_dagster.spark.sinks.completeness import (
    RECENT_COMMITS,
    application_key,
    completeness_key,
    completeness_record,
    is_in_table,
)
from kcl_dagster.spark.sinks.named_delta_rules import NamedDeltaRules, sql_type
from kcl_dagster.spark.sinks.staging_job import schema_of
from kcl_dagster.spark.sinks.table_columns import encoded_schema, nullable, refuse_same_names
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.processing_watch import uninterrupted

_PARTITIONS: Final = "# Partition Information"
_IS_DELTA: Final = "delta.minReaderVersion"  # a property that every Delta table has
_MISSING: Final = frozenset(
    {"DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND"}
)
_EXISTS: Final = frozenset({"DELTA_TABLE_ALREADY_EXISTS", "TABLE_OR_VIEW_ALREADY_EXISTS"})
# Error conditions of Spark if it lacks Delta's jars, and of Delta if its extension or catalog is not configured.
_WITHOUT_DELTA: Final = ("DATA_SOURCE_NOT_FOUND", "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG")
_NO_CATALOG: Final = ("CATALOG_NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE")
_EPOCHS: Final = 1 << 40  # above every time in epoch seconds, so that one number can contain an epoch and a time

NEEDED: Final = (
    "the Spark session has no Delta Lake. Give it, or the Spark Connect server, the jars of io.delta:delta-spark "
    "for its version of Spark, spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
)


@dataclass(slots=True)
class NamedDelta:
    """The table. `identifier`: its name in the session's SQL. `columns`: the partition columns, if this object
    makes the table. `keep_complete` can be called on another thread."""

    identifier: str
    columns: Sequence[str] = ()
    session: Callable[[], SparkSession] = SparkSession.active
    _accepted: set[str] = field(default_factory=set)
    """Digests of the schemas that Delta has accepted."""

    _kept: tuple[int, int] = (-1, 0)  # the epoch and the moment that `keep_complete` has found or stored

    def __post_init__(self) -> None:
        if isinstance(self.columns, str):
            raise ConfigurationError(f"partition_by is a list of columns: [{self.columns!r}]")
        if LEASE_KEY in self.columns:
            raise ConfigurationError(f"leave {LEASE_KEY} out of partition_by: a table is not partitioned by shard")

    @property
    def name(self) -> str:
        return f"delta table {self.identifier}"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """A context for work with the table, in which no code of the consumer runs. Maps errors of Spark and of
        Delta to errors of this package, and shortens their text to one line. Time limits of the consumer's code do
        not apply."""
        try:
            with uninterrupted(), write_failures(self.name):
                yield
        except (PySparkException, Py4JError, OSError) as error:
            text = line_of_java(error)
            if any(word in text for word in _WITHOUT_DELTA) or _condition(error) in _WITHOUT_DELTA:
                raise ConfigurationError(f"{self.name}: {NEEDED}") from error
            if any(word in text for word in _NO_CATALOG):
                raise ConfigurationError(
                    f"{self.name}: the Spark session has no such catalog: set spark.sql.catalog.<its name>"
                ) from error
            raise SinkError(f"{self.name}: {text}") from error

    def rules(self) -> NamedDeltaRules | None:
        """Read the rules of the table; None if there is no table. Raises ConfigurationError if the table has
        another format than Delta, because such a table could get a commit twice."""
        spark = self.session()
        try:
            columns = spark.table(self.identifier)
            schema = schema_of(columns)
            found = spark.sql(f"SHOW TBLPROPERTIES {self.identifier}").collect()
            shown = spark.sql(f"DESCRIBE TABLE {self.identifier}").collect()
        except AnalysisException as error:
            if _condition(error) in _MISSING:
                return None
            raise
        properties = {row["key"]: row["value"] for row in found}
        if _IS_DELTA not in properties:
            raise ConfigurationError(f"{self.name} is no Delta table, or {NEEDED}")
        described = _described(columns)
        return NamedDeltaRules(
            self.name,
            _with_nulls_of(columns.schema, schema),
            properties,
            _partition_columns([row["col_name"] for row in shown]),
            columns.schema if described is None else described,
            is_described=described is not None,
        )

    def make(self, output: pa.Schema) -> None:
        """Make the table for an output of this schema. Does nothing if another worker has made the table. Columns
        without a type are left out, because the table would refuse all later values of such a column."""
        typed = [one for one in output if not pa.types.is_null(one.type)]
        if not typed:
            raise SinkError(f"{self.name}: no column of the output has a type: {output.names}")
        refuse_open(typed, self.name)
        refuse_same_names(self.name, pa.schema(typed), pa.schema([]))
        empty = self._empty(nullable(pa.schema(typed)))
        writer = empty.writeTo(self.identifier).using("delta")
        if self.columns:
            first, *others = [F.col(f"`{name}`") for name in self.columns]
            writer = writer.partitionedBy(first, *others)
        try:
            writer.create()
        except AnalysisException as error:
            if _condition(error) not in _EXISTS:
                raise

    def add(self, columns: pa.Schema) -> None:
        """Add the columns that the table does not have. Columns that the table has get a wider type if the table
        permits this; otherwise they remain unchanged."""
        rules = self.rules()
        if rules is None:
            return
        kinds = {one.name: sql_type(one.dataType) for one in _spark_schema(columns)}
        new = [f"{quoted(name)} {kind}" for name, kind in kinds.items() if name not in rules.schema.names]
        refuse_open([one for one in columns if one.name not in rules.schema.names], self.name)
        spark = self.session()
        if new:
            spark.sql(f"ALTER TABLE {self.identifier} ADD COLUMNS ({', '.join(new)})")
        if rules.widens():
            for name in kinds.keys() & set(rules.schema.names):
                spark.sql(f"ALTER TABLE {self.identifier} ALTER COLUMN {quoted(name)} TYPE {kinds[name]}")

    def check_columns(self, columns: pa.Schema) -> None:
        """Check by a commit without rows that Delta accepts these columns. The table gets one such commit for each
        schema."""
        digest = hashlib.sha256(encoded_schema(columns).encode()).hexdigest()[:16]
        if digest not in self._accepted:
            self.append(self._empty(columns), application_key(f"columns/{digest}"), 1, {})
            self._accepted.add(digest)

    def append(self, rows: DataFrame, application: str, version: int, metadata: Mapping[str, str]) -> None:
        """Append the rows in one commit. If the table already has a commit of this application with this version or
        a higher one, Delta makes no commit. If two such commits are made at the same time, Delta refuses one of
        them."""
        writer = rows.writeTo(self.identifier)
        writer = writer.option("txnAppId", application).option("txnVersion", str(version))
        if metadata:
            writer = writer.option("userMetadata", json.dumps(dict(metadata)))
        writer.append()

    def history(self, limit: int | None) -> Iterator[Mapping[str, Any]]:
        """The metadata that the last commits have recorded with `append`, the newest first. `limit`: the number of
        commits; None: all that the history has. Delta keeps commits for `delta.logRetentionDuration`."""
        most = "" if limit is None else f" LIMIT {limit}"
        found = self.session().sql(f"DESCRIBE HISTORY {self.identifier}{most}").select("userMetadata")
        for row in found.where("userMetadata IS NOT NULL").collect():
            try:
                recorded = json.loads(row["userMetadata"])
            except ValueError:
                continue  # metadata of another writer
            if isinstance(recorded, dict):
                yield recorded

    def keep_complete(self, application: str, known: WrittenThrough, wanted: int) -> None:
        """Store the moment through which the application is complete, see `worker.staging.StagingSink`. If no
        recent commit of the table has the moment, a commit without rows stores it."""
        if known.through is None or (known.epoch, wanted) <= self._kept:
            return
        with self.errors():
            rules = self.rules()
            if rules is None:
                return
            key, kept = completeness_key(application), wanted
            if not is_in_table((one.get(key) for one in self.history(RECENT_COMMITS)), known.epoch, wanted):
                version = known.epoch * _EPOCHS + known.through
                empty = self.session().table(self.identifier).select(*_some_columns(rules)).limit(0)
                self.append(empty, key, version, completeness_record(application, known))
                kept = known.through
            self._kept = known.epoch, kept

    def _empty(self, columns: pa.Schema) -> DataFrame:
        return self.session().createDataFrame([], _spark_schema(columns))


def _some_columns(rules: NamedDeltaRules) -> list[str]:
    """The columns of a commit without rows. Delta needs all required columns. If no column is required, Delta needs
    one column that is no identity column. A session does not show identity columns, but they are always of type
    int64."""
    required = [one.name for one in rules.schema if not one.nullable]
    others = sorted(rules.schema, key=lambda one: pa.types.is_int64(one.type))
    return [quoted(name) for name in required or [others[0].name]]


def _described(table: DataFrame) -> StructType | None:
    """The columns with all of their metadata, from Delta's own objects. None if the session does not have these
    objects, as with Spark Connect."""
    frame = getattr(table, "_jdf", None)
    if frame is None:
        return None
    try:
        metadata = frame.queryExecution().analyzed().collectLeaves().head().relation().location().metadata()
        return StructType.fromJson(json.loads(metadata.schemaString()))
    except (Py4JError, TypeError):
        return None


def _partition_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The names of the partition columns. `names`: the first column in the result of `DESCRIBE TABLE`."""
    if _PARTITIONS not in names:
        return ()
    following = names[names.index(_PARTITIONS) + 2 :]
    return tuple(itertools.takewhile(lambda name: name and not name.startswith("# "), following))


def _spark_schema(columns: pa.Schema) -> StructType:
    return from_arrow_schema(columns.remove_metadata(), prefer_timestamp_ntz=True)


def _with_nulls_of(table: StructType, schema: pa.Schema) -> pa.Schema:
    return pa.schema([one.with_nullable(known.nullable) for one, known in zip(schema, table, strict=True)])


def _condition(error: BaseException) -> str | None:
    return error.getCondition() if isinstance(error, PySparkException) else None
