"""One Parquet file while it is written: in memory, because it is compressed there and a batch is bounded."""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

Footer = bytes
"""What a finished Parquet file says of itself: `read_footer` reads it."""

COMPRESSION: Final = "zstd"  # about a third smaller than snappy on JSON, at a speed Kinesis does not reach
# Rows come in small batches, and a row group of each would cost space and readers' time.
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024


class ParquetFile:
    """`repeating` names the columns that are worth a dictionary; all of them when it is left out."""

    def __init__(self, schema: pa.Schema, repeating: Sequence[str] | None = None) -> None:
        self.schema = schema
        self.rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._output = pa.BufferOutputStream()
        self._footers: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._output,
            schema,
            compression=COMPRESSION,
            metadata_collector=self._footers,
            use_dictionary=True if repeating is None else list(repeating),
        )

    def write(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    @property
    def size(self) -> int:
        """About as large as the file will be: rows that are not compressed yet count as they are."""
        return int(self._output.tell()) + self._bytes

    def finish(self) -> memoryview:
        """The file. Nothing can be written afterwards."""
        self._flush()
        self._writer.close()
        return memoryview(self._output.getvalue())

    @property
    def footer(self) -> Footer:
        output = pa.BufferOutputStream()
        self._footers[0].write_metadata_file(output)
        return bytes(output.getvalue())

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self.schema))
        self._waiting, self._bytes = [], 0


def read_footer(footer: Footer) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(footer))


def columns_of(footer: pq.FileMetaData, most: int) -> Iterator[tuple[str, list[pq.ColumnChunkMetaData]]]:
    """Name and column chunks of the first columns, without those inside of other columns."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for index in range(min(most, footer.num_columns)):
        name = footer.schema.column(index).path
        if "." not in name:  # inside of another column, or named like one that is
            yield name, [group.column(index) for group in groups]


def has_readable_bounds(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether Python can hold the bounds of a column. A text may not be UTF-8, and Spark and Parquet know dates and
    times beyond the year 9999, such as milliseconds that were read as seconds."""
    try:
        if chunk.statistics is not None and chunk.statistics.has_min_max:
            _ = chunk.statistics.min, chunk.statistics.max
    except (ValueError, OverflowError):
        return False
    except NotImplementedError:  # a type whose bounds are read in another way, such as a decimal's
        return True
    return True


def names_without_bounds(footer: pq.FileMetaData) -> set[str]:
    """The paths of the columns, also inside of others, whose bounds Python cannot hold."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    return {
        footer.schema.column(index).path
        for index in range(footer.num_columns)
        if not all(has_readable_bounds(group.column(index)) for group in groups)
    }


def null_counts(footer: pq.FileMetaData) -> dict[str, int]:
    """How many nulls each column has that is no list, map or struct."""
    return {
        name: sum(chunk.statistics.null_count for chunk in chunks)
        for name, chunks in columns_of(footer, footer.num_columns)
        if all(chunk.statistics is not None and chunk.statistics.has_null_count for chunk in chunks)
    }
