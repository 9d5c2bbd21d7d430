"""The producer's record of what the stream acknowledged. One line for each Kinesis record:
shard, sequence number, key, number of its first user record, how many user records it holds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A Kinesis record. Its user records have `count` numbers in a row; more than one means an aggregate."""

    shard: str
    sequence: int
    key: str
    number: int
    count: int = 1


def add(file: TextIO, records: Iterable[Acknowledged]) -> None:
    file.writelines(f"{r.shard} {r.sequence} {r.key} {r.number} {r.count}\n" for r in records)
    file.flush()


def read(path: Path) -> Iterator[Acknowledged]:
    """In the order of the acknowledgements. A line that was cut off is left out."""
    if not path.exists():
        return
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                shard, sequence, key, number, count = line.split()
                yield Acknowledged(shard, int(sequence), key, int(number), int(count))
