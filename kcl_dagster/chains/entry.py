"""The contents of a chain's entry, and their form in a file."""

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
ONE_TABLE_VERSION: Final = 1  # the version of an entry for one table, which workers of an earlier version can read

FIRST: Final = ""
"""The name of a sink's only or first table. The chains are stored beside this table."""


class StagedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that an entry publishes.

    - `path`: the final path, relative to the root of the sink. The path of a file of an Iceberg table is absolute.
      The path of a file of change rows is the path at which it is staged.
    - `partition`: for tables, the value of each partition column as text, None for null.
    - `statistics`: for tables, column statistics in the table's own format.
    """

    path: str
    rows: int
    bytes: int
    partition: dict[str, str | None] | None = None
    statistics: str | None = None


class TableRules(msgspec.Struct, frozen=True):
    """The rules of a table by which the files of an entry were written.

    - `schema`: the schema of the rows, as text that the sink can parse.
    - `required`: columns in which the rows have no nulls.
    - `conditions`: SQL conditions that the rows satisfy, by name.
    - `table`: the unique id of the table, if its format has one.
    - `changes`: set if the files contain change rows. The commit then applies these rows to the table, instead of
      adding the files.
    """

    schema: str
    required: tuple[str, ...] = ()
    conditions: dict[str, str] = {}
    table: str | None = None
    changes: ChangeRules | None = None


class StoredRange(msgspec.Struct, frozen=True):
    """What an entry stores of one lease: the records after `after`, through `through`. The first range of a claim
    begins at the row's checkpoint at the time of the claim. Each later range begins where the previous one ended.

    - `claim`: the claim under which the records were read. The range counts as progress only while the lease's row
      has this claim. A reset with the tools of this package removes the claim's id from the row.
    - `stored_through`: see `Lease`.
    - `counts`: what is added to the counts of the lease; None if not known.
    - `number`: the number of the batch. None in entries of an earlier version. A range of such an entry can begin
      after the end of the previous range, although no entry is missing.
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
    """What a batch stores in one table or folder. `rules`: None for folders, and for batches without rows. `place`:
    the `place_id` of the table. The files can be published only to a table with this id."""

    files: tuple[StagedFile, ...] = ()
    rules: TableRules | None = None
    place: str = ""


class PublishingEntry(msgspec.Struct, frozen=True, tag="publish", tag_field="kind"):
    """Decides a batch: the staged files of the batch will be published.

    - `attempt`: a unique id. If a worker finds an entry with the number that it wanted to use, this id shows
      whether the entry is its own.
    - `files` and `rules`: what is stored in the first table, see `TableOutput`.
    - `others`: what is stored in further tables, by name.
    """

    attempt: str
    files: tuple[StagedFile, ...]
    ranges: tuple[StoredRange, ...]
    version: int = ONE_TABLE_VERSION
    rules: TableRules | None = None
    others: dict[str, TableOutput] = {}

    def of(self, table: str) -> "PublishingEntry":
        """Return the part of this entry for one table, as an entry that has only this table."""
        if table == FIRST:
            return self if not self.others else structs.replace(self, others={})
        found = self.others.get(table, TableOutput())
        return structs.replace(self, files=found.files, rules=found.rules, others={})

    @property
    def tables(self) -> tuple[str, ...]:
        others = (name for name, found in self.others.items() if found.files)
        return (*((FIRST,) if self.files else ()), *others)

    def range_of(self, lease: LeaseKey, claim: ClaimId | None) -> StoredRange | None:
        return next((one for one in self.ranges if (one.lease, one.claim) == (lease, claim)), None)


class ClosingEntry(msgspec.Struct, frozen=True, tag="closed", tag_field="kind"):
    """Closes the chain. No entry follows. `by`: the worker that closed it, for the log."""

    attempt: str
    by: str
    version: int = ONE_TABLE_VERSION


Entry = PublishingEntry | ClosingEntry


def place_id(place: str) -> str:
    """A short digest that represents the place of a table in an entry."""
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def encoded(entry: Entry) -> bytes:
    return msgspec.json.encode(entry)


def decoded(content: bytes, path: str) -> Entry:
    """Decode the entry that was found at `path`. Raises Unsafe for content that this version cannot read. Such an
    entry must not be skipped, because its records would then be stored again."""
    try:
        entry: Entry = msgspec.json.decode(content, type=Entry)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Unsafe(f"{path} is not an entry of a chain that this version can read: {error}") from error
    if entry.version > VERSION:
        raise Unsafe(f"{path} was written by a later version of kcl-dagster: only that version can take this over")
    return entry
