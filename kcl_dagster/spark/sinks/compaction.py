"""Making few large files out of the many small ones that batches leave.

Parquet: a part can be written again until its owner has committed it, and a rewritten file beside its merged copy
would be stored twice. So the last part of each shard is left alone, however old it is: it may be a batch that has
been failing for days. Parts before it are committed, or the next could not have begun; a stalled writer may still
have one in hand, so they have to be old, too, and what it holds in hand is taken from it first (see `_compact`).
The last part has the highest number. Version 0.1 gave low numbers again to leases that were made anew, so the part
that begins last is left alone, too.
Files are merged folder by folder, oldest first. Each merge is journalled before its result appears, so one that
is cut off anywhere is finished by the next. Two at once would both merge the same files, so they take turns.
"""

import logging
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kcl_dagster.chains.publication import staged_for
from kcl_dagster.errors import ConfigurationError, Unsafe
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.parquet_file import COMPRESSION
from kcl_dagster.spark.sinks.letter_case import plain_name
from kcl_dagster.spark.storage import S3Options, Store, StoredFile, is_hidden, open_store, within
from kcl_dagster.spark.turn import Turn, turn

log = logging.getLogger(__name__)

TARGET_BYTES: Final = 128 * 1024 * 1024  # what query engines read best, and what fits in memory while it is made
# A stalled writer has lost its lease long before; its last task may still be writing.
MIN_AGE_SECONDS: Final = 3600.0
JOURNAL: Final = "_compaction"  # readers pass over names that begin with an underscore
DRAFTS: Final = "_drafts"  # of version 0.1: files that a fetch has written and no batch has published
TURNS: Final = "_compaction_turns"
MERGED: Final = "merged-"
GETS_AT_ONCE: Final = 16
BEFORE_ANY: Final = -1  # TRIM_HORIZON and its like
_NAMED_AFTER_A_PART: Final = re.compile(r"(?P<lease>.+)\.(?P<after>\w+)-(?P<sub>\d+)(\.(?P<number>\d+))?\.parquet")


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did."""

    merged: int
    into: int
    bytes: int
    finished: int = 0
    """Merges of an earlier compaction that was cut off."""
    failed: tuple[str, ...] = ()
    """What could not be merged, and why. The rest was merged."""


def compact(
    path: str,
    *,
    target_bytes: int = TARGET_BYTES,
    min_age_seconds: float = MIN_AGE_SECONDS,
    s3: S3Options | None = None,
    runtime: Runtime | None = None,
    by: str = "a compaction",
) -> Compaction:
    """Merge the small files below `path`. May run beside the consumer. Raises Unsafe beside another compaction,
    which knows this one as `by`.

    Between the appearance of a merged file and the removal of its sources, readers find the records twice. This
    takes some milliseconds. If this compaction is killed at that moment, it lasts until the next one.
    """
    if target_bytes <= 0 or min_age_seconds < 0:
        raise ConfigurationError(f"target_bytes {target_bytes} and min_age_seconds {min_age_seconds} make no sense")
    runtime = runtime or system()
    store = open_store(path, s3)
    if next(iter(store.files(hidden=True)), None) is None:
        return Compaction(0, 0, 0)
    with turn(store, TURNS, runtime, by) as mine:
        return _compact(store, target_bytes, runtime.clock.now() - min_age_seconds, runtime, mine)


def _compact(store: Store, target_bytes: int, before: float, runtime: Runtime, mine: Turn) -> Compaction:
    """Merge files that were last written until `before`.

    A worker that was paused since it pinned a part may have a draft of it, or a file that it has written and not
    yet renamed. Its successor stored the part later than that. So if the part's file is old enough to be merged,
    the file of the stale writer is older still. It is removed before any file is chosen, and the later copy or
    rename by the stale writer fails. Two cases remain: S3 was already copying the draft when it was removed, and
    the copy takes longer than the merge of a group; and a Spark job writes the part `min_age_seconds` late, because
    its worker was paused exactly between the check of its lease and the start of the job.
    """
    sweep(store, before)
    finished = 0
    for journal in list(store.files(f"{JOURNAL}/", hidden=True)):
        mine.check()  # listing a large store takes time, and the journals may belong to another compaction by now
        finished += _finish(store, journal.path)
    merged = into = size = 0
    for group in _groups(list(store.files()), target_bytes, before):
        for sources in _mergeable(store, group, mine):
            size += _merge(store, sources, runtime.new_id(), mine)
            merged, into = merged + len(sources), into + 1
    return Compaction(merged, into, size, finished)


def _groups(files: Sequence[StoredFile], target_bytes: int, before: float) -> Iterator[list[StoredFile]]:
    """Files of one folder that together come near the target. What is large already stays as it is."""
    folders: dict[str, list[StoredFile]] = defaultdict(list)
    last = _last_parts(files)
    for file in files:
        part = _part_of(file)
        is_small = file.path.endswith(".parquet") and file.bytes < target_bytes / 2
        if is_small and file.modified <= before and (part is None or part[0] not in last):
            folders[file.path.rpartition("/")[0]].append(file)
    for found in folders.values():
        group: list[StoredFile] = []
        size = 0
        for file in sorted(found, key=lambda file: (file.modified, file.path)):
            if group and size + file.bytes > target_bytes:
                if len(group) > 1:
                    yield group
                group, size = [], 0
            group.append(file)
            size += file.bytes
        if len(group) > 1:
            yield group


class _Place(NamedTuple):
    """Where a part begins. One that failed as a whole and its first half begin at the same place."""

    lease: str
    after: int
    sub: int


def _part_of(file: StoredFile) -> tuple[_Place, int] | None:
    """Place and number of the part that a sink's file belongs to (see `writing.file_stem`)."""
    found = _NAMED_AFTER_A_PART.fullmatch(plain_name(file.path))
    if found is None:
        return None
    after = int(found["after"]) if found["after"].isdigit() else BEFORE_ANY
    return _Place(found["lease"], after, int(found["sub"])), int(found["number"] or 0)


def _last_parts(files: Sequence[StoredFile]) -> set[_Place]:
    """Of each lease the part that begins last, and the one with the highest number: another one after a reset, and
    where a stream or its leases were made anew."""
    furthest: dict[str, _Place] = {}
    newest: dict[str, tuple[int, _Place]] = {}
    for place, number in filter(None, map(_part_of, files)):
        furthest[place.lease] = max(place, furthest.get(place.lease, place))
        newest[place.lease] = max((number, place), newest.get(place.lease, (number, place)))
    return {*furthest.values(), *(place for _, place in newest.values())}


def _mergeable(store: Store, group: Sequence[StoredFile], mine: Turn) -> list[dict[str, pa.Table]]:
    """What the files of a group hold, by path: those together that can be one file.

    A column whose type was changed begins another file: readers see each file as it was written. A file that is no
    Parquet stays where it is, so that one of them does not end every compaction.
    """
    found: list[tuple[pa.Schema, dict[str, pa.Table]]] = []
    for file, content in _contents(store, group):
        mine.keep()
        try:
            table = pq.read_table(pa.BufferReader(content))
        except (pa.ArrowException, OSError) as error:
            log.warning("%s/%s is left alone, it cannot be read as Parquet: %s", store.root, file.path, error)
            continue
        for place, (schema, tables) in enumerate(found):
            try:
                found[place] = pa.unify_schemas([schema, table.schema]), tables
            except pa.ArrowException:
                continue
            tables[file.path] = table
            break
        else:
            found.append((table.schema, {file.path: table}))
    return [tables for _, tables in found if len(tables) > 1]


def _contents(store: Store, group: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, bytes]]:
    """Of one group, together the size of a merged file. Several at once: most of a get from S3 is waiting."""
    asked: deque[tuple[StoredFile, Future[bytes]]] = deque()
    with ThreadPoolExecutor(GETS_AT_ONCE) as pool:
        for file in group:
            if len(asked) == GETS_AT_ONCE:
                first, content = asked.popleft()
                yield first, content.result()
            asked.append((file, pool.submit(store.get, file.path)))
        for file, content in asked:
            yield file, content.result()


def _merge(store: Store, sources: Mapping[str, pa.Table], name: str, mine: Turn) -> int:
    """One merge: the result is made, journalled, shown, and only then are its sources removed."""
    folder = next(iter(sources)).rpartition("/")[0]
    target = "/".join(part for part in (folder, f"{MERGED}{name}.parquet") if part)
    content = _merged(list(sources.values()))
    mine.check()  # a turn is far longer than what is left to do
    # A file that was staged for an entry of a chain may be given its name again, until it is staged no more.
    store.delete([staged for path in sources if (staged := staged_for(path)) is not None])
    journal = f"{JOURNAL}/{name}.json"
    store.put(journal, msgspec.json.encode(_Merge(target, tuple(sources))))
    store.put(target, content)
    store.delete(list(sources))
    store.delete([journal])
    return len(content)


def _merged(tables: Sequence[pa.Table]) -> memoryview:
    whole = pa.concat_tables(tables, promote_options="default")
    sink = pa.BufferOutputStream()
    pq.write_table(whole, sink, compression=COMPRESSION)
    return memoryview(sink.getvalue())


def sweep(store: Store, before: float) -> int:
    """Remove files that were never finished and drafts, last written until `before`, in epoch seconds; how many. A
    worker that comes back to one of them cannot publish it, and reads its records again."""
    found = [*store.files(f"{DRAFTS}/", hidden=True), *store.unfinished("")]
    left = [file.path for file in found if file.modified <= before]
    store.delete(left)
    return len(left)


class _Merge(msgspec.Struct, frozen=True):
    """What a journal announces."""

    target: str
    sources: tuple[str, ...]


def _finish(store: Store, journal: str) -> bool:
    """Carry through what a journal announced: the target stands for its sources as soon as it is there."""
    plan = _read_journal(store, journal)
    is_shown = any(file.path == plan.target for file in store.files(plan.target))
    if is_shown:
        store.delete(plan.sources)
    store.delete([journal])
    return is_shown


def _read_journal(store: Store, journal: str) -> _Merge:
    """Raises Unsafe for a journal that no compaction wrote: who can write to the lake must not be able to have
    other files deleted."""
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
