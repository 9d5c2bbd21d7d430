"""The folder in which the operations of a job read and write files."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.spark.storage import LocalStore, S3Options, S3Store, open_store


@dataclass(frozen=True, slots=True)
class ExportFolder:
    """The only folder on this machine or on S3 that a user of the launchpad can access. Files in it are never
    replaced.

    `place`: returns the folder. `unnamed`: the name of a file if the user gives none. `s3`: returns the options for
    S3.
    """

    place: Callable[[], str]
    unnamed: str
    s3: Callable[[], S3Options]

    def put(self, name: str | None, text: str, *, force: bool = False) -> str:
        """Store a new file and return its place. Raises ConfigurationError if the file exists, or if `force` is
        set."""
        if force:
            raise ConfigurationError("no file in the folder of exports is replaced: choose another name")
        name = name or self.unnamed
        store = self._store(name)
        if not store.put_new(name, text.encode()):
            raise ConfigurationError(f"{store.root}/{name} exists, and is not replaced: choose another name")
        return f"{store.root}/{name}"

    def get(self, name: str) -> str:
        """Read a file. Raises ConfigurationError if it cannot be read."""
        store = self._store(name)
        try:
            text: str = store.get(name).decode()
        except (OSError, UnicodeDecodeError, KclError) as error:
            raise ConfigurationError(f"{store.root}/{name} cannot be read: {error}") from error
        return text

    def _store(self, name: str) -> LocalStore | S3Store:
        """The store of the folder, for a file in it or in a subfolder.

        Raises ConfigurationError if the name leads out of the folder.
        """
        if not _NAME.fullmatch(name) or any(part.startswith(".") for part in name.split("/")):
            raise ConfigurationError(
                f"{name!r} is no name of a file below {self.place()}: letters, digits and . _ - =, folders with /"
            )
        store = open_store(self.place(), self.s3())
        if isinstance(store, LocalStore):
            root = Path(store.root).resolve()
            if not (root / name).resolve().is_relative_to(root):
                raise ConfigurationError(f"{name!r} leads out of {store.root} by a link")
        return store


_NAME: Final = re.compile(r"[\w.=-]+(/[\w.=-]+)*", re.ASCII)
