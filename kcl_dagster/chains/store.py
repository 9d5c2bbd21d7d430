"""The entries of chains as files: `_chains/<chain>/<number>.json` below the root of a sink.

Readers of the data ignore names that begin with an underscore. Nothing is cached here.
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
    """A file in a listing. `modified`: epoch seconds by the store's clock."""

    @property
    def path(self) -> str: ...
    @property
    def modified(self) -> float: ...


class FileStore(Protocol):
    """The operations that chains need from a sink's store. `kcl_dagster.spark.storage` has two implementations.
    Paths are relative to a root.

    Listings are consistent: files that were created before a listing began are in it, and files that were deleted
    before it began are not.
    """

    @property
    def root(self) -> str: ...

    def create(self, path: str, content: bytes) -> bool:
        """Create a file, whole and durably, if no file has this path. Returns whether this call created it. If this
        raises, the file may exist nevertheless. If a response is lost and the call repeats its request, the result
        is False, although this call created the file. Raises ConfigurationError if the store has no conditional
        create."""

    def get(self, path: str) -> bytes: ...

    def files(self, prefix: str = "", *, hidden: bool = False) -> Iterator[FoundFile]: ...

    def unfinished(self, prefix: str = "") -> Iterator[FoundFile]: ...

    def delete(self, paths: Sequence[str]) -> None: ...

    def remove_empty(self, folder: str) -> None:
        """Remove the empty folders among a folder and its subfolders. Does nothing on S3, which has no folders.
        Never raises."""

    def move(self, names: Mapping[str, str]) -> list[str]:
        """Move each file to the path to which `names` maps it, whole and durably. A file that already has the new
        path is replaced. Returns the files that did not exist. Can be repeated after a failure, and while another
        process makes the same moves."""


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """An entry in a listing. `modified`: when it was made, in epoch seconds by the store's clock."""

    chain: ChainId
    number: int
    modified: float


@dataclass(frozen=True, slots=True)
class Entries:
    files: FileStore

    def create(self, chain: ChainId, number: int, entry: Entry) -> bool:
        return self.files.create(_path(chain, number), encoded(entry))

    def read(self, chain: ChainId, number: int) -> Entry | None:
        """Read an entry. Returns None if it was never made, or was deleted."""
        path = _path(chain, number)
        content = found_content(self.files, path)
        return None if content is None else decoded(content, f"{self.files.root}/{path}")

    def numbers(self, chain: ChainId) -> list[int]:
        """The numbers of the chain's entries that were not deleted, in order."""
        found = (_PATH.fullmatch(file.path) for file in self.files.files(f"{FOLDER}/{chain}/", hidden=True))
        return sorted(int(match[2]) for match in found if match)

    def delete(self, chain: ChainId, numbers: Iterable[int]) -> None:
        """Delete entries one by one in the given order. If the process is killed meanwhile, the later entries
        remain."""
        for number in numbers:
            self.files.delete([_path(chain, number)])

    def forget(self, chain: ChainId) -> None:
        self.delete(chain, self.numbers(chain))
        self.files.remove_empty(f"{FOLDER}/{chain}")

    def chains(self, beginning: str) -> dict[ChainId, tuple[int, float]]:
        """For each chain whose id begins with `beginning`: the number of its last entry, and when that entry was
        made (epoch seconds by the store's clock)."""
        found: dict[ChainId, list[tuple[int, float]]] = defaultdict(list)
        for one in self.all(beginning):
            found[one.chain].append((one.number, one.modified))
        return {chain: max(entries) for chain, entries in found.items()}

    def all(self, beginning: str) -> list[FoundEntry]:
        """The entries of all chains whose ids begin with `beginning`."""
        listed = self.files.files(f"{FOLDER}/{beginning}", hidden=True)
        matches = ((file, _PATH.fullmatch(file.path)) for file in listed)
        return [FoundEntry(ChainId(match[1]), int(match[2]), file.modified) for file, match in matches if match]


def found_content(files: FileStore, path: str) -> bytes | None:
    try:
        return files.get(path)
    except FileNotFoundError:
        return None
    except RequestRefused as error:
        if error.code not in _MISSING:
            raise
        return None


def check_store(files: FileStore, unique: str) -> None:
    """Check that the store refuses to create a file that exists. Raises ConfigurationError if the store replaces
    the file. Some imitations of S3 do so: they ignore the condition of a put. `unique`: a part of the file's name,
    which must never be used again."""
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
