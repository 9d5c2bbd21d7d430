"""Commits of a table, or of several tables together: which entries of all chains go into each commit.

A commit is planned before any table is changed. The plan is a file, `_commits/<application>/<number>.json`, made
with a conditional create: if several workers plan the same number, one succeeds. Any worker can carry out the plan.
The table keeps the number of the last commit that it contains, and updates it in the same transaction that adds the
files. If a worker gets no response to a commit, it reads that number. No entry is therefore committed twice, even
if two workers carry out one plan at once.

Plan n is made when the table contains commit n - 1. For each chain, it names the last entry that the table will
contain after the commit. Only the last plan is kept. A plan names only chains that have entries, or had entries
within the last hour. The hour is needed because a request to make an entry is repeated if it gets no response. The
first request can then arrive late, when the entry that the second request made is already deleted. While plans name
the chain, such a late entry is not committed again.

A plan without entries changes no table, and counts as carried out. A worker that removes its chain makes such a
plan if the last plan has been carried out. If all workers have stopped in this way, the last plan has no entries,
and no worker has to look for its commit in the tables. A table can then be dropped and made again.

Modelled in spec/TableCommits.tla.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec

from kcl_dagster.chains.entry import FIRST
from kcl_dagster.chains.publication import beginning_of
from kcl_dagster.chains.store import FileStore, FoundEntry, found_content
from kcl_dagster.errors import Unsafe
from kcl_dagster.model.claim import ChainId

FOLDER: Final = "_commits"
VERSION: Final = 2
ONE_TABLE_VERSION: Final = 1  # the version of a plan for one table, which workers of an earlier version can read
KEPT_SECONDS: Final = 3600.0  # far longer than a request to a store can be delayed
MOST_ENTRIES: Final = 500  # per commit; the next commit follows at once with the rest
_PLANNED_AT: Final = "@"  # no application's name contains this character
_NUMBER: Final = re.compile(rf"{FOLDER}/[^/]+/(\d{{12}})\.json")


class TableCommit(msgspec.Struct, frozen=True):
    """The plan of a commit.

    - `entries`: the entries whose files the commit adds, in order. If empty, no table is changed.
    - `contained`: for each chain, the last entry that the table contains after the commit.
    - `attempt`: a unique id. If a worker finds a plan with the number that it wanted to use, this id shows whether
      the plan is its own.
    - `gone`: see `Selection`.
    - `tables`: the tables that get files.
    - `place`: the `place_id` of the folder in which the plan was made, see `series_of`. It is empty in plans of an
      earlier version, which were made in the folder in which they are found.
    """

    attempt: str
    entries: tuple[tuple[ChainId, int], ...]
    contained: dict[ChainId, int]
    version: int = ONE_TABLE_VERSION
    gone: dict[ChainId, float] = {}
    tables: tuple[str, ...] = (FIRST,)
    place: str = ""


def series_of(application: str, table: str, place: str) -> str:
    """Return the name of a series of commits. Each series has its own numbers: for each series, the table keeps the
    number of the last commit that it contains. All commits of a series are commits of one application. They were
    planned in one folder, which is beside the first table of a sink. The series of the first table is named like
    the application. A further table can have several series, because sinks with different first tables can write to
    it.

    `place`: the `place_id` of the folder in which the commit was planned. If this folder is moved, the last plan in
    it keeps its series, and the next plan begins another series. So if a folder is copied, the plans that are made
    in the copy have another series than the plans that are made in the original."""
    return application if table == FIRST else f"{application}{_PLANNED_AT}{place}"


def application_of(series: str) -> str:
    return series.partition(_PLANNED_AT)[0]


NOTHING_GONE: Final[Mapping[ChainId, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Selection:
    """The entries that the next commit of a table adds, in order. `contained`: see `TableCommit`."""

    entries: tuple[FoundEntry, ...]
    contained: Mapping[ChainId, int]
    gone: Mapping[ChainId, float] = field(default_factory=dict)
    """The chains in `contained` whose entries are deleted. For each of them, the time (epoch seconds by the store's
    clock) at which the deletion was first found. If late entries were found afterwards, it is the time at which
    this happened last. A chain is dropped KEPT_SECONDS after its time."""

    gaps: tuple[ChainId, ...] = ()
    """Chains of which an entry is missing. Entries after the missing one are not selected."""

    passed_over: tuple[ChainId, ...] = ()
    """Chains whose entries were made after the chain was deleted. This is known in two cases: the chain is in
    `gone`; or the table contains no entry of the chain, and the chain's entry 1 is missing."""

    is_complete: bool = True
    """False if entries are left for the next commit, because they do not fit into this commit."""


def selected(
    contained: Mapping[ChainId, int],
    found: Collection[FoundEntry],
    gone: Mapping[ChainId, float] = NOTHING_GONE,
    most: int = MOST_ENTRIES,
) -> Selection:
    """Select the entries for the next commit. Pure. `contained` and `gone`: from the last commit. `found`: all
    entries of all chains, listed after the last commit was read.

    Older entries come first; entries of one chain stay in order. An owner makes no entry for a shard before the
    table contains the former owner's entries, so the order within each shard is kept.

    A chain in `gone` was deleted. If a chain is not in `contained` and its entry 1 is missing, the chain was
    deleted, too. An entry that appears later in a deleted chain is never committed. This entry was made by a worker
    that had been paused since before the deletion, or by a repeated request that arrived late.
    """
    chains: dict[ChainId, list[FoundEntry]] = defaultdict(list)
    for one in found:
        chains[one.chain].append(one)
    now = max((one.modified for one in found), default=0.0)
    kept = {chain: gone.get(chain, now) for chain in contained.keys() - chains.keys()}
    kept |= dict.fromkeys(gone.keys() & chains.keys(), now)
    kept = {chain: since for chain, since in sorted(kept.items()) if now - since < KEPT_SECONDS}
    after = {chain: contained[chain] for chain in kept}
    gaps, passed_over, new = [], [], []
    for chain, entries in sorted(chains.items()):
        entries.sort(key=lambda one: one.number)
        last = contained.get(chain)
        if chain in kept or (last is None and entries[0].number != 1):
            passed_over.append(chain)
            continue
        reached, modified = last or 0, 0.0
        if last is not None:
            after[chain] = last
        for one in entries:
            if one.number <= reached:
                continue
            if one.number != reached + 1:
                gaps.append(chain)
                break
            reached, modified = one.number, max(modified, one.modified)
            new.append((modified, one))
    new.sort(key=lambda pair: (pair[0], pair[1].chain, pair[1].number))
    taken = tuple(one for _, one in new[:most])
    for one in taken:
        after[one.chain] = one.number
    return Selection(taken, after, kept, tuple(gaps), tuple(passed_over), is_complete=len(taken) == len(new))


@dataclass(frozen=True, slots=True)
class TableCommits:
    """The plans of an application's commits to one table, stored beside the chains. Nothing is cached."""

    files: FileStore
    application: str

    @property
    def folder(self) -> str:
        return f"{FOLDER}/{beginning_of(self.application)}"

    def newest(self) -> tuple[int, TableCommit | None]:
        """The number of the last plan and the plan; 0 and None if no commit has been planned yet."""
        while True:
            numbers = self.numbers()
            if not numbers:
                return 0, None
            path = self._path(numbers[-1])
            content = found_content(self.files, path)
            if content is not None:  # otherwise the plan was deleted meanwhile, and there is a newer one
                return numbers[-1], _decoded(content, f"{self.files.root}/{path}")

    def make(self, number: int, commit: TableCommit) -> bool:
        """Make the plan of a commit. Returns False if another worker has made a plan with this or a higher number.
        If this raises, the plan may have been made.

        If this worker was paused, `number` may be that of a plan that has been carried out and deleted. The create
        then succeeds, although the new plan is out of date. To detect this, the plans are listed after the create.
        The last plan is never deleted, so the listing then contains a higher number.
        """
        path = self._path(number)
        if not self.files.create(path, msgspec.json.encode(commit)):
            content = found_content(self.files, path)
            if content is None or _decoded(content, f"{self.files.root}/{path}").attempt != commit.attempt:
                return False  # otherwise this worker made the plan, and the response was lost
        numbers = self.numbers()
        if numbers[-1:] != [number]:
            return False
        self.files.delete([self._path(former) for former in numbers[:-1]])
        return True

    def numbers(self) -> Sequence[int]:
        """The numbers of the plans that were not deleted, in order."""
        found = (_NUMBER.fullmatch(file.path) for file in self.files.files(f"{self.folder}/", hidden=True))
        return sorted(int(match[1]) for match in found if match)

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:012d}.json"


def _decoded(content: bytes, path: str) -> TableCommit:
    """Decode a plan. Raises Unsafe for content that this version cannot read."""
    try:
        commit = msgspec.json.decode(content, type=TableCommit)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Unsafe(f"{path} is not a plan of a commit that this version can read: {error}") from error
    if commit.version > VERSION:
        raise Unsafe(f"{path} was written by a later version of kcl-dagster: only that version can go on here")
    return commit
