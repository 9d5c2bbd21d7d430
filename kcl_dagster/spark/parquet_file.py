"""One Parquet file while it is written. It is in memory, which is possible because its content is compressed and a
batch has a maximum size.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

Footer = bytes
"""The footer of a finished Parquet file: `read_footer` parses it."""

COMPRESSION: Final = "zstd"  # makes JSON a third smaller than snappy does; much faster than Kinesis delivers
# Rows arrive in small batches. A row group for each of them would cost space and readers' time.
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024


class ParquetFile:
    """A Parquet file that is being written. `repeating`: the columns that get a dictionary, because their values
    repeat; by default all columns."""

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
        """The approximate size of the file: rows that are not compressed yet count with their full size."""
        return int(self._output.tell()) + self._bytes

    def finish(self) -> memoryview:
        """Finish and return the file. Nothing can be written afterwards."""
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
    """The name and the column chunks of each of the first `most` columns. Nested columns are left out."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for index in range(min(most, footer.num_columns)):
        name = footer.schema.column(index).path
        if "." not in name:  # a dot: the column is nested in another one, or its name contains a dot
            yield name, [group.column(index) for group in groups]


def has_readable_bounds(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether Python can represent the bounds (minimum and maximum) of a column chunk. Python cannot represent a
    text that is not UTF-8, or a date or time after the year 9999. Spark and Parquet support such times, which
    arise for example if milliseconds were read as seconds."""
    try:
        if chunk.statistics is not None and chunk.statistics.has_min_max:
            _ = chunk.statistics.min, chunk.statistics.max
    except (ValueError, OverflowError):
        return False
    except NotImplementedError:  # a type whose bounds are read in another way, such as a decimal
        return True
    return True


def names_without_bounds(footer: pq.FileMetaData) -> set[str]:
    """The paths of columns, including nested ones, whose bounds Python cannot represent."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    return {
        footer.schema.column(index).path
        for index in range(footer.num_columns)
        if not all(has_readable_bounds(group.column(index)) for group in groups)
    }


def null_counts(footer: pq.FileMetaData) -> dict[str, int]:
    """The number of nulls in each column that is no list, map or struct, if the footer contains this number."""
    return {
        name: sum(chunk.statistics.null_count for chunk in chunks)
        for name, chunks in columns_of(footer, footer.num_columns)
        if all(chunk.statistics is not None and chunk.statistics.has_null_count for chunk in chunks)
    }
