"""The table of rights is what the components ask for: no right too few, none too many."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import kcl_dagster as kcl
from kcl_dagster import cli
from kcl_dagster.aws import Access
from kcl_dagster.chains.publication import chain_id
from kcl_dagster.emulator import Emulator
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.operations.backup import export_leases, import_leases
from kcl_dagster.operations.doctor import examine
from kcl_dagster.operations.doctor.diagnosis import DiagnosisSubject
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.operations.rights import RIGHTS, Component, Grant
from kcl_dagster.operations.written_places import WrittenPlaces
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.export_folder import ExportFolder
from kcl_dagster.runtime import system
from kcl_dagster.spark.executors import check_stream
from kcl_dagster.spark.fetch import Connection, FetchPlan, ShardPlan, fetch
from kcl_dagster.spark.parquet_file import ParquetFile
from kcl_dagster.spark.schema import COLUMNS, PROGRESS
from kcl_dagster.spark.sinks.batch_files import StageFiles
from kcl_dagster.spark.sinks.parquet_compaction import compact
from kcl_dagster.spark.sinks.partition_folders import UNPARTITIONED
from kcl_dagster.spark.storage import S3Options, open_store
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.telemetry.leader_metrics import open_leader_telemetry
from kcl_dagster.testing import consume
from kcl_dagster.worker.batch import Budget, Progress, Range
from kcl_dagster.worker.opening import open_surroundings
from kcl_dagster.worker.shard_end import ShardEnds, ShardEndWaits
from tests.doubles.engine import MemoryEngine
from tests.doubles.sink import RecordingSink
from tests.integration.wiretap import EXPORTS, Asked, ComponentsResource, tapped

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.timeout(900)]

RECORDS = 20


def granted() -> set[Asked]:
    """The table without what AWS checks beside the right of a request's name: no request shows that."""
    return {
        Asked(component, grant.action, grant.target)
        for grant in RIGHTS
        for component in grant.to
        if not grant.checked_by
    }


@pytest.fixture(scope="module")
def asked(aws: Emulator, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> set[Asked]:
    """What leader, worker, executor and operator asked for when each did all that it does."""
    name = f"rights-{uuid.uuid4().hex[:8]}"
    with pytest.MonkeyPatch.context() as patch, tapped(patch, name) as tap:
        for key in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            patch.delenv(key, raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", str(Component.OPERATOR))
        patch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        aws.client("s3").create_bucket(Bucket=name)
        kinesis = aws.client("kinesis")
        kinesis.create_stream(StreamName=name, ShardCount=2)
        fleet_works(aws, spark, name, kinesis)
        executors_meet_what_is_rare(aws, name)
        another_application_exists(aws, kinesis)
        operator_does_everything(aws, name, tmp_path_factory.mktemp("operator"))
        return tap.asked


def consumer(name: str, **batch: Any) -> Consumer:
    application = kcl.Application(
        name=name,
        streams=name,
        tables={"tags": {"team": "web"}, "point_in_time_recovery": True},
        batch={"max_seconds": 1.0, "idle_seconds": 0.1, **batch},
        telemetry={"cloudwatch": "SUMMARY"},
    )

    def counted(records: Any) -> Any:
        return records.selectExpr("lease_key", "length(data) as bytes")

    sink = kcl.parquet(f"s3://{name}/lake")
    return kcl.kcl_consumer(application=application, sink=sink, name="records")(counted)


def fleet_works(aws: Emulator, spark: SparkSession, name: str, kinesis: Any) -> None:
    """Leader, worker and Spark's executors read both sides of a split by fan-out."""
    resource = ComponentsResource(endpoint_url=aws.endpoint_url, region_name="us-east-1")
    put(kinesis, name)
    kinesis.split_shard(StreamName=name, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126))
    put(kinesis, name)
    reads = consumer(name, retrieval="fanout")
    check_stream(spark, Connection(**resource.connection("kinesis", reads.application)), name)
    assert consume(reads, resource, spark, within=300) == 2 * RECORDS
    leader_publishes(reads, resource)
    worker_asks_for_children(reads, resource)
    worker_compacts(f"s3://{name}/small", S3Options(**resource.connection("s3", reads.application)))


def put(kinesis: Any, name: str) -> None:
    records = [{"Data": b"x", "PartitionKey": str(number)} for number in range(RECORDS)]
    kinesis.put_records(StreamName=name, Records=records)


def worker_asks_for_children(reads: Consumer, resource: ComponentsResource) -> None:
    """At the end of a shard whose last response named no child. This shard is open and has none."""
    name = reads.application.name
    clients = {service: resource.client(service, reads.application) for service in ("dynamodb", "kinesis")}
    engine = MemoryEngine(clients["kinesis"], system())
    around = open_surroundings(reads.application, **clients, engine=engine, sink=RecordingSink(), runtime=system())
    lease = around.leases.get(LeaseKey("shardId-000000000001"))
    assert lease is not None
    range_ = Range(lease.key, StreamIdentifier(name), lease.shard_id, TRIM_HORIZON, 1)
    with pytest.raises(ShardEndWaits):
        ShardEnds(around.leases, around.list_shards).create_children(lease, Progress(range_, ended=True))


def worker_compacts(lake: str, s3: S3Options) -> None:
    """A compaction's run has the worker's rights."""
    store = open_store(lake, s3)
    for number in range(2):
        file = ParquetFile(pa.schema([("number", pa.int64())]))
        file.write(pa.RecordBatch.from_pydict({"number": [number]}))
        store.put(f"clicks-0.worker-1.{number}_0_0.parquet", file.finish())
    assert compact(lake, min_age_seconds=0, s3=s3).merged == 2


def leader_publishes(reads: Consumer, resource: ComponentsResource) -> None:
    """What the sensor does beside ticking."""
    clients = {service: resource.client(service) for service in ("dynamodb", "kinesis")}
    leader = open_leader(reads.application, **clients, identity="sensor", runtime=system())
    telemetry = open_leader_telemetry(reads.application, system(), resource.client, "sensor")
    assert telemetry.cloudwatch is not None
    telemetry.tick(leader.tick(RunView(launches=False)))
    telemetry.cloudwatch.flush()
    leader.resign()
    fleet = kcl.FleetSettings(min_workers=0)
    resting = reads.application.model_copy(update={"fleet": fleet})
    leader = open_leader(resting, **clients, identity="sensor", runtime=system())
    leader.tick(RunView())
    leader.resign()


def executors_meet_what_is_rare(aws: Emulator, name: str) -> None:
    """Reading by polling, a stream and a consumer that are gone, and staged files that must be thrown away."""
    access = {"endpoint_url": aws.endpoint_url, "region": "us-east-1", "access_key": "executor", "secret_key": "x"}
    connection = Connection(**access)
    client = connection.kinesis()

    def plan(stream: str, *shards: str, consumer_arn: str | None = None) -> FetchPlan:
        ranges = [Range(LeaseKey(shard), StreamIdentifier(stream), shard, TRIM_HORIZON, 1) for shard in shards]
        tasks = (tuple(ShardPlan(range_, consumer_arn=consumer_arn) for range_ in ranges),)
        return FetchPlan(connection, tasks, Budget(1000, 10**6, 0.5), ShardLimits.unlimited())

    summary = aws.client("kinesis").describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    list(fetch(plan("gone", "shardId-000000000000"), 0, client, system()))
    gone = f"{summary['StreamARN']}/consumer/gone:1"
    list(fetch(plan(name, "shardId-000000000001", consumer_arn=gone), 0, client, system()))
    records = fetch(plan(name, "shardId-000000000000", "shardId-000000000001"), 0, client, system())
    lake = open_store(f"s3://{name}/lake", S3Options(**access))
    staging = StageFiles(lake, UNPARTITIONED, chain_id(name, "executor", "1"), 1, target_bytes=1)
    with pytest.raises(ZeroDivisionError):
        staging.write(
            cut_off(batch.select(COLUMNS) for batch in records if batch.column(PROGRESS).null_count), 0, 0, None
        )


def cut_off(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of a function that fails behind the first ones."""
    yield next(batches)
    raise ZeroDivisionError


def another_application_exists(aws: Emulator, kinesis: Any) -> None:
    """Its tables are what the operator's right to list applications is for."""
    other = kcl.Application(name=f"other-{uuid.uuid4().hex[:8]}", streams=f"other-{uuid.uuid4().hex[:8]}")
    kinesis.create_stream(StreamName=other.streams[0].name, ShardCount=1)
    dynamodb = aws.client("dynamodb")
    leader = open_leader(other, dynamodb=dynamodb, kinesis=kinesis, identity="other", runtime=system())
    leader.tick(RunView(launches=False))


def operator_does_everything(aws: Emulator, name: str, folder: Path) -> None:
    """The verbs of the command line, and what needs settings that only a project has."""

    def verb(*words: str) -> None:
        named = [] if words == ("list",) else ["--application", name, "--stream", name]
        cli.main([*words, *named, "--region", "us-east-1", "--endpoint-url", aws.endpoint_url])

    file = str(folder / "leases")
    verb("status")
    verb("plan")
    verb("pause")
    for words in (
        ["export", "--file", file],
        ["reset", "--to", "trim_horizon"],
        ["import", "--file", file, "--force"],
        ["resume"],
        ["drain", "--worker", "worker-000"],
        ["peek", "--shard", "shardId-000000000001"],
        ["cost", "--measured", "1"],
        ["doctor", "--watch", "0.1"],
        ["list"],
        ["deregister", "--force"],
        ["forget", "--dry-run"],
    ):
        verb(*words)
    access = Access(endpoint_url=aws.endpoint_url, region="us-east-1", access_key="operator", secret_key="x")
    clients = {service: access.client(service) for service in ("dynamodb", "kinesis", "cloudwatch")}
    application = consumer(name, retrieval="fanout").application
    operator = S3Options(access.region, access.endpoint_url, access_key="operator", secret_key="x")
    store = open_store(f"s3://{name}/lake", operator)
    list(
        examine(
            DiagnosisSubject(
                application,
                clients["dynamodb"],
                clients["kinesis"],
                system(),
                watch_seconds=0.1,
                cloudwatch=lambda: clients["cloudwatch"],
                places=WrittenPlaces({"sink": lambda: store}),
            )
        )
    )
    opened = OpenApplication.open(application, clients["dynamodb"], clients["kinesis"], system(), "olga")
    lines = list(export_leases(opened))
    exports = ExportFolder(lambda: f"s3://{name}/{EXPORTS}", "leases.jsonl", lambda: operator)
    exports.put("leases.jsonl", "\n".join(lines))
    assert exports.get("leases.jsonl").splitlines() == lines
    copy = application.model_copy(update={"name": f"{name}-copy"})
    opened = OpenApplication.open(copy, clients["dynamodb"], clients["kinesis"], system(), "olga")
    import_leases(opened, [line.replace(f'"{name}"', f'"{name}-copy"') for line in lines], force=True)


@pytest.mark.audit("D14")
def test_every_request_has_a_grant(asked: set[Asked]) -> None:
    assert sorted(map(str, asked - granted())) == []


@pytest.mark.audit("D14")
def test_every_grant_has_a_request(asked: set[Asked]) -> None:
    assert sorted(map(str, granted() - asked)) == []


@pytest.mark.audit("D14")
@pytest.mark.parametrize("grant", [grant for grant in RIGHTS if grant.checked_by], ids=lambda grant: grant.action)
def test_a_grant_without_a_request_of_its_name_belongs_to_requests_that_are_granted(grant: Grant) -> None:
    """Or to a library that sends its own requests (pyiceberg, Dagster's Pipes), or to the KclResource, which
    assumes roles."""
    for component in grant.to:
        sent = {other.action for other in RIGHTS if component in other.to and other is not grant}
        assert set(grant.checked_by) & {*sent, "pyiceberg", "Pipes", "KclResource"}, component
