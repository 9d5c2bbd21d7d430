"""The entries of chains as files: `_chains/<chain>/<number>.json` below the root of a sink.

Readers pass over names that begin with an underscore. Nothing is cached.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from kcl_dagster.aws import RequestRefused
from kcl_dagster.chains.entry import Entry, decoded, encoded
from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.model.claim import ChainId

FOLDER: Final = "_chains"
_PATH: Final = re.compile(rf"{FOLDER}/([A-Za-z0-9_~-]+)/(\d{{12}})\.json")
_MISSING: Final = frozenset({"NoSuchKey", "404"})


class FoundFile(Protocol):
    """`modified`: epoch seconds by the store's clock."""

    @property
    def path(self) -> str: ...
    @property
    def modified(self) -> float: ...


class FileStore(Protocol):
    """What chains need of the store of a sink; `kcl_dagster.spark.storage` has two. Paths are relative to a root.

    Lists are consistent: a file that was created or deleted before a list began is in it, or is not.
    """

    @property
    def root(self) -> str: ...

    def create(self, path: str, content: bytes) -> bool:
        """Store a file, whole and durably, if there is none. Returns whether this call stored it. If it raises, or
        if an answer was lost on the way, it may have stored the file; then False may be returned, too. Raises
        ConfigurationError where the store cannot do this."""

    def get(self, path: str) -> bytes: ...

    def files(self, prefix: str = "", *, hidden: bool = False) -> Iterator[FoundFile]: ...

    def unfinished(self, prefix: str = "") -> Iterator[FoundFile]: ...

    def delete(self, paths: Sequence[str]) -> None: ...

    def remove_empty(self, folder: str) -> None:
        """Remove a folder, and those below, as far as they hold nothing. S3 has no folders. Does not raise."""

    def move(self, names: Mapping[str, str]) -> list[str]:
        """Give each file the path to which `names` maps it, whole and durably; a file that is there is replaced.
        Returns those that did not exist. May be repeated after a failure, and while another process does the same.
        """


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """An entry as a list shows it. `modified`: when it was made, in epoch seconds by the store's clock."""

    chain: ChainId
    number: int
    modified: float


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of all chains in a store."""

    files: FileStore

    def create(self, chain: ChainId, number: int, entry: Entry) -> bool:
        """As `FileStore.create`."""
        return self.files.create(_path(chain, number), encoded(entry))

    def read(self, chain: ChainId, number: int) -> Entry | None:
        """None: there is no such entry, or it was deleted."""
        path = _path(chain, number)
        content = found_content(self.files, path)
        return None if content is None else decoded(content, f"{self.files.root}/{path}")

    def numbers(self, chain: ChainId) -> list[int]:
        """Those of the entries that were not deleted, in order."""
        found = (_PATH.fullmatch(file.path) for file in self.files.files(f"{FOLDER}/{chain}/", hidden=True))
        return sorted(int(match[2]) for match in found if match)

    def delete(self, chain: ChainId, numbers: Iterable[int]) -> None:
        """In this order: a process that is killed on the way leaves the rest."""
        for number in numbers:
            self.files.delete([_path(chain, number)])

    def forget(self, chain: ChainId) -> None:
        """Delete all entries of the chain, and their folder."""
        self.delete(chain, self.numbers(chain))
        self.files.remove_empty(f"{FOLDER}/{chain}")

    def chains(self, beginning: str) -> dict[ChainId, tuple[int, float]]:
        """The number of the last entry of each chain whose id begins so, and when that was made: epoch seconds by
        the store's clock."""
        found: dict[ChainId, list[tuple[int, float]]] = defaultdict(list)
        for one in self.all(beginning):
            found[one.chain].append((one.number, one.modified))
        return {chain: max(entries) for chain, entries in found.items()}

    def all(self, beginning: str) -> list[FoundEntry]:
        """The entries of all chains whose ids begin so."""
        listed = self.files.files(f"{FOLDER}/{beginning}", hidden=True)
        matches = ((file, _PATH.fullmatch(file.path)) for file in listed)
        return [FoundEntry(ChainId(match[1]), int(match[2]), file.modified) for file, match in matches if match]


def found_content(files: FileStore, path: str) -> bytes | None:
    """None: there is no such file."""
    try:
        return files.get(path)
    except FileNotFoundError:
        return None
    except RequestRefused as error:
        if error.code not in _MISSING:
            raise
        return None


def check_store(files: FileStore, unique: str) -> None:
    """Raise ConfigurationError if the store replaces a file that must be created only once: some that imitate S3
    ignore the condition of a put. `unique`: never the same again."""
    path = f"{FOLDER}/check-{unique}"
    try:
        files.create(path, b"")
        is_replaced = files.create(path, b"")
    finally:
        with suppress(KclError, OSError):
            files.delete([path])
    if is_replaced:
        raise ConfigurationError(
            f"{files.root}: the store ignores If-None-Match and replaces files that exist, so two workers could "
            "decide the same batch: use a store that refuses such a put"
        )


def _path(chain: ChainId, number: int) -> str:
    return f"{FOLDER}/{chain}/{number:012d}.json"
