"""A Parquet file that is being written. The whole file is in memory. This is possible because its content is
compressed and a batch has a maximum size.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as kinds

Footer = bytes
"""The footer of a finished Parquet file: `read_footer` parses it."""

COMPRESSION: Final = "zstd"  # JSON gets a third smaller than with snappy; zstd is much faster than Kinesis delivers
# Rows arrive in small batches. A row group for each of them would cost space and readers' time.
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
# A column gets a dictionary if its values repeat in a sample of this number of rows. For a column of distinct
# values, a dictionary takes more CPU time than the rest of the file, and makes the file larger.
SAMPLED_ROWS: Final = 2_000


class ParquetFile:
    """A Parquet file that is being written. Columns whose values repeat in the first row group get a dictionary."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._output = pa.BufferOutputStream()
        self._footers: list[pq.FileMetaData] = []
        self._writer: pq.ParquetWriter | None = None

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
        self._flush().close()
        return memoryview(self._output.getvalue())

    @property
    def footer(self) -> Footer:
        output = pa.BufferOutputStream()
        self._footers[0].write_metadata_file(output)
        return bytes(output.getvalue())

    def _flush(self) -> pq.ParquetWriter:
        rows = pa.Table.from_batches(self._waiting, self.schema)
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._output,
                self.schema,
                compression=COMPRESSION,
                metadata_collector=self._footers,
                use_dictionary=repeating_columns(rows),
            )
        if self._waiting:
            self._writer.write_table(rows)
        self._waiting, self._bytes = [], 0
        return self._writer


def repeating_columns(rows: pa.Table) -> list[str]:
    """The paths of the columns whose values repeat in a sample of the rows. The values of lists, maps and structs
    count as repeating."""
    drawn = np.random.default_rng(seed=0).integers(0, max(1, rows.num_rows), SAMPLED_ROWS)
    sample = rows.take(pa.array(np.unique(drawn))) if rows.num_rows else rows
    repeating = {
        name
        for name, values in zip(rows.schema.names, sample.columns, strict=True)
        if _repeats(values, rows.num_rows)
    }
    return [path for path, name in _paths(rows.schema) if name in repeating]


def _repeats(sample: pa.ChunkedArray, rows: int) -> bool:
    """Whether the values of a column repeat, judged by a sample of them. `rows`: the number of rows in the
    column."""
    if sample.type.num_fields or kinds.is_dictionary(sample.type):
        return True
    try:
        distinct: int = pc.count_distinct(sample).as_py()
    except pa.ArrowNotImplementedError:  # of a type that Arrow does not compare
        return True
    given: int = len(sample) - sample.null_count
    if not given:
        return True
    # If each value occurs twice in the column, about this number of values occur twice in the sample, too.
    pairs = given * given / (2 * rows)
    return distinct < given - pairs


def _paths(schema: pa.Schema) -> list[tuple[str, str]]:
    """The paths of a schema's columns in a Parquet file, each with the name of the column of the schema. The paths
    of a list, map or struct begin with its name."""
    if not any(field.type.num_fields for field in schema):
        return [(name, name) for name in schema.names]
    output = pa.BufferOutputStream()
    pq.ParquetWriter(output, schema).close()
    parquet = pq.read_metadata(pa.BufferReader(output.getvalue())).schema
    paths = [parquet.column(number).path for number in range(len(parquet))]
    nested = [field.name for field in schema if field.type.num_fields]
    plain = [name for name in schema.names if name not in nested]
    return [(name, name) for name in plain] + [
        (path, name) for path in paths if path not in plain for name in nested if path.startswith(f"{name}.")
    ]


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
