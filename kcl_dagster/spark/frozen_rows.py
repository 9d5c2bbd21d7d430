"""The rows in which Spark keeps the records of a fetch.

A row has the columns of a record, without those that have the same value in all records of a range. Instead, it has
the `place` of its range in the plan of the fetch, and the number of the `attempt` of the fetch that made the row.
The first row of each range has only these two numbers. The last row also has the range's trailer.

Spark could use rows of another attempt than the one whose trailers the driver has received, for example after a
task was run twice. The use of such rows has to fail. So a filter checks every row before user code can use it, and
raises an error. The condition of this filter is not deterministic. Spark therefore does not remove the filter,
moves no other filter and no limit below it, and does not combine it with another filter.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.failures import CONTENT_CHANGED, Marks
from kcl_dagster.spark.schema import COLUMNS, LEASE_KEY, PROGRESS, RECORDS, ddl
from kcl_dagster.worker.batch import Range

PLACE: Final = "place"
ATTEMPT: Final = "attempt"
TRAILER: Final = "trailer"

_OF_RANGE: Final = ("stream", "shard_id", LEASE_KEY)
_OF_RECORD: Final = tuple(name for name in COLUMNS if name not in _OF_RANGE)
_ROWS: Final = pa.schema(
    [
        *(RECORDS.field(name) for name in _OF_RECORD),
        (PLACE, pa.int32()),
        (ATTEMPT, pa.int64()),
        (TRAILER, pa.string()),
    ]
)
FROZEN_DDL: Final = ddl(_ROWS)
_SEPARATOR: Final = ","  # in no name of a stream, a shard or a lease


def attempt_number(attempt: str) -> int:
    """Return the number that stands for the id of an attempt in each of its rows. It takes less memory than the
    id. Two ids have the same number with a probability of 2^-64."""
    return int.from_bytes(blake2b(attempt.encode(), digest_size=8).digest(), "big", signed=True)


def frozen_rows(fetched: Iterator[pa.RecordBatch], leases: Sequence[LeaseKey]) -> Iterator[pa.RecordBatch]:
    """Return the rows for the batches that `fetch.fetch` yields. Runs in the executors. `leases`: the leases of the
    whole plan, in its order."""
    places = {lease: place for place, lease in enumerate(leases)}
    attempts: dict[str, int] = {}
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
                pa.nulls(count, pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_ROWS)


def records_of(rows: DataFrame, ranges: Sequence[Range], attempts: Mapping[LeaseKey, int]) -> DataFrame:
    """Return the records in the rows of a fetch. The evaluation fails if the rows of a range are not of the attempt
    that `attempts` has for its lease.

    `ranges`: all ranges of the fetch, in the order of its plan. The records of leases that `attempts` does not have
    are left out.

    Expressions are SQL texts: making them from columns would take several hundred calls of the JVM for each batch.
    """
    leases = [range_.lease for range_ in ranges]
    if any(lease not in attempts for lease in leases):
        rows = rows.where(f"{_of_range('1' if lease in attempts else '0' for lease in leases)} = '1'")
    attempt = _of_range((str(attempts.get(lease, 0)) for lease in leases), "BIGINT")
    lease_key = _of_range(leases)
    message = f"concat({_text(Marks().of(CONTENT_CHANGED))}, ': ', coalesce({lease_key}, '?'), ' was read again')"
    # The comparison with the number of the partition is always true. For Spark, this number is not deterministic.
    checked = rows.where(
        f"CASE WHEN {ATTEMPT} = {attempt} AND spark_partition_id() >= 0 THEN true "
        f"ELSE CAST(raise_error({message}) AS BOOLEAN) END"
    )
    whole = {
        "stream": _of_range(range_.stream.name for range_ in ranges),
        "shard_id": _of_range(range_.shard_id for range_ in ranges),
        LEASE_KEY: lease_key,
    }
    columns = [f"{whole[name]} AS {name}" if name in whole else name for name in COLUMNS]
    return checked.where("data IS NOT NULL").selectExpr(*columns)


def _of_range(values: Iterable[str], kind: str = "STRING") -> str:
    """The value of the row's range, of values in the order of the plan, as an expression of SQL."""
    return f"get(CAST(split({_text(_SEPARATOR.join(values))}, '{_SEPARATOR}') AS ARRAY<{kind}>), {PLACE})"


def _text(text: str) -> str:
    """A literal of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
