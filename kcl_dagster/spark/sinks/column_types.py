"""The types of the columns below a path, stored beside the data, so that all workers store the same types.

Each column has one file, which is created once and never replaced. Readers ignore names that begin with an
underscore.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from kcl_dagster.errors import KclError, SinkError, TransformError
from kcl_dagster.spark.storage import Store

FOLDER: Final = "_kcl_dagster_columns"
_DIGEST_CHARACTERS: Final = 32


@dataclass(slots=True)
class ColumnTypes:
    """The stored types of columns. Used on the driver. Errors of the store are raised as SinkError."""

    store: Store
    _known: dict[str, pa.DataType] | None = field(default=None)

    def known(self) -> dict[str, pa.DataType]:
        """Column name -> type. The first call lists the files; workers may have added others since."""
        if self._known is None:
            try:
                found = [self._read(file.path) for file in self.store.files(f"{FOLDER}/", hidden=True)]
            except (OSError, KclError) as error:
                raise SinkError(f"{self.store.root}: {FOLDER} could not be read: {error}") from error
            self._known = {one.name: one.type for one in found}
        return dict(self._known)

    def add(self, types: dict[str, pa.DataType]) -> None:
        """Store the types of new columns, before their first data. Raises TransformError if another worker has
        stored a column with another type meanwhile."""
        known = self.known()
        for name, kind in types.items():
            if name in known:
                continue
            path = path_of(name)
            try:
                content = pa.schema([pa.field(name, kind)]).serialize().to_pybytes()
                is_new = self.store.create(path, content)
                stored = pa.field(name, kind) if is_new else self._read(path)
            except (OSError, KclError) as error:
                raise SinkError(f"{self.store.root}: {path} could not be written: {error}") from error
            assert self._known is not None
            self._known[stored.name] = stored.type
            if (stored.name, stored.type) != (name, kind):
                raise TransformError(
                    f"column {name} is of type {kind}, and column {stored.name} of type {stored.type} is stored at "
                    f"{self.store.root}: cast it in the function, or give it another name"
                )

    def _read(self, path: str) -> pa.Field:
        return pa.ipc.read_schema(pa.BufferReader(self.store.get(path))).field(0)


def path_of(name: str) -> str:
    """The path of the file of a column. Names that differ only in case have the same file."""
    digest = hashlib.sha256(name.casefold().encode()).hexdigest()
    return f"{FOLDER}/{digest[:_DIGEST_CHARACTERS]}"
