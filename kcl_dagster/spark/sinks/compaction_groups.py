"""Chooses which files of a Parquet folder a compaction merges, and groups the files that become one file. Pure.

Other programs can store files below the folder, too. So only files with names of the sink's form are merged. Files
in a subfolder that is a table or belongs to another sink are not merged.

Former versions of this package named files after parts (the records of one shard in a batch). Such a version writes
a part again until the owner of the lease has committed the part. If a file of the part was merged before that, the
records of the file would then be stored twice. So the last part of each shard is not merged, however old it is: its
batch may have been failing for days. All parts before it were committed, because otherwise the next part would not
have begun.

The last part of a shard has the highest number. But version 0.1 began with low numbers again if a lease was made
again. So the part that begins last in the stream, and the part that was written last, are not merged either. Parts
of replays by former versions are not merged, because a repeated replay recognises by name which parts it has
stored.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from kcl_dagster.chains.publication import batch_of, staged_for
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.sinks.letter_case import plain_name
from kcl_dagster.spark.storage import StoredFile, is_hidden

MERGED: Final = "merged-"
BEFORE_ANY: Final = -1  # the place of start positions such as TRIM_HORIZON, before all sequence numbers
_MERGED: Final = re.compile(MERGED + r"(?:(?P<newest>\d{13})-)?[A-Za-z0-9-]+\.parquet")
_NAMED_AFTER_A_PART: Final = re.compile(
    r"(?P<lease>.+)\.(?P<after>\d+|[A-Z_]+)-(?P<sub>\d+)(\.(?P<number>\d+))?\.parquet"
)
_OF_A_REPLAY: Final = re.compile(r"(?:.+\.)?\d{4}-\d{2}[A-Za-z0-9_-]*\.[^.].*")  # a window, followed by a lease

_TABLES: Final = frozenset({"_delta_log"})
# If a folder has one of these subfolders, a stream of Spark or a sink of this package stores files in the folder.
_OWNERS: Final = frozenset({
    "_spark_metadata",
    "_chains",
    "_staged",
    "_commits",
    "_compaction",
    "_compaction_turns",
    "_drafts",
})  # fmt: skip
_MARKS: Final = "_kcl_dagster"  # the prefix of files that sinks store for other sinks and for readers
_ICEBERG: Final = re.compile(r"(?:(?P<table>.+)/)?metadata/[^/]+\.metadata\.json")


def own_files(files: Iterable[StoredFile], root: str) -> list[StoredFile]:
    """Select the files that the sink at `root` has stored. `files`: all files there, including hidden ones. Raises
    ConfigurationError if the folder is a table, because files of a table can be merged only together with its
    log."""
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
    """Whether the name of the file was made by a sink or a compaction, but not by a replay of a former version."""
    part = _NAMED_AFTER_A_PART.fullmatch(plain_name(path))
    if part is not None:
        return _OF_A_REPLAY.fullmatch(part["lease"]) is None
    # A file of a sink counts only if `staged_for` recognises its name, because a merge first removes the staged
    # copy of the file.
    return staged_for(path) is not None or _MERGED.fullmatch(path.rpartition("/")[2]) is not None


def _owned_folder(path: str) -> str | None:
    """Return the folder that is a table or belongs to another owner, according to the path of a file in it. None if
    the path shows no such folder. The root is "". The root can be a table, but never belongs to another owner."""
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
    """Yield groups of files to merge. The files of a group are in one folder, were last written at `before` or
    earlier, and together have at most the target size. They are in the order in which their batches were written,
    and the files of a batch are in the order of their names. Files of at least half the target size are left
    out. The files of a batch are in one group, even if they are larger than the target: the times of these files do
    not have their order, so a later compaction could not put two groups of one batch into this order."""
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
        batches = _batches(found)
        in_order = sorted(found, key=lambda file: _order(file, batches))
        for _, found_together in groupby(in_order, lambda file: batch_of(file.path) or file.path):
            some = list(found_together)
            more = sum(file.bytes for file in some)
            if group and size + more > target_bytes:
                if len(group) > 1:
                    yield group
                group, size = [], 0
            group.extend(some)
            size += more
        if len(group) > 1:
            yield group


def merged_name(sources: Iterable[StoredFile], unique: str) -> str:
    """The name of the file that replaces these files. The name contains the time of the newest of these files. A
    later compaction uses this time as that of the merged file when it orders files."""
    newest = max(_order(file, {})[0] for file in sources)
    return f"{MERGED}{min(int(newest * 1000), 10**13 - 1):013d}-{unique}.parquet"


def _batches(files: Iterable[StoredFile]) -> dict[str | None, float]:
    """When the first file of each batch was written. The tasks of a batch do not end in their order."""
    found: dict[str | None, float] = {}
    for file in files:
        batch = batch_of(file.path)
        if batch is not None:
            found[batch] = min(file.modified, found.get(batch, file.modified))
    return found


def _order(file: StoredFile, batches: Mapping[str | None, float]) -> tuple[float, bool, str]:
    merged = _MERGED.fullmatch(file.path.rpartition("/")[2])
    if merged is None or merged["newest"] is None:
        return batches.get(batch_of(file.path), file.modified), True, file.path
    return int(merged["newest"]) / 1000, False, file.path


class _Place(NamedTuple):
    """The checkpoint at which a part begins. A part that was split, and its first half, begin at the same place."""

    lease: str
    after: int
    sub: int


def _part_of(file: StoredFile) -> tuple[_Place, int] | None:
    """The place and the number of the part to which a file belongs, see `former_parts.file_stem`. None if the file
    is not named after a part."""
    found = _NAMED_AFTER_A_PART.fullmatch(plain_name(file.path))
    if found is None:
        return None
    after = int(found["after"]) if found["after"].isdigit() else BEFORE_ANY
    return _Place(found["lease"], after, int(found["sub"])), int(found["number"] or 0)


def _last_parts(files: Sequence[StoredFile]) -> set[_Place]:
    """For each lease, the places of three parts: the part that begins last, the part with the highest number, and
    the part that was written last. They can be different parts after a reset, or if a stream or its leases were
    made again. A lease can be pinned to any of them."""
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
