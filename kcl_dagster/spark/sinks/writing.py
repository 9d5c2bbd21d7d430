"""What the file sinks share: a Parquet file for each lease and partition value, written whole, in the executors."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from kcl_dagster.errors import ConfigurationError, KclError, RecordRefused, SinkError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.drafts import Drafted
from kcl_dagster.spark.failures import RECORD_REFUSED, SINK_FAILED
from kcl_dagster.spark.origins import made, origin_of
from kcl_dagster.spark.parquet_file import ParquetFile
from kcl_dagster.spark.schema import LEASE_KEY, RECORDS, ddl
from kcl_dagster.spark.sealing import Sealed, Unseal
from kcl_dagster.spark.settling import settle
from kcl_dagster.spark.storage import Store
from kcl_dagster.spark.transform import Transform, apply, gathered, unchanged
from kcl_dagster.worker.batch import Part

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"  # what Hive, Spark and Athena expect

_MANIFEST: Final = pa.schema(
    [
        ("lease_key", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("partition", pa.string()),
        ("schema", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a sink wrote. `path` is relative to the sink's root; `partition` is text, or None for null."""

    lease_key: LeaseKey
    path: str
    rows: int
    bytes: int
    partition: Mapping[str, str | None]
    schema: pa.Schema
    """Of the transform's output, partition columns included."""


@dataclass(frozen=True, slots=True)
class Written:
    """What came of a batch."""

    files: tuple[WrittenFile, ...]
    as_read: bool
    """The records went into the files as they were read, all columns and no folders: drafts would have done."""


def write_files(
    data: DataFrame,
    transform: Transform,
    store: Store,
    names: Mapping[LeaseKey, str],
    partition_by: Sequence[str] = (),
    *,
    keeps_partition_columns: bool = False,
) -> Written:
    """Transform the records of the leases in `names` and store the output, with one Spark job at most.

    Each lease's file has the given name in the folder of its partition values. Files that are there already are
    replaced. Raises what Spark raises; see `spark.failures`.
    """
    origin = origin_of(data)
    if transform is unchanged and not partition_by and _is_drafted(origin, store):
        return Written(_published(origin, names), as_read=True)
    data = made(data)
    pieces = apply(transform, data, list(names))
    check_partition_columns(partition_by, pieces[0].columns)
    # A transform that gives back what it was given wants no columns in Spark.
    origin = origin if pieces[0] is data else None
    as_read = origin is not None and not partition_by
    if as_read and _is_drafted(origin, store):
        return Written(_published(origin, names), as_read)
    if isinstance(origin, Sealed):
        rows, unseal = origin.frame, origin.unseal()  # opened where it is written
    else:
        rows, unseal = gathered(pieces, data), None
    task = _WriteFiles(store, dict(names), tuple(partition_by), keeps_partition_columns, unseal)
    files = (
        WrittenFile(
            LeaseKey(row.lease_key),
            row.path,
            row.rows,
            row.bytes,
            json.loads(row.partition),
            pa.ipc.read_schema(pa.BufferReader(bytes(row.schema))),
        )
        for row in rows.mapInArrow(task, ddl(_MANIFEST)).collect()
    )
    return Written(tuple(files), as_read)


def _is_drafted(origin: object, store: Store) -> TypeGuard[Drafted]:
    return isinstance(origin, Drafted) and origin.store == store


def _published(drafted: Drafted, names: Mapping[LeaseKey, str]) -> tuple[WrittenFile, ...]:
    """Give the drafts of a batch their names."""
    store, drafts = drafted.store, drafted.drafts
    try:
        store.copy({draft.path: names[lease] for lease, draft in drafts.items()})
    except (OSError, KclError) as error:
        raise SinkError(f"{store.root}: what was fetched could not be published: {error}") from error
    return tuple(
        WrittenFile(lease, names[lease], draft.rows, draft.bytes, {}, RECORDS) for lease, draft in drafts.items()
    )


def check_partition_columns(partition_by: Sequence[str], columns: Sequence[str]) -> None:
    missing = [name for name in partition_by if name not in columns]
    if missing:
        raise ConfigurationError(
            f"partition_by names {missing}, which the transform's output does not have: {columns}"
        )


def output_schema(data: DataFrame, transform: Transform, leases: Sequence[LeaseKey]) -> pa.Schema:
    """The schema that `write_files` will write. Evaluates nothing."""
    return _utc(apply(transform, data, leases)[0].limit(0).toArrow().schema)


# Version 0.1 counted the batches of a lease from 1 and named files without the application. Leases that it made
# keep these names: a batch that it left half stored has to find its file again.
_NUMBERS_OF_VERSION_0_1: Final = range(10**12)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")


def file_stem(part: Part) -> str:
    """Names a part's file: by application and lease, because applications may share a folder; by where the part
    begins; and by its number, because a part that was cut in two begins where its first half does, and a lease that
    was made again begins where the former one did."""
    lease = part.lease.replace(":", ".")  # object stores and Hadoop give colons a meaning
    stem = f"{lease}.{part.after.sequence}-{part.after.sub_sequence}.{part.number}"
    return stem if part.number in _NUMBERS_OF_VERSION_0_1 else f"{_short_name(part.application)}.{stem}"


def _short_name(application: str) -> str:
    """Distinct for distinct names. An application's name may be as long as a file's name may be."""
    if _PLAIN_NAME.fullmatch(application):
        return application
    digest = hashlib.sha256(application.encode()).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9_-]', '_', application[:31])}~{digest}"


def stems_replaced(part: Part) -> list[str]:
    """Of the parts that this one stands in for."""
    first = part.number if part.instead_of is None else part.instead_of
    return [file_stem(replace(part, number=number)) for number in range(first, part.number)]


@dataclass(frozen=True, slots=True)
class _WriteFiles:
    """What `mapInArrow` runs over the output of the transform, with the rows of a lease in one partition."""

    store: Store
    names: Mapping[LeaseKey, str]
    partition_by: tuple[str, ...]
    keeps_partition_columns: bool
    unseal: Unseal | None
    """Set where the rows come sealed."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        open_files: dict[tuple[Any, ...], tuple[str, ParquetFile]] = {}
        schema: pa.Schema | None = None
        for batch in self.unseal(batches) if self.unseal is not None else batches:
            _refuse_invalid(batch)
            rows_in_utc = _in_utc(batch)
            schema = schema or rows_in_utc.schema
            for key, rows in _split(rows_in_utc, (LEASE_KEY, *self.partition_by)):
                body = rows if self.keeps_partition_columns else rows.drop_columns(list(self.partition_by))
                if key not in open_files:
                    open_files[key] = self._path(key), ParquetFile(body.schema)
                open_files[key][1].write(body)
        written = []
        for key, (path, file) in open_files.items():
            content = file.finish()
            try:
                self.store.put(path, content)
            except (OSError, KclError) as error:
                # The text survives the way through Spark; the type does not.
                raise SinkError(f"{SINK_FAILED}: {path} could not be written: {error}") from error
            values = {name: _text(value) for name, value in zip(self.partition_by, key[1:], strict=True)}
            written.append(
                {
                    "lease_key": key[0],
                    "path": path,
                    "rows": file.rows,
                    "bytes": len(content),
                    "partition": json.dumps(values),
                    "schema": schema.serialize().to_pybytes() if schema is not None else b"",
                }
            )
        yield pa.RecordBatch.from_pylist(written, schema=_MANIFEST)

    def _path(self, key: tuple[Any, ...]) -> str:
        lease, *values = key
        if lease not in self.names:
            raise SinkError(
                f"{SINK_FAILED}: the transform's output has a row with {LEASE_KEY} {lease!r}, which is no shard of "
                "this batch: leave the column as it is, or drop it"
            )
        folders = [f"{name}={_folder(value)}" for name, value in zip(self.partition_by, values, strict=True)]
        return "/".join([*folders, self.names[lease]])


def _refuse_invalid(batch: pa.RecordBatch) -> None:
    """Spark's strings may hold any bytes; a Parquet file with such a text cannot be read by others, compacted, or
    added to a table."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise RecordRefused(f"{RECORD_REFUSED}: column {name} has an invalid value: {error}") from error


def _split(batch: pa.RecordBatch, keys: tuple[str, ...]) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """The rows of each key, in their order."""
    if batch.num_rows == 0:
        return
    if all(_is_constant(batch.column(name)) for name in keys):
        yield tuple(batch.column(name)[0].as_py() for name in keys), batch
        return
    distinct = (
        pa.Table.from_batches([batch.select(list(keys))]).group_by(list(keys), use_threads=False).aggregate([])
    )
    for key in (tuple(row[name] for name in keys) for row in distinct.to_pylist()):
        mask = None
        for name, value in zip(keys, key, strict=True):
            column = batch.column(name)
            equal = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
            mask = equal if mask is None else pc.and_(mask, equal)
        yield key, batch.filter(mask)


def _is_constant(column: pa.Array) -> bool:
    """Cheaper to find out than to group by it, and nearly always so for the shard."""
    if column.null_count:
        return bool(column.null_count == len(column))
    return bool(pc.all(pc.equal(column, column[0])).as_py())


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = _utc(batch.schema)
    return batch if schema == batch.schema else batch.cast(schema)


def _utc(schema: pa.Schema) -> pa.Schema:
    """The same instants; a session's time zone is no business of a file's readers."""
    return pa.schema(
        [
            field.with_type(pa.timestamp(field.type.unit, tz="UTC"))
            if pa.types.is_timestamp(field.type) and field.type.tz is not None
            else field
            for field in schema
        ]
    )


def _text(value: object) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _folder(value: object) -> str:
    text = _text(value)
    return quote(text, safe=" ,@()[]+-_.~!") if text else NULL_PARTITION
