"""What the file sinks share: a Parquet file for each lease and partition value, written whole, in the executors."""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from kcl_dagster.errors import KclError, RecordRefused, SinkError, TransformError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Clock, system
from kcl_dagster.spark.failures import Marks
from kcl_dagster.spark.origins import made, origin_of
from kcl_dagster.spark.parquet_file import Footer, ParquetFile
from kcl_dagster.spark.schema import LEASE_KEY, RECORDS, ddl
from kcl_dagster.spark.sealing import Sealed, Unseal
from kcl_dagster.spark.settling import settle
from kcl_dagster.spark.sinks.layout import UNPARTITIONED, Layout
from kcl_dagster.spark.sinks.letter_case import Spellings, told_apart
from kcl_dagster.spark.sinks.minutes import MinuteCounts, minute_rows
from kcl_dagster.spark.sinks.split import split
from kcl_dagster.spark.sinks.target import Target
from kcl_dagster.spark.transform import Transform, apply, gathered
from kcl_dagster.worker.batch import FileCounts, MinuteRows, Part, PartCounts
from kcl_dagster.worker.stored_counts import ARRIVAL

log = logging.getLogger(__name__)

MANY_FILES: Final = 100  # of one shard in one batch; a small file takes some tens of milliseconds
_WARNED_SECONDS: Final = 3600.0


@dataclass(slots=True)
class _Warned:
    clock: Clock = field(default_factory=lambda: system().clock)
    at: dict[str, float] = field(default_factory=dict)

    def is_due(self, root: str) -> bool:
        now = self.clock.monotonic()
        if now - self.at.get(root, float("-inf")) < _WARNED_SECONDS:
            return False
        self.at[root] = now
        return True


_warned = _Warned()


class FileWriter(Protocol):
    """What executors need of a store."""

    @property
    def root(self) -> str: ...

    def too_long(self, path: str) -> str | None: ...

    def put(self, path: str, content: memoryview | bytes) -> None: ...


_MANIFEST: Final = pa.schema(
    [
        ("lease_key", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("partition", pa.string()),
        ("schema", pa.binary()),
        ("footer", pa.binary()),
        ("minutes", pa.string()),
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
    footer: Footer = b""
    minutes: tuple[MinuteRows, ...] | None = None
    """Of its rows; None where they were not counted, or have no column of times."""

    @property
    def counts(self) -> FileCounts:
        minutes = self.minutes or ()
        return FileCounts(self.bytes, minutes, self.rows - sum(one.rows for one in minutes))


@dataclass(frozen=True, slots=True)
class Written:
    """What came of a batch."""

    files: tuple[WrittenFile, ...]
    as_read: bool
    """The records went into the files as they were read, all columns and no folders."""

    has_times: bool = False
    """The output has the column by which its rows are counted."""

    def counts(self, lease: LeaseKey) -> PartCounts:
        """What was stored of a lease; see `worker.batch.Counting`."""
        mine = [file for file in self.files if file.lease_key == lease]
        if not self.has_times:
            rows = None if self.as_read else sum(file.rows for file in mine)
            return PartCounts(None, sum(file.bytes for file in mine), len(mine), rows)
        return PartCounts(tuple(file.counts for file in mine))


def write_files(
    data: DataFrame,
    transform: Transform,
    store: FileWriter,
    names: Mapping[LeaseKey, str],
    layout: Layout = UNPARTITIONED,
    target: Target | None = None,
    time_column: str | None = None,
) -> Written:
    """Transform the records of the leases in `names` and store the output, with one Spark job at most.

    Each lease's files have the given name, in the folders of the layout, and the types of the target. Files that
    are there already are replaced. Rows are counted by the minutes of `time_column`. Every row of the output is in
    exactly one of the files, or nothing is stored. Raises what Spark raises; see `spark.failures`.
    """
    written = _written(data, transform, store, names, layout, target, time_column)
    if has_own_times(time_column) and not written.has_times and any(file.rows for file in written.files):
        warn_of_no_times(store.root, str(time_column))
    return written


def _written(
    data: DataFrame,
    transform: Transform,
    store: FileWriter,
    names: Mapping[LeaseKey, str],
    layout: Layout,
    target: Target | None,
    time_column: str | None,
) -> Written:
    origin = origin_of(data)
    data = made(data)
    pieces = apply(transform, data, list(names))
    if not layout.is_flat:
        layout.check(pieces[0].schema)
    if target is not None:
        target.check(schema_of(pieces[0]))
    # A transform that gives back what it was given wants no columns in Spark.
    origin = origin if pieces[0] is data else None
    as_read = origin is not None and _stores_as_read(layout, target)
    has_times = time_column is not None and time_column in pieces[0].columns
    if isinstance(origin, Sealed):
        rows, unseal = origin.frame, origin.unseal()  # opened where it is written
    else:
        rows, unseal = gathered(pieces, data), None
    task = _WriteFiles(store, dict(names), layout, target, unseal, time_column if has_times else None)
    manifest = rows.mapInArrow(task, ddl(_MANIFEST)).collect()
    files = tuple(_written_file(row.asDict()) for row in manifest)
    warn_of_many_files(store.root, files)
    has_times = has_times and all(file.minutes is not None for file in files)
    return Written(files, as_read, has_times)


@dataclass(frozen=True, slots=True)
class _NoStore:
    """A `FileWriter` that keeps nothing."""

    root: str = ""

    def too_long(self, path: str) -> str | None:  # noqa: ARG002
        return None

    def put(self, path: str, content: memoryview | bytes) -> None:
        pass


def has_own_times(time_column: str | None) -> bool:
    """Whether rows are counted by a time of their own, and may be late."""
    return time_column not in (None, ARRIVAL)


def written_before(
    data: DataFrame,
    transform: Transform,
    names: Mapping[LeaseKey, str],
    layout: Layout,
    target: Target | None,
    time_column: str | None,
) -> Written | None:
    """What `write_files` stored of a batch whose former attempt ended before its rows were counted: from the same
    records, with one Spark job at most, and without storing anything. Late rows among them materialize their
    windows again. None: not known, because the transform fails by now. Does not raise: the batch is stored.
    """
    try:
        return write_files(data, transform, _NoStore(), names, layout, target, time_column)
    except Exception:
        log.warning(
            "the rows of a batch that was stored before are not counted, and if some are late, their windows are "
            "not materialized again",
            exc_info=True,
        )
        return None


def warn_of_no_times(root: str, column: str) -> None:
    """At most once an hour. It fails no batch: a policy could then set all records aside, which are good ones."""
    if _warned.is_due(f"{root} {column}"):
        log.warning(
            "the output for %s has no timestamp column %s, which event_time names: its rows count for no window, "
            "and late ones materialize none. Correct event_time, or cast the column to a timestamp",
            root,
            column,
        )


def warn_of_many_files(root: str, files: Sequence[WrittenFile]) -> None:
    """At most once an hour: each file is one request to the store, and one more for readers."""
    most = max(Counter(file.lease_key for file in files).values(), default=0)
    if most > MANY_FILES and _warned.is_due(root):
        log.warning(
            "a batch wrote %d files into %s for one shard, one for each partition value: partition by a column "
            "with fewer values, such as a day or bucket(16, column), or store larger batches",
            most,
            root,
        )


def warn_of_large_batch(root: str, files: int) -> None:
    """At most once an hour; of a batch whose files are those of all its shards."""
    if files > MANY_FILES and _warned.is_due(root):
        log.warning(
            "a batch wrote %d files into %s, one for each task and partition value: partition by a column with "
            "fewer values, such as a day, or store larger batches",
            files,
            root,
        )


def _written_file(row: Mapping[str, Any]) -> WrittenFile:
    return WrittenFile(
        LeaseKey(row["lease_key"]),
        row["path"],
        row["rows"],
        row["bytes"],
        json.loads(row["partition"]),
        pa.ipc.read_schema(pa.BufferReader(bytes(row["schema"]))),
        bytes(row["footer"]),
        None if row["minutes"] is None else minute_rows(json.loads(row["minutes"])),
    )


def _stores_as_read(layout: Layout, target: Target | None) -> bool:
    if not layout.is_flat:
        return False
    if target is None:
        return True
    target.check(RECORDS)
    return bool(target.stored(RECORDS) == RECORDS)


def output_schema(data: DataFrame, transform: Transform, leases: Sequence[LeaseKey]) -> pa.Schema:
    """The schema that `write_files` will write. Evaluates nothing."""
    return schema_of(apply(transform, data, leases)[0])


def schema_of(output: DataFrame) -> pa.Schema:
    """As the files will have it, partition columns included. Evaluates nothing."""
    return _utc(output.limit(0).toArrow().schema)


# Version 0.1 counted the batches of a lease from 1 and named files without the application. Leases that it made
# keep these names: a batch that it left half stored has to find its file again.
_NUMBERS_OF_VERSION_0_1: Final = range(10**12)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")


def file_stem(part: Part) -> str:
    """Names a part's file: by application and lease, because applications may share a folder; by where the part
    begins; and by its number, because a part that was cut in two begins where its first half does, and a lease that
    was made again begins where the former one did."""
    stem = _stem_of_version_0_1(part)
    return stem if is_named_without_application(part) else f"{_short_name(part.application)}.{stem}"


def is_named_without_application(part: Part) -> bool:
    """Whether version 0.1 made the part's lease. The part of another such application may have the same name."""
    return part.number in _NUMBERS_OF_VERSION_0_1


def _stem_of_version_0_1(part: Part) -> str:
    lease = part.lease.replace(":", ".")  # object stores and Hadoop give colons a meaning
    return f"{lease}.{part.after.sequence}-{part.after.sub_sequence}.{part.number}"


def stems(part: Part) -> tuple[str, ...]:
    """All names that a file of the part may have: version 0.1 leaves the application out of each, also while it
    runs beside this version. The file of another application has the short name only if it comes from version 0.1,
    too, and if lease, place and number are equal, which is a time in milliseconds."""
    return tuple(dict.fromkeys((file_stem(part), _stem_of_version_0_1(part))))


def _short_name(application: str) -> str:
    """Distinct for distinct names. An application's name may be as long as a file's name may be."""
    if _PLAIN_NAME.fullmatch(application):
        return application
    digest = hashlib.sha256(application.encode()).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9_-]', '_', application[:31])}~{digest}"


def stems_replaced(part: Part) -> list[str]:
    """Of the parts that this one stands in for."""
    first = part.number if part.instead_of is None else part.instead_of
    return [stem for number in range(first, part.number) for stem in stems(replace(part, number=number))]


@dataclass(frozen=True, slots=True)
class _WriteFiles:
    """What `mapInArrow` runs over the output of the transform, with the rows of a lease in one partition."""

    store: FileWriter
    names: Mapping[LeaseKey, str]
    layout: Layout
    target: Target | None
    unseal: Unseal | None
    """Set where the rows come sealed."""
    time_column: str | None = None
    marks: Marks = field(default_factory=Marks)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        with self.marks.errors():
            yield from self._write(batches)

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files: dict[str, _OpenFile] = {}
        schema: pa.Schema | None = None
        rows_in = 0
        for batch in self.unseal(batches) if self.unseal is not None else batches:
            refuse_invalid(batch)
            rows = self._cast(in_utc(batch))
            schema = schema or rows.schema
            rows_in += rows.num_rows
            for group in split(rows, [rows.column(LEASE_KEY), *self.layout.keys(rows)]):
                lease, *values = group.key
                path, body = self._path(lease, values), self.layout.body(group.rows)
                file = files.get(path)
                if file is None:
                    partition = json.dumps(self.layout.values(values))
                    minutes = None if self.time_column is None else MinuteCounts(self.time_column)
                    file = files[path] = _OpenFile(lease, partition, ParquetFile(body.schema), minutes)
                file.content.write(body)
                if file.minutes is not None:
                    file.minutes.add(group.rows)
        rows_out = sum(file.content.rows for file in files.values())
        if rows_out != rows_in:  # nothing is stored yet
            raise SinkError(f"{rows_in} rows came in and {rows_out} would be stored")
        written, used = [], Spellings(self.store.root)
        for path, file in files.items():
            own = told_apart(path) if path in used else path
            stored = {
                "lease_key": file.lease,
                "path": own,
                "rows": file.content.rows,
                "bytes": self._stored(own, file.content),
                "partition": file.partition,
                "footer": file.content.footer,
                "schema": schema.serialize().to_pybytes() if schema is not None else b"",
                "minutes": file.counted,
            }
            written.append(stored)
            used.add(path)
        yield pa.RecordBatch.from_pylist(written, schema=_MANIFEST)

    def _cast(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows if self.target is None else self.target.cast(rows)

    def _stored(self, path: str, file: ParquetFile) -> int:
        content = file.finish()
        try:
            self.store.put(path, content)
        except (OSError, KclError) as error:
            raise SinkError(f"{path} could not be written: {error}") from error
        return len(content)

    def _path(self, lease: str, values: Sequence[Any]) -> str:
        if lease not in self.names:
            raise TransformError(
                f"the transform's output has a row with {LEASE_KEY} {lease!r}, which is no "
                "shard of this batch: leave the column as it is, or drop it"
            )
        folder, name = self.layout.folder(values), self.names[LeaseKey(lease)]
        path = f"{folder}/{name}" if folder else name
        reason = self.store.too_long(path)
        if reason is not None:
            raise RecordRefused(f"a value of the partition columns would need {reason}")
        return path


def refuse_invalid(batch: pa.RecordBatch) -> None:
    """Spark's strings may hold any bytes; a Parquet file with such a text cannot be read by others, compacted, or
    added to a table."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise RecordRefused(f"column {name} has an invalid value: {error}") from error


@dataclass(slots=True)
class _OpenFile:
    lease: str
    partition: str
    content: ParquetFile
    minutes: MinuteCounts | None

    @property
    def counted(self) -> str | None:
        """JSON; None where rows are not counted, or the column has no times."""
        counted = None if self.minutes is None else self.minutes.counted
        return None if counted is None else json.dumps(counted)


def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
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
