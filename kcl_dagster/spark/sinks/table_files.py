"""Writes the files of a table through the table's own access to its storage.

A catalog can issue credentials that are valid for one table and some minutes (Polaris, Unity, Lake Formation, S3
Tables). The credentials are in the properties of the loaded table, so the table is loaded for each batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kcl_dagster.errors import SinkError
from kcl_dagster.spark.storage import LONGEST_KEY, S3Options, Store, open_store

_OF_FILES: Final = ("s3.", "client.", "gcs.", "adls.", "hdfs.", "py-io-impl")
_WITHOUT_COPIES: Final = "--table-s3"  # the end of the names of buckets of S3 Tables, which support few requests


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Stores files below the URL `root` with pyiceberg's FileIO. Executors need pyiceberg for this."""

    root: str
    properties: Mapping[str, str] = field(repr=False)

    def too_long(self, path: str) -> str | None:
        is_short = len(f"{self.root}/{path}".encode()) <= LONGEST_KEY
        return None if is_short else f"a path of more than {LONGEST_KEY} bytes"

    def put(self, path: str, content: memoryview | bytes) -> None:
        from pyiceberg.io import load_file_io

        try:
            output = load_file_io(dict(self.properties), self.root).new_output(f"{self.root}/{path}")
            with output.create(overwrite=True) as stream:
                stream.write(bytes(content))
        except Exception as error:  # its class depends on the library that the FileIO uses
            raise SinkError(f"{self.root}/{path}: {type(error).__name__}: {error}") from error

    def delete(self, paths: Sequence[str]) -> None:
        from pyiceberg.io import load_file_io

        files = load_file_io(dict(self.properties), self.root)
        for path in paths:
            try:
                files.delete(f"{self.root}/{path}")
            except FileNotFoundError:
                continue
            except Exception as error:
                raise SinkError(f"{self.root}/{path}: {type(error).__name__}: {error}") from error


def files_of(root: str, properties: Mapping[str, Any], own: Mapping[str, str], s3: S3Options) -> Store | TableFiles:
    """Return the store for files below `root`: a store with the sink's own client, or the table's FileIO.

    `own`: the properties that the sink has given to the catalog. `properties`: the properties of the loaded table.
    If the two differ in settings for files, the catalog has changed these settings, for example to credentials for
    this table. The table's FileIO is then used. The FileIO is also used for bucket types and URL schemes that the
    sink's client does not support.
    """
    given = {name: str(value) for name, value in properties.items() if isinstance(value, str)}
    is_ours = _about_files(given) == _about_files(own)
    scheme, _, rest = root.partition("://")
    is_known = not rest or scheme in {"file", "s3", "s3a", "s3n"}
    if is_ours and is_known and not rest.partition("/")[0].endswith(_WITHOUT_COPIES):
        return open_store(root, s3)
    return TableFiles(root, given)


def _about_files(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name.startswith(_OF_FILES)}
