"""Functions of Arrow tables: run where records are fetched, stored once, with the failure policy of every
transform."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import kcl_dagster as kcl
from kcl_dagster.chains.publication import staged
from kcl_dagster.errors import BatchError, ConfigurationError, RecordRefused, SinkError, TransformError, Unavailable
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.spark.arrow_transform import ArrowTransform
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.sinks.column_types import ColumnTypes
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.testing import consuming
from kcl_dagster.testing.consuming import EmbeddedAws, consume, embedded_aws, records
from kcl_dagster.worker.report import BatchReport, Outcome
from kcl_dagster.worker.stop import StopReason
from tests.integration.spark.conftest import Stream
from tests.integration.spark.test_staged_fetches import CHAIN, Storing, is_staged, storing

pytestmark = pytest.mark.spark


def numbers(table: pa.Table) -> pa.ChunkedArray:
    return pc.utf8_slice_codeunits(table["data"].cast(pa.string()), 0, 8).cast(pa.int64())


def odd(table: pa.Table) -> pa.Table:
    """Leaves rows out and adds others; some partition values are null."""
    n = numbers(table)
    kind = pc.if_else(pc.equal(pc.bit_wise_and(n, 3), 1), "one", pa.scalar(None, pa.string()))
    rows = pa.table({"n": n, "kind": kind}).filter(pc.equal(pc.bit_wise_and(n, 1), 1))
    return pa.concat_tables([rows, rows])


def sink_of(path: Path, function: Callable[[pa.Table], Any], **more: Any) -> ParquetSink:
    return ParquetSink(str(path), transform=ArrowTransform(function), **more)


def rows_of(path: Path) -> Any:
    return ds.dataset(str(path), partitioning="hive").to_table()


Started = Callable[..., Any]


@pytest.fixture
def started(stream: Stream, spark: SparkSession, connection: Connection) -> Started:
    return lambda sink: storing(stream, spark, connection, sink)


def store(batches: Storing, stream: Stream, count: int, *, is_first: bool = False) -> None:
    stream.produce(count)
    fetched = batches.fetch()
    assert is_staged(fetched) is not is_first
    batches.store(fetched)


def test_rows_are_stored_once_in_the_folders_of_their_values(
    stream: Stream, started: Started, tmp_path: Path
) -> None:
    with started(sink_of(tmp_path, odd, partition_by=["kind"])) as batches:
        for turn in range(3):
            store(batches, stream, 80, is_first=turn == 0)
        assert staged(batches.sink.stores_into[0], CHAIN) == []
    rows = rows_of(tmp_path).to_pylist()
    assert Counter(row["n"] for row in rows) == Counter(dict.fromkeys(range(1, 240, 2), 2))
    assert all((row["kind"] == "one") is (row["n"] % 4 == 1) for row in rows)


def test_times_are_in_utc_in_every_batch(
    stream: Stream, started: Started, spark: SparkSession, tmp_path: Path
) -> None:
    """The first batch passes through Spark, which gives times the zone of the session."""

    def zones(table: pa.Table) -> pa.Table:
        return pa.table({"zone": [str(table.schema.field("arrival_timestamp").type)] * table.num_rows})

    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with started(sink_of(tmp_path, zones)) as batches:
            for turn in range(2):
                store(batches, stream, 10, is_first=turn == 0)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert rows_of(tmp_path)["zone"].to_pylist() == ["timestamp[us, tz=UTC]"] * 20


def test_a_batch_whose_output_has_no_rows_has_no_files(stream: Stream, started: Started, tmp_path: Path) -> None:
    with started(sink_of(tmp_path, lambda table: table.slice(0, 0))) as batches:
        for turn in range(2):
            stream.produce(30)
            fetched = batches.fetch()
            assert is_staged(fetched) is (turn > 0)
            assert batches.store(fetched).files == ()


def by_value(table: pa.Table) -> pa.Table:
    """Types follow from values: an all-null column, an integer, a text."""
    n = numbers(table)
    if pc.min(n).as_py() >= 60:
        return pa.table({"n": pc.cast(n, pa.string())})
    return pa.table({"n": n.cast(pa.int32()) if pc.min(n).as_py() < 30 else n, "x": pa.nulls(len(n))})


def test_a_type_that_differs_from_what_is_stored_fails_the_batch(
    stream: Stream, started: Started, tmp_path: Path
) -> None:
    with started(sink_of(tmp_path, by_value)) as batches:
        store(batches, stream, 30, is_first=True)
        for message in (
            "int64, and what is stored is of type int32",
            "string, and what is stored is of type int32",
        ):
            stream.produce(30)
            fetched = batches.fetch()
            assert is_staged(fetched)
            with pytest.raises(TransformError, match=f"column n is of type {message}"):
                batches.stage(fetched)
            fetched.release()
            batches.ranges = [
                one.__class__(**{**_fields(one), "after": fetched.progress[one.lease].through or one.after})
                for one in batches.ranges
            ]
        assert staged(batches.sink.stores_into[0], CHAIN) == []
    assert rows_of(tmp_path).schema.field("n").type == pa.int32()


@pytest.mark.parametrize("evolve", ["ignore", "add"])
def test_what_was_fetched_before_another_worker_stored_other_columns_is_written_again(
    stream: Stream, started: Started, tmp_path: Path, evolve: Evolve
) -> None:
    def late(table: pa.Table) -> pa.Table:
        n = numbers(table).cast(pa.int32())
        rows = pa.table({"n": n, "more": n})
        return rows.filter(pc.greater_equal(n, 30))

    with started(sink_of(tmp_path, late, evolve=evolve)) as batches:
        store(batches, stream, 30, is_first=True)  # no rows
        stream.produce(30)
        fetched = batches.fetch()
        assert is_staged(fetched)
        ColumnTypes(LocalStore(str(tmp_path))).add({"n": pa.float64()})
        batches.store(fetched)
        assert staged(batches.sink.stores_into[0], CHAIN) == []
    kept = pa.schema([("n", pa.float64()), *([("more", pa.int32())] if evolve == "add" else [])])
    rows = rows_of(tmp_path)
    assert rows.schema == kept
    assert sorted(rows["n"].to_pylist()) == list(range(30, 60))


def _fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


def raises(table: pa.Table) -> pa.Table:
    if pc.max(numbers(table)).as_py() >= 30:
        raise ValueError("a record that cannot be processed")
    return table


def exits(table: pa.Table) -> pa.Table:
    raise SystemExit(3)


def away(table: pa.Table) -> pa.Table:
    raise Unavailable("the registry cannot be read")


def refused(table: pa.Table) -> pa.Table:
    return pa.table({"at": pa.array([2**62] * len(table), pa.int64()).cast(pa.timestamp("s"))})


@pytest.mark.parametrize(
    ("function", "partition_by", "error", "message"),
    [
        (raises, [], Exception, "a record that cannot be processed"),
        (exits, [], Exception, "the function raised SystemExit"),
        pytest.param(refused, [], RecordRefused, "column at has a value", marks=pytest.mark.nightly),
        pytest.param(away, [], Unavailable, "the registry cannot be read", marks=pytest.mark.nightly),
        (lambda table: 1, [], TransformError, "must return a pyarrow.Table"),
        (lambda table: table, ["kind"], ConfigurationError, r"partitioned by \['kind'\]"),
        (lambda table: table.select(["data"]), ["day(at)"], ConfigurationError, "the output has no at"),
    ],
)
@pytest.mark.parametrize("is_first", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_what_a_function_raises_is_what_the_batch_fails_with(
    stream: Stream,
    started: Started,
    tmp_path: Path,
    function: Callable[[pa.Table], Any],
    partition_by: list[str],
    error: type[Exception],
    message: str,
    is_first: bool,
) -> None:
    sink = sink_of(tmp_path, function, partition_by=partition_by)
    if not is_first:
        sink._staged_chain = CHAIN  # as after a batch that was stored
    with started(sink) as batches:
        stream.produce(40)
        fetched = batches.fetch()
        assert is_staged(fetched) is not is_first
        with pytest.raises(error, match=message) as caught:
            batches.stage(fetched)
        assert not isinstance(caught.value, SinkError)
        lease = next(iter(fetched.progress))
        assert fetched.midpoint(lease) is not None
        assert len(fetched.records(lease)) == fetched.progress[lease].records
        fetched.release()
        assert staged(batches.sink.stores_into[0], CHAIN) == []


def ends_its_process(table: pa.Table) -> pa.Table:
    import os

    os._exit(1)


@pytest.mark.nightly
def test_a_function_that_ends_its_process_does_not_end_the_fetch(
    stream: Stream, started: Started, tmp_path: Path
) -> None:
    sink = sink_of(tmp_path, ends_its_process)
    sink._staged_chain = CHAIN
    with started(sink) as batches:
        stream.produce(30)
        fetched = batches.fetch()
        assert not is_staged(fetched), "read again, without the function"
        with pytest.raises(BatchError, match="Spark lost a process"):
            batches.stage(fetched)
        fetched.release()


def many_rows(table: pa.Table) -> pa.Table:
    noise = pa.array([bytes([n % 251]) * 2000 + str(n).encode() for n in range(2000)], pa.binary())
    return pa.concat_tables([pa.table({"noise": noise})] * len(table))


def test_an_output_that_is_larger_than_a_file_is_in_several(
    stream: Stream, started: Started, tmp_path: Path
) -> None:
    sink = sink_of(tmp_path, many_rows, target_bytes=24 * 1024 * 1024)
    sink._staged_chain = CHAIN
    with started(sink) as batches:
        stream.produce(20)
        fetched = batches.fetch()
        assert is_staged(fetched)
        done = batches.store(fetched)
        assert sum(file.rows for file in done.files) == 40_000
        assert len(done.files) >= 2


@pytest.fixture(scope="module")
def cloud() -> Iterator[EmbeddedAws]:
    with embedded_aws(streams={"clicks": 4, "poisoned": 1}) as cloud:
        yield cloud


def clicks(table: pa.Table) -> pa.Table:
    import random

    values = [json.loads(data) for data in table["data"].to_pylist()]
    rows = pa.Table.from_pylist([{"n": value["n"], "chance": random.random()} for value in values])
    return rows.append_column("at", table["arrival_timestamp"])


def test_a_consumer_of_tables_stores_each_record_once(
    cloud: EmbeddedAws, spark: SparkSession, tmp_path: Path
) -> None:
    consumer = kcl.kcl_consumer(
        application="arrow-clicks",
        stream="clicks",
        sink=kcl.parquet(str(tmp_path), partition_by=["day(at)"]),
        batch=kcl.BatchSettings(max_seconds=0.5, idle_seconds=0.1, max_records=60),
        arrow=True,
    )(clicks)
    for turn in range(2):
        cloud.put("clicks", [json.dumps({"n": turn * 200 + n}).encode() for n in range(200)])
        assert consume(consumer, cloud.resource(), spark) == 200
        assert Counter(rows_of(tmp_path)["n"].to_pylist()) == Counter(range((turn + 1) * 200))


def test_a_record_that_fails_is_set_aside_as_with_every_transform(
    cloud: EmbeddedAws, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters, lake = tmp_path / "letters", tmp_path / "lake"
    consumer = kcl.kcl_consumer(
        application="arrow-poisoned",
        stream="poisoned",
        sink=kcl.parquet(str(lake)),
        batch=kcl.BatchSettings(
            max_seconds=0.3,
            idle_seconds=0.1,
            failure=kcl.FailurePolicy(action="dead_letter", attempts=1, dead_letter_path=str(letters)),
        ),
        arrow=True,
    )(clicks)
    payloads = [json.dumps({"n": n}).encode() for n in range(3)]
    payloads[1] = b"no JSON"
    outcomes: list[Outcome] = []

    def go_on_after_failures(witness: Any, report: BatchReport) -> None:
        outcomes.extend(lease.outcome for lease in report.leases)
        witness.stored += report.records
        witness.is_done = outcomes[-1:] == [Outcome.IDLE] and Outcome.SET_ASIDE in outcomes
        if witness.is_done:
            witness.stop.request(StopReason.ASKED, "the test has seen enough")

    monkeypatch.setattr(consuming._Witness, "batch", go_on_after_failures)
    cloud.put("poisoned", payloads)
    consume(consumer, cloud.resource(), spark)
    assert sorted(rows_of(lake)["n"].to_pylist()) == [0, 2]
    assert len(list(letters.rglob("*.json"))) == 1
    assert Outcome.NARROWED in outcomes


def test_a_function_of_tables_is_a_transform_of_frames_for_replays(spark: SparkSession) -> None:
    given = records(spark, [json.dumps({"n": n}).encode() for n in range(5)])
    output = ArrowTransform(clicks)(given)
    assert output.columns == ["n", "chance", "at"]
    assert sorted(row.n for row in output.collect()) == list(range(5))
