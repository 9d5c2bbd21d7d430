"""What has landed in the lake, in the order of its batches."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as parquet

from jobs.demo.verdict import Stored

COLUMNS = ("shard_id", "sequence_number", "user", "number")


class LandedCount:
    """Counts rows by the files' footers; a file is opened once."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._rows: dict[Path, int] = {}

    def __call__(self) -> int:
        present = set(data_files(self._table))
        for gone in self._rows.keys() - present:
            del self._rows[gone]
        for path in present - self._rows.keys():
            try:
                self._rows[path] = parquet.read_metadata(path).num_rows
            except (OSError, ValueError):
                continue  # replaced while we looked; counted next time
        return sum(self._rows.values())


def data_files(table: Path) -> list[Path]:
    """The files a reader of the table would read: not those being written."""
    return [
        path
        for path in table.rglob("*.parquet")
        if not any(part.startswith(("_", ".")) for part in path.relative_to(table).parts)
    ]


def batch_number(path: Path) -> int:
    """The last part of a data file's name: `application.shard.after.number.parquet`."""
    return int(path.stem.rpartition(".")[2])


def records(table: Path) -> Iterator[Stored]:
    """Every row, files in the order of their batches' numbers. A shard's numbers grow, and those of a child begin
    with the time of its first batch, above those of its parents; so this is also the order of each key. A file's
    time says less: a slow worker may replace a file by its equal when later ones are there."""
    for path in sorted(data_files(table), key=lambda p: (batch_number(p), p.name)):
        for batch in parquet.ParquetFile(path).iter_batches(columns=list(COLUMNS)):
            columns = [batch.column(name).to_pylist() for name in COLUMNS]
            for shard, sequence, user, number in zip(*columns, strict=True):
                yield Stored(shard, int(sequence), user, number)
