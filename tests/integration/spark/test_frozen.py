"""A batch whose content Spark swapped is never evaluated, whatever a user's code asks of it.

The swap is played through by putting the rows of a second fetch under a batch that counted the first: the same
shards, another attempt, more records.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.errors import BatchContentChanged
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.engine import SparkEngine
from kcl_dagster.spark.failures import is_content_changed, write_failures
from kcl_dagster.spark.fetched_batch import FetchedBatch
from kcl_dagster.spark.frozen import FrozenRanges
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.worker.batch import Budget
from tests.doubles.parts import Parts
from tests.integration.spark.conftest import GENEROUS, Stream, batch_of

pytestmark = pytest.mark.spark


def part_of(batch: FetchedBatch) -> FrozenRanges:
    (part,) = batch._parts
    assert isinstance(part, FrozenRanges)
    return part


@pytest.fixture(scope="module")
def whole(shared_stream: Stream, shared_engine: SparkEngine) -> FetchedBatch:
    """A batch of 60 records, for as many evaluations as a test likes."""
    shared_stream.produce(60)
    return shared_engine.fetch(shared_stream.ranges(), GENEROUS)


@pytest.fixture(scope="module", params=[1, 3], ids=["whole", "in slices"])
def swapped(
    request: pytest.FixtureRequest, whole: FetchedBatch, shared_stream: Stream, shared_engine: SparkEngine
) -> FetchedBatch:
    """A batch that counted 60 records and would now evaluate to 120."""
    counted = shared_engine.fetch([p.range for p in whole.progress.values()], GENEROUS)
    shared_stream.produce(60)
    other = shared_engine.fetch(shared_stream.ranges(number=2), GENEROUS)
    part_of(counted)._frame = part_of(other)._frame
    part_of(counted).slices = lambda: request.param
    return counted


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def sizes(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for batch in batches:
        yield pd.DataFrame({"size": batch["data"].str.len()})


def by_udf(records: DataFrame) -> DataFrame:
    return records.where(F.udf(len, "int")("data") > 1)


def joined(records: DataFrame) -> DataFrame:
    keys = records.sparkSession.createDataFrame([(f"key-{i}",) for i in range(200)], "partition_key string")
    return records.join(keys, "partition_key")


def broadcast(records: DataFrame) -> DataFrame:
    keys = records.sparkSession.createDataFrame([(f"key-{i}",) for i in range(200)], "partition_key string")
    return records.join(F.broadcast(keys), "partition_key", "left")


def newest(records: DataFrame) -> DataFrame:
    by_key = Window.partitionBy("partition_key").orderBy(F.desc("sequence_number"))
    return records.withColumn("n", F.row_number().over(by_key)).where("n = 1")


LATERAL = (
    "SELECT * FROM VALUES ('key-1') AS k(key), LATERAL (SELECT data FROM records WHERE partition_key = key LIMIT 1)"
)


def of_view(records: DataFrame, query: str) -> DataFrame:
    records.createOrReplaceTempView("records")
    return records.sparkSession.sql(query)


USER_CODE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "nothing": lambda df: df,
    "not null": lambda df: df.where(F.col("data").isNotNull()),
    "several columns not null": lambda df: df.dropna(subset=["data", "partition_key", "arrival_timestamp"]),
    "length": lambda df: df.where(F.length("data") > 10),
    "a key": lambda df: df.where(F.col("partition_key") == "key-5"),
    "a key nobody has": lambda df: df.where(F.col("partition_key") == "nobody"),
    "a shard": lambda df: df.where(F.col("shard_id").startswith("shardId")),
    "a lease": lambda df: df.where(F.col("lease_key") == "shardId-000000000000"),
    "in": lambda df: df.where(F.col("partition_key").isin("key-1", "key-2")),
    "a time": lambda df: df.where(F.col("arrival_timestamp") > F.lit("2020-01-01").cast("timestamp")),
    "two filters": lambda df: df.where("data is not null").where("sub_sequence_number >= 0"),
    "one column": lambda df: df.select("partition_key"),
    "a constant": lambda df: df.select(F.lit(1).alias("one")),
    "python udf": by_udf,
    "mapInPandas": lambda df: df.select("data").mapInPandas(sizes, "size long").where("size > 1"),
    "mapInArrow": lambda df: df.select("data").mapInArrow(identity, "data binary"),
    "group": lambda df: df.groupBy("partition_key").count(),
    "group and having": lambda df: df.groupBy("shard_id").count().where("count > 1"),
    "count": lambda df: df.agg(F.count("*")),
    "distinct": lambda df: df.select("partition_key").distinct(),
    "window": newest,
    "join": joined,
    "broadcast join": broadcast,
    "union": lambda df: df.unionAll(df),
    "order": lambda df: df.orderBy("sequence_number"),
    "limit": lambda df: df.limit(1),
    "lateral": lambda df: of_view(df, LATERAL),
    "exists": lambda df: of_view(df, "SELECT 1 WHERE EXISTS (SELECT 1 FROM records)"),
    "filter and limit": lambda df: df.where("data is not null").limit(3),
    "repartition": lambda df: df.where("data is not null").repartition(5),
    "explode": lambda df: df.withColumn("x", F.explode(F.split(F.col("data").cast("string"), "0"))),
    "sample": lambda df: df.sample(0.5, 1),
    "json": lambda df: df.select(F.from_json(F.col("data").cast("string"), "a int").alias("j")).where(
        "j.a is null"
    ),
}


@pytest.mark.parametrize("name", USER_CODE)
def test_user_code_cannot_hide_a_swapped_batch(name: str, swapped: FetchedBatch) -> None:
    output = USER_CODE[name](swapped.data(list(swapped.progress)).frame)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which of Spark's classes it is depends on the plan
        output.collect()
    assert is_content_changed(caught.value)


@pytest.mark.parametrize("name", ["a constant", "count", "a key nobody has", "filter and limit"])
def test_user_code_cannot_hide_it_when_a_lease_was_dropped(name: str, swapped: FetchedBatch) -> None:
    """Leases that are lost while the batch is prepared are filtered out: that filter may not hide it either."""
    output = USER_CODE[name](swapped.data(list(swapped.progress)[:2]).frame)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - as above
        output.collect()
    assert is_content_changed(caught.value)


@pytest.mark.parametrize("slices", [1, 3])
def test_a_batch_that_was_swapped_for_one_without_records_is_not_empty(
    slices: int, stream: Stream, engine: SparkEngine
) -> None:
    empty = engine.fetch(stream.ranges(), Budget(1000, 2**20, 1.0))
    stream.produce(30)
    counted = engine.fetch(stream.ranges(), GENEROUS)
    part_of(counted)._frame = part_of(empty)._frame
    part_of(counted).slices = lambda: slices
    with pytest.raises(PySparkException) as caught:
        counted.data(list(counted.progress)).frame.collect()
    assert is_content_changed(caught.value)


@pytest.mark.parametrize("name", USER_CODE)
def test_a_batch_that_is_whole_is_evaluated(name: str, whole: FetchedBatch) -> None:
    assert USER_CODE[name](whole.data(list(whole.progress)).frame).collect() or name == "a key nobody has"


MISTAKES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "an unknown column": lambda df: df.select("nothing"),
    "an unknown column in SQL": lambda df: of_view(df, "SELECT nothing FROM records"),
    "a missing aggregation": lambda df: df.groupBy("stream").agg(F.col("data")),
    "a union of different columns": lambda df: df.union(df.select("data")),
    "a wrong type": lambda df: df.where("array(1) = data"),
    "a cast": lambda df: df.select(F.col("partition_key").cast("int")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_user_code_is_not_a_swapped_batch(name: str, whole: FetchedBatch) -> None:
    """Spark prints plans in its errors. A batch that counts as swapped would be read again for ever."""
    with pytest.raises(PySparkException) as caught, write_failures("parquet"):
        MISTAKES[name](whole.data(list(whole.progress)).frame).collect()
    assert "KCL" not in str(caught.value)


@pytest.mark.parametrize("function", ["get", "split", "concat", "coalesce", "raise_error"])
def test_functions_that_user_code_registers_do_not_change_the_check(
    function: str, spark: SparkSession, whole: FetchedBatch, swapped: FetchedBatch
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.functionResolution.sessionOrder", "first")  # as it always is in Spark 4.0
    session.udf.register(function, lambda *_: "of a user")
    try:
        for batch in (whole, swapped):
            part = part_of(batch)
            kept, frame = part._frame, part._frame._jdf
            rows = session._jsparkSession.internalCreateDataFrame(
                frame.queryExecution().analyzed().rdd(), frame.schema(), False
            )
            part._frame = DataFrame(rows, session)
            try:
                records = part.form(list(batch.progress))
                if batch is whole:
                    assert records.count() == sum(found.records for found in whole.progress.values())
                else:
                    with pytest.raises(PySparkException) as caught:
                        records.count()
                    assert is_content_changed(caught.value)
            finally:
                part._frame = kept
    finally:
        session.conf.unset("spark.sql.functionResolution.sessionOrder")


def test_rows_are_checked_where_a_platform_restricts_access_to_the_jvm(
    whole: FetchedBatch, swapped: FetchedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: DataFrame) -> DataFrame:
        raise Py4JError("Method internalCreateDataFrame([]) is not whitelisted")

    by_jvm = sorted(whole.data(list(whole.progress)).frame.collect())
    monkeypatch.setattr("kcl_dagster.spark.opened_rows._without_plan", refused)
    assert sorted(whole.data(list(whole.progress)).frame.collect()) == by_jvm
    with pytest.raises(PySparkException) as caught:
        swapped.data(list(swapped.progress)).frame.collect()
    assert is_content_changed(caught.value)


def test_the_check_is_in_no_plan_of_user_code(whole: FetchedBatch) -> None:
    frame = whole.data(list(whole.progress)).frame.where("data IS NOT NULL")
    plans = frame._jdf.queryExecution().toString()
    assert "attempt" not in plans
    assert "Filter" in plans


def test_a_sink_stores_nothing_of_a_swapped_batch(swapped: FetchedBatch, tmp_path: Path) -> None:
    sink = Parts(ParquetSink(str(tmp_path), transform=lambda df: df.where("data is not null")))
    with pytest.raises(BatchContentChanged, match="read again"):
        sink.write(swapped.data(list(swapped.progress)), batch_of(list(swapped.progress.values())))
    assert list(tmp_path.rglob("*.parquet")) == []


def test_blocks_that_were_lost_are_not_read_again(stream: Stream, engine: SparkEngine, tmp_path: Path) -> None:
    stream.produce(60)
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    stream.produce(60)
    fetched.release()
    with pytest.raises(BatchContentChanged):
        Parts(ParquetSink(str(tmp_path))).write(
            fetched.data([LeaseKey(shard) for shard in stream.shards()]), batch_of(list(fetched.progress.values()))
        )


def test_a_batch_frees_its_memory(stream: Stream, engine: SparkEngine, spark: SparkSession) -> None:
    stream.produce(300, size=10_000)

    def held() -> int:
        infos = spark.sparkContext._jsc.sc().getRDDStorageInfo()
        return sum(info.memSize() + info.diskSize() for info in infos)

    before = held()
    fetched = engine.fetch(stream.ranges(), GENEROUS)
    assert held() >= before + 2_500_000
    fetched.release()
    assert held() <= before
