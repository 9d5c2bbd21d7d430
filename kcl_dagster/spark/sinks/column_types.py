"""The types of the columns below a path, stored beside the data, so that all workers store the same types.

Each column has one file, which is created once and never replaced. Readers ignore names that begin with an
underscore.
"""

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pyarrow as pa

from kcl_dagster.errors import KclError, SinkError, TransformError
from kcl_dagster.spark.storage import Store

FOLDER: Final = "_kcl_dagster_columns"
_DIGEST_CHARACTERS: Final = 32
_AT_ONCE: Final = 16  # files that are read at the same time; one after the other, they would delay the first batch

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class ColumnTypes:
    """The stored types of columns. Used on the driver. Errors of the store are raised as SinkError."""

    store: Store
    _known: dict[str, pa.DataType] | None = field(default=None)

    def known(self) -> dict[str, pa.DataType]:
        """The types of the columns by name. Only the first call lists the files, so types that other workers have
        stored since may be missing."""
        if self._known is None:
            try:
                paths = [file.path for file in self.store.files(f"{FOLDER}/", hidden=True)]
                found = _at_once(self._read, paths)
            except (OSError, KclError) as error:
                raise SinkError(f"{self.store.root}: {FOLDER} could not be read: {error}") from error
            self._known = {one.name: one.type for one in found}
        return dict(self._known)

    def add(self, types: dict[str, pa.DataType]) -> None:
        """Store the types of new columns, before their first data. Raises TransformError if another worker has
        stored a column with another type meanwhile."""
        known = self.known()
        new = [pa.field(name, kind) for name, kind in types.items() if name not in known]
        stored = _at_once(self._stored, new)
        assert self._known is not None
        self._known.update({one.name: one.type for one in stored})
        for column, found in zip(new, stored, strict=True):
            if (found.name, found.type) != (column.name, column.type):
                raise TransformError(
                    f"column {column.name} is of type {column.type}, and column {found.name} of type {found.type} "
                    f"is stored at {self.store.root}: cast it in the function, or give it another name"
                )

    def _stored(self, column: pa.Field) -> pa.Field:
        """Store the column, and return it. If another worker has stored it already, return the column of that
        worker."""
        path = path_of(column.name)
        try:
            is_new = self.store.create(path, pa.schema([column]).serialize().to_pybytes())
            return column if is_new else self._read(path)
        except (OSError, KclError) as error:
            raise SinkError(f"{self.store.root}: {path} could not be written: {error}") from error

    def _read(self, path: str) -> pa.Field:
        return pa.ipc.read_schema(pa.BufferReader(self.store.get(path))).field(0)


def path_of(name: str) -> str:
    """The path of the file of a column. Names that differ only in case have the same file."""
    digest = hashlib.sha256(name.casefold().encode()).hexdigest()
    return f"{FOLDER}/{digest[:_DIGEST_CHARACTERS]}"


def _at_once(action: Callable[[T], R], ones: Iterable[T]) -> list[R]:
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="kcl-columns") as pool:
        return list(pool.map(action, ones))
