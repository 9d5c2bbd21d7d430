"""Sealed records: a whole Arrow batch passes through Spark as one value of one row.

Spark converts Arrow into rows and back, value by value, which costs more than all other work of a consumer. Sealed
records need no conversion while they are only cached, or if they are stored unchanged: they remain Arrow inside a
binary column. A Python worker opens them if user code uses columns or a sink writes them.

Every sealed row contains the id of the attempt of the fetch that made the row. The first row of each lease has this
id and no records. The driver knows the attempt whose result it has received. If a task opens rows of another
attempt, the task fails before any record is used. Spark could reorder or omit an expression, but not this check:
the records do not exist as rows before the check has passed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from kcl_dagster.spark.failures import CONTENT_CHANGED, Marks
from kcl_dagster.spark.schema import COLUMNS, LEASE_KEY, PROGRESS, RECORD_DDL, RECORDS, ddl

# Columns with the same value in every record of a range. The value is stored once beside the sealed records.
_CONSTANT: Final = ("stream", "shard_id", LEASE_KEY)
_INSIDE: Final = pa.schema([field for field in RECORDS if field.name not in _CONSTANT])
_SEALED: Final = pa.schema(
    [(name, pa.string()) for name in (*_CONSTANT, "attempt", "trailer")] + [("records", pa.binary())]
)
SEALED_DDL: Final = ddl(_SEALED)


def seal(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Seal the batches that `fetch.fetch` yields. Runs in the executors."""
    attempts: dict[str, str] = {}
    for batch in batches:
        proofs = batch.column(PROGRESS)
        if proofs.null_count == 0:
            rows = proofs.to_pylist()
            attempts |= {row["lease_key"]: row["attempt"] for row in rows}
            yield pa.RecordBatch.from_pylist(rows, schema=_SEALED)
        elif batch.num_rows:
            constant = {name: batch.column(name)[0].as_py() for name in _CONSTANT}
            inside = batch.select(_INSIDE.names)
            values = [*constant.values(), attempts[constant[LEASE_KEY]], None]
            yield pa.RecordBatch.from_arrays(
                [*(pa.array([value], pa.string()) for value in values), _one_value(inside.serialize())],
                schema=_SEALED,
            )


def _one_value(buffer: pa.Buffer) -> pa.Array:
    """A binary column with the buffer as its only value. The buffer is not copied."""
    offsets = pa.array([0, buffer.size], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, buffer])


@dataclass(frozen=True, slots=True)
class Unseal:
    """A function for `mapInArrow` that opens sealed rows. `attempts`: for each lease, the id of the attempt whose
    result the driver has received. Rows of other attempts are an error."""

    attempts: Mapping[str, str]
    marks: Marks = field(default_factory=Marks)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = {name: batch.column(name) for name in _SEALED.names}
            for row in range(batch.num_rows):
                lease = columns[LEASE_KEY][row].as_py()
                if columns["attempt"][row].as_py() != self.attempts.get(lease):
                    raise RuntimeError(f"{self.marks.of(CONTENT_CHANGED)}: {lease} was read again")
                records = columns["records"][row]
                if records.is_valid:
                    yield _opened(records.as_buffer(), {name: columns[name][row].as_py() for name in _CONSTANT})


def _opened(records: pa.Buffer, constant: Mapping[str, str]) -> pa.RecordBatch:
    inside = pa.ipc.read_record_batch(records, _INSIDE)
    rows = inside.num_rows
    return pa.RecordBatch.from_arrays(
        [pa.repeat(constant[name], rows) if name in constant else inside.column(name) for name in COLUMNS],
        schema=RECORDS,
    )


@dataclass(frozen=True, slots=True)
class Sealed:
    """Sealed rows in Spark. The rows of a lease are in one partition, in order. `attempts`: see `Unseal`."""

    frame: DataFrame
    attempts: Mapping[str, str]

    def union(self, other: "Sealed") -> "Sealed":
        """The rows of this object and of `other`. The two objects must have no lease in common."""
        return Sealed(self.frame.unionAll(other.frame), {**self.attempts, **other.attempts})

    def records(self) -> DataFrame:
        """The records as a DataFrame. Its evaluation fails if the rows in Spark are of other attempts."""
        return self.frame.mapInArrow(self.unseal(), RECORD_DDL)

    def unseal(self) -> Unseal:
        return Unseal(dict(self.attempts))
