"""A worker run in this process, against the embedded AWS, with the leader ticking beside it."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.dataset as dataset
import pytest
from dagster import DagsterInstance, DagsterRunStatus
from pyspark.sql import SparkSession
from sqlalchemy.exc import OperationalError

import kcl_dagster as kcl
from kcl_dagster.emulator import Emulator
from kcl_dagster.operations.status import read_status
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.runtime import system
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.tables.workers import WorkerTable
from tests.doubles.aggregation import sealed
from tests.unit.orchestration.conftest import Bench

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(900)]

RECORDS = 200


@dataclass
class SharedSpark:
    """The session of the test process, which outlives the run. Anything with a `spark_session` will do."""

    spark_session: SparkSession


def consumer_of(name: str, lake: Path) -> Consumer:
    @kcl.kcl_consumer(
        application=name,
        stream=name,
        sink=kcl.parquet(str(lake)),
        fleet=kcl.FleetSettings(min_workers=1, max_workers=1),
        timings=kcl.Timings(lease_duration=10, heartbeat=1, handoff_timeout=2, shard_audit=5),
        batch=kcl.BatchSettings(max_seconds=1, idle_seconds=0.2),
        name="things",
    )
    def things(records: Any) -> Any:
        return records.selectExpr("lease_key", "cast(data as string) as body")

    return things


@pytest.fixture
def stream(aws: Emulator, request: pytest.FixtureRequest) -> str:
    """A stream of two shards, named after the test, with RECORDS records."""
    name = f"{request.node.name[:40]}-{os.getpid()}".replace("_", "-").replace("[", "-").replace("]", "")
    kinesis = aws.client("kinesis")
    kinesis.create_stream(StreamName=name, ShardCount=2)
    put_records(aws, name, 0, RECORDS)
    return name


def put_records(aws: Emulator, stream: str, first: int, number: int) -> None:
    records = [{"Data": f"{n}".encode(), "PartitionKey": f"key-{n % 7}"} for n in range(first, first + number)]
    aws.client("kinesis").put_records(StreamName=stream, Records=records)


def bodies(lake: Path) -> list[int]:
    # A folder is there before its first file, and what is being written has another name until it is whole.
    files = [str(path) for path in lake.glob("*.parquet")]
    if not files:
        return []
    table = dataset.dataset(files, format="parquet").to_table(columns=["body"])
    return sorted(int(body) for body in table["body"].to_pylist())


@contextmanager
def leading(bench: Bench) -> Iterator[None]:
    """The leader sensor, evaluated every second."""
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(1.0):
            try:
                bench.evaluate()
            except OperationalError as error:
                # The database of an instance in memory refuses a read during a write, instead of waiting.
                if "is locked" not in str(error):
                    raise

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def drain_all(bench: Bench, resource: kcl.KclResource) -> None:
    """Ask every worker to hand over its leases and to end."""
    dynamodb, application = resource.client("dynamodb"), bench.consumer.application
    table = WorkerTable(dynamodb, application, detect_layout(dynamodb, application), system())
    for row in table.list():
        table.request_drain(row.id)


def execute(bench: Bench, spark: SparkSession, slot: str = "worker-000") -> dg.ExecuteInProcessResult:
    """Run the worker job of a slot until the worker ends."""
    name = bench.consumer.application.name.replace("-", "_")
    definitions = kcl.build_kcl_definitions(
        bench.consumer, resources={"kcl": bench.resource, "spark": SharedSpark(spark)}
    )
    bench.instance.add_dynamic_partitions(f"{bench.consumer.application.name}/slots", [slot])
    return definitions.resolve_job_def(f"{name}_worker").execute_in_process(
        instance=bench.instance, partition_key=slot, raise_on_error=True
    )


def open_bench(consumer: Consumer, resource: kcl.KclResource, instance: DagsterInstance) -> Bench:
    bench = Bench(consumer, resource, instance)
    bench.tick()  # makes the tables
    return bench


def observations(instance: DagsterInstance) -> list[dict[str, Any]]:
    records = instance.fetch_observations(dg.AssetKey("things"), limit=100).records
    return [
        {name: value.value for name, value in record.asset_observation.metadata.items()}
        for record in reversed(records)
        if record.asset_observation is not None
    ]


@contextmanager
def when_stored(
    lake: Path, act: Callable[[], object], is_told: Callable[[], object] = lambda: True
) -> Iterator[None]:
    """Does something as soon as every record is in the lake, and told: a batch may be cut off before that."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            if len(bodies(lake)) == RECORDS and is_told():
                act()
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_drained_worker_ends_its_run_and_lets_go(
    stream: str, spark: SparkSession, resource: kcl.KclResource, instance: DagsterInstance, tmp_path: Path
) -> None:
    bench = open_bench(consumer_of(stream, tmp_path / "lake"), resource, instance)
    dynamodb, application = resource.client("dynamodb"), bench.consumer.application

    def drain() -> None:
        drain_all(bench, resource)

    with leading(bench), when_stored(tmp_path / "lake", drain, lambda: observations(instance)):
        result = execute(bench, spark)
    assert result.success
    assert bodies(tmp_path / "lake") == list(range(RECORDS))
    told = observations(instance)
    assert len(told) >= 2, "the first records at once, and the end"
    assert told[-1]["kcl/records_in_total"] == RECORDS
    assert {frozenset(metadata) for metadata in told} == {frozenset(told[0])}
    assert told[0]["dagster/column_schema"].columns
    status = read_status(application, dynamodb, system())
    assert {lease.owner for lease in status.leases} == {None}
    assert status.workers == []


@pytest.mark.audit("F13")
def test_a_function_that_asks_gets_the_context_of_its_run_and_the_resource(
    stream: str, spark: SparkSession, resource: kcl.KclResource, instance: DagsterInstance, tmp_path: Path
) -> None:
    def things(records: Any, context: dg.OpExecutionContext, kcl: Any) -> Any:
        said = f"{context.partition_key} of {kcl.region_name}"
        return records.selectExpr("lease_key", "cast(data as string) as body", f"'{said}' as said")

    asking = replace(consumer_of(stream, tmp_path / "lake"), transform=things)
    assert asking.resources == {"kcl"}
    bench = open_bench(asking, resource, instance)
    with leading(bench), when_stored(tmp_path / "lake", lambda: drain_all(bench, resource)):
        result = execute(bench, spark)
    assert result.success
    files = [str(path) for path in (tmp_path / "lake").glob("*.parquet")]
    stored = dataset.dataset(files, format="parquet").to_table(columns=["said"])["said"].to_pylist()
    assert stored == [f"worker-000 of {resource.region_name}"] * RECORDS


def test_aggregates_that_cannot_be_opened_are_seen_in_dagster(
    aws: Emulator,
    stream: str,
    spark: SparkSession,
    resource: kcl.KclResource,
    instance: DagsterInstance,
    tmp_path: Path,
) -> None:
    broken = sealed(b"\xff\xff\xff")  # a good digest over what is no message
    aws.client("kinesis").put_record(StreamName=stream, Data=broken, PartitionKey="key")
    consumer = consumer_of(stream, tmp_path / "lake")
    good = replace(consumer, transform=lambda records: consumer(records.where("aggregate_problem is null")))
    bench = open_bench(good, resource, instance)
    with leading(bench), when_stored(tmp_path / "lake", lambda: os.kill(os.getpid(), signal.SIGTERM)):
        execute(bench, spark)
    assert observations(instance)[-1]["kcl/broken_aggregates_in_total"] == 1
    key = dg.AssetCheckKey(dg.AssetKey([stream, "lag"]), "no_broken_aggregates")
    [told] = instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
    assert told.evaluation is not None
    assert (told.evaluation.passed, told.evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "1 aggregates kept as raw records" in str(told.evaluation.description)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_stops_a_worker(
    stream: str,
    spark: SparkSession,
    resource: kcl.KclResource,
    instance: DagsterInstance,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    """It ends its batch, and the run is a success: as Dagster ends runs, a terminal all, Kubernetes a pod."""
    bench = open_bench(consumer_of(stream, tmp_path / "lake"), resource, instance)
    with leading(bench), when_stored(tmp_path / "lake", lambda: os.kill(os.getpid(), number)):
        result = execute(bench, spark)
    assert result.success
    assert bodies(tmp_path / "lake") == list(range(RECORDS))
    assert read_status(bench.consumer.application, resource.client("dynamodb"), system()).workers == []


def test_a_second_run_of_a_slot_ends_without_touching_anything(
    stream: str, spark: SparkSession, resource: kcl.KclResource, instance: DagsterInstance, tmp_path: Path
) -> None:
    bench = open_bench(consumer_of(stream, tmp_path / "lake"), resource, instance)
    bench.add_run("worker-000", DagsterRunStatus.STARTED)
    result = execute(bench, spark)
    assert result.success
    assert observations(instance) == []
    assert read_status(bench.consumer.application, resource.client("dynamodb"), system()).workers == []
