"""Making few large files out of the many small ones that batches leave, for the Parquet sink.

Files are merged folder by folder, oldest first, when they have been left alone for a while: a part can be written
again until its owner has committed it, and a rewritten file beside its merged copy would be stored twice. Each
merge is journalled before its result appears, so a compaction that is cut off anywhere is finished by the next one.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.sinks.writing import COMPRESSION
from kcl_dagster.spark.storage import S3Options, Store, StoredFile, open_store

TARGET_BYTES: Final = 128 * 1024 * 1024  # what query engines read best, and what fits in memory while it is made
# A stalled writer has lost its lease long before; its last task may still be writing.
MIN_AGE_SECONDS: Final = 3600.0
JOURNAL: Final = "_compaction"  # readers pass over names that begin with an underscore
MERGED: Final = "merged-"


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did."""

    merged: int
    into: int
    bytes: int
    finished: int = 0
    """Merges of an earlier compaction that was cut off."""


def compact(
    path: str,
    *,
    target_bytes: int = TARGET_BYTES,
    min_age_seconds: float = MIN_AGE_SECONDS,
    s3: S3Options | None = None,
    runtime: Runtime | None = None,
) -> Compaction:
    """Merge the small files below `path`. May run beside the consumer, but not beside another compaction.

    Between the appearance of a merged file and the removal of its sources, readers see the records twice; that is
    some milliseconds, or until the next compaction when this one is killed just then.
    """
    if target_bytes <= 0 or min_age_seconds < 0:
        raise ConfigurationError(f"target_bytes {target_bytes} and min_age_seconds {min_age_seconds} make no sense")
    runtime = runtime or system()
    store = open_store(path, s3)
    finished = sum(_finish(store, journal.path) for journal in list(store.files(f"{JOURNAL}/", hidden=True)))
    merged = into = size = 0
    for group in _groups(list(store.files()), target_bytes, runtime.clock.now() - min_age_seconds):
        written = _merge(store, group, runtime.new_id())
        merged, into, size = merged + len(group), into + 1, size + written
    return Compaction(merged, into, size, finished)


def _groups(files: Sequence[StoredFile], target_bytes: int, before: float) -> Iterator[list[StoredFile]]:
    """Files of one folder that together come near the target. What is large already stays as it is."""
    folders: dict[str, list[StoredFile]] = defaultdict(list)
    for file in files:
        if file.path.endswith(".parquet") and file.modified <= before and file.bytes < target_bytes / 2:
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


def _merge(store: Store, group: Sequence[StoredFile], name: str) -> int:
    """One merge: the result is written unseen, journalled, shown, and only then are its sources removed."""
    folder = group[0].path.rpartition("/")[0]
    target = "/".join(part for part in (folder, f"{MERGED}{name}.parquet") if part)
    content = _merged(store, [file.path for file in group])
    journal = f"{JOURNAL}/{name}.json"
    sources = [file.path for file in group]
    store.put(journal, json.dumps({"target": target, "sources": sources}).encode())
    store.put(target, content)
    store.delete(sources)
    store.delete([journal])
    return len(content)


def _merged(store: Store, paths: Sequence[str]) -> memoryview:
    tables = [pq.read_table(pa.BufferReader(store.get(path))) for path in paths]
    whole = pa.concat_tables(tables, promote_options="default")
    sink = pa.BufferOutputStream()
    pq.write_table(whole, sink, compression=COMPRESSION)
    return memoryview(sink.getvalue())


def _finish(store: Store, journal: str) -> bool:
    """Carry through what a journal announced: the target stands for its sources as soon as it is there."""
    plan = json.loads(store.get(journal))
    is_shown = any(file.path == plan["target"] for file in store.files(plan["target"]))
    if is_shown:
        store.delete(plan["sources"])
    store.delete([journal])
    return is_shown
