"""Commits of staged rows to a Delta table with Spark's own writer, after chains have decided them.

In the table's transaction log, each application of this package is an application (`txnAppId`). The number of a
commit is its version (`txnVersion`). If the table already has a version, Delta skips the commit without an error.
Delta does not report whether it has skipped a commit, and a session does not show the versions. So each commit
records its number and a digest of its batches in the history of the table (`userMetadata`). A commit counts as made
when it was found in the history.

Delta keeps the history only for `delta.logRetentionDuration`. So the number of the last commit that was found is in
a file beside the chains. If Delta has skipped a commit, and the history does not have the same number with the same
batches, an error stops all commits: the folder of plans is an older copy, and its batches are not in the table.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from itertools import groupby
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from kcl_dagster.chains.entry import PublishingEntry, place_id
from kcl_dagster.chains.store import found_content
from kcl_dagster.chains.table_commits import MOST_ENTRIES, application_of
from kcl_dagster.errors import KclError, SinkError, Unsafe
from kcl_dagster.spark.failures import Marks
from kcl_dagster.spark.settling import settle
from kcl_dagster.spark.sinks.completeness import RECENT_COMMITS, application_key, completeness_record
from kcl_dagster.spark.sinks.named_delta import NamedDelta
from kcl_dagster.spark.sinks.target import decoded_schema
from kcl_dagster.spark.storage import Store
from kcl_dagster.tables.completeness_row import WrittenThrough

FOLDER: Final = "_table_commits"
TASK_BYTES: Final = 32 << 20  # of staged files for each task: a commit must be made before the next one is due
_STEPS: Final = 1000  # more than the number of entries in a commit
_NEWEST: Final = 10  # last commits of the table, among which a new commit usually is

assert MOST_ENTRIES < _STEPS


class LastCommit(msgspec.Struct, frozen=True):
    """The file with the number of the last commit of a series that was found in the table."""

    number: int


@dataclass(frozen=True, slots=True)
class NamedDeltaCommits:
    """See `worker.table_committer.ChainedTable`. `store`: the store of the chains and the staged files."""

    table: NamedDelta
    store: Store
    _known: dict[str, int] = field(default_factory=dict, compare=False)
    """The last commit of each series that was found in the history or made."""

    def committed(self, series: str) -> int:
        with self.table.errors():
            if series not in self._known:
                key = application_key(series)
                is_there = self.table.rules() is not None
                recorded = self.table.history(RECENT_COMMITS) if is_there else ()
                self._known[series] = max((_number(one, key) for one in recorded), default=0)
            content = found_content(self.store, self._path(series))
        noted = 0 if content is None else _decoded(content, f"{self.store.root}/{self._path(series)}").number
        return max(noted, self._known[series])

    def commit(
        self, series: str, number: int, entries: Sequence[PublishingEntry], complete: WrittenThrough | None
    ) -> None:
        """See `ChainedTable.commit`. Batches with different columns are appended one after the other, so that a
        column that a batch does not have gets its default value."""
        if self.committed(series) < number:
            key = application_key(series)
            record = {key: str(number), _batches_key(key): _digest(entries)}
            groups = [list(some) for _, some in groupby(entries, key=_columns)]
            try:
                with self.table.errors():
                    for place, group in enumerate(groups, 1):
                        is_last = place == len(groups)
                        metadata = record | completeness_record(application_of(series), complete) if is_last else {}
                        self.table.append(self._rows(group), key, number * _STEPS + place, metadata)
            except KclError:
                if not self._has(record):  # if it has the commit, another worker has made it at the same time
                    raise
            else:
                self._check(key, record)
            self._note(series, number)
        with suppress(KclError, OSError):  # remaining files are removed when their chains end
            self.discard([file.path for entry in entries for file in entry.files])

    def discard(self, paths: Sequence[str]) -> None:
        self.store.delete(paths)

    def _rows(self, entries: Sequence[PublishingEntry]) -> DataFrame:
        """The rows of entries with the same columns, as executors read them from the staged files."""
        schema = _columns_of(entries[0])
        files = [file for entry in entries for file in entry.files]
        tasks = max(1, min(len(files), -(-sum(file.bytes for file in files) // TASK_BYTES)))
        shares = tuple(tuple(file.path for file in files[task::tasks]) for task in range(tasks))
        read = ReadStaged(self.store, shares, schema, Marks(sink=self.table.name))
        places = self.table.session().range(0, tasks, 1, tasks)
        return places.mapInArrow(read, from_arrow_schema(schema, prefer_timestamp_ntz=True))

    def _check(self, key: str, record: Mapping[str, str]) -> None:
        if not self._has(record):
            raise Unsafe(
                f"{self.table.name} has a later commit than {record[key]} of {key}, and its history has no commit "
                f"{record[key]} of these batches: the folder of plans below {self.store.root} is an older copy, or "
                "the history was removed. Put the newest one back; or stop the workers, compare the table with the "
                "staged files, and go on with another chains_path and another name of the application"
            )

    def _has(self, record: Mapping[str, str]) -> bool:
        """Whether the history has the commit with this record. The whole history is read only if the newest commits
        do not have it."""
        with self.table.errors():
            for limit in (_NEWEST, None):
                if any(record.items() <= one.items() for one in self.table.history(limit)):
                    return True
            return False

    def _note(self, series: str, number: int) -> None:
        self._known[series] = number
        self.store.put(self._path(series), msgspec.json.encode(LastCommit(number)))

    def _path(self, series: str) -> str:
        return f"{FOLDER}/{place_id(f'{series} in {self.table.identifier}')}.json"


@dataclass(frozen=True, slots=True)
class ReadStaged:
    """A function for `mapInArrow` that reads staged files. Each input row is the number of a share, and the output
    is the rows of the files of this share."""

    store: Store
    shares: tuple[tuple[str, ...], ...]
    schema: pa.Schema
    marks: Marks

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        with self.marks.errors():
            for batch in numbers:
                for share in batch.column(0).to_pylist():
                    for path in self.shares[share]:
                        yield from self._rows(path)

    def _rows(self, path: str) -> Iterator[pa.RecordBatch]:
        content = found_content(self.store, path)
        if content is None:
            raise SinkError(
                f"{path} is missing, whose rows were decided and are not in the table. Put it back; or stop the "
                "workers, remove _chains and _commits, and reset the leases"
            )
        for rows in pq.ParquetFile(BytesIO(content)).iter_batches():
            yield rows.cast(self.schema)


def _decoded(content: bytes, path: str) -> LastCommit:
    try:
        return msgspec.json.decode(content, type=LastCommit)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Unsafe(f"{path} is not the number of a commit that this version can read: {error}") from error


def _columns(entry: PublishingEntry) -> str:
    assert entry.rules is not None
    return entry.rules.schema


def _columns_of(entry: PublishingEntry) -> pa.Schema:
    return decoded_schema(_columns(entry))


def _digest(entries: Sequence[PublishingEntry]) -> str:
    """A digest of the batches of a commit. It is different for other batches, because no two entries have the same
    `attempt`."""
    return hashlib.sha256(" ".join(entry.attempt for entry in entries).encode()).hexdigest()[:32]


def _batches_key(key: str) -> str:
    return f"{key}/batches"


def _number(recorded: Mapping[str, object], key: str) -> int:
    found = str(recorded.get(key, ""))
    return int(found) if found.isdecimal() else 0
