"""The rows in which Spark keeps the records of a fetch.

A row has the columns of a record, without the columns that have the same value in all records of a range. Instead
of these columns, it has three numbers: the `place` of its range in the plan of the fetch, the number of the
`attempt` of the fetch that made the row, and the `number` of the record in its range. The first row of each range
has only the first two numbers. The last row also has the trailer of the range, which states how far the range was
read. `kcl_dagster.spark.opened_rows` turns the rows into records.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.row_types import row_type
from kcl_dagster.spark.schema import COLUMNS, LEASE_KEY, PROGRESS, RECORDS

PLACE: Final = "place"
ATTEMPT: Final = "attempt"
NUMBER: Final = "number"
TRAILER: Final = "trailer"

_OF_RANGE: Final = ("stream", "shard_id", LEASE_KEY)
_OF_RECORD: Final = tuple(name for name in COLUMNS if name not in _OF_RANGE)
_ROWS: Final = pa.schema(
    [
        *(RECORDS.field(name) for name in _OF_RECORD),
        (PLACE, pa.int32()),
        (ATTEMPT, pa.int64()),
        (NUMBER, pa.int64()),
        (TRAILER, pa.string()),
    ]
)
FROZEN_TYPE: Final = row_type(_ROWS)


def attempt_number(attempt: str) -> int:
    """Return the number that stands for the id of an attempt in each of its rows. It takes less memory than the
    id. Two ids have the same number with a probability of 2^-64."""
    return int.from_bytes(blake2b(attempt.encode(), digest_size=8).digest(), "big", signed=True)


def frozen_rows(fetched: Iterator[pa.RecordBatch], leases: Sequence[LeaseKey]) -> Iterator[pa.RecordBatch]:
    """Return the rows for the batches that `fetch.fetch` yields. Runs in the executors. `leases`: the leases of the
    whole plan, in its order."""
    places = {lease: place for place, lease in enumerate(leases)}
    attempts: dict[str, int] = {}
    numbers: Counter[str] = Counter()
    for batch in fetched:
        proofs = batch.column(PROGRESS)
        if not batch.num_rows:
            continue
        if proofs.null_count == 0:
            said = proofs.to_pylist()
            attempts |= {row["lease_key"]: attempt_number(row["attempt"]) for row in said}
            rows = [
                {
                    PLACE: places[LeaseKey(row["lease_key"])],
                    ATTEMPT: attempts[row["lease_key"]],
                    TRAILER: row["trailer"],
                }
                for row in said
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=_ROWS)
        else:
            lease, count = batch.column(LEASE_KEY)[0].as_py(), batch.num_rows
            columns = [
                *(batch.column(name) for name in _OF_RECORD),
                pa.repeat(pa.scalar(places[lease], pa.int32()), count),
                pa.repeat(pa.scalar(attempts[lease], pa.int64()), count),
                pa.array(np.arange(numbers[lease], numbers[lease] + count)),
                pa.nulls(count, pa.string()),
            ]
            numbers[lease] += count
            yield pa.RecordBatch.from_arrays(columns, schema=_ROWS)
