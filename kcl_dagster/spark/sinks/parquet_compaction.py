"""Compaction of a Parquet folder: merges the many small files of batches into few large ones.

- Files: `compaction_groups` chooses them. It leaves out files that can be written again, and files of other
  programs. A stale writer can still have drafts: unpublished files whose records the successor of the writer has
  stored, too. So files must have a minimum age, and drafts are removed first (see `_compact`).
- Order: folder by folder, oldest files first, several merges at a time.
- Crashes: each merge is recorded in a journal before its result becomes visible. If a merge is interrupted, the
  next compaction finishes it.
- Locking: two compactions at once would merge the same files. A lock prevents this.

Files that cannot be read or merged remain unchanged, and the other files are merged.
"""

import logging
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kcl_dagster.aws import RequestRefused
from kcl_dagster.chains.publication import staged_for
from kcl_dagster.errors import (
    ConfigurationError,
    CredentialsRefused,
    EndpointUnreachable,
    KclError,
    OutcomeUnknown,
    Throttled,
    Unsafe,
)
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.parquet_file import ParquetFile
from kcl_dagster.spark.sinks.compaction_groups import MERGED, groups, merged_name, own_files
from kcl_dagster.spark.storage import NOT_THERE, S3Options, Store, StoredFile, is_hidden, open_store, within
from kcl_dagster.spark.store_lock import StoreLock, store_lock

log = logging.getLogger(__name__)

# The size that query engines read best, and that fits in memory while a file is written.
TARGET_BYTES: Final = 128 * 1024 * 1024
# The minimum age of a file. A stale writer has lost its lease long before, but its last task may still be writing.
MIN_AGE_SECONDS: Final = 3600.0
JOURNAL: Final = "_compaction"  # readers ignore names that begin with an underscore
_JOURNAL: Final = re.compile(rf"{JOURNAL}/[A-Za-z0-9-]+\.json")
DRAFTS: Final = "_drafts"  # the folder in which fetches of version 0.1 wrote files that were not published yet
LOCKS: Final = "_compaction_turns"
MERGES_AT_ONCE: Final = 2  # each merge has its sources, its result and its request in memory
GETS_AT_ONCE: Final = 8  # files that one merge reads at the same time
# After this time, no merge is begun. If the folder has more files to merge, the next compaction continues an hour
# later.
MOST_SECONDS: Final = 2700.0
ROWS_AT_ONCE: Final = 65_536
# Errors that the next file or group would have, too.
_OF_ALL: Final = (Unsafe, CredentialsRefused, EndpointUnreachable, OutcomeUnknown, Throttled)


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a compaction."""

    merged: int
    into: int
    bytes: int
    finished: int = 0
    """The number of merges that an earlier compaction has begun and this one has finished."""
    failed: tuple[str, ...] = ()
    """Files that could not be merged, with the reasons. The other files were merged."""
    left_alone: str | None = None
    """The reason why the whole table was left unchanged, if it was."""
    deleted: int = 0
    """The number of files that a vacuum has deleted."""


def compact(
    path: str,
    *,
    target_bytes: int = TARGET_BYTES,
    min_age_seconds: float = MIN_AGE_SECONDS,
    merges_at_once: int = MERGES_AT_ONCE,
    s3: S3Options | None = None,
    runtime: Runtime | None = None,
    by: str = "a compaction",
) -> Compaction:
    """Merge the small files below `path`. Can run beside the consumer. Raises StoreLocked if another compaction is
    running. `by`: a name for this compaction. If another compaction begins meanwhile, its error contains this name.

    Between the appearance of a merged file and the removal of its sources, readers find the records twice. This
    takes some milliseconds. If this compaction is killed at that moment, the records remain there twice until the
    next compaction.
    """
    if target_bytes <= 0 or min_age_seconds < 0 or merges_at_once < 1:
        raise ConfigurationError(
            f"target_bytes {target_bytes}, min_age_seconds {min_age_seconds} and merges_at_once {merges_at_once} "
            "make no sense"
        )
    runtime = runtime or system()
    store = open_store(path, s3)
    if next(iter(store.files(hidden=True)), None) is None:
        return Compaction(0, 0, 0)
    with store_lock(store, LOCKS, runtime, by) as lock:
        before = runtime.clock.now() - min_age_seconds
        return _compact(store, target_bytes, before, runtime, lock, merges_at_once)


def _compact(
    store: Store, target_bytes: int, before: float, runtime: Runtime, lock: StoreLock, merges_at_once: int
) -> Compaction:
    """Merge files that were last written at `before` (epoch seconds) or earlier.

    A stale writer can still have a draft of a part, or a file that it has written and not renamed. The successor of
    the writer has stored the part later. So if the successor's file is old enough to be merged, the file of the
    stale writer is old enough to be removed. The file of the stale writer is removed before the files to merge are
    chosen. A later copy or rename of it by the stale writer then fails. Three cases remain in which records are
    stored twice:

    - S3 was already copying the draft when it was removed, and the copy takes longer than the merge of a group.
    - A Spark job writes the part `min_age_seconds` late, because its worker was paused exactly between the check of
      its lease and the start of the job.
    - This process is paused for longer than its lock lasts, and another compaction merges the same files meanwhile.
      The pause has to fall exactly between the last renewal of the lock and the end of the request that stores the
      merged file.
    """
    sweep(store, before)
    merging = _Merging(store, runtime, lock, runtime.clock.monotonic() + MOST_SECONDS)
    finished, unfinished = _finish_all(store, lock, merging.failed)
    files = [file for file in own_files(store.files(hidden=True), store.root) if file.path not in unfinished]
    planned = list(groups(files, target_bytes, before))
    if planned:
        # Without the right to delete, the sources would remain beside the merged file. So this right is checked
        # first.
        store.delete([f"{MERGED}{runtime.new_id()}.parquet"])
    done = merging.all_of(planned, merges_at_once)
    if merging.is_late():
        log.info("%s: %d files were merged, and the next compaction goes on", store.root, done.merged)
    return replace(done, finished=finished, failed=tuple(merging.failed))


NOTHING: Final = Compaction(0, 0, 0)


@dataclass(slots=True)
class _Merging:
    """The merges of one compaction."""

    store: Store
    runtime: Runtime
    lock: StoreLock
    until: float
    """The time (monotonic) after which no merge is begun."""

    failed: list[str] = field(default_factory=list)
    _over: Event = field(default_factory=Event)
    """Set when a merge has failed with an error that all other merges would have, or when the compaction was
    interrupted. No merge is begun afterwards."""

    def is_late(self) -> bool:
        return self.runtime.clock.monotonic() >= self.until

    def all_of(self, planned: Iterable[Sequence[StoredFile]], at_once: int) -> Compaction:
        """Carry out merges, several at a time, because a merge waits for S3 for half of its time, and pyarrow
        releases the GIL."""
        with ThreadPoolExecutor(at_once, "kcl-merge") as pool:
            asked = [pool.submit(self._group, group) for group in planned]
            try:
                done = [one.result() for one in asked]
            except BaseException:  # only this thread receives an interruption, so it stops the others
                self._over.set()
                raise
        return Compaction(*(sum(getattr(one, name) for one in done) for name in ("merged", "into", "bytes")))

    def _group(self, group: Sequence[StoredFile]) -> Compaction:
        if self._over.is_set() or self.is_late():
            return NOTHING
        merged = into = size = 0
        try:
            for sources in _mergeable(self.store, group, self.lock, self.failed):
                try:
                    size += _merge(self.store, sources, self.runtime.new_id(), self.lock, self.failed)
                except _OF_ALL:
                    raise
                except (KclError, OSError) as error:
                    folder = sources.files[0].path.rpartition("/")[0]
                    _note(self.failed, f"a merge in {self.store.root}/{folder}", error)
                else:
                    merged, into = merged + len(sources.files), into + bool(sources.files)
        except BaseException:
            self._over.set()
            raise
        return Compaction(merged, into, size)


def _note(failed: list[str], what: str, error: Exception) -> None:
    log.warning("%s failed: %s", what, error)
    failed.append(f"{what}: {error}")


@dataclass(slots=True)
class _Sources:
    """Files that can be merged into one file. Their contents are in memory in compressed form, as they were
    read."""

    schema: pa.Schema
    files: list[StoredFile] = field(default_factory=list)
    contents: list[pa.Buffer] = field(default_factory=list)

    def take(self, file: StoredFile, content: pa.Buffer, schema: pa.Schema) -> bool:
        """Add a file if its columns fit. Returns whether the file was added. Columns do not fit if their types
        differ, or if their names differ only in case: these are two columns in Parquet, but one column in Spark."""
        try:
            both = pa.unify_schemas([self.schema, schema])
        except pa.ArrowException:
            return False
        if len({name.lower() for name in both.names}) < len(both.names):
            return False
        self.schema = both
        self.files.append(file)
        self.contents.append(content)
        return True

    def leave(self, place: int) -> None:
        del self.files[place], self.contents[place]


class _Unreadable(Exception):
    """One of several files cannot be read."""

    def __init__(self, place: int, error: Exception) -> None:
        super().__init__(str(error))
        self.place = place


def _mergeable(store: Store, group: Sequence[StoredFile], lock: StoreLock, failed: list[str]) -> list[_Sources]:
    """Read the files of a group, and divide them into sets of files that can be merged into one file.

    If the type of a column was changed, files with different types are in different sets. A file that cannot be
    read remains unchanged.
    """
    found: list[_Sources] = []
    for file, asked in _contents(store, group):
        lock.renew()
        try:
            content = pa.py_buffer(asked.result())
            schema = _of_any(pq.read_schema(pa.BufferReader(content)))
        except _OF_ALL:
            raise
        except (pa.ArrowException, KclError, OSError) as error:
            if _is_gone(error):
                log.info("%s/%s was deleted meanwhile", store.root, file.path)
            else:
                _note(failed, f"{store.root}/{file.path} is left alone, reading it", error)
            continue
        if not any(sources.take(file, content, schema) for sources in found):
            found.append(_Sources(schema, [file], [content]))
    return [sources for sources in found if len(sources.files) > 1]


def _is_gone(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError) or (isinstance(error, RequestRefused) and error.code in NOT_THERE)


def _of_any(schema: pa.Schema) -> pa.Schema:
    """The schema without properties that can differ between files, and that the merged file does not need. Spark
    makes columns of literals non-nullable, and metadata of other writers applies to their file only."""
    return pa.schema([one.with_nullable(True) for one in schema])


def _contents(store: Store, group: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, Future[bytes]]]:
    """Yield each file of a group with its content, in order. Several files are read at the same time, because most
    of the time is spent waiting for S3. Together, the contents have about the size of one merged file."""
    asked: deque[tuple[StoredFile, Future[bytes]]] = deque()
    with ThreadPoolExecutor(GETS_AT_ONCE) as pool:
        for file in group:
            if len(asked) == GETS_AT_ONCE:
                yield asked.popleft()
            asked.append((file, pool.submit(store.get, file.path)))
        yield from asked


def _merge(store: Store, sources: _Sources, name: str, lock: StoreLock, failed: list[str]) -> int:
    """Carry out one merge: write the journal, make the result visible, and only then remove its sources. Returns
    the size of the result.

    Files that cannot be read are not merged, and are removed from `sources`. If another program has changed a file
    meanwhile, nothing is merged, and all files are removed from `sources`.
    """
    content = _content(store, sources, failed)
    lock.check()
    if content is not None and not _are_unchanged(store, sources.files):
        log.warning("files of %s were changed or deleted while they were merged: left alone", store.root)
        content = None
    if content is None:
        sources.files.clear()
        return 0
    paths = [file.path for file in sources.files]
    folder = paths[0].rpartition("/")[0]
    target = "/".join(part for part in (folder, merged_name(sources.files, name)) if part)
    lock.extend()  # from now on, the lock lasts far longer than the remaining steps take
    # Another process can publish a file again as long as its staged copy exists, so staged copies are removed
    # first.
    store.delete([staged for path in paths if (staged := staged_for(path)) is not None])
    journal = f"{JOURNAL}/{name}.json"
    store.put(journal, msgspec.json.encode(_Merge(target, tuple(paths))))
    lock.extend()  # if the lock was lost, another compaction removes the journal, and can merge the sources
    store.put(target, content)
    store.delete(paths)
    store.delete([journal])
    return len(content)


def _content(store: Store, sources: _Sources, failed: list[str]) -> memoryview | None:
    while len(sources.files) > 1:
        try:
            return _merged(sources)
        except _Unreadable as error:
            path = sources.files[error.place].path
            _note(failed, f"{store.root}/{path} is left alone, reading it", error)
            sources.leave(error.place)
    return None


def _merged(sources: _Sources) -> memoryview:
    """Merge the contents, some rows at a time, because well-compressed data need many times the memory of the
    files."""
    whole = ParquetFile(sources.schema)
    for place, content in enumerate(sources.contents):
        try:
            for rows in pq.ParquetFile(pa.BufferReader(content)).iter_batches(ROWS_AT_ONCE):
                whole.write(_conformed(rows, sources.schema))
        except (pa.ArrowException, OSError) as error:
            raise _Unreadable(place, error) from error
    return whole.finish()


def _conformed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with the columns of the schema. Columns that a file does not have are null."""
    has = set(rows.schema.names)
    columns = [
        rows.column(one.name).cast(one.type) if one.name in has else pa.nulls(rows.num_rows, one.type)
        for one in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _are_unchanged(store: Store, files: Sequence[StoredFile]) -> bool:
    """Whether the files are unchanged since they were listed. Another program may have redacted or deleted records.

    Each file is requested by name, because a listing would read the names of all files for each merge.
    """
    with ThreadPoolExecutor(GETS_AT_ONCE) as pool:
        return all(map(_is_same, files, pool.map(store.found, [file.path for file in files])))


def _is_same(listed: StoredFile, now: StoredFile | None) -> bool:
    # S3 lists times with fractions of a second, but reports the time of a single file in whole seconds.
    return now is not None and now.bytes == listed.bytes and abs(now.modified - listed.modified) < 1


def sweep(store: Store, before: float) -> int:
    """Remove drafts and unfinished files that were last written at `before` (epoch seconds) or earlier, and return
    their number. A worker that was paused and continues cannot publish its removed files any more, and reads their
    records again."""
    found = [*store.files(f"{DRAFTS}/", hidden=True), *store.unfinished("")]
    left = [file.path for file in found if file.modified <= before]
    store.delete(left)
    return len(left)


class _Merge(msgspec.Struct, frozen=True):
    """The content of a journal: the paths of the merged file and of its sources."""

    target: str
    sources: tuple[str, ...]


def _finish_all(store: Store, lock: StoreLock, failed: list[str]) -> tuple[int, set[str]]:
    """Finish the merges in the journals of interrupted compactions. If the merged file exists, its sources are
    removed. Returns the number of finished merges, and the paths of the files of merges that cannot be finished."""
    finished, unfinished = 0, set()
    for journal in [file for file in store.files(f"{JOURNAL}/", hidden=True) if _JOURNAL.fullmatch(file.path)]:
        lock.extend()  # listing a large store takes time, and by now the journals may belong to another compaction
        try:
            plan = _read_journal(store, journal.path)
        except (KclError, OSError) as error:
            if _is_gone(error):
                continue  # a compaction that has lost its lock has finished the merge
            raise
        try:
            is_shown = store.found(plan.target) is not None
            if is_shown:
                store.delete(plan.sources)
            store.delete([journal.path])
        except _OF_ALL:
            raise
        except (KclError, OSError) as error:
            unfinished |= {plan.target, *plan.sources}
            _note(failed, f"records are twice in {store.root}: finishing {journal.path}", error)
        else:
            finished += is_shown
    return finished, unfinished


def _read_journal(store: Store, journal: str) -> _Merge:
    """Read a journal. Raises Unsafe if the content of the journal cannot be from a compaction. Without this check,
    a program that can write to the folder could cause the deletion of other files."""
    try:
        plan = msgspec.json.decode(store.get(journal), type=_Merge)
        folder, _, name = within(plan.target).rpartition("/")
        is_ours = name.startswith(MERGED) and all(
            within(path).rpartition("/")[0] == folder and path.endswith(".parquet") and not is_hidden(path)
            for path in plan.sources
        )
    except (msgspec.DecodeError, Unsafe):
        is_ours = False
    if not is_ours:
        raise Unsafe(
            f"{store.root}/{journal} names other files than a merge of one folder: nothing of it was carried out, "
            "and nothing is compacted until it is removed"
        )
    return plan
