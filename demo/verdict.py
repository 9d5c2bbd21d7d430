"""Compares the stored rows with the records that the stream acknowledged. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from demo.ledger import Acknowledged


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A record as it is in the lake."""

    shard: str
    sequence: int
    key: str
    number: int


@dataclass(frozen=True, slots=True)
class Verdict:
    produced: int
    stored: int
    duplicates: int
    lost: int
    out_of_order: int

    @property
    def holds(self) -> bool:
        return self.produced == self.stored > 0 and not (self.duplicates or self.lost or self.out_of_order)

    def __str__(self) -> str:
        return (
            f"produced {self.produced}, stored {self.stored}, duplicates {self.duplicates}, "
            f"lost {self.lost}, out of order {self.out_of_order}"
        )


def judge(acknowledged: Iterable[Acknowledged], stored: Iterable[StoredRow]) -> Verdict:
    """Judge the rows in `stored`, which are in the order in which they were written. A record is out of order if a
    record of its shard with a higher sequence number, or a record of its key with a higher number, was written
    before it. The numbers of a key also show the order across a reshard."""
    wanted: set[tuple[str, int]] = set()
    produced = 0
    for record in acknowledged:
        wanted.add((record.shard, record.sequence))
        produced += 1

    seen: set[tuple[str, int]] = set()
    last_sequence: dict[str, int] = {}
    last_number: dict[str, int] = {}
    rows = duplicates = out_of_order = 0
    for row in stored:
        rows += 1
        identity = (row.shard, row.sequence)
        if identity in seen:
            duplicates += 1
            continue
        seen.add(identity)
        late = row.sequence < last_sequence.get(row.shard, -1) or row.number < last_number.get(row.key, -1)
        out_of_order += late
        last_sequence[row.shard] = max(row.sequence, last_sequence.get(row.shard, -1))
        last_number[row.key] = max(row.number, last_number.get(row.key, -1))
    return Verdict(produced, rows, duplicates, len(wanted - seen), out_of_order)
