"""Dead letters go through the transform into the sink, beside what the stream brought."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.runtime import system
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.dead_letter_replay import ToSink, replay
from kcl_dagster.worker.parts_chain import PartsChain
from tests.integration.spark.test_sinks import Place, part, place, write
from tests.unit.spark.test_dead_letter_replay import APP, Killed, box, letter, names

__all__ = ["place"]  # a fixture

pytestmark = pytest.mark.spark


def test_letters_are_stored_once_in_every_sink(place: Place, spark: SparkSession, tmp_path: Path) -> None:
    mended = True

    def opened() -> PartsChain[Records]:
        return PartsChain(place.open_staging(transform=transform), f"{APP}/letters", "letters", system())

    def transform(records: DataFrame) -> DataFrame:
        number = F.col("sequence_number").cast("long")
        bad = F.lit(mended) | (number % 2 == 0) | (number >= 1000)
        checked = F.when(bad, F.col("data")).otherwise(F.raise_error(F.lit("odd")))
        return records.select("lease_key", "sequence_number", "arrival_timestamp", checked.alias("data"))

    sink = opened()
    write(place.open(transform=transform), spark, part(1, 1000, 1003, 5))
    store = box(
        tmp_path / "letters", *[letter(number) for number in (10, 11, 12)], letter(13, "shardId-000000000001")
    )

    mended = False
    done = replay(store, APP, ToSink(spark, sink))
    assert (done.stored, len(done.failing)) == (2, 2)
    assert place.contents() == Counter([*range(1000, 1004), 10, 12])
    mended = True

    class DiesBeforeItIsNoted(ToSink):
        def take(self, *arguments: object) -> None:
            ToSink.take(self, *arguments)  # type: ignore[arg-type]  # handed on
            raise Killed

    with pytest.raises(Killed):
        replay(store, APP, DiesBeforeItIsNoted(spark, sink))
    assert replay(store, APP, ToSink(spark, opened())).stored == 2
    assert place.contents() == Counter([*range(1000, 1004), 10, 11, 12, 13])
    assert names(store) == []
    arrived = {row["arrival_timestamp"].timestamp() for row in place.read() if int(row["sequence_number"]) < 100}
    assert arrived == {1_700_000_000}
