"""What an entry of a chain says, and its form in a file."""

import hashlib
from typing import Final

import msgspec
from msgspec import structs

from kcl_dagster.errors import Unsafe
from kcl_dagster.model.change_rules import ChangeRules
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ClaimId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stored import BatchCounts

VERSION: Final = 2
ONE_TABLE_VERSION: Final = 1  # of entries that workers of a former version understand

FIRST: Final = ""
"""The name of the only table of a sink, or of the first one of several: beside it are the chains."""


class StagedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that an entry publishes. `path`: its final one, relative to the root of the sink; of an Iceberg table,
    the whole one; of change rows, where they are staged.

    Of a table: `partition`: the value of each partition column as text, None for null. `statistics`: as the table
    keeps them.
    """

    path: str
    rows: int
    bytes: int
    partition: dict[str, str | None] | None = None
    statistics: str | None = None


class TableRules(msgspec.Struct, frozen=True):
    """By which rules of a table the files of an entry were written. `schema`: of the rows, as text that the sink
    reads. `required`: columns in which they have no nulls. `conditions`: SQL that is true of them, by name.
    `table`: the id of the table, where it has one that no other table gets. `changes`: the files hold change rows,
    and the table does not get the files themselves."""

    schema: str
    required: tuple[str, ...] = ()
    conditions: dict[str, str] = {}
    table: str | None = None
    changes: ChangeRules | None = None


class StoredRange(msgspec.Struct, frozen=True):
    """What an entry stores of one lease: the records after `after` and through `through`. The first range of a
    claim begins where the row was when it was claimed, and each other one where the one before ended.

    `claim`: the claim under which the records were read. The range is progress only while the row of the lease
    names the same claim: an operator may have put the lease back since. `stored_through`: see `Lease`.
    `counts`: what the checkpoint adds to the counts of the lease, None where they are not known. `number`: of the
    batch; None in entries of a former version, whose ranges may begin behind the end of the one before.
    """

    lease: LeaseKey
    claim: ClaimId
    after: Checkpoint
    through: Checkpoint
    records: int
    bytes: int
    stored_through: int | None = None
    counts: BatchCounts | None = None
    number: int | None = None


class TableOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a batch stores in one table, or in a folder. `rules`: None of folders, and of batches without rows.
    `place`: of the table, see `place_id`; the files are of no use at another place."""

    files: tuple[StagedFile, ...] = ()
    rules: TableRules | None = None
    place: str = ""


class PublishingEntry(msgspec.Struct, frozen=True, tag="publish", tag_field="kind"):
    """The batch is decided: its staged files are published. `attempt`: a worker that finds an entry at the number
    that it wanted to make sees by it whether the entry is its own. `files` and `rules`: of the first table, see
    `TableOutput`. `others`: of further tables, by name."""

    attempt: str
    files: tuple[StagedFile, ...]
    ranges: tuple[StoredRange, ...]
    version: int = ONE_TABLE_VERSION
    rules: TableRules | None = None
    others: dict[str, TableOutput] = {}

    def of(self, table: str) -> "PublishingEntry":
        """What it publishes in one table, as the entry of a sink that has only this one."""
        if table == FIRST:
            return self if not self.others else structs.replace(self, others={})
        found = self.others.get(table, TableOutput())
        return structs.replace(self, files=found.files, rules=found.rules, others={})

    @property
    def tables(self) -> tuple[str, ...]:
        """Those that get files."""
        others = (name for name, found in self.others.items() if found.files)
        return (*((FIRST,) if self.files else ()), *others)

    def range_of(self, lease: LeaseKey, claim: ClaimId | None) -> StoredRange | None:
        return next((one for one in self.ranges if (one.lease, one.claim) == (lease, claim)), None)


class ClosingEntry(msgspec.Struct, frozen=True, tag="closed", tag_field="kind"):
    """No entry follows. `by`: the worker that closed the chain, for the log."""

    attempt: str
    by: str
    version: int = ONE_TABLE_VERSION


Entry = PublishingEntry | ClosingEntry


def place_id(place: str) -> str:
    """Stands for the place of a table in an entry."""
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def encoded(entry: Entry) -> bytes:
    return msgspec.json.encode(entry)


def decoded(content: bytes, path: str) -> Entry:
    """The entry that was found at `path`. Raises Unsafe for what no worker of this version has written: to pass
    over an entry would be to store its records again."""
    try:
        entry: Entry = msgspec.json.decode(content, type=Entry)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Unsafe(f"{path} is not an entry of a chain that this version can read: {error}") from error
    if entry.version > VERSION:
        raise Unsafe(f"{path} was written by a later version of kcl-dagster: only that version can take this over")
    return entry
