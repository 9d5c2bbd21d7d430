"""Staged files, and how they get their final names.

The files of a batch are written to `_staged/<chain>/<final path>`. Readers ignore names that begin with an
underscore. When the batch is decided, each file is moved to its final path. Any process can repeat the moves. If a
file of a decided batch is no longer staged, it was moved before. A compaction removes the staged copy of a file
(`staged_for`) before it removes the file itself. A publisher that was paused therefore cannot bring back a file
that was merged into another one.

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
# The id of a chain contains `~`, but a file's name has `.` instead, because Delta's compaction ignores files whose
# names contain `~`. Earlier versions wrote names with `~`.
_NAME: Final = re.compile(r"(?:([A-Za-z0-9_-]+)[.~])?([A-Za-z0-9_-]+)\.(\d+)_\d+_\d+\.parquet")
_LONGEST_OWNER: Final = 24  # characters of the application's or worker's name within a chain's id


def beginning_of(application: str) -> str:
    """The prefix of the ids of all chains of this application. The ids of other applications' chains, which can be
    in the same folder, do not have this prefix."""
    digest = hashlib.sha256(application.encode()).hexdigest()[:8]
    return f"{_SAFE.sub('-', application)[:_LONGEST_OWNER]}-{digest}~"


def chain_id(application: str, worker: str, unique: str) -> ChainId:
    """Make the id of a new chain. `unique` must never be used again. The id contains the worker's name for
    operators who list the folder."""
    owner = _SAFE.sub("-", worker)[:_LONGEST_OWNER]
    return ChainId(f"{beginning_of(application)}{owner}-{_SAFE.sub('-', unique)}")


def file_name(chain: ChainId, batch: int, task: int, number: int, attempt: int = 0) -> str:
    """The final name of a file. No other batch of any chain, and no other attempt of the task, uses the same name.
    The names of the files of a batch sort in the order of its rows."""
    return f"{_beginning_of_names(chain, batch)}{task:06d}{attempt}_{number:04d}.parquet"


def batch_of(path: str) -> str | None:
    """A text that identifies the batch of a published file; None if its name is not that of a file of a chain."""
    name = _NAME.fullmatch(path.rpartition("/")[2])
    return None if name is None else name.string[: name.end(3)]


def _beginning_of_names(chain: ChainId, batch: int) -> str:
    return f"{chain.replace('~', '.')}.{batch}_"


def folder_of(chain: ChainId) -> str:
    """The folder below which all files of a chain are staged."""
    return f"{FOLDER}/{chain}"


def staged_path(chain: ChainId, path: str) -> str:
    return f"{folder_of(chain)}/{path}"


def staged_for(path: str) -> str | None:
    """The path at which the published file `path` was staged; None if its name is not that of a file of a
    chain."""
    name = _NAME.fullmatch(path.rpartition("/")[2])
    if name is None:
        return None
    application, rest, _ = name.groups()
    return staged_path(ChainId(rest if application is None else f"{application}~{rest}"), path)


def publish(files: FileStore, chain: ChainId, entry: PublishingEntry) -> bool:
    """Move the files of a decided entry to their final paths. Returns False if some of them were no longer staged,
    because another process has published or settled the chain."""
    return not files.move({staged_path(chain, file.path): file.path for file in entry.files})


def staged(files: FileStore, chain: ChainId) -> list[str]:
    """The paths of all staged files of a chain, including unfinished ones."""
    prefix = f"{folder_of(chain)}/"
    return [file.path for file in [*files.files(prefix, hidden=True), *files.unfinished(prefix)]]


def staged_of_batch(files: FileStore, chain: ChainId, batch: int) -> list[str]:
    """The paths of all staged files of one batch of a chain, of all task attempts, including unfinished ones."""
    beginning = _beginning_of_names(chain, batch)
    return [path for path in staged(files, chain) if path.rpartition("/")[2].lstrip(".").startswith(beginning)]


def left_behind(files: FileStore, beginning: str, before: float, known: Collection[ChainId]) -> list[str]:
    """The paths of files that were staged before `before` (epoch seconds by the store's clock) for chains without
    entries. `beginning`: the prefix of the chains' ids. `known`: the chains that have entries."""
    prefix = f"{FOLDER}/{beginning}"
    found = [file for file in files.files(prefix, hidden=True) if file.modified <= before]
    return [file.path for file in found if ChainId(file.path.split("/")[1]) not in known]


def discard(files: FileStore, chain: ChainId, paths: Iterable[str]) -> None:
    """Remove the staged files of a batch that was not decided. `paths`: the final paths of the files."""
    files.delete([staged_path(chain, path) for path in paths])


class Publisher(Protocol):
    """Makes decided entries visible to readers. Called on the worker's main thread. Raises the store's errors, and
    SinkError if the outcome is not known. Every method can be repeated, and run in several processes at once."""

    def check(self) -> None:
        """Raise SinkError while no further batch should be decided, because nothing can be published."""

    def begin(self) -> None:
        """Prepare for the first batch. Raises SinkError if this batch must not be decided, because it might never
        be published. A call of `check` includes this."""

    def publish(self, chain: ChainId, number: int, entry: PublishingEntry) -> None:
        """Publish an entry that this worker has just made in a chain of its own. `number`: the number of the entry.
        A publisher can postpone this to a later `step`."""

    def visible(self, chain: ChainId) -> int:
        """The number of the last entry of a chain of this worker that is known to be visible, together with all
        entries before it; 0 if there is none. Sends no request."""

    def step(self, wanted: Mapping[ChainId, int]) -> None:
        """Publish the entries that are due. `wanted`: for each chain of this worker, the number of the last entry
        that is not known to be visible yet."""

    def finish(self, wanted: Mapping[ChainId, int]) -> None:
        """Publish the entries of each chain through the number in `wanted`, see `step`. Returns when they are
        visible."""

    def settle(self, chain: ChainId, decided: Mapping[int, PublishingEntry]) -> None:
        """Publish all decided entries of a closed chain, and remove its other staged files. `decided`: the entries
        by number."""

    def passes_over(self, chain: ChainId, first: int) -> bool:
        """Whether the entries of this chain were made after the chain was deleted, by a worker that had been
        paused. Such entries are never published. `first`: the number of the chain's first entry."""

    def discard(self, chain: ChainId, paths: Mapping[str, Sequence[str]]) -> None:
        """Remove the files of a batch that was not decided. `paths`: their final paths, by table."""

    def forget(self, chain: ChainId) -> None:
        """Remove what the publisher keeps for a chain of this worker, such as staged files. The entries of the
        chain must all be visible before. This method does not remove them."""

    def remove_left_behind(self, beginning: str, before: float, known: Collection[ChainId]) -> None:
        """Remove the files that `left_behind` describes."""


@dataclass(slots=True)
class FolderPublisher:
    """Publishes to folders without a catalog. Moves the files of an entry as soon as the entry is decided."""

    files: FileStore
    _visible: dict[ChainId, int] = field(default_factory=dict)

    def check(self) -> None:
        """Never raises, because any worker can publish to a folder."""

    def begin(self) -> None:
        """Never raises, see `check`."""

    def publish(self, chain: ChainId, number: int, entry: PublishingEntry) -> None:
        if not publish(self.files, chain, entry):
            raise SinkError(f"chain {chain} was settled by another worker while its batch was published")
        self._visible = {chain: number}

    def visible(self, chain: ChainId) -> int:
        return self._visible.get(chain, 0)

    def step(self, wanted: Mapping[ChainId, int]) -> None:
        """Does nothing, because `publish` leaves no work."""

    def finish(self, wanted: Mapping[ChainId, int]) -> None:
        """Does nothing, because `publish` leaves no work."""

    def settle(self, chain: ChainId, decided: Mapping[int, PublishingEntry]) -> None:
        """See `Publisher.settle`. The staged files are listed after the chain was closed, and all files of an entry
        were staged before the entry was made. So if a file of an entry is not in the listing, it was published
        before, and needs no request."""
        left = set(staged(self.files, chain))
        for _, entry in sorted(decided.items()):
            names = {path: file.path for file in entry.files if (path := staged_path(chain, file.path)) in left}
            if names:
                self.files.move(names)
                left -= names.keys()
        self.files.delete(sorted(left))
        self.files.remove_empty(folder_of(chain))

    def passes_over(self, chain: ChainId, first: int) -> bool:  # noqa: ARG002 - the same for every chain
        """Always False. The staged files of a deleted chain were removed with it, so its later entries publish
        nothing."""
        return False

    def discard(self, chain: ChainId, paths: Mapping[str, Sequence[str]]) -> None:
        discard(self.files, chain, paths.get(FIRST, ()))

    def forget(self, chain: ChainId) -> None:
        self.files.delete(staged(self.files, chain))
        self.files.remove_empty(folder_of(chain))

    def remove_left_behind(self, beginning: str, before: float, known: Collection[ChainId]) -> None:
        self.files.delete(left_behind(self.files, beginning, before, known))
