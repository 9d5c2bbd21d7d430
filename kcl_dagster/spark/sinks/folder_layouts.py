"""Which layouts the files of a folder may have: all at its root, or in folders for partition values.

A repeated batch removes what an earlier attempt stored. If the partitioning was changed in between, the earlier
attempt may have stored into other folders, and finding those means to list the whole lake. So every sink leaves a
mark of its layout before its first file, and a folder whose only mark is the flat one need not be listed.
"""

from typing import Final

from kcl_dagster.errors import SinkError
from kcl_dagster.spark.storage import Store

MARKS: Final = "_kcl_dagster_layouts/"  # readers pass over names that begin with an underscore
FLAT: Final = "flat"
FOLDERS: Final = "folders"
UNKNOWN: Final = "unknown"
"""There were files before there were marks."""


def mark(store: Store, *, has_folders: bool) -> None:
    """Before the first file that a process stores. Marks are only added, so concurrent calls do no harm."""
    own = FOLDERS if has_folders else FLAT
    try:
        found = _marks(store)
        if not found and next(store.files(), None) is not None:
            store.put(f"{MARKS}{UNKNOWN}", b"")
        if own not in found:
            store.put(f"{MARKS}{own}", b"")
    except OSError as error:
        raise SinkError(f"parquet at {store.root}: {MARKS} could not be written: {error}") from error


def is_always_flat(store: Store) -> bool:
    """Whether no file was ever stored into a folder for partition values. Raises OSError."""
    return _marks(store) == {FLAT}


def _marks(store: Store) -> set[str]:
    return {file.path.removeprefix(MARKS) for file in store.files(MARKS, hidden=True)}
