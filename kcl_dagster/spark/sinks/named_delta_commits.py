"""Commits of staged rows to a Delta table with Spark's own writer, after chains have decided them.

In the table's transaction log, each application of this package has a name (`txnAppId`), which contains an id of
the folder of the chains. So commits of delta-rs to the same table, and commits of another deployment with its own
`chains_path`, have other names and numbers. The version of a commit (`txnVersion`) is calculated from the number of
the commit. If the table already has this version or a higher one, Delta skips the commit without an error. Delta
does not report whether it has skipped a commit, and a session does not show the versions. So each commit records
its number and a digest of its batches in the history of the table (`userMetadata`). A commit counts as made when it
was found in the history.

Delta keeps the history only for `delta.logRetentionDuration`. So when a commit was found, a file with its number is
made beside the chains. The file does not depend on the name of the table, so a table can be renamed. If Delta has
skipped a commit, the history must have a commit with the same number and the same batches. If it does not, the
folder of plans is an older copy, and the batches of the skipped commit are not in the table. An error then stops
all commits.
"""

import hashlib
import re
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

from kcl_dagster.chains.entry import FIRST, PublishingEntry, place_id
from kcl_dagster.chains.publication import FOLDER as STAGED
from kcl_dagster.chains.store import Entries, found_content
from kcl_dagster.chains.table_commits import MOST_ENTRIES, TableCommits, application_of
from kcl_dagster.errors import ConfigurationError, KclError, SinkError, Unsafe
from kcl_dagster.spark.failures import Marks
from kcl_dagster.spark.python_worker_tuning import settle
from kcl_dagster.spark.sinks.completeness import RECENT_COMMITS, application_key, completeness_record
from kcl_dagster.spark.sinks.named_delta import NamedDelta
from kcl_dagster.spark.sinks.table_columns import decoded_schema
from kcl_dagster.spark.storage import Store
from kcl_dagster.tables.completeness_row import WrittenThrough

FOLDER: Final = "_table_commits"
LOG: Final = "_delta_log"
TASK_BYTES: Final = 32 << 20  # of staged files for each task: a commit must be made before the next one is due
_STEPS: Final = 1000  # every commit has fewer entries
_NUMBER: Final = re.compile(r".*/(\d{12})\.json")
_NEWEST: Final = 10  # the number of the table's last commits that are searched first for a new commit

assert MOST_ENTRIES < _STEPS


class FoundCommit(msgspec.Struct, frozen=True):
    """The content of the file of a commit that was found in the table. A file with the number 0 is made before the
    first commit. `place`: the `place_id` of the folder of the chains, made from the path that the first worker
    used. If the folder is moved or copied, or if other workers use another path to it, later commits keep this id.
    So an older copy of the folder is detected."""

    place: str


@dataclass(frozen=True, slots=True)
class NamedDeltaCommits:
    """Implements `worker.table_committer.ChainedTable`. `store`: the store of the chains and the staged files."""

    table: NamedDelta
    store: Store
    _known: dict[str, int] = field(default_factory=dict, compare=False)
    """For each series, the number of the last commit that was found in the history, or that this object has
    made."""

    _places: dict[str, str] = field(default_factory=dict, compare=False)
    """`FoundCommit.place` of each series of commits."""

    _checked: set[str] = field(default_factory=set, compare=False)

    def check_store(self) -> None:
        """Raise ConfigurationError if the chains are in the folder of a Delta table. Such chains are those of
        delta-rs, and their entries name files of the table."""
        if LOG in self._checked:
            return
        with self.table.errors():
            if next(iter(self.store.files(f"{LOG}/", hidden=True)), None) is not None:
                raise ConfigurationError(
                    f"{self.table.name}: chains_path {self.store.root} is the folder of a Delta table, with the "
                    "chains of delta-rs: give the table a chains_path of its own"
                )
        self._checked.add(LOG)

    def check_plans(self, application: str) -> None:
        """Raise ConfigurationError or Unsafe if the newest plan in the folder was made by another writer. This
        writer cannot carry out such a plan. Called before the first batch is decided."""
        self.check_store()
        with self.table.errors():
            number, plan = TableCommits(self.store, application).newest()
            if plan is None or not plan.entries or FIRST not in plan.tables:
                return
            entry = Entries(self.store).read(*plan.entries[0])
        if isinstance(entry, PublishingEntry):
            self._refuse_foreign([entry.of(FIRST)])
            return
        # The entry was deleted. Workers delete entries when the table contains them. This may have happened after
        # the plan was read.
        self._known.pop(application, None)
        if self.committed(application) < number:
            raise ConfigurationError(
                f"{self.table.name}: chains_path {self.store.root} has plan {number} of {application}, whose "
                "entries were deleted, and the table does not have this commit: the plan is that of another "
                "writer, or _table_commits was removed. Give the table a chains_path of its own"
            )

    def committed(self, series: str) -> int:
        self.check_store()
        with self.table.errors():
            noted = max(self._noted(series), default=0)
            if series not in self._known:
                key = self._key(series)
                is_there = self.table.rules() is not None
                recorded = self.table.history(RECENT_COMMITS) if is_there else ()
                found = max((_number(one, key) for one in recorded), default=0)
                if found > noted:
                    self._note(series, found)  # so that other workers need not read the history
                self._known[series] = found
        return max(noted, self._known[series])

    def commit(
        self, series: str, number: int, entries: Sequence[PublishingEntry], complete: WrittenThrough | None
    ) -> None:
        """Implements `ChainedTable.commit`. Batches with different columns are appended one after the other, so
        that a column that a batch does not have gets its default value."""
        self._refuse_foreign(entries)
        if self.committed(series) < number:
            with self.table.errors():
                key = self._key(series)
            record = {key: str(number), _batches_key(key): _digest(entries)}
            groups = [list(some) for _, some in groupby(entries, key=_columns)]
            try:
                with self.table.errors():
                    for place, group in enumerate(groups, 1):
                        is_last = place == len(groups)
                        metadata = record | completeness_record(application_of(series), complete) if is_last else {}
                        self.table.append(self._rows(group), key, number * _STEPS + place, metadata)
            except KclError:
                # If the table has the commit, another worker has made it at the same time. Only the newest
                # commits are read here, because a failing commit is repeated every few seconds.
                if not self._has(record, _NEWEST):
                    raise
            else:
                self._check(key, record)
            self._note(series, number)
        with suppress(KclError, OSError):  # remaining files are removed when their chains end
            self.discard([file.path for entry in entries for file in entry.files])

    def discard(self, paths: Sequence[str]) -> None:
        self.store.delete([path for path in paths if _is_staged(path)])

    def _refuse_foreign(self, entries: Sequence[PublishingEntry]) -> None:
        """Raise Unsafe for entries of another writer. Their files can be files of a table, and a commit of this
        writer would append the rows of these files and then remove the files."""
        for entry in entries:
            is_changes = entry.rules is not None and entry.rules.changes is not None
            if is_changes or not all(_is_staged(file.path) for file in entry.files):
                raise Unsafe(
                    f"{self.table.name}: chains_path {self.store.root} has batches that another writer has "
                    "decided: start workers with the former sink until they have stored them, and give this one a "
                    "chains_path of its own"
                )

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
        if not self._has(record, _NEWEST, None):
            raise Unsafe(
                f"{self.table.name} has a later commit than {record[key]} of {key}, and its history has no commit "
                f"{record[key]} of these batches: the folder of plans below {self.store.root} is an older copy, or "
                "the history was removed. Put the newest one back; or stop the workers, compare the table with the "
                "staged files, and go on with another chains_path"
            )

    def _has(self, record: Mapping[str, str], *limits: int | None) -> bool:
        """Whether the history has the commit with this record. `limits`: for each search, how many of the newest
        commits it reads; None: all. The searches are made one after the other, until one finds the commit."""
        with self.table.errors():
            return any(record.items() <= one.items() for limit in limits for one in self.table.history(limit))

    def _key(self, series: str) -> str:
        """The name of the series of commits in the table's transaction log."""
        while series not in self._places:
            found = self._noted(series)
            if not found:  # the first worker decides, because others can name the same folder in another way
                self._create_note(series, 0, place_id(self.store.root))
            elif (
                content := found_content(self.store, found[max(found)])
            ) is not None:  # otherwise there is a newer file
                self._places[series] = _decoded(content, f"{self.store.root}/{found[max(found)]}").place
        return application_key(f"{series}/spark/{self._places[series]}")

    def _create_note(self, series: str, number: int, place: str) -> None:
        self.store.create(f"{_folder(series)}/{number:012d}.json", msgspec.json.encode(FoundCommit(place)))

    def _noted(self, series: str) -> dict[int, str]:
        """The paths of the files of found commits, by number."""
        paths = [file.path for file in self.store.files(f"{_folder(series)}/", hidden=True)]
        return {int(found[1]): path for path in paths if (found := _NUMBER.fullmatch(path))}

    def _note(self, series: str, number: int) -> None:
        """Store, in a file, that a commit was found. The entries of a found commit are deleted. After that, other
        workers can find the commit only in this file. If a higher number is stored already, because this worker is
        slow, the file is removed again."""
        self._create_note(series, number, self._places[series])
        self._known[series] = number
        with suppress(KclError, OSError):  # files that remain are removed with the next commit
            noted = self._noted(series)
            self.store.delete([path for found, path in noted.items() if found < max(noted)])


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


def _decoded(content: bytes, path: str) -> FoundCommit:
    try:
        return msgspec.json.decode(content, type=FoundCommit)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Unsafe(f"{path} is not a note of a commit that this version can read: {error}") from error


def _is_staged(path: str) -> bool:
    return path.startswith(f"{STAGED}/")


def _folder(series: str) -> str:
    return f"{FOLDER}/{place_id(series)}"


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
