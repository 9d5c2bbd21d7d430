"""The time through which an application is complete, stored with its data for engines that do not use Dagster.

An epoch and a time, `through`, are stored together. They mean: when this pair was written, every record that had
arrived at the streams before `through` was stored. A reset or an import begins a new epoch, because records that
arrived before the former epoch's `through` can then be stored again. So only times of the newest epoch are valid.
The latest of them applies; the earlier ones are lower bounds.

In a Parquet folder, each application has a file with its epoch and time. In a table, the pair is in the metadata of
the commits. If a table gets no commit for longer than a window, the pair is stored in a commit without data, or in
a property of the table.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from kcl_dagster.aws import RequestRefused
from kcl_dagster.spark.storage import NOT_THERE, Store
from kcl_dagster.tables.completeness_row import WrittenThrough

FOLDER: Final = "_kcl_dagster_complete/"  # readers ignore names that begin with an underscore
FORMAT: Final = 1
# How many of a table's last commits are searched for the time. If only an older commit has the time, the time is
# written again, which does no harm.
RECENT_COMMITS: Final = 100


class CompletenessFile(msgspec.Struct, frozen=True):
    """The content of the file in a Parquet folder. `through` is ISO 8601 in UTC, and `through_epoch` the same
    time in epoch seconds. `epoch` grows with each reset and import."""

    application: str
    epoch: int
    through: str
    through_epoch: int
    format: int = FORMAT


class _Entry(msgspec.Struct, frozen=True):
    epoch: int
    through: datetime


def application_key(application: str) -> str:
    """The name of the application, or of one of its series of commits, in a table's metadata."""
    return f"kcl-dagster/{application}"


def completeness_key(application: str) -> str:
    """The key under which a table's metadata has the time through which the application is complete."""
    return f"{application_key(application)}/complete-through"


def completeness_record(application: str, known: WrittenThrough | None) -> dict[str, str]:
    """The time through which the application is complete, as metadata of a commit. Empty if `known` has no time."""
    if known is None or known.through is None:
        return {}
    return {completeness_key(application): json.dumps({"epoch": known.epoch, "through": _iso(known.through)})}


def is_in_table(entries: Iterable[object], epoch: int, moment: int) -> bool:
    """Whether one of `entries` (values of `completeness_key` in a table) has a later epoch, or this epoch and a
    time of at least `moment`."""
    return any((known.epoch, known.through or 0) >= (epoch, moment) for known in map(_parsed, entries) if known)


def file_of(application: str) -> str:
    """The path of an application's file below the folder of the data."""
    return f"{FOLDER}{application}.json"


def write_file(store: Store, application: str, known: WrittenThrough) -> bool:
    """Write the time `known` to the application's file. Does nothing if the file has this time or a later one.
    Returns whether the file was written. Raises OSError and errors of AWS.

    If one of two concurrent workers was paused before it wrote, the file gets an older time. This time is still a
    true lower bound. It remains until the next write, for ten minutes at most.
    """
    if known.through is None:
        return False
    found = _file(store, application)
    if found is not None and (found.epoch, found.through_epoch) >= (known.epoch, known.through):
        return False
    content = CompletenessFile(application, known.epoch, _iso(known.through), known.through)
    store.put(file_of(application), msgspec.json.encode(content))
    return True


def _file(store: Store, application: str) -> CompletenessFile | None:
    """The content of the file; None if there is no file, or it has another format."""
    try:
        return msgspec.json.decode(store.get(file_of(application)), type=CompletenessFile)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    except RequestRefused as error:
        if error.code not in NOT_THERE:
            raise
        return None


def _parsed(entry: object) -> WrittenThrough | None:
    if not isinstance(entry, str):
        return None
    try:
        read = msgspec.json.decode(entry, type=_Entry)
    except msgspec.DecodeError:
        return None
    return WrittenThrough(int(read.through.timestamp()), read.epoch)


def _iso(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
