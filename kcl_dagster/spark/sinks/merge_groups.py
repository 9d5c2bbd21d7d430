"""Which files of a Parquet folder are merged, and which of them into one.

Pure. Other programs may store below the folder, too: only files whose names are those of the sink are merged, and
none in a folder below that is a table, or belongs to another sink.

A part can be written again until its owner has committed it, and a rewritten file beside its merged copy would be
stored twice. So the last part of each shard is left alone, however old it is: it may be a batch that has been
failing for days. Parts before it are committed, or the next could not have begun. The last part has the highest
number. Version 0.1 gave low numbers again to leases that were made anew, so the part that begins last is left
alone, too.
Parts of replays by former versions are left alone: a replay that is repeated recognises what it has stored by name.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kcl_dagster.chains.publication import staged_for
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.sinks.letter_case import plain_name
from kcl_dagster.spark.storage import StoredFile, is_hidden

MERGED: Final = "merged-"
BEFORE_ANY: Final = -1  # TRIM_HORIZON and its like
_MERGED: Final = re.compile(MERGED + r"(?:(?P<newest>\d{13})-)?[A-Za-z0-9-]+\.parquet")
_NAMED_AFTER_A_PART: Final = re.compile(
    r"(?P<lease>.+)\.(?P<after>\d+|[A-Z_]+)-(?P<sub>\d+)(\.(?P<number>\d+))?\.parquet"
)
_OF_A_REPLAY: Final = re.compile(r"(?:.+\.)?\d{4}-\d{2}[A-Za-z0-9_-]*\.[^.].*")  # a window, and a lease after it

_TABLES: Final = frozenset({"_delta_log"})
# Of Spark's streams, and of sinks of ours.
_OWNERS: Final = frozenset({
    "_spark_metadata",
    "_chains",
    "_staged",
    "_commits",
    "_compaction",
    "_compaction_turns",
    "_drafts",
})  # fmt: skip
_MARKS: Final = "_kcl_dagster"  # what sinks tell each other, and readers
_ICEBERG: Final = re.compile(r"(?:(?P<table>.+)/)?metadata/[^/]+\.metadata\.json")


def own_files(files: Iterable[StoredFile], root: str) -> list[StoredFile]:
    """Those that the sink at `root` has stored, of all files there, hidden ones included. Raises ConfigurationError
    if the folder is a table, of which a file is not merged without its log."""
    found, foreign = [], set()
    for file in files:
        owned = _owned_folder(file.path)
        if owned is not None:
            foreign.add(owned)
        elif not is_hidden(file.path) and is_own(file.path):
            found.append(file)
    if "" in foreign:
        raise ConfigurationError(
            f"{root} is a Delta or Iceberg table, and no folder of Parquet: nothing was merged"
        )
    return [file for file in found if not any(folder in foreign for folder in _folders(file.path))]


def is_own(path: str) -> bool:
    """Whether a sink, or a compaction, has given the file its name, and no replay by a former version."""
    part = _NAMED_AFTER_A_PART.fullmatch(plain_name(path))
    if part is not None:
        return _OF_A_REPLAY.fullmatch(part["lease"]) is None
    # What is staged for a file has to be found before it is merged.
    return staged_for(path) is not None or _MERGED.fullmatch(path.rpartition("/")[2]) is not None


def _owned_folder(path: str) -> str | None:
    """The folder that a file marks as a table (the root, too, which is ""), or as one of another owner below the
    root."""
    table = _ICEBERG.fullmatch(path)
    if table is not None and not is_hidden(path):
        return table["table"] or ""
    folders = path.split("/")
    for place, name in enumerate(folders):
        if name in _TABLES or (place and (name in _OWNERS or name.startswith(_MARKS))):
            return "/".join(folders[:place])
        if is_hidden(name):
            return None
    return None


def _folders(path: str) -> Iterator[str]:
    folder = path
    while "/" in folder:
        folder = folder.rpartition("/")[0]
        yield folder


def groups(files: Sequence[StoredFile], target_bytes: int, before: float) -> Iterator[list[StoredFile]]:
    """Files of one folder, last written until `before`, that together come near the target, in the order in which
    they were written. What is large already stays as it is."""
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
        for file in sorted(found, key=_order):
            if group and size + file.bytes > target_bytes:
                if len(group) > 1:
                    yield group
                group, size = [], 0
            group.append(file)
            size += file.bytes
        if len(group) > 1:
            yield group


def merged_name(sources: Iterable[StoredFile], unique: str) -> str:
    """Of the file that takes the place of these. It has the time of the newest one in the order of records."""
    newest = max(_order(file)[0] for file in sources)
    return f"{MERGED}{min(int(newest * 1000), 10**13 - 1):013d}-{unique}.parquet"


def _order(file: StoredFile) -> tuple[float, bool, str]:
    merged = _MERGED.fullmatch(file.path.rpartition("/")[2])
    if merged is None or merged["newest"] is None:
        return file.modified, True, file.path
    return int(merged["newest"]) / 1000, False, file.path


class _Place(NamedTuple):
    """Where a part begins. One that failed as a whole and its first half begin at the same place."""

    lease: str
    after: int
    sub: int


def _part_of(file: StoredFile) -> tuple[_Place, int] | None:
    """Place and number of the part that a sink's file belongs to (see `former_parts.file_stem`)."""
    found = _NAMED_AFTER_A_PART.fullmatch(plain_name(file.path))
    if found is None:
        return None
    after = int(found["after"]) if found["after"].isdigit() else BEFORE_ANY
    return _Place(found["lease"], after, int(found["sub"])), int(found["number"] or 0)


def _last_parts(files: Sequence[StoredFile]) -> set[_Place]:
    """Of each lease the part that begins last, the one with the highest number, and the one that was written last:
    others after a reset, and where a stream or its leases were made anew. A lease may be pinned to any of them."""
    furthest: dict[str, _Place] = {}
    newest: dict[str, tuple[int, _Place]] = {}
    latest: dict[str, tuple[float, _Place]] = {}
    for file in files:
        part = _part_of(file)
        if part is not None:
            place, number = part
            furthest[place.lease] = max(place, furthest.get(place.lease, place))
            newest[place.lease] = max((number, place), newest.get(place.lease, (number, place)))
            latest[place.lease] = max((file.modified, place), latest.get(place.lease, (file.modified, place)))
    return {*furthest.values(), *(place for _, place in (*newest.values(), *latest.values()))}
