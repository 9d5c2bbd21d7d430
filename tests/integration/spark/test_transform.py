"""Rows of a shard stay together: shuffled only where user code may have moved them."""

import contextlib
import io
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.spark.transform import apply, gathered
from tests.integration.spark.test_sinks import batch, part, records

pytestmark = pytest.mark.spark

BATCH = batch(part(1, 1000, 1019, 1), part(2, 2000, 2019, 1), part(3, 3000, 3019, 1))
LEASES = [part.lease for part in BATCH.parts]


@pytest.fixture(scope="module")
def whole(spark: SparkSession) -> DataFrame:
    return records(spark, BATCH)


def output(transform: Callable[[DataFrame], DataFrame], frame: DataFrame) -> DataFrame:
    return gathered(apply(transform, frame, LEASES), frame)


def is_shuffled(frame: DataFrame) -> bool:
    """What `explain` shows."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        frame.explain()
    return "Exchange" in shown.getvalue()


STAYS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "nothing": lambda df: df,
    "filter and project": lambda df: df.where("sub_sequence_number = 0").withColumn("x", F.length("data")),
    "explode": lambda df: df.withColumn("x", F.explode(F.array(F.lit(1), F.lit(2)))),
    "drops the lease": lambda df: df.select("sequence_number", "data"),
    "python": lambda df: df.mapInArrow(lambda batches: batches, df.schema),
    "udf": lambda df: df.withColumn("x", F.udf(len, "int", useArrow=False)("data")),
}
MOVES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "repartition": lambda df: df.repartition(5),
    "coalesce": lambda df: df.coalesce(1),
    "sort": lambda df: df.orderBy(F.desc("sequence_number")),
    "distinct": lambda df: df.distinct(),
    "union with itself": lambda df: df.where("sequence_number < '2000'").unionAll(
        df.where("sequence_number >= '2000'")
    ),
    "join": lambda df: df.join(F.broadcast(df.select("sequence_number").distinct()), "sequence_number"),
    "a copy of its own": lambda df: df.repartition(3, "sequence_number").localCheckpoint(),
    "dropped and moved": lambda df: df.select("sequence_number", "data").repartition(4),
}


@pytest.mark.parametrize("name", STAYS)
def test_a_transform_that_moves_nothing_costs_no_shuffle(name: str, whole: DataFrame) -> None:
    assert not is_shuffled(output(STAYS[name], whole))


@pytest.mark.parametrize("name", [*STAYS, *MOVES])
def test_the_rows_of_a_shard_are_in_one_partition_and_in_order(name: str, whole: DataFrame) -> None:
    frame = output((STAYS | MOVES)[name], whole)
    rows = frame.select("lease_key", "sequence_number", F.spark_partition_id().alias("place")).collect()
    places: dict[str, set[int]] = {}
    found: dict[str, list[str]] = {}
    for row in rows:
        places.setdefault(row.lease_key, set()).add(row.place)
        found.setdefault(row.lease_key, []).append(row.sequence_number)
    assert set(places) == set(LEASES)
    assert all(len(place) == 1 for place in places.values())
    assert all(sequences == sorted(sequences) for sequences in found.values())
