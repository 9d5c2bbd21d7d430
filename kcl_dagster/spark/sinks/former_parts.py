"""Batches that former versions of this package have stored, for leases that are still pinned to such a batch.

Before a worker of those versions wrote the files of a batch, it wrote the end of the batch into the leases. This is
the pin. If the worker was killed, the pin remains, and the next worker has to handle the batch. For a table, this
module finds out whether the table contains the batch. For a folder, this cannot be found out, so the files of the
batch are removed.

A part is the records of one shard in a batch. For each part, a batch had one file for each partition value.

- In a folder, the name of a file identifies its part. A failed attempt can have stored only some files of a part.
- In a table, one commit added all files of a batch. The commit also recorded the last part of each shard, so that
  no part was added twice. If this module withdraws a part, it records this in the table. After that, a worker of a
  former version that still runs cannot add the part. If the table does not exist yet, nothing is recorded.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

from kcl_dagster.chains.store import found_content
from kcl_dagster.errors import SinkError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.runtime import Clock, Runtime, system
from kcl_dagster.spark.sinks.catalog_table import Addition, CatalogTable
from kcl_dagster.spark.sinks.completeness import RECENT_COMMITS, application_key
from kcl_dagster.spark.sinks.delta_log import LOG_RETRIES, DeltaLog
from kcl_dagster.spark.sinks.delta_rules import DeltaRules
from kcl_dagster.spark.sinks.letter_case import plain_name
from kcl_dagster.spark.storage import Store
from kcl_dagster.worker.batch import Part
from kcl_dagster.worker.processing_watch import uninterrupted

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyiceberg.table import Table

# Version 0.1 counted the batches of a lease from 1 and named files without the application.
_NUMBERS_OF_VERSION_0_1: Final = range(10**12)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_PART_FILE: Final = re.compile(r".+\.[A-Z_0-9]+-\d+\.\d+\.parquet")
# This file contains the name of the only application whose files in the folder can have names of version 0.1.
OWNER_FILE: Final = "_kcl_dagster_application"
LISTED_SECONDS: Final = 60.0  # for this time, a listing of a folder is reused


# Folders


def file_stem(part: Part) -> str:
    """The stem of the name of a part's file. It consists of

    - application and lease, because applications can share a folder,
    - the checkpoint after which the part begins,
    - the part's number, because different parts can begin at the same checkpoint: a part and its first half, or the
      first parts of a lease before and after the lease was made again.
    """
    stem = _stem_of_version_0_1(part)
    return stem if part.number in _NUMBERS_OF_VERSION_0_1 else f"{_short_name(part.application)}.{stem}"


def _stem_of_version_0_1(part: Part) -> str:
    lease = part.lease.replace(":", ".")  # object stores and Hadoop interpret colons
    return f"{lease}.{part.after.sequence}-{part.after.sub_sequence}.{part.number}"


def _short_name(application: str) -> str:
    """A short name that is different for each application. The application's own name can be too long for a part of
    a file name."""
    if _PLAIN_NAME.fullmatch(application):
        return application
    digest = hashlib.sha256(application.encode()).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9_-]', '_', application[:31])}~{digest}"


def _file_names(part: Part, owner: str | None) -> Iterator[str]:
    """All names that files of the part, and of the parts that it replaces, can have. `owner`: the application whose
    files in this folder have names of version 0.1; None if there is none. If the part is of another application,
    names with numbers of version 0.1 are left out. These names do not contain the application, so files with such
    names can be files of the owner."""
    is_owner = owner in (None, part.application.partition("/")[0])  # replays have the name `application/...`
    for number in range(_first_number(part), part.number + 1):
        one = replace(part, number=number)
        if is_owner or number not in _NUMBERS_OF_VERSION_0_1:
            yield f"{file_stem(one)}.parquet"
            yield f"{_stem_of_version_0_1(one)}.parquet"


def _first_number(part: Part) -> int:
    """The lowest number among the part and the parts that it replaces."""
    return part.number if part.instead_of is None else part.instead_of


@dataclass(slots=True)
class FolderParts:
    """The parts in a folder, see `worker.staging.FormerParts`. No part counts as stored, because it is not known
    which files a part should have."""

    store: Store
    clock: Clock = field(default_factory=lambda: system().clock)
    _files: dict[str, list[str]] = field(default_factory=dict)
    """The paths of the files with each name, from the last listing."""

    _listed: float = float("-inf")

    def stored_to(self, part: Part) -> Checkpoint | None:  # noqa: ARG002
        return None

    def withdraw(self, part: Part) -> None:
        """Remove all files of the part. This lists the whole folder, because former versions wrote files to a
        folder for each partition value. Listing can take a minute."""
        try:
            with uninterrupted():
                names = set(_file_names(part, self._owner()))
                left = [path for name in names for path in self._paths(name)]
                if left:
                    self.store.delete(left)
        except OSError as error:
            raise SinkError(
                f"parquet at {self.store.root}: files of batch {part.number} of {part.lease} could not be removed: "
                f"{error}"
            ) from error

    def _paths(self, name: str) -> list[str]:
        """The paths of files with this name. A listing is reused, because many leases can be pinned, and listing a
        large folder takes minutes. A former listing misses no file, because the workers that wrote such files have
        ended long before."""
        now = self.clock.monotonic()
        if now - self._listed > LISTED_SECONDS:
            self._files.clear()
            for file in self.store.files():
                name_of_file = plain_name(file.path)
                if _PART_FILE.fullmatch(name_of_file):
                    self._files.setdefault(name_of_file, []).append(file.path)
            self._listed = now
        return self._files.pop(name, [])

    def _owner(self) -> str | None:
        """The application whose files in this folder can have names of version 0.1; None if there is none."""
        content = found_content(self.store, OWNER_FILE)
        return None if content is None else content.decode(errors="replace")


# Tables


@dataclass(frozen=True, slots=True)
class StoredPart:
    """The last part of a shard in the metadata of a table. Checkpoints are empty if the part was withdrawn."""

    number: int
    after: str
    through: str

    @classmethod
    def of(cls, part: Part) -> Self:
        return cls(part.number, str(part.after), str(part.through))

    @classmethod
    def parse(cls, text: str) -> Self:
        number, after, through = json.loads(text)
        return cls(number, after, through)

    def __str__(self) -> str:
        return json.dumps([self.number, self.after, self.through])

    @property
    def is_withdrawn(self) -> bool:
        return not self.through


def owner_key(part: Part) -> str:
    """The key of a shard's parts in the metadata of a table. The key contains the application, because several
    applications can share a table."""
    return f"{application_key(part.application)}/{part.stream}/{part.shard_id}"


def stored_to(
    part: Part, newest: int | None, records: Callable[[], Iterable[str]], table: str
) -> Checkpoint | None:
    """The checkpoint through which the table contains the part; None if it does not contain the part. See
    `worker.staging.FormerParts`. `newest`: the number of the last part of the shard in the table. `records`:
    returns the texts of `StoredPart` that the table has for parts of the shard, the last one first."""
    first = _first_number(part)
    if newest is None or newest < first:
        return None
    for one in map(StoredPart.parse, records()):
        if not first <= one.number <= part.number:
            continue
        if one.is_withdrawn and one.number == newest:
            return None
        if one.after == str(part.after) and not one.is_withdrawn:
            return _checkpoint(one.through)
    raise SinkError(
        f"{table} has batch {newest} of {part.lease} already, and the lease is pinned to batch {part.number} "
        f"({part.after} to {part.through}), which is not in what is left of the table's history. The row of the "
        "lease was probably put back by hand: reset the lease; records that are read again are stored again"
    )


def withdrawn(part: Part) -> str:
    """The text of `StoredPart` that a table gets for a withdrawn part."""
    return str(StoredPart(part.number, "", ""))


def _checkpoint(text: str) -> Checkpoint:
    sequence, _, sub_sequence = text.partition("/")
    return Checkpoint(sequence, int(sub_sequence or 0))


@dataclass(frozen=True, slots=True)
class NoParts:
    """The parts in a table to which no earlier version could write, see `worker.staging.FormerParts`."""

    def stored_to(self, part: Part) -> None:
        """Return None: no part is stored."""

    def withdraw(self, part: Part) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class DeltaParts:
    """The parts in a Delta table, see `worker.staging.FormerParts`. In the table's transaction log, each shard is
    an application whose version is the number of its last part."""

    log: DeltaLog

    def stored_to(self, part: Part) -> Checkpoint | None:
        with self.log.errors():
            table = self.log.refreshed()
            if table is None:
                return None
            key = owner_key(part)
            return stored_to(
                part, table.transaction_version(key), lambda: _delta_records(table, key), self.log.name
            )

    def withdraw(self, part: Part) -> None:
        from deltalake import CommitProperties, Transaction

        key = owner_key(part)
        with self.log.errors():
            _refuse_stored(part, self.stored_to(part), self.log.name)
            table = self.log.open()
            newest = None if table is None else table.transaction_version(key)
            if table is None or (newest is not None and newest >= part.number):
                return
            columns = DeltaRules.of(table, self.log.name).partition_columns
            properties = CommitProperties(
                custom_metadata={key: withdrawn(part)},
                app_transactions=[Transaction(key, part.number)],
                max_commit_retries=LOG_RETRIES,
            )
            # This raises if another writer of this shard has committed meanwhile. The next attempt reads the table
            # again.
            table.create_write_transaction(
                [], "append", table.schema(), partition_by=list(columns) or None, commit_properties=properties
            )
            self.log.committed(table)


def _delta_records(table: "DeltaTable", key: str) -> Iterator[str]:
    """The texts of `StoredPart` that the commits of the table have for parts of one shard. The last commits are
    read first. They are usually sufficient, and reading all commits of a month takes minutes."""
    for limit in (RECENT_COMMITS, None):
        yield from (commit[key] for commit in table.history(limit) if key in commit)


@dataclass(frozen=True, slots=True)
class IcebergParts:
    """The parts in an Iceberg table, see `worker.staging.FormerParts`. The last part of each shard is a property of
    the table."""

    table: CatalogTable
    runtime: Runtime

    def stored_to(self, part: Part) -> Checkpoint | None:
        with self.table.errors():
            table = self.table.load()
            return None if table is None else self._stored_to(part, table)

    def withdraw(self, part: Part) -> None:
        key = owner_key(part)

        def missing(table: "Table") -> Addition | None:
            _refuse_stored(part, self._stored_to(part, table), self.table.name)
            newest = table.properties.get(key)
            if newest is not None and StoredPart.parse(newest).number >= part.number:
                return None
            return Addition([], {key: withdrawn(part)}, {key: withdrawn(part)})

        with self.table.errors():
            self.table.append(self.runtime, missing)

    def _stored_to(self, part: Part, table: "Table") -> Checkpoint | None:
        key = owner_key(part)
        newest = table.properties.get(key)
        if newest is None:
            return None
        summaries = [one.summary.get(key) for one in reversed(table.snapshots()) if one.summary is not None]
        records = [newest, *(text for text in summaries if text is not None)]
        return stored_to(part, StoredPart.parse(newest).number, lambda: records, self.table.name)


def _refuse_stored(part: Part, end: Checkpoint | None, table: str) -> None:
    if end is not None:
        raise SinkError(f"{table}: the batch of {part.lease} that is withdrawn was stored meanwhile, to {end}")
