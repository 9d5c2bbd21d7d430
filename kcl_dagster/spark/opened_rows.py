"""Turns the rows that Spark keeps of a fetch (see `kcl_dagster.spark.frozen_rows`) into records for user code.

The driver has received the trailers (the results) of one attempt of each fetch task. If a task was run twice, Spark
could nevertheless use rows of the other attempt. The use of such rows has to fail. So a filter checks every row
before user code can use it. The filter raises an error for a row of another attempt. User code receives a DataFrame
whose plan does not contain the filter, so no query of user code can make Spark leave the filter out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.failures import CONTENT_CHANGED, Marks
from kcl_dagster.spark.frozen_rows import ATTEMPT, NUMBER, PLACE
from kcl_dagster.spark.row_types import RECORD_TYPE
from kcl_dagster.spark.schema import COLUMNS, LEASE_KEY
from kcl_dagster.spark.session_kind import is_classic
from kcl_dagster.worker.batch import Range

_SEPARATOR: Final = ","  # in no name of a stream, a shard or a lease


def records_of(
    rows: DataFrame,
    ranges: Sequence[Range],
    attempts: Mapping[LeaseKey, int],
    counts: Mapping[LeaseKey, int],
    slices: int = 1,
) -> DataFrame:
    """Return the records in the rows of a fetch. The evaluation fails if the rows of a range are not of the attempt
    that `attempts` has for its lease.

    `ranges`: all ranges of the fetch, in the order of its plan. The records of leases that `attempts` does not have
    are left out. `counts`: the number of records of each lease. `slices`: in how many partitions each partition of
    `rows` is divided. With Spark Connect, partitions are not divided.
    """
    if is_classic(rows.sparkSession):
        with suppress(Py4JError, AttributeError):  # a platform can restrict access to the JVM
            divided = _divided(rows, [counts.get(range_.lease, 0) for range_ in ranges], slices)
            return _without_plan(_checked(divided, ranges, attempts))
    return rows.mapInArrow(OpenRows.of(ranges, attempts), RECORD_TYPE)


def _in_own_session(rows: DataFrame, kept: Any) -> DataFrame:
    """Return the partitions `kept` of the rows as a DataFrame of a session that user code does not have. In the
    user's session, functions that user code has registered can replace those of Spark, and settings can change what
    expressions mean."""
    private: Any = rows
    session = _own_session(rows.sparkSession)
    return DataFrame(session.internalCreateDataFrame(kept, private._jdf.schema(), False), rows.sparkSession)  # noqa: SLF001


@lru_cache(1)
def _own_session(spark: Any) -> Any:
    return spark._jsparkSession.newSession()  # noqa: SLF001


def _divided(rows: DataFrame, counts: Sequence[int], slices: int) -> DataFrame:
    """Return the rows with each partition divided into slices. The first partitions have the first records of each
    range, and so on, so records keep their order. The rows of a range without a record are in all slices, because
    their attempts have to be checked, too. `counts`: the number of records of each range.

    Each slice reads the kept rows and leaves out those of other slices. This takes less time than a shuffle, which
    would also not keep the order.
    """
    private: Any = rows
    kept = private._jdf.queryExecution().analyzed().rdd()  # noqa: SLF001
    if slices == 1:
        return _in_own_session(rows, kept)
    # The slices are one node of the plan. With a filter for each slice, Spark would need seconds for the plan.
    spark: Any = rows.sparkSession.sparkContext
    repeated = spark._gateway.new_array(spark._jvm.org.apache.spark.api.java.JavaRDD, slices)  # noqa: SLF001
    for part in range(slices):
        repeated[part] = kept.toJavaRDD()
    whole = _in_own_session(rows, spark._jsc.union(repeated).rdd())  # noqa: SLF001
    part_of_row = f"spark_partition_id() DIV {kept.getNumPartitions()}"
    count = _of_range((str(max(1, count)) for count in counts), "BIGINT")
    return whole.where(f"coalesce({NUMBER} * {slices} DIV {count}, {part_of_row}) = {part_of_row}")


def _checked(rows: DataFrame, ranges: Sequence[Range], attempts: Mapping[LeaseKey, int]) -> DataFrame:
    """Return the records, with the filter in their plan.

    Expressions are SQL texts: making them from columns would take several hundred calls of the JVM for each batch.
    """
    leases = [range_.lease for range_ in ranges]
    if any(lease not in attempts for lease in leases):
        rows = rows.where(f"{_of_range('1' if lease in attempts else '0' for lease in leases)} = '1'")
    attempt = _of_range((str(attempts.get(lease, 0)) for lease in leases), "BIGINT")
    lease_key = _of_range(leases)
    message = f"concat({_text(Marks().of(CONTENT_CHANGED))}, ': ', coalesce({lease_key}, '?'), ' was read again')"
    records = rows.where(
        f"CASE WHEN {ATTEMPT} = {attempt} THEN data IS NOT NULL ELSE CAST(raise_error({message}) AS BOOLEAN) END"
    )
    whole = {
        "stream": _of_range(range_.stream.name for range_ in ranges),
        "shard_id": _of_range(range_.shard_id for range_ in ranges),
        LEASE_KEY: lease_key,
    }
    columns = [f"{whole[name]} AS {name}" if name in whole else name for name in COLUMNS]
    return records.selectExpr(*columns)


def _without_plan(frame: DataFrame) -> DataFrame:
    """Return a DataFrame with the same rows. For Spark, the plan of this DataFrame consists of these rows alone.

    The filter of `_checked` must not become a part of plans of user code. If it did, Spark would print it in the
    messages of errors, and could evaluate filters and limits of user code before it.
    """
    private: Any = frame
    spark: Any = frame.sparkSession
    rows = private._jdf.queryExecution().toRdd()  # noqa: SLF001
    opaque = spark._jsparkSession.internalCreateDataFrame(rows, private._jdf.schema(), False)  # noqa: SLF001
    return DataFrame(opaque, spark)


@dataclass(frozen=True, slots=True)
class OpenRows:
    """A function for `mapInArrow` that returns the same records as `_checked`. It is used with Spark Connect, where
    a DataFrame cannot be separated from its plan, and takes more CPU. All fields except `mark` have one value for
    each range, in the order of the plan of the fetch."""

    streams: tuple[str, ...]
    shards: tuple[str, ...]
    leases: tuple[LeaseKey, ...]
    attempts: tuple[int | None, ...]
    """None: the records of the range are left out."""
    mark: str

    @classmethod
    def of(cls, ranges: Sequence[Range], attempts: Mapping[LeaseKey, int]) -> Self:
        return cls(
            tuple(range_.stream.name for range_ in ranges),
            tuple(range_.shard_id for range_ in ranges),
            tuple(range_.lease for range_ in ranges),
            tuple(attempts.get(range_.lease) for range_ in ranges),
            Marks().of(CONTENT_CHANGED),
        )

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        expected = pa.array(self.attempts, pa.int64())
        whole = {
            "stream": pa.array(self.streams, pa.string()),
            "shard_id": pa.array(self.shards, pa.string()),
            LEASE_KEY: pa.array(self.leases, pa.string()),
        }
        for batch in batches:
            rows = batch.filter(expected.take(batch.column(PLACE)).is_valid())
            same = pc.equal(rows.column(ATTEMPT), expected.take(rows.column(PLACE)))
            if not pc.all(same, min_count=0).as_py():
                lease = self.leases[rows.filter(pc.invert(same)).column(PLACE)[0].as_py()]
                raise ValueError(f"{self.mark}: {lease} was read again")
            records = rows.filter(rows.column("data").is_valid())
            columns = [
                whole[name].take(records.column(PLACE)) if name in whole else records.column(name)
                for name in COLUMNS
            ]
            yield pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))


def _of_range(values: Iterable[str], kind: str = "STRING") -> str:
    """An expression of SQL for the value of the range to which a row belongs. `values`: the values of all ranges,
    in the order of the plan of the fetch."""
    return f"get(CAST(split({_text(_SEPARATOR.join(values))}, '{_SEPARATOR}') AS ARRAY<{kind}>), {PLACE})"


def _text(text: str) -> str:
    """A literal of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
