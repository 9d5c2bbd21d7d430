"""What a table remembers of the parts it holds, so that a part is never added twice."""

import json
from dataclasses import dataclass
from typing import Self

from kcl_dagster.errors import SinkError
from kcl_dagster.worker.batch import Part


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


def owner_key(part: Part) -> str:
    """Names the writer of a shard's parts inside a table: several applications may share one."""
    return f"kcl-dagster/{part.application}/{part.stream}/{part.shard_id}"


def refuse(part: Part, table: str, latest: int) -> SinkError:
    """For a part whose number the table has passed without holding the part: it must not be taken for stored."""
    return SinkError(
        f"{table} has batch {latest} of {part.lease} already, and what came is batch {part.number} "
        f"({part.after} to {part.through}), which it does not hold. The leases were probably deleted or reset: "
        "write to another table, or give the application another name"
    )
