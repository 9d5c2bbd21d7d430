"""The producer's file of the records that the stream acknowledged. The verdict compares the lake with this file.

The file has a line for each record: shard, sequence number, key, and the record's number among those of its key.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A record that the stream acknowledged. `number` counts the records of its key, from 0, in the order of
    production."""

    shard: str
    sequence: int
    key: str
    number: int


class Ledger:
    """Appends to the file. Each batch is passed to the operating system before the next one is produced."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def add(self, records: Iterable[Acknowledged]) -> None:
        self._file.writelines(f"{r.shard} {r.sequence} {r.key} {r.number}\n" for r in records)
        self._file.flush()


def read(path: Path) -> Iterator[Acknowledged]:
    """All acknowledged records, in the order of the acknowledgements. A line that a crash cut off is left out."""
    if not path.exists():
        return
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                shard, sequence, key, number = line.split()
                yield Acknowledged(shard, int(sequence), key, int(number))


def count(path: Path) -> int:
    """The number of records in the file. This is faster than `read`."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
