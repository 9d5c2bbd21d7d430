"""The rows of the lake, in the order in which their files were written."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as parquet

from demo.verdict import StoredRow

MERGED = re.compile(r"merged-(\d{13})-")
COLUMNS = ("shard_id", "sequence_number", "user", "number")


class StoredCount:
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


def written(path: Path) -> int:
    """When a data file was written, in nanoseconds. A merged file stands for those that it was made of."""
    merged = MERGED.match(path.name)
    return path.stat().st_mtime_ns if merged is None else int(merged[1]) * 1_000_000


def records(table: Path) -> Iterator[StoredRow]:
    """Every row, files in the order in which they were written, which a move to their final name does not change. A
    worker writes what it reads of a shard in order, and the next owner of the shard begins after that; so this is
    also the order of each key."""
    for path in sorted(data_files(table), key=lambda p: (written(p), p.name)):
        for batch in parquet.ParquetFile(path).iter_batches(columns=list(COLUMNS)):
            columns = [batch.column(name).to_pylist() for name in COLUMNS]
            for shard, sequence, user, number in zip(*columns, strict=True):
                yield StoredRow(shard, int(sequence), user, number)
