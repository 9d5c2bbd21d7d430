"""Each misconfiguration is named by the check that found it, and nothing else is."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError

from kcl_dagster.application import (
    Application,
    BatchSettings,
    MetricsLevel,
    Retrieval,
    StreamSettings,
    TelemetrySettings,
)
from kcl_dagster.errors import AccessDenied, JavaMissing, SinkError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.operations.doctor import Diagnosis, DoctorVerdict
from kcl_dagster.operations.doctor import examine as findings_of
from kcl_dagster.operations.doctor.diagnosis import WATCH_SECONDS, DiagnosisSubject
from kcl_dagster.operations.doctor.machine_checks import judge_clock
from kcl_dagster.operations.doctor.rights_probes import PROBED, probed
from kcl_dagster.operations.doctor.stream_checks import judge_consumers
from kcl_dagster.operations.written_places import WrittenPlaces
from kcl_dagster.spark.java import Java
from kcl_dagster.spark.storage import is_hidden, open_store
from kcl_dagster.tables.bounded_run_row import BoundedRunRow, EndedRun
from tests.unit.chains.memory import MemoryFiles
from tests.unit.operations.conftest import ANNA, MADE_BY_OTHERS, STREAM, Shop

FIRST = LeaseKey("shardId-000000000000")
GOOD_INSTANCE: Mapping[str, Any] = {
    "concurrency": {
        "runs": {
            "max_concurrent_runs": 50,
            "tag_concurrency_limits": [{"key": "kcl/worker", "limit": 1}, {"key": "kcl/compaction", "limit": 1}],
        }
    },
    "run_monitoring": {"enabled": True},
    "sensors": {"use_threads": True},
}


def java_17(_: Mapping[str, str]) -> Java:
    return Java(Path("/opt/java"), 17)


def no_java(_: Mapping[str, str]) -> Java:
    raise JavaMissing("Spark needs Java 17 or newer and none was found")


def healthy() -> Shop:
    shop = Shop()
    shop.serve()
    # The leader goes on ticking while the doctor watches.
    for seconds in range(5, 60, 5):
        shop.tick_in(seconds)
    return shop


def examine(shop: Shop, stores: Mapping[str, Any] | None = None, **changes: Any) -> Diagnosis:
    settings: dict[str, Any] = {"instance": GOOD_INSTANCE, "java": java_17, **changes}
    settings.setdefault("places", WrittenPlaces(stores or {}))
    subject = DiagnosisSubject(shop.application, shop.dynamodb, shop.kinesis, shop.runtime, **settings)
    return Diagnosis(tuple(findings_of(subject)))


def named(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    return {(finding.check, finding.verdict.value) for finding in diagnosis.not_ok()}


def test_a_healthy_application_has_no_findings() -> None:
    diagnosis = examine(healthy())
    assert diagnosis.not_ok() == []
    assert diagnosis.is_well
    assert len(diagnosis.findings) > 15


def denied(method: str, on: str = "dynamodb", code: str = "AccessDeniedException") -> Callable[[Shop], None]:
    def seed(shop: Shop) -> None:
        client = shop.dynamodb if on == "dynamodb" else shop.kinesis
        client.denied[method] = code

    return seed


def summary(**members: Any) -> Callable[[Shop], None]:
    def seed(shop: Shop) -> None:
        shop.kinesis.changed["describe_stream_summary"] = lambda answer: answer["StreamDescriptionSummary"].update(
            members
        )

    return seed


def without_index(shop: Shop) -> None:
    shop.dynamodb.update_table(
        TableName=shop.application.lease_table,
        GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": "LeaseOwnerToLeaseKeyIndex"}}],
    )


def broken_row(shop: Shop) -> None:
    item = {"leaseKey": {"S": "shardId-7"}, "leaseCounter": {"S": "many"}}
    shop.dynamodb.put_item(TableName=shop.application.lease_table, Item=item)


def from_2x(shop: Shop) -> None:
    shop.dynamodb.delete_item(TableName=shop.application.lease_table, Key={"leaseKey": {"S": "Migration3.0"}})


def migrating(shop: Shop) -> None:
    table = shop.application.coordinator_table
    shop.dynamodb.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    item = {
        "key": {"S": "TableMigration3.5"},
        "entityType": {"S": "TABLE_MIGRATION"},
        "tm": {"S": "TABLE_MIGRATION_STATUS_PENDING"},
    }
    shop.dynamodb.put_item(TableName=table, Item=item)


def nearly_too_late(shop: Shop) -> None:
    shop.beat(ANNA, lag_ms=22 * 3_600_000)


def half_too_late(shop: Shop) -> None:
    shop.beat(ANNA, lag_ms=13 * 3_600_000)


def clock_askew(shop: Shop) -> None:
    at = "Fri, 01 Jan 2027 00:20:00 GMT"
    shop.kinesis.changed["describe_stream_summary"] = lambda answer: answer["ResponseMetadata"].update(
        HTTPHeaders={"date": at}
    )


def no_stream(shop: Shop) -> None:
    shop.kinesis.delete_stream(StreamName=STREAM)


SEEDED: list[Any] = [
    pytest.param(denied("update_item"), {("iam dynamodb:UpdateItem", "fail"), ("leader", "fail")}, id="UpdateItem"),
    pytest.param(denied("put_item"), {("iam dynamodb:PutItem", "fail")}, id="PutItem"),
    pytest.param(denied("delete_item"), {("iam dynamodb:DeleteItem", "fail")}, id="DeleteItem"),
    pytest.param(denied("query"), {("iam dynamodb:Query", "warn")}, id="Query on the index"),
    pytest.param(denied("get_records", "kinesis"), {("iam kinesis:GetRecords", "fail")}, id="GetRecords"),
    pytest.param(denied("list_shards", "kinesis"), {("iam kinesis:ListShards", "fail")}, id="ListShards"),
    pytest.param(
        denied("list_stream_consumers", "kinesis"),
        {("iam kinesis:ListStreamConsumers", "warn")},
        id="ListStreamConsumers",
    ),
    pytest.param(
        denied("get_records", "kinesis", "KMSAccessDeniedException"), {("encryption", "fail")}, id="KMS key"
    ),
    pytest.param(
        denied("get_records", "kinesis", "ProvisionedThroughputExceededException"),
        {("iam kinesis:GetRecords", "warn")},
        id="others use up the reads",
    ),
    pytest.param(
        denied("describe_table", code="UnrecognizedClientException"), {("credentials", "fail")}, id="credentials"
    ),
    pytest.param(without_index, {("index", "warn")}, id="no index"),
    pytest.param(broken_row, {("rows", "fail")}, id="a row nobody can read"),
    pytest.param(from_2x, {("layout", "fail")}, id="tables of KCL 2.x"),
    pytest.param(migrating, {("layout", "fail")}, id="tables on their way"),
    pytest.param(no_stream, {("stream", "fail")}, id="no stream"),
    pytest.param(summary(StreamStatus="CREATING"), {("stream", "fail")}, id="stream not ready"),
    pytest.param(
        summary(RecordDistributionStrategy="AUTO"), {("record distribution", "warn")}, id="no order per key"
    ),
    pytest.param(half_too_late, {("retention", "warn")}, id="half of the retention"),
    pytest.param(nearly_too_late, {("retention", "fail")}, id="records are lost soon"),
    pytest.param(clock_askew, {("clock", "fail")}, id="clock"),
]


@pytest.mark.parametrize(("seed", "expected"), SEEDED)
def test_what_is_wrong_with_aws_is_named_exactly(
    seed: Callable[[Shop], None], expected: set[tuple[str, str]]
) -> None:
    shop = healthy()
    seed(shop)
    diagnosis = examine(shop)
    assert named(diagnosis) == expected
    assert all(finding.do for finding in diagnosis.not_ok())
    assert diagnosis.is_well == all(verdict == "warn" for _, verdict in expected)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"java": no_java}, {("java", "fail")}),
        ({"instance": {**GOOD_INSTANCE, "run_monitoring": {}}}, {("run monitoring", "warn")}),
        ({"instance": {**GOOD_INSTANCE, "sensors": {}}}, {("sensor threads", "warn")}),
        (
            {"instance": {**GOOD_INSTANCE, "concurrency": {}}},
            {("one run per slot", "warn"), ("one compaction at a time", "warn")},
        ),
        (
            {
                "instance": {
                    **GOOD_INSTANCE,
                    "concurrency": {
                        "runs": {"max_concurrent_runs": 4, "tag_concurrency_limits": [{"key": "kcl/worker"}]}
                    },
                }
            },
            {("run queue", "fail"), ("one compaction at a time", "warn")},
        ),
        ({"instance": None}, set()),
    ],
)
def test_what_is_wrong_with_the_machine_or_the_instance_is_named_exactly(
    changes: dict[str, Any], expected: set[tuple[str, str]]
) -> None:
    assert named(examine(healthy(), **changes)) == expected


@pytest.mark.audit("F2")
def test_after_a_power_cut_leases_leader_and_retention_are_named() -> None:
    shop = Shop()
    shop.serve()
    shop.beat(lag_ms=0, behind=dict.fromkeys(shop.leases(), 0))
    shop.put(b"unread")
    shop.clock.advance(22 * 3600.0)
    diagnosis = examine(shop)
    assert named(diagnosis) == {("leader", "fail"), ("leases", "fail"), ("retention", "fail")}


@pytest.mark.audit("F2")
def test_an_unknown_lag_of_a_shard_without_worker_is_no_good_finding() -> None:
    shop = Shop()
    shop.serve()
    shop.clock.advance(22 * 3600.0)
    shop.kinesis.denied["get_shard_iterator"] = "AccessDeniedException"
    assert ("retention", "warn") in named(examine(shop))


def test_a_leader_that_stands_still_is_named() -> None:
    shop = Shop()
    shop.serve()
    assert named(examine(shop)) == {("leader", "fail")}


def test_an_application_without_tables_is_new_unless_others_make_them() -> None:
    assert named(examine(Shop())) == set()
    assert named(examine(Shop(tables=MADE_BY_OTHERS))) == {("tables", "fail")}


@pytest.mark.parametrize(
    ("sent", "verdict"),
    [
        (0.0, DoctorVerdict.OK),
        (0.9, DoctorVerdict.OK),
        (20.0, DoctorVerdict.WARN),
        (-20.0, DoctorVerdict.WARN),
        (-400.0, DoctorVerdict.FAIL),
    ],
)
def test_a_clock_is_judged_to_the_second_that_the_header_tells(sent: float, verdict: DoctorVerdict) -> None:
    theirs = 1_798_761_600.0
    finding = judge_clock({"date": "Fri, 01 Jan 2027 00:00:00 GMT"}, theirs + sent, theirs + sent + 0.05)
    assert finding.verdict is verdict


def test_the_doctor_writes_nothing() -> None:
    shop = Shop()
    shop.serve()
    before = shop.dynamodb.scan(TableName=shop.application.lease_table)["Items"]
    examine(shop)
    assert shop.dynamodb.scan(TableName=shop.application.lease_table)["Items"] == before


class CloudWatch:
    """Refuses what the doctor asks, as CloudWatch does with those who may ask, or denies it."""

    def __init__(self, code: str) -> None:
        self.code = code

    def put_metric_data(self, **request: Any) -> dict[str, Any]:
        raise ClientError({"Error": {"Code": self.code, "Message": "no"}}, "PutMetricData")


@pytest.mark.parametrize(
    ("level", "code", "verdicts"),
    [
        (MetricsLevel.SUMMARY, "AccessDenied", ["fail"]),
        (MetricsLevel.SUMMARY, "InvalidParameterCombination", ["ok"]),
        (MetricsLevel.NONE, "AccessDenied", []),
    ],
)
def test_the_right_to_publish_metrics_is_asked_for_where_they_are_on(
    level: MetricsLevel, code: str, verdicts: list[str]
) -> None:
    shop = healthy()
    shop.application = shop.application.model_copy(update={"telemetry": TelemetrySettings(cloudwatch=level)})
    diagnosis = examine(shop, cloudwatch=lambda: CloudWatch(code))
    found = [f.verdict.value for f in diagnosis.findings if f.check == "iam cloudwatch:PutMetricData"]
    assert found == verdicts


@pytest.mark.audit("D6")
def test_it_is_wrong_that_nobody_leads() -> None:
    shop = Shop()
    shop.serve()
    shop.leader.resign()
    diagnosis = examine(shop)
    assert named(diagnosis) == {("leader", "fail")}
    assert not diagnosis.is_well


@pytest.mark.audit("D6")
def test_leases_that_no_worker_serves_are_named() -> None:
    shop = healthy()
    (lease, *_) = shop.leases().values()
    shop.opened.leases.release(lease)
    worker = shop.opened.workers.get(ANNA)
    assert worker is not None
    shop.opened.workers.delete(worker)
    diagnosis = examine(shop)
    assert named(diagnosis) == {("leases", "fail")}
    (finding,) = diagnosis.not_ok()
    assert "2 of 2 open leases are served by no worker: shardId-000000000000" in finding.says


def test_a_lease_that_is_given_away_while_the_doctor_watches_is_well() -> None:
    shop = Shop()
    shop.tick()
    shop.clock.call_in(4, shop.beat)
    for seconds in range(5, 60, 5):
        shop.tick_in(seconds)
    assert named(examine(shop)) == set()


class Lake:
    """A store that somebody may not write to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.files: dict[str, bytes] = {}
        self.put_paths: list[str] = []

    root = "s3://lake/orders"

    def put(self, path: str, content: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.put_paths.append(path)
        self.files[path] = content

    def delete(self, paths: list[str]) -> None:
        for path in paths:
            del self.files[path]


@pytest.mark.audit("D6")
@pytest.mark.parametrize("error", [AccessDenied("no s3:PutObject"), OSError(28, "No space left on device")])
def test_a_sink_that_cannot_be_written_is_named(error: Exception) -> None:
    stores = {"sink": lambda: Lake(error), "dead letters": Lake}
    diagnosis = examine(healthy(), stores=stores)
    assert named(diagnosis) == {("sink", "fail")}
    (finding,) = diagnosis.not_ok()
    assert str(error) in finding.says
    assert "s3://lake/orders" in finding.says


class Imitation(MemoryFiles):
    """Ignores the condition of a put, as some stores do that imitate S3."""

    def create(self, path: str, content: bytes) -> bool:
        super().create(path, content)
        return True


def test_a_store_is_asked_whether_chains_can_be_kept(tmp_path: Path) -> None:
    local = open_store(f"{tmp_path}/lake")
    found = examine(healthy(), stores={"sink": lambda: local, "chains": lambda: local}).findings
    assert [f.verdict for f in found if f.check in ("sink", "chains")] == [DoctorVerdict.OK, DoctorVerdict.OK]
    assert list(tmp_path.iterdir()) == []
    imitation = Imitation()
    (finding,) = examine(healthy(), stores={"sink": Lake, "chains": lambda: imitation}).not_ok()
    assert (finding.check, finding.verdict) == ("chains", DoctorVerdict.FAIL)
    assert "If-None-Match" in finding.says
    assert imitation.content == {}


def refused() -> str:
    raise SinkError("iceberg table lake.rejects has format version 3")


def test_each_table_in_a_catalog_is_looked_at() -> None:
    tables = {"sink orders": lambda: "iceberg table lake.orders is at s3://lake/orders", "sink rejects": refused}
    diagnosis = examine(healthy(), places=WrittenPlaces({"chains": lambda: None}, tables, "rights were not asked"))
    found = {finding.check: (finding.verdict.value, finding.says) for finding in diagnosis.findings}
    assert found["sink orders"] == ("ok", "iceberg table lake.orders is at s3://lake/orders")
    assert found["sink rejects"] == ("fail", "iceberg table lake.rejects has format version 3")
    assert found["sink"] == ("not looked at", "rights were not asked")
    assert found["chains"][0] == "not looked at"
    assert not diagnosis.is_well


@pytest.mark.audit("F5")
def test_a_sink_is_probed_under_a_name_that_readers_pass_over_and_left_as_it_was() -> None:
    lake = Lake()
    diagnosis = examine(healthy(), stores={"sink": lambda: lake})
    assert [f.verdict for f in diagnosis.findings if f.check == "sink"] == [DoctorVerdict.OK]
    assert [is_hidden(path) for path in lake.put_paths] == [True]
    assert lake.files == {}


def test_a_local_sink_is_probed_the_same_way(tmp_path: Path) -> None:
    examine(healthy(), stores={"sink": lambda: open_store(str(tmp_path))})
    assert list(tmp_path.iterdir()) == []


def test_a_role_that_cannot_be_assumed_is_no_missing_right_of_a_table() -> None:
    client = Mock()
    refused: Any = {"Error": {"Code": "AccessDenied", "Message": "not authorized"}}
    client.describe_table.side_effect = ClientError(refused, "AssumeRole")
    finding = probed(client, "dynamodb", "describe_table", "orders", TableName="orders")
    assert (finding.check, finding.verdict) == ("credentials", DoctorVerdict.FAIL)
    assert "trust policy" in finding.do


def test_a_probe_leaves_no_folder_behind(tmp_path: Path) -> None:
    examine(healthy(), stores={"sink": lambda: open_store(f"{tmp_path}/lake/orders")})
    assert list(tmp_path.iterdir()) == []


def test_a_sink_at_a_relative_path_is_doubted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = examine(healthy(), stores={"sink": lambda: open_store("lake"), "dead letters": Lake}).findings
    assert [f.verdict for f in found if f.check == "sink"] == [DoctorVerdict.WARN]
    (doubt,) = [f.says for f in found if f.check == "sink"]
    assert f"{tmp_path}/lake can be written, and its path is relative" in doubt


@pytest.mark.audit("F5")
def test_what_was_not_looked_at_is_said_and_is_no_fault() -> None:
    def unseen(diagnosis: Diagnosis) -> set[str]:
        assert diagnosis.is_well
        return {finding.check for finding in diagnosis.findings if finding.verdict is DoctorVerdict.NOT_LOOKED}

    assert unseen(examine(healthy(), instance=None)) == {"dagster", "sink", "iam"}
    assert unseen(examine(healthy(), stores={"sink": Lake})) == {"iam"}
    assert unseen(examine(healthy(), watch_seconds=1.0)) == {"leader", "sink", "iam"}
    assert unseen(examine(Shop())) == {"leader", "sink", "iam"}


def test_without_credentials_nothing_of_aws_was_looked_at() -> None:
    shop = healthy()
    shop.dynamodb.denied["describe_table"] = "UnrecognizedClientException"
    assert "aws" in {f.check for f in examine(shop).findings if f.verdict is DoctorVerdict.NOT_LOOKED}


@pytest.mark.audit("F5")
def test_the_right_to_make_tables_is_asked_for_where_they_are_missing() -> None:
    shop = Shop()
    shop.dynamodb.denied["create_table"] = "AccessDeniedException"
    assert named(examine(shop)) == {("iam dynamodb:CreateTable", "fail")}
    assert Shop().dynamodb.list_tables()["TableNames"] == []
    allowed = Shop()
    examine(allowed)
    assert allowed.dynamodb.list_tables()["TableNames"] == []


@pytest.mark.audit("D14")
def test_the_doctor_asks_for_the_rights_that_it_claims_and_names_the_others_that_are_needed() -> None:
    shop = healthy()
    shop.application = shop.application.model_copy(
        update={
            "telemetry": TelemetrySettings(cloudwatch=MetricsLevel.SUMMARY),
            "batch": BatchSettings(retrieval=Retrieval.FANOUT),
        }
    )
    lake = Lake()
    cloudwatch = CloudWatch("InvalidParameterCombination")
    found = examine(shop, cloudwatch=lambda: cloudwatch, stores={"sink": lambda: lake}).findings
    checks = [finding.check for finding in [*found, *examine(Shop()).findings]]
    asked = {check.removeprefix("iam ") for check in checks if check.startswith("iam ")}
    # The answers to these are judged themselves, and are no findings about a right.
    assert lake.put_paths
    assert {"stream", "consumers"} <= set(checks)
    asked |= {"s3:PutObject", "s3:DeleteObject", "kinesis:DescribeStreamSummary", "kinesis:ListStreamConsumers"}
    assert asked == PROBED
    left = next(f.says for f in found if f.check == "iam" and "were not asked for" in f.says)
    assert {"kinesis:SubscribeToShard", "kinesis:RegisterStreamConsumer", "cloudwatch:GetMetricStatistics"} <= set(
        left.removesuffix(" were not asked for").split(", ")
    )
    assert not PROBED & set(left.split(", "))


@pytest.mark.audit("F5")
def test_findings_come_before_the_doctor_has_watched_the_leader() -> None:
    shop = healthy()
    began = shop.clock.monotonic()
    subject = DiagnosisSubject(shop.application, shop.dynamodb, shop.kinesis, shop.runtime, java=java_17)
    times = {finding.check: shop.clock.monotonic() - began for finding in findings_of(subject)}
    assert {check for check, at in times.items() if at == 0.0} >= {"java", "credentials", "layout", "index"}
    assert 0.0 < times["leader"] <= WATCH_SECONDS


@pytest.mark.parametrize(
    ("trouble", "found", "says"),
    [
        (
            {"stopped": (FIRST,), "why_stopped": {FIRST: "ValueError: no price (/app/shop.py:9 in price)"}},
            ("stopped", "fail"),
            f"1 shard stopped by failures: {FIRST}: ValueError: no price (/app/shop.py:9 in price)",
        ),
        (
            {"slow_since": {FIRST: 1_700_056_020}},
            ("code", "fail"),
            f"keeps the consumer's code busy for long: {FIRST}: since 13:47 UTC",
        ),
        (
            {"held_since": {"renewals": 1_700_056_020}},
            ("threads", "fail"),
            "its thread of renewals has not gone on since 13:47 UTC",
        ),
        (
            {"failing": (FIRST,), "attempts": {FIRST: "3 of 5"}},
            ("code", "warn"),
            f"batches fail and are tried again: {FIRST}: attempt 3 of 5",
        ),
    ],
)
def test_shards_that_the_consumer_stops_or_holds_up_are_named(
    trouble: dict[str, Any], found: tuple[str, str], says: str
) -> None:
    shop = healthy()
    shop.beat(**trouble)
    diagnosis = examine(shop)
    assert named(diagnosis) == {found}
    [finding] = diagnosis.not_ok()
    assert says in finding.says
    assert diagnosis.is_well is (found[1] == "warn")


def between_runs() -> Shop:
    """Bounded runs read the application: the last one ended, and its leader resigned."""
    shop = Shop()
    shop.serve()
    for lease in shop.leases().values():
        shop.opened.leases.release(shop.opened.leases.renew(lease, stored_through=int(shop.clock.now())))
    worker = shop.opened.workers.get(ANNA)
    assert worker is not None
    assert shop.opened.workers.delete(worker)
    shop.tick()
    shop.leader.resign()
    shop.clock.advance(3000)
    return shop


def test_between_bounded_runs_no_leader_and_no_worker_is_expected() -> None:
    assert named(examine(between_runs())) == {("leader", "fail"), ("leases", "fail")}
    assert named(examine(between_runs(), complete_within=7200.0)) == set()
    overdue = examine(between_runs(), complete_within=1800.0)
    assert named(overdue) == {("complete", "fail"), ("leases", "fail")}
    assert not overdue.is_well


def test_where_the_last_bounded_run_failed_doctor_does_not_suspect_the_schedule() -> None:
    shop = between_runs()
    now = int(shop.clock.now())
    row = BoundedRunRow(shop.dynamodb, shop.application, shop.opened.layout, shop.runtime)
    assert row.save(EndedRun("run-0001-4711", now, now, "shardId-0: stopped: ValueError: no price"))
    [overdue] = [one for one in examine(shop, complete_within=1800.0).not_ok() if one.check == "complete"]
    assert "schedule" not in overdue.do
    assert "`bounded run`" in overdue.do


def test_a_consumer_that_the_owner_registered_is_looked_up_by_its_arn() -> None:
    arn = "arn:aws:kinesis:eu-north-1:210987654321:stream/orders"
    given = StreamSettings(name=arn, consumer_arn=f"{arn}/consumer/lake:1700000000")
    application = Application(name="orders-app", streams=(given,), batch=BatchSettings(retrieval=Retrieval.FANOUT))
    there = {"ConsumerName": "lake", "ConsumerARN": given.consumer_arn, "ConsumerStatus": "ACTIVE"}
    again = there | {"ConsumerARN": f"{arn}/consumer/lake:1800000000"}  # deregistered, and registered anew
    verdicts = [judge_consumers(application, "orders", [one]).verdict.value for one in (there, again)]
    assert verdicts == ["ok", "fail"]
