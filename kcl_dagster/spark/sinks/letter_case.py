"""File systems that do not tell upper from lower case, as those of macOS and Windows.

There, the folders of two partition values that differ in case only are one folder, with the spelling of the value
that came first. So the files of one part of a batch need names that tell these values apart.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_DIGEST_CHARACTERS: Final = 8
_SUFFIX: Final = re.compile(rf"~[0-9a-f]{{{_DIGEST_CHARACTERS}}}(?=\.parquet$)")


class Spellings:
    """Paths below `root` that are in use. Two of them may be one file, which no comparison of names tells."""

    def __init__(self, root: str, paths: Iterable[str] = ()) -> None:
        self._root = root
        self._used: dict[str, list[str]] = {}
        for path in paths:
            self.add(path)

    def add(self, path: str) -> None:
        """The file has to be there before paths are compared with it."""
        self._used.setdefault(_folded(path), []).append(path)

    def __contains__(self, path: str) -> bool:
        """Whether one of the paths is the same file, in any spelling."""
        used = self._used.get(_folded(path), ())
        return path in used or any(self._is_one_folder(path, other) for other in used)

    def _is_one_folder(self, one: str, other: str) -> bool:
        try:
            return Path(self._root, one).parent.samefile(Path(self._root, other).parent)
        except (OSError, ValueError):  # a folder that is not there, or a store that has none
            return False


def told_apart(path: str) -> str:
    """Another name for the file, by the spelling of its folder. The same path always gets the same name."""
    folder, _, name = path.rpartition("/")
    digest = hashlib.sha256(folder.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{folder}/{name.removesuffix('.parquet')}~{digest}.parquet"


def plain_name(path: str) -> str:
    """The name of a file without what tells its folder apart."""
    return _SUFFIX.sub("", path.rpartition("/")[2])


def _folded(path: str) -> str:
    """Equal for paths that may be one file. Some file systems store accents as characters of their own."""
    return unicodedata.normalize("NFD", path.casefold())
