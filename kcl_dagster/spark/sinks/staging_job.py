"""The Spark job that stages a batch: it writes the files of a batch, before an entry of a chain decides the batch
and makes the files visible.

One job can write the files of several tables. `current_timestamp()` then has the same value in all tables.
"""

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, TypeVar, cast

import pyarrow as pa
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import StringType

from kcl_dagster.errors import KclError, SinkError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Clock, system
from kcl_dagster.spark.failures import Marks
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sinks.batch_files import (
    MANIFEST_TYPE,
    BatchFile,
    ForTable,
    RenameColumns,
    RowsOfLease,
    StageFiles,
    StagingStore,
    Step,
    batch_files,
    utc,
    work_of,
)
from kcl_dagster.spark.sinks.partition_folders import Layout
from kcl_dagster.spark.task_slices import Work
from kcl_dagster.worker.batch import Batch, FileCounts, PartCounts
from kcl_dagster.worker.processing_watch import uninterrupted
from kcl_dagster.worker.stored_counts import ARRIVAL

log = logging.getLogger(__name__)

_SINK: Final = "sink"
MANY_FILES: Final = 100  # in one batch; writing a small file takes some tens of milliseconds
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


Manifest = list[dict[str, Any]]
T = TypeVar("T")
Staging = Generator[DataFrame, Manifest, T]
"""A generator by which a sink stages a batch. It yields a DataFrame. The evaluation of this DataFrame writes the
files, and returns their manifest: a row for each file. The caller sends these rows to the generator, which then
returns the staged batch. If the fetch has already staged the files, the generator yields nothing.
"""


def stage(staging: Staging[T]) -> T:
    """Run the job of a staging, and return the staged batch."""
    try:
        job = next(staging)
    except StopIteration as end:
        return cast("T", end.value)
    try:
        manifest = [row.asDict() for row in job.collect()]
    except BaseException as error:
        staging.throw(error)  # the sink maps the error
        raise
    return _ended(staging, manifest)


def together(stagings: Mapping[str, Staging[T]], discard: Callable[[str, T], None]) -> Staging[dict[str, T]]:
    """Combine the stagings of several tables, by name, into one staging with one job. If one of them fails, all
    fail: `discard` is called for each table whose batch was staged. If the job itself fails, files that its tasks
    have written for tables remain, because their names are not known."""
    jobs: dict[str, DataFrame] = {}
    staged: dict[str, T] = {}
    try:
        for name, staging in stagings.items():
            try:
                jobs[name] = next(staging)
            except StopIteration as end:
                staged[name] = end.value
        manifests = yield from _manifests(jobs, stagings)
        problems: list[BaseException] = []
        for name in jobs:
            try:
                staged[name] = _ended(stagings[name], manifests[name])
            except BaseException as error:  # the other sinks still get their manifests, to remove files
                problems.append(error)
        if problems:
            raise next((one for one in problems if not isinstance(one, Exception)), problems[0])
    except BaseException:
        with uninterrupted():
            for staging in stagings.values():
                with suppress(Exception):  # if the clean-up of one sink fails, the others follow nevertheless
                    staging.close()
            for name, one in staged.items():
                discard(name, one)
        raise
    return {name: staged[name] for name in stagings}


def _manifests(jobs: Mapping[str, DataFrame], stagings: Mapping[str, Staging[T]]) -> Staging[dict[str, Manifest]]:
    """Combine the jobs of all sinks into one job. Returns the manifest of each sink. An error of the job is raised
    in the first sink, because every sink can map such errors."""
    found: dict[str, Manifest] = {name: [] for name in jobs}
    if not jobs:
        return found
    try:
        # The method is called on the frame itself, because frames of Spark Connect are of another class.
        parts = [frame.withColumn(_SINK, functions.lit(name)) for name, frame in jobs.items()]
        rows = yield reduce(lambda one, other: one.unionAll(other), parts)
    except BaseException as error:
        stagings[next(iter(jobs))].throw(error)
        raise
    for row in rows:
        found[row.pop(_SINK)].append(row)
    return found


def _ended(staging: Staging[T], manifest: Manifest) -> T:
    try:
        staging.send(manifest)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError("a sink stages a batch by one job")


@dataclass(slots=True)
class StagingJob:
    """The job for one sink. `sink`: its name for messages. `table`: set if the files are written for a table."""

    sink: str
    store: StagingStore
    layout: Layout
    target_bytes: int
    table: ForTable | None = None
    schema: pa.Schema | None = None
    """The schema of the output; None if the files are not written for a table."""

    steps: tuple[Step, ...] = ()
    """The functions that change the rows before they are stored, see `StageFiles`."""

    def run(
        self,
        output: DataFrame,
        batch: Batch,
        chain: ChainId,
        number: int,
        *,
        is_as_read: bool,
        worked: Callable[[Work], None],
    ) -> "Staging[tuple[list[BatchFile], dict[LeaseKey, PartCounts]]]":
        """Write the files, and count the rows of each lease in them. Errors of Spark are raised. `is_as_read`:
        whether each record is stored as one row, so that the number of rows can be checked. `worked`: see
        `spark.batch_records.Records.worked`."""
        if not self.layout.is_flat:
            self.layout.check(output.schema)
        if self.table is not None and self.table.target is not None and self.schema is not None:
            self.table.target.check(self.schema)
        rows, steps = output, self.steps
        if any("." in name or "`" in name for name in output.columns):
            # mapInArrow does not quote names: it would read the column `a.b` as the field `b` of a column `a`.
            rows = output.toDF(*(f"c{place}" for place in range(len(output.columns))))
            steps = (RenameColumns(tuple(output.columns)), *steps)
        time_column = batch.time_column
        task = StageFiles(
            self.store,
            self.layout,
            chain,
            number,
            self.target_bytes,
            time_column,
            lease_column=LEASE_KEY if _has_texts(output, LEASE_KEY) else None,
            only_lease=batch.parts[0].lease if len(batch.parts) == 1 else None,
            marks=Marks(sink=self.sink),
            steps=steps,
            table=self.table,
        )
        began = time.monotonic()
        manifest = yield rows.mapInArrow(task, MANIFEST_TYPE)
        worked(work_of(manifest, time.monotonic() - began))
        files = batch_files(manifest)
        if is_as_read:
            try:
                self.check_rows(files, batch)
            except SinkError:
                self.discard(files)
                raise
        warn_of_large_batch(self.store.root, len(files))
        if has_own_times(time_column) and files and not _has_times(output, files, str(time_column)):
            warn_of_no_times(self.store.root, str(time_column))
        return files, {} if time_column is None else counts_of(files, batch)

    def check_rows(self, files: Sequence[BatchFile], batch: Batch) -> None:
        """Raise SinkError if the files do not have exactly one row for each record of the batch."""
        rows = sum(file.rows for file in files)
        if rows != batch.records:
            raise SinkError(f"{self.sink}: a batch of {batch.records} records would be stored in {rows} rows")

    def discard(self, files: Sequence[BatchFile]) -> None:
        """Remove the files of a batch of a table, if the batch will not be committed. Files that cannot be removed
        now remain until the table is vacuumed. Files in staging folders are not removed here, but with their
        chain."""
        if self.table is not None and not self.table.is_staged:
            with suppress(KclError, OSError), uninterrupted():
                self.store.delete([file.path for file in files])


def _has_texts(output: DataFrame, column: str) -> bool:
    return column in output.columns and isinstance(output.schema[column].dataType, StringType)


def _has_times(output: DataFrame, files: Sequence[BatchFile], column: str) -> bool:
    """Whether the output has the column, and the column contains times in at least one file. If the files have no
    counts, only the output is checked."""
    counted = [held.minutes for file in files for held in (file.leases or {}).values()]
    return column in output.columns and (not counted or any(minutes is not None for minutes in counted))


def counts_of(files: Sequence[BatchFile], batch: Batch) -> dict[LeaseKey, PartCounts]:
    """The counts of each lease of the batch in the files. Empty if they are not known, because the output does not
    have the leases of rows, or has leases that are not in the batch."""
    found: dict[LeaseKey, list[tuple[FileCounts, RowsOfLease]]] = {part.lease: [] for part in batch.parts}
    for file in files:
        if file.leases is None or not file.leases.keys() <= found.keys():
            return {}
        for place, (lease, held) in enumerate(file.leases.items()):
            minutes = held.minutes or ()
            timeless = held.rows - sum(one.rows for one in minutes)
            size = file.bytes * held.rows // file.rows
            found[lease].append((FileCounts(size, minutes, timeless, files=1 if place == 0 else 0), held))
    return {lease: _of_lease(shares) for lease, shares in found.items()}


def _of_lease(shares: Sequence[tuple[FileCounts, RowsOfLease]]) -> PartCounts:
    counts = tuple(one for one, _ in shares)
    if all(held.minutes is not None for _, held in shares):
        return PartCounts(counts)
    rows = sum(held.rows for _, held in shares)
    return PartCounts(None, sum(one.bytes for one in counts), sum(one.files for one in counts), rows)


def schema_of(output: DataFrame) -> pa.Schema:
    """The schema of the output as the files will have it, including partition columns. Evaluates nothing."""
    return utc(output.limit(0).toArrow().schema)


def has_own_times(time_column: str | None) -> bool:
    """Whether rows belong to windows by the time of an event, not by their arrival. Only then can rows be late."""
    return time_column not in (None, ARRIVAL)


def warn_of_no_times(root: str, column: str) -> None:
    """Warn that the output has no event times, at most once an hour. No batch fails because of this: otherwise the
    failure policy could make dead letters of all records, although they are valid."""
    if _warned.is_due(f"{root} {column}"):
        log.warning(
            "the output for %s has no timestamp column %s, which event_time names: its rows count for no window, "
            "and late ones materialize none. Correct event_time, or cast the column to a timestamp",
            root,
            column,
        )


def warn_of_large_batch(root: str, files: int) -> None:
    """Warn of a batch with many files, at most once an hour. Only for batches in which a file can have rows of all
    shards."""
    if files > MANY_FILES and _warned.is_due(root):
        log.warning(
            "a batch wrote %d files into %s, one for each task and partition value: partition by a column with "
            "fewer values, such as a day, or store larger batches",
            files,
            root,
        )
