"""What a table remembers of the parts it holds, so that a part is never added twice."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from kcl_dagster.errors import KclError, SinkError
from kcl_dagster.spark.failures import of_table
from kcl_dagster.spark.sinks.writing import WrittenFile
from kcl_dagster.worker.batch import Part
from kcl_dagster.worker.processing_watch import uninterrupted


@dataclass(frozen=True, slots=True)
class StoredPart:
    """The identity of a part as it is written into a table's metadata."""

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


def application_key(application: str) -> str:
    """Names the application inside a table."""
    return f"kcl-dagster/{application}"


def owner_key(part: Part) -> str:
    """Names the writer of a shard's parts inside a table: several applications may share one."""
    return f"{application_key(part.application)}/{part.stream}/{part.shard_id}"


@contextmanager
def table_errors(table: str) -> Iterator[None]:
    """For what a table's own library does; see `spark.failures.of_table`. No code of the consumer runs in there, so
    `batch.max_process_seconds` interrupts nothing of it."""
    try:
        with uninterrupted():
            yield
    except KclError:
        raise
    except Exception as error:
        raise of_table(table, error) from error


@dataclass(frozen=True, slots=True)
class Comparison:
    """A batch held against what a table remembers. Parts that are in neither list are stored already."""

    missing: tuple[Part, ...]
    strange: tuple[tuple[Part, int], ...]
    """Parts that the table does not hold although it has passed their number, to the one given."""

    @property
    def is_stored(self) -> bool:
        return not self.missing and not self.strange

    def refuse_strange(self, table: str, files: Iterable[WrittenFile]) -> None:
        """Raise SinkError if a strange part has output: it must neither be added nor be taken for stored."""
        written = {file.lease_key for file in files}
        for part, latest in self.strange:
            if part.lease in written:
                raise SinkError(_why_strange(table, part, latest))


def _why_strange(table: str, part: Part, latest: int) -> str:
    if part.instead_of is not None and latest < part.number:
        return (
            f"{table} was given batch {latest} of {part.lease} by a former owner while that batch was cut into "
            f"pieces, of which {part.after} to {part.through} is one: nothing is added, or it would be there twice"
        )
    return (
        f"{table} has batch {latest} of {part.lease} already, and what came is batch {part.number} ({part.after} "
        f"to {part.through}), which it does not hold. The row of the lease was probably put back by hand: "
        "remove kdBatch from it, and its next batch has a number above all of the table's; records that are read "
        "again are stored again"
    )


def compare(
    parts: Sequence[Part], newest: Callable[[Part], int | None], holds: Callable[[Part], bool]
) -> Comparison:
    """`newest` is the number of the last part of that shard in the table, `holds` whether this very part is in it;
    it is asked for replays only."""
    missing, strange = [], []
    for part in parts:
        number = newest(part)
        if number is not None and part.instead_of is not None and part.instead_of <= number < part.number:
            strange.append((part, number))  # the whole that this is a piece of was stored meanwhile
        elif number is None or number < part.number:
            missing.append(part)
        elif not holds(part):
            strange.append((part, number))
    return Comparison(tuple(missing), tuple(strange))
