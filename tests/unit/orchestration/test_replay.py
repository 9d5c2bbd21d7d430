"""A backfill reads windows of a stream again while its consumer goes on reading."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.dataset as dataset
import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

import kcl_dagster as kcl
from kcl_dagster.emulator import Emulator, Limits
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.operations.pausing import drain
from kcl_dagster.orchestration.replay_asset import REPLAY_TAG, build_kcl_replay_asset, older
from kcl_dagster.runtime import system
from tests.unit.orchestration.conftest import Bench
from tests.unit.orchestration.replaying import RANGE_END, RANGE_START, consumer_of, replaying, resource_at
from tests.unit.orchestration.test_worker_job import execute, leading

pytestmark = pytest.mark.slow

HOUR = 3600
STREAM = "archive"
RECORDS = 150  # an hour
KILLED_WITHIN = 300.0


class Archive:
    """A stream with records of the last two whole hours and of this one, on a clock of its own."""

    def __init__(self, aws: Emulator, this_hour: int) -> None:
        self.aws = aws
        kinesis = aws.client("kinesis")
        kinesis.create_stream(StreamName=STREAM, ShardCount=2)
        self.hours = [_partition(this_hour - 2 * HOUR), _partition(this_hour - HOUR)]
        self.this_hour = _partition(this_hour)
        self.bodies: dict[str, list[int]] = {}
        for number, hour in enumerate([*self.hours, self.this_hour]):
            aws.clock.advance(HOUR if number else 0)
            bodies = list(range(number * RECORDS, (number + 1) * RECORDS))
            records = [{"Data": f"{n}".encode(), "PartitionKey": f"key-{n % 7}"} for n in bodies]
            assert kinesis.put_records(StreamName=STREAM, Records=records)["FailedRecordCount"] == 0
            self.bodies[hour] = bodies

    def ends(self) -> dict[str, str]:
        """The number of the last record of each shard."""
        kinesis, found = self.aws.client("kinesis"), {}
        for shard in kinesis.list_shards(StreamName=STREAM)["Shards"]:
            kind = {"ShardIteratorType": "TRIM_HORIZON"}
            iterator = kinesis.get_shard_iterator(StreamName=STREAM, ShardId=shard["ShardId"], **kind)
            answer = kinesis.get_records(ShardIterator=iterator["ShardIterator"])
            assert answer["MillisBehindLatest"] == 0
            found[shard["ShardId"]] = answer["Records"][-1]["SequenceNumber"]
        return found


def _partition(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d-%H:%M")


@pytest.fixture(scope="module")
def archive() -> Iterator[Archive]:
    this_hour = int((time.time() - 60) // HOUR) * HOUR
    behind = time.time() - (this_hour - 2 * HOUR + 600)
    with Emulator(limits=Limits.none(), clock=lambda: time.time() - behind) as aws:
        yield Archive(aws, this_hour)


@pytest.fixture
def resource(archive: Archive) -> kcl.KclResource:
    return resource_at(archive.aws.endpoint_url)


@contextmanager
def live(bench: Bench, spark: SparkSession) -> Iterator[None]:
    """The application's leader and its worker, at work until the block ends."""
    worker = threading.Thread(target=execute, args=(bench, spark))
    with leading(bench):
        worker.start()
        try:
            yield
        finally:
            drain(opened_of(bench), "worker-000")
            worker.join(60)
    assert not worker.is_alive()


def opened_of(bench: Bench) -> OpenApplication:
    dynamodb, kinesis = (bench.resource.client(service) for service in ("dynamodb", "kinesis"))
    return OpenApplication.open(bench.consumer.application, dynamodb, kinesis, system(), "test")


def stored(lake: Path) -> list[tuple[str, int]]:
    """(lease, body) of every record that readers of a folder see."""
    # A folder exists before its first file does, and a dataset of no files has no columns.
    files = [str(path) for path in lake.glob("*.parquet")]
    if not files:
        return []
    found = dataset.dataset(files, format="parquet").to_table(["lease_key", "body"])
    return [(row["lease_key"], int(row["body"])) for row in found.to_pylist()]


def by_hour(lake: Path) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for lease, body in stored(lake):
        found.setdefault(lease[:16], []).append(body)
    return {hour: sorted(bodies) for hour, bodies in found.items()}


def wait_until(condition: Any, seconds: float = KILLED_WITHIN) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def kill_a_replay(archive: Archive, lake: Path) -> None:
    """Start a replay of both hours and kill it as soon as it has stored something."""
    told = {
        "name": STREAM,
        "lake": str(lake),
        "endpoint": archive.aws.endpoint_url,
        "first": archive.hours[0],
        "last": archive.hours[1],
    }
    command = [sys.executable, "-m", "tests.unit.orchestration.replaying", json.dumps(told)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        wait_until(lambda: any(lake.glob("*.parquet")) or process.poll() is not None)
        assert process.poll() is None, "the replay ended before it could be killed"
        process.kill()


@pytest.mark.spark
@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_backfill_stores_its_windows_once_beside_the_live_consumer_although_it_was_killed(
    archive: Archive, spark: SparkSession, resource: kcl.KclResource, instance: DagsterInstance, tmp_path: Path
) -> None:
    alive, replayed = tmp_path / "alive", tmp_path / "replayed"
    bench = Bench(consumer_of(STREAM, alive), resource, instance)
    bench.tick()  # makes the tables
    everything = sorted(body for bodies in archive.bodies.values() for body in bodies)
    with live(bench, spark):
        kill_a_replay(archive, replayed)
        assert set(by_hour(replayed)) == {_word(archive.hours[0])}
        wait_until(lambda: len(stored(alive)) == len(everything))
        # The rows of the leases say what is stored with their next renewal.
        ends = archive.ends()
        wait_until(lambda: checkpoints(bench) == ends)
        before = {lease.key: (lease.checkpoint, lease.owner) for lease in opened_of(bench).scan().leases}
        job = replaying(bench.consumer, replayed, archive.aws.endpoint_url, spark, archive.hours[0])
        tags = {RANGE_START: archive.hours[0], RANGE_END: archive.hours[1]}
        assert job.execute_in_process(instance=instance, tags=tags, run_config=at_full_speed()).success
        after = {lease.key: (lease.checkpoint, lease.owner) for lease in opened_of(bench).scan().leases}
    assert by_hour(replayed) == {_word(hour): archive.bodies[hour] for hour in archive.hours}
    assert after == before
    assert sorted(body for _, body in stored(alive)) == everything
    told = instance.fetch_materializations(dg.AssetKey("things_replayed"), limit=10).records
    assert Counter(record.partition_key for record in told) == Counter(archive.hours)
    for record in told:
        assert record.asset_materialization is not None
        assert record.asset_materialization.metadata["dagster/row_count"].value == RECORDS


def checkpoints(bench: Bench) -> dict[str, str]:
    leases = opened_of(bench).scan().leases
    return {lease.key: "" if lease.checkpoint is None else str(lease.checkpoint.sequence) for lease in leases}


def at_full_speed() -> dict[str, Any]:
    return {"ops": {"archive_things_replayed": {"config": {"share": 1.0}}}}


def _word(hour: str) -> str:
    return hour.replace(":", "-")


def refusal(job: Any, instance: DagsterInstance, partition: str) -> str:
    result = job.execute_in_process(instance=instance, partition_key=partition, raise_on_error=False)
    assert not result.success
    [event] = [event for event in result.all_events if event.is_step_failure]
    failure = event.step_failure_data.user_failure_data
    assert failure is not None, event.step_failure_data.error
    return str(failure.description)


class NoSpark:
    """A window that is refused is refused before Spark starts."""

    @property
    def spark_session(self) -> Any:
        raise AssertionError("Spark was started")


def refusing_job(archive: Archive, resource: kcl.KclResource, tmp_path: Path, first: str) -> Any:
    asset = build_kcl_replay_asset(
        consumer_of(STREAM, tmp_path),
        partitions_def=dg.HourlyPartitionsDefinition(start_date=first, fmt="%Y-%m-%d-%H:%M", end_offset=1),
        sink=kcl.parquet(str(tmp_path)),
    )
    job = dg.define_asset_job("replay", selection=[asset], executor_def=dg.in_process_executor)
    resources = {"kcl": resource, "spark": NoSpark()}
    return dg.Definitions(assets=[asset], jobs=[job], resources=resources).resolve_job_def("replay")


@pytest.mark.server
def test_an_hour_that_is_not_over_is_refused_before_spark_starts(
    archive: Archive, resource: kcl.KclResource, instance: DagsterInstance, tmp_path: Path
) -> None:
    job = refusing_job(archive, resource, tmp_path, archive.hours[0])
    assert "is not over yet" in refusal(job, instance, archive.this_hour)


def test_record_processors_cannot_be_replayed(tmp_path: Path) -> None:
    class Things:
        def process_records(self, given: Any) -> None:
            """Never called here."""

    consumer = kcl.kcl_consumer(application="things", stream="things")(Things)
    with pytest.raises(ConfigurationError, match="record processors checkpoint by themselves"):
        build_kcl_replay_asset(
            consumer,
            partitions_def=dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00"),
            sink=kcl.parquet(str(tmp_path)),
        )


def test_a_backfill_is_one_run_and_replays_of_an_application_are_in_one_pool(tmp_path: Path) -> None:
    asset = build_kcl_replay_asset(
        consumer_of(STREAM, tmp_path),
        partitions_def=dg.DailyPartitionsDefinition(start_date="2026-01-01"),
        sink=kcl.parquet("s3://lake/again"),
        name="again",
    )
    assert asset.backfill_policy == dg.BackfillPolicy.single_run()
    assert asset.op.pool == f"{STREAM}_replay"
    [spec] = asset.specs
    assert spec.key == dg.AssetKey("again")
    assert spec.metadata["kcl/sink"].value == "s3://lake/again"
    assert spec.kinds == {"pyspark", "parquet"}
    assert {dep.asset_key for dep in spec.deps} == {dg.AssetKey(["kinesis", STREAM])}


@dg.job
def _never_executed() -> None:
    """Stands for a replay in the run storage."""


def test_replays_of_an_application_take_turns_in_the_order_of_their_runs(instance: DagsterInstance) -> None:
    def run_of(application: str, status: dg.DagsterRunStatus) -> dg.DagsterRun:
        return instance.create_run_for_job(_never_executed, tags={REPLAY_TAG: application}, status=status)

    run_of("mine", dg.DagsterRunStatus.SUCCESS)
    run_of("another", dg.DagsterRunStatus.STARTED)
    first, second = (run_of("mine", dg.DagsterRunStatus.STARTED) for _ in range(2))
    assert older(instance, "mine", first) is None
    assert older(instance, "mine", second) == first.run_id
    instance.report_run_failed(first)
    assert older(instance, "mine", second) is None
