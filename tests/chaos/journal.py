"""Every write of a sink, as the workers themselves wrote it down: the order in which parts were stored.

An event is one system call, so it is whole or missing whenever its worker is killed. Times are of the machine's
monotonic clock, which all processes share.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.worker.batch import Batch, Part

Event = Literal["begin", "end", "failed"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One part of one write. A part that begins and has no end was interrupted."""

    at: float
    event: Event
    sink: str
    worker: str
    shard: str
    number: int
    after: str
    through: str
    records: int
    instead_of: int | None = None

    def first(self) -> Checkpoint:
        return _checkpoint(self.after)

    def last(self) -> Checkpoint:
        return _checkpoint(self.through)


class Journal:
    """One worker's file. Used on the worker's main thread."""

    def __init__(self, path: Path) -> None:
        """The file is made with the first event."""
        self._path = path

    def add(self, event: Event, sink: str, batch: Batch) -> None:
        at = time.monotonic()
        lines = [json.dumps(asdict(_entry(at, event, sink, batch.worker, part))) + "\n" for part in batch.parts]
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, "".join(lines).encode())
        finally:
            os.close(file)


def read(directory: Path) -> Iterator[Entry]:
    """Every worker's entries, by time."""
    entries = [
        Entry(**json.loads(line)) for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    return iter(sorted(entries, key=lambda entry: entry.at))


def _entry(at: float, event: Event, sink: str, worker: str, part: Part) -> Entry:
    after, through = str(part.after), str(part.through)
    return Entry(at, event, sink, worker, part.shard_id, part.number, after, through, part.records, part.instead_of)


def _checkpoint(text: str) -> Checkpoint:
    sequence, _, sub_sequence = text.partition("/")
    return Checkpoint(sequence, int(sub_sequence or 0))
