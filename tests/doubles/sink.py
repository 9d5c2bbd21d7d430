"""A sink that keeps each part once, and sees when that would not be enough."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import Batch, Part
from tests.doubles.engine import Row

Identity = tuple[str, str, str, Checkpoint, Checkpoint, int]


def identity(part: Part) -> Identity:
    """What a sink may key a part by: equal on every replay."""
    return (part.application, str(part.stream), part.shard_id, part.after, part.through, part.number)


@dataclass(frozen=True, slots=True)
class StoredPart:
    part: Part
    rows: tuple[Row, ...]


@dataclass(slots=True)
class RecordingSink:
    """Implements `worker.batch.Sink` for `MemoryEngine`. Shared by all workers of a test, like a lake.

    `conflicts` says what an exactly-once sink could not have repaired: a part that came again with other records,
    or two parts of one shard that overlap. Empty when the batch protocol holds.
    """

    parts: dict[Identity, StoredPart] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)
    writes: int = 0

    def write(self, data: Sequence[Row], batch: Batch) -> None:
        self.writes += 1
        for part in batch.parts:
            self.store(part, tuple(row for row in data if row.lease == part.lease))

    def store(self, part: Part, rows: tuple[Row, ...]) -> bool:
        """True when the part is new."""
        key = identity(part)
        known = self.parts.get(key)
        if known is not None:
            if known.rows != rows:
                self.conflicts.append(f"{part} came again with {len(rows)} other records")
            return False
        self.conflicts += [
            f"{part} overlaps {other.part}" for other in self.parts.values() if _overlap(part, other.part)
        ]
        self.parts[key] = StoredPart(part, rows)
        return True

    def rows(self, lease: LeaseKey | None = None) -> list[Row]:
        """Everything stored, of one lease or of all, in the order of the parts' first arrival."""
        return [row for stored in self.parts.values() if lease in (None, stored.part.lease) for row in stored.rows]


def _overlap(one: Part, other: Part) -> bool:
    same_shard = (one.stream, one.shard_id) == (other.stream, other.shard_id)
    return same_shard and one.after < other.through and other.after < one.through
