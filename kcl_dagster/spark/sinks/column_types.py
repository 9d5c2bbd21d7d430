"""The types of the columns of a Parquet folder. They are stored beside the data, so that all workers write files
with the same types.

The columns of the first output are in one file. Each later column has a file of its own. A file is created once and
never replaced. Readers ignore names that begin with an underscore.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pyarrow as pa

from kcl_dagster.errors import KclError, SinkError, TransformError
from kcl_dagster.spark.sinks.table_columns import fits
from kcl_dagster.spark.storage import Store

FOLDER: Final = "_kcl_dagster_columns"
FIRST_OUTPUT: Final = f"{FOLDER}/first"
_DIGEST_CHARACTERS: Final = 32
_PATH: Final = re.compile(rf"{FOLDER}/(?:first|[0-9a-f]{{{_DIGEST_CHARACTERS}}})")
_AT_ONCE: Final = 16  # files that are read at the same time; one after the other, they would delay the first batch

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class ColumnTypes:
    """The stored types of columns. Used on the driver. Errors of the store are raised as SinkError."""

    store: Store
    _known: dict[str, pa.DataType] = field(default_factory=dict)

    def known(self) -> dict[str, pa.DataType]:
        """The types of the columns by name. The first call that finds files reads them, and later calls do not read
        them again. So columns that other workers have added since then can be missing, but never columns of the
        first output."""
        if not self._known:
            try:
                files = list(self.store.files(f"{FOLDER}/", hidden=True))
            except (OSError, KclError) as error:
                raise SinkError(f"{self.store.root}: {FOLDER} could not be read: {error}") from error
            schemas = _at_once(self._read, [file.path for file in files if _PATH.fullmatch(file.path)])
            self._known = {one.name: one.type for schema in schemas for one in schema}
        return dict(self._known)

    def begin(self, types: Mapping[str, pa.DataType]) -> None:
        """Store the column types of the first output, before the data of this output is stored. If another worker
        has already stored types, they are kept, and `known` returns them."""
        if not types:
            return
        self._check_case(types, {})
        self._create(FIRST_OUTPUT, pa.schema(list(types.items())))

    def add(self, types: Mapping[str, pa.DataType]) -> None:
        """Store the types of new columns, before their first data. If another worker has stored a column with a
        wider type meanwhile, `known` then returns that type. Raises TransformError if a type does not fit the type
        that another worker has stored."""
        if not self.known():
            self.begin(types)
        known = self.known()
        self._check_case(types, known)
        new = [pa.field(name, kind) for name, kind in types.items() if name not in known]
        stored = _at_once(self._stored, new)
        self._known.update({one.name: one.type for one in stored})
        for column, found in zip(new, stored, strict=True):
            if found.name != column.name or not fits(column.type, found.type):
                raise self._refused(column, found)
        for name in types.keys() & known.keys():
            if not fits(types[name], known[name]):
                raise self._refused(pa.field(name, types[name]), pa.field(name, known[name]))

    def _check_case(self, types: Mapping[str, pa.DataType], known: Mapping[str, pa.DataType]) -> None:
        """Raise TransformError if two names differ only in case."""
        spelled = {name.casefold(): pa.field(name, kind) for name, kind in known.items()}
        for name, kind in types.items():
            other = spelled.setdefault(name.casefold(), pa.field(name, kind))
            if other.name != name:
                raise self._refused(pa.field(name, kind), other)

    def _refused(self, column: pa.Field, found: pa.Field) -> TransformError:
        return TransformError(
            f"column {column.name} is of type {column.type}, and column {found.name} of type {found.type} is "
            f"stored at {self.store.root}: cast it in the function, or give it another name"
        )

    def _stored(self, column: pa.Field) -> pa.Field:
        """Store the column, and return it. If another worker has stored it already, return the column of that
        worker."""
        path = path_of(column.name)
        return column if self._create(path, pa.schema([column])) else self._read(path).field(0)

    def _create(self, path: str, schema: pa.Schema) -> bool:
        try:
            return self.store.create(path, schema.serialize().to_pybytes())
        except (OSError, KclError) as error:
            raise SinkError(f"{self.store.root}: {path} could not be written: {error}") from error

    def _read(self, path: str) -> pa.Schema:
        try:
            content = self.store.get(path)
        except (OSError, KclError) as error:
            raise SinkError(f"{self.store.root}: {path} could not be read: {error}") from error
        try:
            schema = pa.ipc.read_schema(pa.BufferReader(content))
            is_ours = path == FIRST_OUTPUT or [path_of(name) for name in schema.names] == [path]
        except (pa.ArrowException, OSError, ValueError) as error:
            raise SinkError(
                f"{self.store.root}: {path} has no types of columns ({error}). Restore the file. If it is not from "
                "kcl-dagster, remove it"
            ) from error
        if not is_ours:
            raise SinkError(
                f"{self.store.root}: {path} has the types of other columns: {schema.names}. Remove the file if it "
                "is a copy of another one"
            )
        return schema


def path_of(name: str) -> str:
    """The path of the file of a column. Names that differ only in case have the same file."""
    digest = hashlib.sha256(name.casefold().encode()).hexdigest()
    return f"{FOLDER}/{digest[:_DIGEST_CHARACTERS]}"


def _at_once(action: Callable[[T], R], ones: Iterable[T]) -> list[R]:
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="kcl-columns") as pool:
        return list(pool.map(action, ones))
