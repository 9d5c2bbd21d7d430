"""Operations as Dagster runs them: the form of the launchpad in, metadata and a green or red run out."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import dagster as dg
import pytest
import yaml

import kcl_dagster as kcl
from kcl_dagster.emulator import Emulator
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.operations.all_operations import OPERATIONS
from kcl_dagster.operations.inspections import CostOperation
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.operations.operation import Operation
from kcl_dagster.orchestration.admin_job import config_of
from kcl_dagster.orchestration.run_storage import APPLICATION_TAG
from kcl_dagster.orchestration.translator import identifier
from kcl_dagster.runtime import system
from kcl_dagster.streams.consumers import ensure_consumer
from kcl_dagster.tables.control import Control
from tests.unit.orchestration.conftest import Bench

pytestmark = pytest.mark.slow

WORKER = WorkerId("worker-000:anna")
IN_JOB = [operation for operation in OPERATIONS if operation.is_in_job]
OUR_TABLES = 12  # rows that Dagster shows without a click


class Office:
    """An application whose leader has ticked once, and the operations that Dagster has for it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.application = bench.consumer.application
        dynamodb, kinesis = (bench.resource.client(name) for name in ("dynamodb", "kinesis"))
        leader = open_leader(
            self.application, dynamodb=dynamodb, kinesis=kinesis, identity="dagster", runtime=system()
        )
        assert leader.tick(RunView(launches=False)).leading

    @property
    def opened(self) -> OpenApplication:
        dynamodb, kinesis = (self.bench.resource.client(name) for name in ("dynamodb", "kinesis"))
        return OpenApplication.open(self.application, dynamodb, kinesis, system(), "test")

    def leases(self) -> dict[str, Lease]:
        return {lease.shard_id: lease for lease in self.opened.scan().leases}

    def serve(self) -> None:
        """A worker appears and gets the leases."""
        now = int(system().clock.now())
        self.opened.workers.put(WorkerRow(WORKER, now, averages={}, slot="worker-000", run_id="anna", lag_ms=1500))
        for lease in self.opened.scan().leases:
            assert self.opened.leases.assign(lease, WORKER) is not None

    @property
    def job(self) -> dg.JobDefinition:
        return self.bench.definitions.resolve_job_def(f"{identifier(self.application.name)}_admin")

    def run(self, operation: str, **settings: Any) -> "Outcome":
        result = self.job.execute_in_process(
            run_config=config_of(self.bench.consumer, operation, **settings),
            instance=self.bench.instance,
            raise_on_error=False,
        )
        return Outcome(result)


class Outcome:
    """What a run left behind."""

    def __init__(self, result: dg.ExecuteInProcessResult) -> None:
        self.succeeded = result.success
        self.metadata: Mapping[str, Any] = {}
        self.refusal: str | None = None
        for event in result.all_events:
            if event.is_successful_output:
                self.metadata = event.step_output_data.metadata
            if event.is_step_failure:
                failure = event.step_failure_data.user_failure_data
                assert failure is not None, event.step_failure_data.error
                self.metadata, self.refusal = failure.metadata, failure.description

    def value(self, name: str) -> Any:
        return self.metadata[name].value

    def rows(self, name: str) -> list[Mapping[str, Any]]:
        return [record.data for record in self.metadata[name].records]


@pytest.fixture
def office(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Office:
    monkeypatch.chdir(tmp_path)  # its sink is a relative path, to which the doctor writes
    return Office(bench)


@pytest.fixture
def paused(office: Office) -> Office:
    office.opened.control.save(Control(paused=True))
    return office


@pytest.mark.parametrize("operation", IN_JOB, ids=lambda operation: operation.name)
def test_the_launchpad_of_every_operation_is_filled_in_and_explained(
    bench: Bench, operation: type[Operation]
) -> None:
    job = Office(bench).job
    [link] = re.findall(
        rf"\[{operation.name}\]\({job.name}/playground/setup\?config=(\S+)\)", job.description or ""
    )
    filled_in = yaml.safe_load(unquote(link))
    assert dg.validate_run_config(job, filled_in)
    [[chosen, settings]] = filled_in["ops"][f"{identifier(bench.consumer.application.name)}_operation"][
        "config"
    ].items()
    assert chosen == operation.name
    assert settings.keys() <= operation.settings("job").keys()
    for name, field in operation.settings("job").items():
        assert field.description
        assert name in settings or field.default is None


def test_a_launchpad_as_it_is_opened_changes_nothing(bench: Bench) -> None:
    office = Office(bench)
    assert office.job.tags[APPLICATION_TAG] == bench.consumer.application.name
    assert office.job.execute_in_process(instance=bench.instance).success
    [run] = bench.instance.get_runs()
    assert run.tags["kcl/operation"] == "status"
    assert run.job_name == f"{identifier(office.application.name)}_admin"


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"puase": {}}, 'unexpected config entry "puase"'),
        ({"pause": {"dryrun": False}}, 'unexpected config entry "dryrun"'),
        ({"pause": {"dry_run": "no"}}, "dry_run"),
        ({"pause": {}, "drain": {}}, "You can only specify a single field .*You specified"),
        ({}, "Must specify a field .*Defined fields"),
    ],
)
def test_a_wrong_operation_or_setting_is_refused_before_the_run(
    bench: Bench, chosen: dict[str, Any], says: str
) -> None:
    name = f"{identifier(bench.consumer.application.name)}_operation"
    with pytest.raises(dg.DagsterInvalidConfigError, match=says):
        dg.validate_run_config(Office(bench).job, {"ops": {name: {"config": chosen}}})


CHANGE_NOTHING = {"status", "plan", "doctor", "peek", "cost", "export"}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_what_writes_is_dry_unless_told_otherwise(operation: type[Operation]) -> None:
    if operation.name in CHANGE_NOTHING:
        assert "dry_run" not in operation.model_fields
    else:
        assert operation.model_fields["dry_run"].default is True


def test_status_shows_who_reads_what_and_how_far_behind(office: Office) -> None:
    office.serve()
    answer = office.run("status")
    assert answer.value("open leases") == 2
    assert answer.value("unserved leases") == 0
    assert {row["owner"] for row in answer.rows("leases")} == {WORKER}
    assert [(row["worker"], row["leases"], row["behind (s)"]) for row in answer.rows("fleet")] == [(WORKER, 2, 1.5)]


def test_tables_are_short_enough_to_be_seen(office: Office) -> None:
    for number in range(20):
        shard = f"shardId-{number + 100:012d}"
        office.opened.leases.create(Lease(LeaseKey(shard), shard, checkpoint=TRIM_HORIZON))
    answer = office.run("status")
    assert answer.value("open leases") > OUR_TABLES
    assert len(answer.rows("leases")) == OUR_TABLES
    assert {row["state"] for row in answer.rows("leases")} == {"unserved"}


def test_plan_tells_reasons_and_launches_nothing(office: Office) -> None:
    before = office.leases()
    answer = office.run("plan")
    assert answer.succeeded
    assert "launch worker-00" in answer.value("decisions")
    assert office.leases() == before
    assert office.bench.instance.get_runs(dg.RunsFilter(tags={"dagster/partition": "worker-000"})) == []


def test_a_doctor_that_finds_something_wrong_fails_the_run_and_says_what_to_do(office: Office) -> None:
    answer = office.run("doctor", watch=0.01)
    assert not answer.succeeded
    assert answer.refusal is not None
    assert "2 of 2 open leases are served by no worker" in answer.refusal
    assert answer.rows("findings")[0]["verdict"] == "fail"
    assert len(answer.rows("findings")) <= OUR_TABLES
    assert office.run("doctor", watch=0.01, fail_when_ill=False).succeeded


@pytest.mark.audit("D14")
def test_the_doctors_job_looks_at_the_sink(office: Office) -> None:
    place = Path(office.bench.consumer.sink.place).resolve()
    findings = office.run("doctor", watch=0.01, fail_when_ill=False).value("all findings")
    assert f"sink: {place} can be written" in findings
    assert [file for file in place.rglob("*") if file.is_file()] == []  # what it wrote is gone


def test_a_dry_pause_changes_nothing_and_says_so(office: Office) -> None:
    answer = office.run("pause")
    assert answer.value("dry run") is True
    assert answer.value("paused") is True
    assert not office.opened.control.load().paused


def test_an_application_is_paused_and_resumed_and_the_audit_names_the_run(office: Office) -> None:
    assert office.run("pause", dry_run=False).succeeded
    assert office.opened.control.load().paused
    assert "by run" in (office.opened.control.load().changed_by or "")
    assert office.run("resume", dry_run=False).succeeded
    assert not office.opened.control.load().paused


def test_single_shards_are_paused(office: Office) -> None:
    shard = min(office.leases())
    assert office.run("pause", shards=[shard], dry_run=False).succeeded
    assert office.opened.control.load().leases == {shard}


def test_single_workers_are_paused(office: Office) -> None:
    office.serve()
    assert office.run("pause", workers=[WORKER], dry_run=False).value("workers") == 1
    assert office.opened.control.load().slots == {"worker-000"}
    assert office.run("resume", workers=["worker-000"], dry_run=False).succeeded
    assert office.opened.control.load().slots == frozenset()


REFUSALS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a shard of others": ("pause", {"shards": ["shardId-000000000099"]}, "there is no lease of shard"),
    "a worker that is not there": ("drain", {"worker": "worker-009"}, "no worker or slot worker-009"),
    "a reset under a leader": (
        "reset",
        {"to": "trim_horizon", "dry_run": False},
        "may give them away at any moment",
    ),
    "a place that is none": ("reset", {"to": "yesterday"}, "none of trim_horizon, latest"),
    "a file that is not there": ("import", {"file": "nowhere/leases.jsonl"}, "cannot be read"),
    "no file": ("import", {"file": ""}, "is no name of a file below"),
    "a consumer of a stream of others": ("deregister", {"of_stream": ["others"]}, "does not read others"),
    "a shard that is not there": ("peek", {"shard": "shardId-000000000099"}, "has no shard"),
    "a number that is too small": (
        "peek",
        {"shard": "shardId-000000000000", "limit": 0},
        "peek: limit: Input should be greater than or equal to 1",
    ),
    "a stream of others": (
        "peek",
        {"shard": "shardId-000000000000", "of_stream": "others"},
        "does not read others",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_one_line_and_changes_nothing(office: Office, name: str) -> None:
    operation, form, says = REFUSALS[name]
    before = office.leases()
    answer = office.run(operation, **form)
    assert not answer.succeeded
    assert answer.refusal is not None
    assert says in answer.refusal
    assert "\n" not in answer.refusal
    assert office.leases() == before


def test_a_worker_is_asked_to_leave_by_its_slot(office: Office) -> None:
    office.serve()
    assert office.run("drain", worker="worker-000").value("workers") == 1
    assert not office.opened.workers.list()[0].drain_requested
    assert office.run("drain", worker="worker-000", dry_run=False).succeeded
    assert office.opened.workers.list()[0].drain_requested


def test_leases_are_put_back(paused: Office) -> None:
    for lease in paused.opened.scan().leases:
        assert paused.opened.leases.assign(lease, WORKER) is not None
    owned = paused.run("reset", to="trim_horizon", dry_run=False)
    assert owned.refusal is not None
    assert f"is owned by {WORKER}" in owned.refusal
    for lease in paused.opened.scan().leases:
        paused.opened.leases.release(lease)
    dry = paused.run("reset", to="latest")
    assert dry.value("leases") == 2
    assert {str(lease.checkpoint) for lease in paused.leases().values()} == {"TRIM_HORIZON"}
    assert paused.run("reset", to="latest", dry_run=False).succeeded
    assert {str(lease.checkpoint) for lease in paused.leases().values()} == {"LATEST"}


def test_leases_travel_through_a_file(paused: Office) -> None:
    exported = paused.run("export", file="kept/leases.jsonl")
    assert exported.value("leases") == 2
    assert len(Path(exported.value("file")).read_text().splitlines()) == 2
    for lease in paused.opened.scan().leases:
        paused.opened.leases.delete(lease, forced=True)
    assert paused.run("import", file="kept/leases.jsonl").value("created") == 2
    assert paused.leases() == {}
    assert paused.run("import", file="kept/leases.jsonl", dry_run=False).succeeded
    assert len(paused.leases()) == 2


@pytest.mark.audit("D5")
def test_an_export_without_a_name_is_a_new_file_in_the_storage_of_the_instance(paused: Office) -> None:
    where = Path(paused.run("export").value("file"))
    storage = Path(paused.bench.instance.storage_directory(), "kcl_exports")
    assert where.parent == storage / identifier(paused.application.name)


@pytest.mark.audit("D5")
def test_an_export_replaces_no_file(paused: Office) -> None:
    where = Path(paused.run("export", file="leases.jsonl").value("file"))
    where.write_text("precious")
    again = paused.run("export", file="leases.jsonl")
    assert not again.succeeded
    assert "exists, and is not replaced" in (again.refusal or "")
    assert where.read_text() == "precious"


@pytest.mark.audit("D5")
@pytest.mark.parametrize("operation", ["export", "import"])
@pytest.mark.parametrize(
    "path",
    ["{outside}", "../outside.jsonl", "a/../../outside.jsonl", "file://{outside}", "s3://bucket/key", "a//b", "~/x",
     ".ssh/authorized_keys", "a\\b", "a\nb", "link/outside.jsonl"],
)  # fmt: skip
def test_only_the_folder_of_exports_is_read_and_written(
    paused: Office, tmp_path: Path, operation: str, path: str
) -> None:
    outside = tmp_path / "outside.jsonl"
    outside.write_text("precious")
    folder = Path(paused.run("export", file="first").value("file")).parent
    (folder / "link").symlink_to(tmp_path)
    (folder.parent / "outside.jsonl").write_text("precious")
    answer = paused.run(operation, file=path.format(outside=outside))
    assert not answer.succeeded
    assert "is no name of a file below" in (answer.refusal or "") or "leads out of" in (answer.refusal or "")
    assert outside.read_text() == (folder.parent / "outside.jsonl").read_text() == "precious"


@pytest.mark.audit("D5")
def test_leases_travel_through_the_folder_of_s3_that_the_deployment_names(aws: Emulator, paused: Office) -> None:
    bucket = f"copies-{paused.application.name}"
    aws.client("s3").create_bucket(Bucket=bucket)
    bench = paused.bench
    bench.definitions = kcl.build_kcl_definitions(
        bench.consumer, resources={"kcl": bench.resource}, exports=f"s3://{bucket}/of"
    )
    assert paused.run("export", file="leases.jsonl").value("file") == f"s3://{bucket}/of/leases.jsonl"
    answer = paused.run("import", file="leases.jsonl")
    assert (answer.value("unchanged"), answer.value("created")) == (2, 0)
    assert not paused.run("export", file="leases.jsonl").succeeded


def test_a_fan_out_consumer_is_removed(aws: Emulator, office: Office) -> None:
    kinesis, stream = aws.client("kinesis"), office.application.name
    arn = ensure_consumer(kinesis, stream, "before", system())
    dry = office.run("deregister", consumer="before")
    assert (dry.value("consumer"), dry.value("streams"), dry.value("dry run")) == ("before", 1, True)
    assert kinesis.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]
    assert office.run("deregister", consumer="before", dry_run=False).value("streams") == 1
    assert office.run("deregister", consumer="before", dry_run=False).value("streams") == 0


def test_leases_of_former_streams_are_forgotten_and_kept_in_a_file(bench: Bench) -> None:
    application = bench.consumer.application.model_copy(update={"multi_stream": True})
    paused = Office(Bench(replace(bench.consumer, application=application), bench.resource, bench.instance))
    paused.opened.control.save(Control(paused=True))
    left = StreamIdentifier("clicks", "123456789012", 100)
    key = LeaseKey(left.lease_key("shardId-000000000000"))
    assert paused.opened.leases.create(Lease(key, "shardId-000000000000", checkpoint=TRIM_HORIZON, stream=left))
    dry = paused.run("forget")
    assert (dry.value("leases"), dry.value("dry run")) == (1, True)
    assert key in {lease.key for lease in paused.opened.scan().leases}
    done = paused.run("forget", former=[str(left)], dry_run=False)
    assert key not in {lease.key for lease in paused.opened.scan().leases}
    assert key in Path(done.value("file")).read_text()
    undone = paused.run("import", file=Path(done.value("file")).name, dry_run=False)
    assert undone.value("created") == 1
    assert key in {lease.key for lease in paused.opened.scan().leases}


def test_records_are_looked_at(aws: Emulator, office: Office) -> None:
    kinesis = aws.client("kinesis")
    kinesis.put_record(StreamName=office.application.name, Data=b"hello", PartitionKey="alice", ExplicitHashKey="0")
    answer = office.run("peek", shard="shardId-000000000000", first=True)
    assert answer.value("records") == 1
    assert answer.rows("shown")[0]["data"] == "hello"
    assert json.loads(json.dumps(answer.value("document")))[0]["partition_key"] == "alice"


def test_costs_are_estimated(office: Office) -> None:
    office.serve()
    answer = office.run("cost", busy=0.5)
    assert answer.value("estimated $/month") > 0
    assert "measured $/month" not in answer.metadata
    assert office.run("cost", sink="table").value("document")["s3_puts_per_hour"] > 0


def test_what_is_left_out_has_no_default_that_a_launchpad_could_not_take(bench: Bench) -> None:
    everything = {name: None for name, one in CostOperation.settings("job").items() if one.default is None}
    assert dg.validate_run_config(Office(bench).job, config_of(bench.consumer, "cost", **everything))
