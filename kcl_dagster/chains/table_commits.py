"""Commits of a table, or of several that are committed to together: which entries of all chains go into each.

A commit is planned before a table is touched, in a record of its own, `_commits/<application>/<number>.json`,
which is made with a conditional create. Of several workers that plan one number, one succeeds, and any worker may
carry the plan out. The table keeps the number of the last commit that it contains, in the same transaction as the
files. So a commit whose answer was lost is looked up, and no entry is committed twice, also by two workers at once.

The plan of number n is made when the table contains number n - 1. It says for each chain the last entry that the
table contains afterwards. Only the last plan is kept, and in it only chains that have entries, or had some within
the last hour: a request to make an entry that had no answer is sent again, and may arrive itself when the entry
that the second one made was deleted.

Modelled in spec/TableCommits.tla.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec

from kcl_dagster.chains.entry import FIRST, place_id
from kcl_dagster.chains.publication import beginning_of
from kcl_dagster.chains.store import FileStore, FoundEntry, found_content
from kcl_dagster.errors import Unsafe
from kcl_dagster.model.claim import ChainId

FOLDER: Final = "_commits"
VERSION: Final = 2
ONE_TABLE_VERSION: Final = 1  # of plans that workers of a former version understand
KEPT_SECONDS: Final = 3600.0  # far above the time for which a request to a store may be under way
MOST_ENTRIES: Final = 500  # of a commit; what is left goes into the next one at once
_PLANNED_AT: Final = "@"  # no name of an application has it
_NUMBER: Final = re.compile(r".*/(\d{12})\.json")


class TableCommit(msgspec.Struct, frozen=True):
    """`entries`: those with files that the commit adds, in order. If there are none, no table is touched. `tables`:
    those that get files.
    `contained`: the last entry of each chain that the table contains afterwards. `attempt`: a worker that finds a
    plan at the number that it wanted to make sees by it whether the plan is its own. `gone`: see `Selection`."""

    attempt: str
    entries: tuple[tuple[ChainId, int], ...]
    contained: dict[ChainId, int]
    version: int = ONE_TABLE_VERSION
    gone: dict[ChainId, float] = {}
    tables: tuple[str, ...] = (FIRST,)


def series_of(application: str, table: str, plans: str) -> str:
    """By which name a table numbers commits of an application. Those of one series have their plans at one place,
    `plans`: beside the first table of a sink, whose series has the application's name alone. A further table may
    get commits of several series, of sinks with other first tables."""
    return application if table == FIRST else f"{application}{_PLANNED_AT}{place_id(plans)}"


def application_of(series: str) -> str:
    return series.partition(_PLANNED_AT)[0]


NOTHING_GONE: Final[Mapping[ChainId, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Selection:
    """Entries that the table does not contain yet, in the order in which they are committed. `contained`: as in
    `TableCommit`."""

    entries: tuple[FoundEntry, ...]
    contained: Mapping[ChainId, int]
    gone: Mapping[ChainId, float] = field(default_factory=dict)
    """Of the contained chains, those that had no entries any more, and when that was seen last: epoch seconds by
    the store's clock. They are forgotten when they had none for KEPT_SECONDS."""

    gaps: tuple[ChainId, ...] = ()
    """Chains of which an entry is missing. Nothing behind it is selected."""

    passed_over: tuple[ChainId, ...] = ()
    """Chains with entries that were made after the chain was deleted: it is gone, or it is not in the table and its
    first entry is missing."""

    is_complete: bool = True
    """Whether nothing had to be left for the next commit."""


def selected(
    contained: Mapping[ChainId, int],
    found: Collection[FoundEntry],
    gone: Mapping[ChainId, float] = NOTHING_GONE,
    most: int = MOST_ENTRIES,
) -> Selection:
    """What goes into the next commit. Pure. `contained` and `gone`: of the last commit. `found`: all entries of all
    chains, listed after the last commit was read.

    Older entries come first, and those of one chain in order. An owner makes no entry for a shard before the table
    contains those of the former owner, so that the order of each shard is kept.

    A chain in `gone` was deleted. A chain that the table does not contain and whose first entry is missing was
    deleted, too. An entry that appears in such a chain later is never committed: a worker made it that had been
    paused since before the deletion, or a repeated request arrived late.
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
    """The plans of an application's commits to one table, beside the chains. Nothing is cached."""

    files: FileStore
    application: str

    @property
    def folder(self) -> str:
        return f"{FOLDER}/{beginning_of(self.application)}"

    def newest(self) -> tuple[int, TableCommit | None]:
        """The last plan and its number; 0 and None where no commit was planned yet."""
        while True:
            numbers = self.numbers()
            if not numbers:
                return 0, None
            path = self._path(numbers[-1])
            content = found_content(self.files, path)
            if content is not None:  # else it was deleted since, and there is a newer one
                return numbers[-1], _decoded(content, f"{self.files.root}/{path}")

    def make(self, number: int, commit: TableCommit) -> bool:
        """Plan a commit. False: another worker has planned this number, or a higher one. If this raises, the plan
        may have been made.

        The create succeeds for the number of a plan that was deleted, too. So the plans are listed again: the last
        one is always kept, so that a higher number is seen.
        """
        path = self._path(number)
        if not self.files.create(path, msgspec.json.encode(commit)):
            content = found_content(self.files, path)
            if content is None or _decoded(content, f"{self.files.root}/{path}").attempt != commit.attempt:
                return False  # else the answer to an earlier try was lost
        numbers = self.numbers()
        if numbers[-1:] != [number]:
            return False
        self.files.delete([self._path(former) for former in numbers[:-1]])
        return True

    def numbers(self) -> Sequence[int]:
        """Those of the plans that were not deleted, in order."""
        found = (_NUMBER.fullmatch(file.path) for file in self.files.files(f"{self.folder}/", hidden=True))
        return sorted(int(match[1]) for match in found if match)

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:012d}.json"


def _decoded(content: bytes, path: str) -> TableCommit:
    """Raises Unsafe for what no worker of this version has written."""
    try:
        commit = msgspec.json.decode(content, type=TableCommit)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Unsafe(f"{path} is not a plan of a commit that this version can read: {error}") from error
    if commit.version > VERSION:
        raise Unsafe(f"{path} was written by a later version of kcl-dagster: only that version can go on here")
    return commit
