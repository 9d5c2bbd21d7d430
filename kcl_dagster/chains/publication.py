"""Staged files, and how they get their final names.

A batch is written to `_staged/<chain>/<final path>`. Readers pass over names that begin with an underscore. When
the batch is decided, each file is moved to its final path. Moving may be repeated, by any process: what is not
staged any more was moved before. So a publisher that was paused cannot bring back a file that was merged into
another one since, as long as the merge removes what is staged for a file before it removes the file: `staged_for`.

Modelled in spec/Chain.tla.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from kcl_dagster.chains.entry import FIRST, PublishingEntry
from kcl_dagster.chains.store import FileStore
from kcl_dagster.errors import SinkError
from kcl_dagster.model.claim import ChainId

FOLDER: Final = "_staged"
_SAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
# Delta's own compaction does not find a file that has `~` in its name. Former versions made such names.
_NAME: Final = re.compile(r"(?:([A-Za-z0-9_-]+)[.~])?([A-Za-z0-9_-]+)\.\d+_\d+_\d+\.parquet")
_LONGEST_OWNER: Final = 24  # characters of an application's or worker's name in a chain's


def beginning_of(application: str) -> str:
    """How the ids of all chains of the application begin, and of no other application: they may share a folder."""
    digest = hashlib.sha256(application.encode()).hexdigest()[:8]
    return f"{_SAFE.sub('-', application)[:_LONGEST_OWNER]}-{digest}~"


def chain_id(application: str, worker: str, unique: str) -> ChainId:
    """A new chain. `unique`: never the same again. The worker is named for people who look into the folder."""
    owner = _SAFE.sub("-", worker)[:_LONGEST_OWNER]
    return ChainId(f"{beginning_of(application)}{owner}-{_SAFE.sub('-', unique)}")


def file_name(chain: ChainId, batch: int, task: int, number: int) -> str:
    """The final name of a file: no other batch of any chain has it."""
    return f"{_beginning_of_names(chain, batch)}{task}_{number}.parquet"


def _beginning_of_names(chain: ChainId, batch: int) -> str:
    return f"{chain.replace('~', '.')}.{batch}_"


def folder_of(chain: ChainId) -> str:
    """What is staged for a chain is below it."""
    return f"{FOLDER}/{chain}"


def staged_path(chain: ChainId, path: str) -> str:
    """Where the file is until it is published at `path`."""
    return f"{folder_of(chain)}/{path}"


def staged_for(path: str) -> str | None:
    """Where the published file `path` was staged; None if it was not published by an entry of a chain."""
    name = _NAME.fullmatch(path.rpartition("/")[2])
    if name is None:
        return None
    application, rest = name.groups()
    return staged_path(ChainId(rest if application is None else f"{application}~{rest}"), path)


def publish(files: FileStore, chain: ChainId, entry: PublishingEntry) -> bool:
    """Publish what an entry decided. False: some of the files were not staged any more, so another process has
    published or settled the chain."""
    return not files.move({staged_path(chain, file.path): file.path for file in entry.files})


def staged(files: FileStore, chain: ChainId) -> list[str]:
    """All that is staged for a chain, finished or not."""
    prefix = f"{folder_of(chain)}/"
    return [file.path for file in [*files.files(prefix, hidden=True), *files.unfinished(prefix)]]


def staged_of_batch(files: FileStore, chain: ChainId, batch: int) -> list[str]:
    """All that is staged for one batch of a chain, finished or not, by whichever attempt of a task."""
    beginning = _beginning_of_names(chain, batch)
    return [path for path in staged(files, chain) if path.rpartition("/")[2].lstrip(".").startswith(beginning)]


def left_behind(files: FileStore, beginning: str, before: float, known: Collection[ChainId]) -> list[str]:
    """What was staged until `before` (epoch seconds by the store's clock) for chains whose ids begin so, other than
    `known`: those of the chains that have entries."""
    prefix = f"{FOLDER}/{beginning}"
    found = [file for file in files.files(prefix, hidden=True) if file.modified <= before]
    return [file.path for file in found if ChainId(file.path.split("/")[1]) not in known]


def discard(files: FileStore, chain: ChainId, paths: Iterable[str]) -> None:
    """Remove the staged files of a batch that was not decided. `paths`: their final ones."""
    files.delete([staged_path(chain, path) for path in paths])


class Publisher(Protocol):
    """Makes visible to readers what entries have decided. Called on the worker's main thread. Raises what the
    store raises; SinkError if the outcome is not known. Everything may be repeated, and done by several at once."""

    def check(self) -> None:
        """Raise SinkError while nothing more should be decided, because nothing can be published."""

    def publish(self, chain: ChainId, number: int, entry: PublishingEntry) -> None:
        """Of a chain of this worker: entry `number` was just decided. May leave the work to a later `step`."""

    def visible(self, chain: ChainId) -> int:
        """The last entry of a chain of this worker that is known to be visible, with all before it; 0: none. Sends
        no request."""

    def step(self, wanted: Mapping[ChainId, int]) -> None:
        """Publish what is due. `wanted`: entries of this worker that may not be visible yet."""

    def finish(self, wanted: Mapping[ChainId, int]) -> None:
        """Return when these entries are visible."""

    def settle(self, chain: ChainId, decided: Mapping[int, PublishingEntry]) -> None:
        """Publish all that was decided in a closed chain, by number, and remove what else is staged for it."""

    def passes_over(self, chain: ChainId, first: int) -> bool:
        """Whether the entries of a chain, of which the first one has the number `first`, are never published: the
        chain was deleted before a worker made them that was paused meanwhile."""

    def discard(self, chain: ChainId, paths: Mapping[str, Sequence[str]]) -> None:
        """Remove the files of a batch that was not decided. `paths`: their final ones, by table."""

    def forget(self, chain: ChainId) -> None:
        """Remove what is left of a chain of this worker, all of whose entries are visible."""

    def remove_left_behind(self, beginning: str, before: float, known: Collection[ChainId]) -> None:
        """See `left_behind`."""


@dataclass(slots=True)
class FolderPublisher:
    """For folders without a catalog: an entry is published by moving its files, at once."""

    files: FileStore
    _visible: dict[ChainId, int] = field(default_factory=dict)

    def check(self) -> None:
        """What is decided can be published by any worker."""

    def publish(self, chain: ChainId, number: int, entry: PublishingEntry) -> None:
        if not publish(self.files, chain, entry):
            raise SinkError(f"chain {chain} was settled by another worker while its batch was published")
        self._visible = {chain: number}

    def visible(self, chain: ChainId) -> int:
        return self._visible.get(chain, 0)

    def step(self, wanted: Mapping[ChainId, int]) -> None:
        """Nothing is left for later."""

    def finish(self, wanted: Mapping[ChainId, int]) -> None:
        """Nothing is left for later."""

    def settle(self, chain: ChainId, decided: Mapping[int, PublishingEntry]) -> None:
        """All files of an entry were staged before it was made. So what a list does not have after the chain was
        closed was published before, and costs no request."""
        left = set(staged(self.files, chain))
        for _, entry in sorted(decided.items()):
            names = {path: file.path for file in entry.files if (path := staged_path(chain, file.path)) in left}
            if names:
                self.files.move(names)
                left -= names.keys()
        self.files.delete(sorted(left))
        self.files.remove_empty(folder_of(chain))

    def passes_over(self, chain: ChainId, first: int) -> bool:  # noqa: ARG002 - of any chain
        """What was staged for such a chain was removed with it."""
        return False

    def discard(self, chain: ChainId, paths: Mapping[str, Sequence[str]]) -> None:
        discard(self.files, chain, paths.get(FIRST, ()))

    def forget(self, chain: ChainId) -> None:
        self.files.delete(staged(self.files, chain))
        self.files.remove_empty(folder_of(chain))

    def remove_left_behind(self, beginning: str, before: float, known: Collection[ChainId]) -> None:
        self.files.delete(left_behind(self.files, beginning, before, known))
