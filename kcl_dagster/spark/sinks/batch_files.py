"""Stages the files of a batch in the executors. Rows are divided by partition value and file size, and not by
shard.

Each attempt of a task writes files with names of its own. If the result of an attempt did not reach the driver, for
example because the executor was lost, the files of this attempt are not part of the batch.
"""

import json
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark import TaskContext

from kcl_dagster.chains.entry import StagedFile
from kcl_dagster.chains.publication import file_name, staged_for, staged_path
from kcl_dagster.errors import ConfigurationError, KclError, RecordRefused, SinkError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.failures import Marks
from kcl_dagster.spark.parquet_file import Footer, ParquetFile, read_footer
from kcl_dagster.spark.python_worker_tuning import TaskMemory, settle
from kcl_dagster.spark.row_types import row_type
from kcl_dagster.spark.sinks.minutes import MinuteCounts, minute_rows
from kcl_dagster.spark.sinks.partition_folders import Layout
from kcl_dagster.spark.sinks.rows_by_key import split
from kcl_dagster.spark.sinks.table_columns import Target
from kcl_dagster.spark.task_slices import Work
from kcl_dagster.worker.batch import MinuteRows

_MANIFEST: Final = pa.schema(
    [
        ("task", pa.int64()),
        ("attempt", pa.int64()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("parts", pa.string()),
        ("partition", pa.string()),
        ("statistics", pa.string()),
        ("columns", pa.string()),
        ("seconds", pa.float64()),
    ]
)
MANIFEST_TYPE: Final = row_type(_MANIFEST)


@dataclass(frozen=True, slots=True)
class RowsOfLease:
    """The rows of one lease in a file. `rows`: the number of these rows. `minutes`: their number in each minute;
    None if the rows do not have the column that `worker.batch.Batch.time_column` names."""

    rows: int
    minutes: tuple[MinuteRows, ...] | None


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A file that an attempt of a task has staged.

    - `path`: the final path.
    - `leases`: the leases of the rows, according to the lease column of the output; None if they are not known.
    - `partition`, `statistics`: see `StagedFile` and `ForTable`. Both are None if the file was not written for a
      table.
    """

    task: int
    attempt: int
    path: str
    rows: int
    bytes: int
    leases: Mapping[LeaseKey, RowsOfLease] | None
    partition: dict[str, str | None] | None = None
    statistics: str | None = None
    columns: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """The schema of the file."""


def no_statistics(_: Footer) -> str:
    return ""


def no_paths(_: pa.RecordBatch) -> Iterable[str]:
    return ()


@dataclass(frozen=True, slots=True)
class ForTable:
    """How files are written for a table.

    - `target`: the columns of the table; None if there is no table yet.
    - `statistics`: turns a file's footer into a text. From this text, the driver makes the statistics of the file.
    - `is_staged`: whether the files are written to the staging folder of the chain, like the files of a Parquet
      folder. True for files that are never added to the table themselves, such as files of change rows. All other
      files get their final names at once, because readers see them only when a commit has added them to the table.
    - `paths`: a function that is called with rows, and returns the paths of the files that the commit will write
      for them. If one of the paths is too long for the store, the rows are refused.
    """

    target: Target | None
    statistics: Callable[[Footer], str] = no_statistics
    is_staged: bool = False
    paths: Callable[[pa.RecordBatch], Iterable[str]] = no_paths


Rows = Iterator[pa.RecordBatch]


class StagingStore(Protocol):
    """The methods of a store that executors need to stage files."""

    @property
    def root(self) -> str: ...

    def too_long(self, path: str) -> str | None: ...

    def put(self, path: str, content: memoryview | bytes) -> None: ...

    def delete(self, paths: Sequence[str]) -> None: ...


class Step(Protocol):
    """A function that changes the rows of a task before they are stored. It must be possible to send it to an
    executor."""

    def __call__(self, rows: Rows) -> Rows: ...


@dataclass(frozen=True, slots=True)
class StageFiles:
    """Stages the rows of a task. An object of this class is a function for `mapInArrow` over the output of the
    transform. It yields a row for each file that it has written, which the function `batch_files` reads, with the
    time that the store took. It also yields a row with the time that the task took, see `work_of`. A fetch calls
    `write` instead."""

    store: StagingStore
    layout: Layout
    chain: ChainId
    batch: int
    target_bytes: int
    """When a file has this size, it is closed, and the next one is begun."""

    time_column: str | None = None
    """The column by whose minutes rows are counted. None: rows are not counted by minutes."""

    lease_column: str | None = None
    """The column with the lease for which a row is counted. None: the output has no such column."""

    only_lease: LeaseKey | None = None
    """The lease of all rows, if the batch has only one lease."""

    marks: Marks = field(default_factory=Marks)
    steps: tuple[Step, ...] = ()
    """The functions that change the rows before they are stored, in this order. Without steps, rows are stored
    unchanged."""

    is_as_read: bool = False
    """Whether the rows are records as the fetch has read them. Their texts are then valid, and are not checked."""

    table: ForTable | None = None
    """How the files are written for a table. None: the files are not for a table."""

    def __call__(self, batches: Rows) -> Rows:
        settle()
        began = time.monotonic()
        context = TaskContext.get()
        task, attempt = (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
        memory = TaskMemory()
        with self.marks.errors():
            written = self.write(memory.watch(batches), task, attempt, self.only_lease)
        took = {"task": task, "attempt": attempt, "seconds": time.monotonic() - began}
        yield pa.RecordBatch.from_pylist([*written, took], schema=_MANIFEST)
        memory.end()

    def write(self, rows: Rows, task: int, attempt: int, only_lease: LeaseKey | None) -> list[dict[str, Any]]:
        """Implements `spark.staged_ranges.WriteRows.write`."""
        files = _TaskFiles(self, task, attempt, only_lease)
        try:
            written = files.store(rows)
        except BaseException:
            files.discard()
            raise
        return [{"task": task, "attempt": attempt, **row} for row in written]

    def cast(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows if self.table is None or self.table.target is None else self.table.target.cast(rows)

    def written_path(self, path: str) -> str:
        """The path at which a file with this final path is written."""
        is_final = self.table is not None and not self.table.is_staged
        return path if is_final else staged_path(self.chain, path)


@dataclass(slots=True)
class _LeaseCounts:
    minutes: MinuteCounts
    rows: int = 0


@dataclass(slots=True)
class _OpenBatchFile:
    path: str
    content: ParquetFile
    key: tuple[Any, ...]
    leases: dict[str, _LeaseCounts] = field(default_factory=dict)

    def count(self, lease: str, rows: pa.RecordBatch, time_column: str) -> None:
        counts = self.leases.setdefault(lease, _LeaseCounts(MinuteCounts(time_column)))
        counts.rows += rows.num_rows
        counts.minutes.add(rows)

    @property
    def parts(self) -> str:
        """The counts of rows by lease, as JSON. See `_leases`."""
        return json.dumps({lease: [one.rows, one.minutes.counted] for lease, one in self.leases.items()})


@dataclass(slots=True)
class _TaskFiles:
    """The files of one attempt of a task. One file for each partition value is open at a time."""

    of: StageFiles
    task: int
    attempt: int
    only_lease: LeaseKey | None
    _open: dict[tuple[Any, ...], _OpenBatchFile] = field(default_factory=dict)
    _written: list[dict[str, Any]] = field(default_factory=list)
    _number: int = 0

    def store(self, rows: Rows) -> list[dict[str, Any]]:
        """Store all rows. Returns the rows of the manifest, one for each file."""
        for step in self.of.steps:
            rows = step(rows)
        rows_in = 0
        for batch in rows:
            rows_in += batch.num_rows
            self._add(batch)
        while self._open:
            self._close(self._open.pop(next(iter(self._open))))
        rows_out = sum(row["rows"] for row in self._written)
        if rows_out != rows_in:
            raise SinkError(f"a task was given {rows_in} rows, and its files hold {rows_out}")
        return self._written

    def _add(self, batch: pa.RecordBatch) -> None:
        if not self.of.is_as_read:
            refuse_invalid(batch)
        rows = self.of.cast(in_utc(batch))
        if self.of.table is not None:
            self._check_paths(self.of.table.paths(rows))
        for group in split(rows, self.of.layout.keys(rows)):
            self._write(group.key, group.rows)

    def _write(self, key: tuple[Any, ...], rows: pa.RecordBatch) -> None:
        body = self.of.layout.body(rows)
        file = self._open.get(key)
        if file is not None and file.content.schema != body.schema:
            self._close(self._open.pop(key))  # the output of a step can have new columns in later batches
            file = None
        if file is None:
            file = self._open[key] = _OpenBatchFile(self._new_path(key), ParquetFile(body.schema), key)
        file.content.write(body)
        self._count(file, rows)
        if file.content.size >= self.of.target_bytes:
            self._close(self._open.pop(key))

    def _count(self, file: _OpenBatchFile, rows: pa.RecordBatch) -> None:
        if self.of.time_column is None:
            return
        if self.only_lease is not None:
            file.count(self.only_lease, rows, self.of.time_column)
        elif self.of.lease_column in rows.schema.names:
            for group in split(rows, [rows.column(self.of.lease_column)]):
                file.count(str(group.key[0]), group.rows, self.of.time_column)

    def discard(self) -> None:
        """Remove the files of this attempt. Files that cannot be removed now are removed when the chain is
        settled."""
        with suppress(KclError, OSError):
            self.of.store.delete([self.of.written_path(row["path"]) for row in self._written])

    def _new_path(self, key: tuple[Any, ...]) -> str:
        folder = self.of.layout.folder(key)
        name = file_name(self.of.chain, self.of.batch, self.task, self._number, self.attempt)
        self._number += 1
        path = f"{folder}/{name}" if folder else name
        self._check_paths((path, self.of.written_path(path)))
        return path

    def _check_paths(self, paths: Iterable[str]) -> None:
        for path in paths:
            reason = self.of.store.too_long(path)
            if reason is not None:
                raise RecordRefused(f"a value of the partition columns would need {reason}")

    def _close(self, file: _OpenBatchFile) -> None:
        content = file.content.finish()
        partition, statistics = None, None
        if self.of.table is not None:
            partition = self.of.layout.values(file.key)
            statistics = self.of.table.statistics(file.content.footer)
            if self.of.table.target is not None:
                self.of.table.target.check_nulls(file.content.footer, partition)
        began = time.monotonic()
        try:
            self.of.store.put(self.of.written_path(file.path), content)
        except (OSError, KclError) as error:
            raise SinkError(f"{file.path} could not be staged: {error}") from error
        self._written.append(
            {
                "seconds": time.monotonic() - began,
                "path": file.path,
                "rows": read_footer(file.content.footer).num_rows,  # the number that readers will find
                "bytes": len(content),
                "parts": file.parts if file.leases else None,
                "partition": None if partition is None else json.dumps(partition),
                "statistics": statistics,
                "columns": b64encode(file.content.schema.serialize().to_pybytes()).decode(),
            }
        )


def batch_files(manifest: list[dict[str, Any]]) -> list[BatchFile]:
    """The files of a batch, from the manifest that the tasks of its job have yielded. Raises SinkError if the
    manifest has files of two attempts of a task, because the rows of the task would be stored twice."""
    files = [
        BatchFile(
            row["task"],
            row["attempt"],
            row["path"],
            row["rows"],
            row["bytes"],
            _leases(row["parts"]),
            None if row["partition"] is None else json.loads(row["partition"]),
            row["statistics"],
            pa.ipc.read_schema(pa.BufferReader(b64decode(row["columns"]))),
        )
        for row in manifest
        if row["path"] is not None
    ]
    attempts: dict[int, int] = {}
    for file in files:
        if attempts.setdefault(file.task, file.attempt) != file.attempt:
            raise SinkError(f"two attempts of task {file.task} have staged rows of one batch")
    return files


def work_of(manifest: list[dict[str, Any]], seconds: float) -> Work:
    """The time that a job took, from its manifest. `seconds`: the time of the whole job."""
    waits = Counter[int]()
    for row in manifest:
        if row["path"] is not None:
            waits[row["task"]] += row["seconds"]
    tasks = sum(row["seconds"] for row in manifest if row["path"] is None)
    return Work(tasks - sum(waits.values()), seconds - max(waits.values(), default=0.0))


def _leases(parts: str | None) -> dict[LeaseKey, RowsOfLease] | None:
    if parts is None:
        return None
    return {
        LeaseKey(lease): RowsOfLease(rows, minute_rows(minutes))
        for lease, (rows, minutes) in json.loads(parts).items()
    }


def staged_files(files: Sequence[BatchFile]) -> tuple[StagedFile, ...]:
    """Convert the files of a batch to the form that an entry of a chain contains. Used for tables to which the rows
    of the files are added, but not the files themselves. So the entry has the paths at which the files are
    staged."""
    paths = [staged_for(file.path) for file in files]
    assert None not in paths
    return tuple(StagedFile(str(path), file.rows, file.bytes) for path, file in zip(paths, files, strict=True))


@dataclass(frozen=True, slots=True)
class RequireColumns:
    """A step that raises ConfigurationError if the rows cannot be partitioned by `columns`. It is used for outputs
    whose columns are known only when there are rows."""

    columns: tuple[str, ...]

    def __call__(self, rows: Rows) -> Rows:
        for batch in rows:
            missing = [name for name in self.columns if name not in batch.schema.names]
            if missing:
                raise ConfigurationError(
                    f"files are partitioned by {missing}, which the function's output does not have: "
                    f"{batch.schema.names}"
                )
            for name in self.columns:
                kind = batch.schema.field(name).type
                if pa.types.is_nested(kind):
                    raise ConfigurationError(f"files cannot be partitioned by column {name} of type {kind}")
            yield batch


@dataclass(frozen=True, slots=True)
class RenameColumns:
    """A step that gives the columns these names."""

    names: tuple[str, ...]

    def __call__(self, rows: Rows) -> Rows:
        return (batch.rename_columns(list(self.names)) for batch in rows)


def refuse_invalid(batch: pa.RecordBatch) -> None:
    """Raise RecordRefused if a text is not UTF-8. Spark's strings can contain any bytes, but a Parquet file with
    such a text cannot be read by other readers, compacted, or added to a table."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise RecordRefused(f"column {name} has an invalid value: {error}") from error


def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = utc(batch.schema)
    return batch if schema == batch.schema else batch.cast(schema)


def utc(schema: pa.Schema) -> pa.Schema:
    """The schema with UTC as the zone of all times that have a zone. The instants remain the same. With this
    schema, files do not depend on the time zone of the session."""
    return pa.schema(
        [
            field.with_type(pa.timestamp(field.type.unit, tz="UTC"))
            if pa.types.is_timestamp(field.type) and field.type.tz is not None
            else field
            for field in schema
        ]
    )
