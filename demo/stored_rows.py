"""The rows of the lake, in the order in which their files were written."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as parquet

from demo.verdict import StoredRow

MERGED = re.compile(r"merged-(\d{13})-")
COLUMNS = ("shard_id", "sequence_number", "user", "number")


class StoredCount:
    """Counts the rows of a table by the footers of its files. Each file is opened only once."""

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
                continue  # the file was replaced meanwhile; the next call counts the file that replaced it
        return sum(self._rows.values())


def data_files(table: Path) -> list[Path]:
    """The files that a reader of the table would read, without files that are still being written."""
    return [
        path
        for path in table.rglob("*.parquet")
        if not any(part.startswith(("_", ".")) for part in path.relative_to(table).parts)
    ]


def written(path: Path) -> int:
    """When a data file was written, in nanoseconds. For a merged file, when its newest source was written."""
    merged = MERGED.match(path.name)
    return path.stat().st_mtime_ns if merged is None else int(merged[1]) * 1_000_000


def records(table: Path) -> Iterator[StoredRow]:
    """All rows, file by file in the order in which the files were written. A move of a file to its final name does
    not change this order. A worker writes the records of a shard in order, and the next owner of the shard begins
    after them. So the rows of each key are in order, too."""
    for path in sorted(data_files(table), key=lambda p: (written(p), p.name)):
        for batch in parquet.ParquetFile(path).iter_batches(columns=list(COLUMNS)):
            columns = [batch.column(name).to_pylist() for name in COLUMNS]
            for shard, sequence, user, number in zip(*columns, strict=True):
                yield StoredRow(shard, int(sequence), user, number)
