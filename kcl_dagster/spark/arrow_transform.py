"""A consumer's function of Arrow tables. It runs in the executors, and no row enters the JVM."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from kcl_dagster.errors import CodeExited, KclError, TransformError, Unavailable
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.spark.arrow_columns import OutputColumns, Types, united
from kcl_dagster.spark.failures import Marks
from kcl_dagster.spark.schema import RECORDS
from kcl_dagster.spark.transform import returned_nothing
from kcl_dagster.worker.error_text import redacted

# The size of the tables that the function receives. Smaller tables need more calls, larger tables more memory.
TABLE_ROWS: Final = 32_768
TABLE_BYTES: Final = 8 * 1024 * 1024
ROWS_AT_ONCE: Final = 8_000  # the most rows in one Arrow batch of an output, as in a fetch

TableFunction = Callable[[pa.Table], Any]
"""The consumer's function from records to the rows to store. It returns a `pyarrow.Table`, or another object with
the Arrow C interface.
"""


@dataclass(frozen=True, slots=True)
class ArrowTransform:
    """The consumer's function of tables, for sinks that run it in the executors. For other uses, such as replays,
    this object can also be called as a transform of DataFrames. Such a call runs the function twice: once to find
    the columns of the output, which Spark has to know in advance, and once for the output itself."""

    function: TableFunction

    def table(self, records: pa.Table) -> pa.Table:
        """Call the function with records and return its output. If the function raises an error of this package
        other than Unavailable, raise TransformError instead, so that the function counts as the cause."""
        try:
            output = self.function(records)
            if output is not None:
                return table_of(output)
        except (Unavailable, TransformError):
            raise
        except KclError as error:
            raise TransformError(f"the function raised {type(error).__name__}: {redacted(str(error))}") from error
        except SystemExit as error:  # it would end the Python worker, which would look like a lost process
            raise CodeExited("the function raised SystemExit") from error
        raise TransformError(returned_nothing(self.function, "a pyarrow.Table"))

    def __call__(self, records: DataFrame) -> DataFrame:
        rows = records.mapInArrow(_ColumnsOf(self), "columns binary").collect()
        schemas = [pa.ipc.read_schema(pa.BufferReader(bytes(row.columns))) for row in rows]
        types = united(schemas, {})
        given = from_arrow_schema(pa.schema(list(types.items())))
        return records.mapInArrow(_InFrame(self, types), given)


def table_of(output: object) -> pa.Table:
    """Convert the result of the consumer's function to a table. Raises TransformError if the result is no table. A
    result can be evaluated only now, as a reader is. Errors of the consumer's code in it are raised unchanged."""
    if isinstance(output, pa.Table):
        return output
    if isinstance(output, pa.RecordBatch):
        return pa.Table.from_batches([output])
    if isinstance(output, pa.RecordBatchReader):  # through the C interface, its errors would lose their types
        return output.read_all()
    if hasattr(output, "__arrow_c_stream__"):
        return _imported(pa.RecordBatchReader.from_stream, output).read_all()
    if hasattr(output, "__arrow_c_array__"):
        return pa.Table.from_batches([_imported(pa.record_batch, output)])
    raise TransformError(
        f"an Arrow function must return a pyarrow.Table, or anything with the Arrow C interface, and "
        f"this one returned {type(output).__name__}"
    )


def _imported(import_it: Callable[[object], Any], output: object) -> Any:
    try:
        return import_it(output)
    except pa.ArrowException as error:
        raise TransformError(f"an Arrow function returned {type(output).__name__}, which is no table") from error


def tables(records: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches of records, in order, into tables of about `TABLE_ROWS` rows or `TABLE_BYTES` bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in records:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= TABLE_ROWS or size >= TABLE_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(waiting)


@dataclass(frozen=True, slots=True)
class ApplyFunction:
    """A step of a task: calls the consumer's function, and converts the rows that it returns to the columns that
    are stored (see `OutputColumns`)."""

    transform: ArrowTransform
    known: Types
    partitions: frozenset[str] = frozenset()
    evolve: Evolve = "add"

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = OutputColumns(dict(self.known), self.partitions, self.evolve)
        for records in tables(rows):
            output = self.transform.table(records)
            if output.num_rows:
                yield from columns.conformed(output).combine_chunks().to_batches(ROWS_AT_ONCE)


@dataclass(frozen=True, slots=True)
class _ColumnsOf:
    """A function for `mapInArrow` that calls the consumer's function, and returns only the schemas of its
    output."""

    transform: ArrowTransform
    marks: Marks = field(default_factory=Marks)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self.marks.errors():
            found = {batch.schema: None for batch in ApplyFunction(self.transform, {})(as_read(batches))}
        texts = [schema.serialize().to_pybytes() for schema in found]
        yield pa.RecordBatch.from_pydict({"columns": pa.array(texts, pa.binary())})


@dataclass(frozen=True, slots=True)
class _InFrame:
    """A function for `mapInArrow` that returns the output of the consumer's function, with all columns of `types`
    in each batch."""

    transform: ArrowTransform
    types: Types
    marks: Marks = field(default_factory=Marks)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self.marks.errors():
            for batch in ApplyFunction(self.transform, self.types)(as_read(batches)):
                columns = [
                    batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows, kind)
                    for name, kind in self.types.items()
                ]
                yield pa.RecordBatch.from_arrays(columns, names=list(self.types))


def as_read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert records to the schema of a fetch. In this schema, times are in UTC, but Spark has changed their time
    zone to that of the session."""
    for batch in batches:
        yield batch.cast(RECORDS) if batch.schema != RECORDS else batch
