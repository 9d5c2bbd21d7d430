"""Bounded runs in the process of a Spark driver elsewhere, which a Pipes client launches: real processes, each with
a Spark session of its own, on the embedded AWS."""

import os
import sys
import sysconfig
import textwrap
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance
from dagster_aws.pipes import PipesS3MessageReader

import kcl_dagster as kcl
from kcl_dagster.emulator import Emulator, Limits
from kcl_dagster.model.worker_row import BOUNDED_SLOT
from kcl_dagster.operations.status import read_status
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.remote_launch import Launch
from kcl_dagster.runtime import system
from kcl_dagster.spark.java import find_java
from tests.docs.pages import ROOT, blocks
from tests.unit.orchestration.test_worker_job import bodies, put_records

# Dagster's own use of what it calls a preview.
PREVIEW = "ignore:.*expected_writer_count"
pytestmark = [pytest.mark.server, pytest.mark.timeout(600), pytest.mark.filterwarnings(PREVIEW)]

RECORDS = 200
HOUR = 3600.0
MESSAGES = "pipes-messages"
PAGE = ROOT / "docs/how-to/catch-up.md"

PROJECT = """
    import os
    import signal
    from pathlib import Path

    import kcl_dagster as kcl
    from kcl_dagster.testing import EmulatorResource

    LAKE = Path("{lake}")


    @kcl.kcl_consumer(
        application="{name}",
        stream="{name}",
        sink=kcl.parquet(str(LAKE)),
        timings=kcl.Timings(lease_duration=10, heartbeat=1, handoff_timeout=2),
        batch=kcl.BatchSettings(max_seconds=1, max_records={batch}, failure=kcl.FailurePolicy(attempts=1)),
        name="things",
    )
    def things(records):
        Path("master").write_text(records.sparkSession.sparkContext.master)
        if os.environ.get("KILLED") and any(LAKE.glob("*.parquet")):
            os.kill(os.getpid(), signal.SIGKILL)
        poison = "lease_key like '%1'" if os.environ.get("POISON") else "false"
        return records.selectExpr(
            "lease_key", "cast(data as string) as body", f"if({{poison}}, raise_error('poison'), 1) as weight"
        )


    resource = EmulatorResource(endpoint_url="{endpoint}", region_name="us-east-1")
    defs = kcl.build_kcl_definitions(things, resources={{"kcl": resource}})
"""


@dataclass
class Project:
    """A module with a consumer, its stream of two shards with RECORDS records, and a Dagster instance."""

    module: str
    folder: Path
    aws: Emulator
    instance: DagsterInstance
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def consumer(self) -> Consumer:
        found: Consumer = import_module(self.module).things
        return found

    @property
    def kcl(self) -> kcl.KclResource:
        found: kcl.KclResource = import_module(self.module).resource
        return found

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def command(self, *front: str) -> Sequence[str]:
        start = front or (sys.executable, "-m", "kcl_dagster.cli")
        return [*start, "catch-up", f"{self.module}:defs", "--pipes"]

    def launch(self, *front: str, **environment: str) -> Launch:
        """Starts a driver, whose messages come in a file."""
        client = dg.PipesSubprocessClient(cwd=str(self.folder), env={**self.environment, **environment})

        def launched(
            context: dg.OpExecutionContext, extras: Mapping[str, Any]
        ) -> dg.PipesClientCompletedInvocation:
            return client.run(context=context, extras=extras, command=self.command(*front))

        return launched

    def catch_up(self, launch: Launch, **resources: Any) -> dg.ExecuteInProcessResult:
        job = kcl.build_kcl_catch_up_job(self.consumer, launch=launch)
        return job.execute_in_process(
            instance=self.instance, resources={"kcl": self.kcl, **resources}, raise_on_error=False
        )

    def logged(self, result: dg.ExecuteInProcessResult) -> str:
        records = self.instance.get_records_for_run(result.run_id).records
        return "\n".join(record.event_log_entry.user_message for record in records)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Project]:
    """Its stream is three hours old, and its records arrived an hour and a half ago."""
    name = f"remote-{uuid.uuid4().hex[:8]}"
    ago = 3 * HOUR
    with (
        DagsterInstance.ephemeral() as instance,
        Emulator(limits=Limits.none(), clock=lambda: time.time() - ago) as aws,
    ):
        aws.client("kinesis").create_stream(StreamName=name, ShardCount=2)
        ago = 1.5 * HOUR
        put_records(aws, name, 0, RECORDS)
        ago = 0.0
        module = name.replace("-", "_")
        batch = getattr(request, "param", 100_000)
        text = PROJECT.format(name=name, lake=tmp_path / "lake", endpoint=aws.endpoint_url, batch=batch)
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(text))
        monkeypatch.syspath_prepend(str(tmp_path))
        # A session of another test, in this process, leaves variables that a driver must not find.
        of_sessions = [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]
        for variable in ("DAGSTER_HOME", "AWS_PROFILE", *of_sessions):
            monkeypatch.delenv(variable, raising=False)
        for variable, value in aws.environment().items():
            monkeypatch.setenv(variable, value)
        yield Project(module, tmp_path, aws, instance)


def why_failed(result: dg.ExecuteInProcessResult) -> str:
    [event] = [event for event in result.all_events if event.is_step_failure]
    failure = event.step_failure_data.user_failure_data
    return str(event.step_failure_data.error if failure is None else failure.description)


def output_of(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    [metadata] = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    return {name: value.value for name, value in metadata.items()}


def observations(instance: DagsterInstance) -> list[Any]:
    records = instance.fetch_observations(dg.AssetKey("things"), limit=100).records
    return [record.asset_observation for record in records]


def declarations(instance: DagsterInstance) -> list[tuple[int, int, int]]:
    """Rows, bytes and files of each window that was declared complete."""
    records = instance.fetch_materializations(dg.AssetKey("things"), limit=100).records
    found = [record.asset_materialization for record in records]
    names = ("dagster/row_count", "kcl/bytes", "kcl/files")
    return [tuple(one.metadata[name].value for name in names) for one in found]  # type: ignore[misc, union-attr]


def test_a_driver_elsewhere_stores_everything_and_reports_what_a_local_run_records(project: Project) -> None:
    """Its messages go through S3, as those of EMR do."""
    s3 = project.aws.client("s3")
    s3.create_bucket(Bucket=MESSAGES)

    def launch(
        context: dg.OpExecutionContext, extras: Mapping[str, Any], s3: Any
    ) -> dg.PipesClientCompletedInvocation:
        reader = PipesS3MessageReader(bucket=MESSAGES, client=s3, interval=1)
        pipes = dg.PipesSubprocessClient(cwd=str(project.folder), message_reader=reader)
        return pipes.run(context=context, extras=extras, command=project.command())

    result = project.catch_up(launch, s3=s3)
    assert result.success, why_failed(result)
    assert bodies(project.lake) == list(range(RECORDS))
    told = output_of(result)
    assert (told["records"], told["worked"]) == (RECORDS, True)
    assert told["summary"].endswith(f"this run stored {RECORDS} records")
    [observed] = observations(project.instance)
    assert observed.metadata["kcl/records_in_total"].value == RECORDS
    assert observed.metadata["kcl/worker"].value == BOUNDED_SLOT
    assert "ready to read: Spark took" in project.logged(result)
    declared = declarations(project.instance)
    assert told["complete"] == len(declared) > 0
    assert sum(rows for rows, _, _ in declared) == RECORDS
    assert all(stored for rows, *stored in declared if rows), "bytes and files"
    status = read_status(project.consumer.application, project.kcl.client("dynamodb"), system())
    assert f"({result.run_id[:8]}) ended well at" in str(status.about_last_run)
    assert (status.workers, status.leader) == ([], None)
    assert {status.state_of(lease) for lease in status.leases} == {"at rest"}


@pytest.mark.nightly
@pytest.mark.parametrize("project", [60], indirect=True)
def test_the_next_run_reads_what_a_killed_driver_left(project: Project) -> None:
    killed = project.catch_up(project.launch(KILLED="1"))
    assert not killed.success
    assert "failed with code -9" in why_failed(killed)
    stored = bodies(project.lake)
    assert 0 < len(stored) < RECORDS, "half-way"
    result = project.catch_up(project.launch())
    assert result.success, why_failed(result)
    assert bodies(project.lake) == list(range(RECORDS))
    assert 0 < output_of(result)["records"] < RECORDS


@pytest.mark.nightly
def test_a_shard_that_fails_in_a_driver_elsewhere_fails_the_dagster_run(project: Project) -> None:
    result = project.catch_up(project.launch(POISON="1"))
    assert not result.success
    assert "shardId-000000000001: stopped: " in why_failed(result)
    assert "poison" in why_failed(result)
    assert bodies(project.lake), "the other shard was read"
    status = read_status(project.consumer.application, project.kcl.client("dynamodb"), system())
    assert f"({result.run_id[:8]}) failed at" in str(status.about_last_run)
    assert "batch failed: shardId-000000000001: " in project.logged(result)


@pytest.mark.nightly
def test_a_driver_of_spark_submit_uses_the_session_that_it_provides(project: Project) -> None:
    java, scripts = find_java(os.environ), Path(sysconfig.get_path("scripts"))
    [driver] = [block.text for block in blocks(PAGE) if "from kcl_dagster.cli import main" in block.text]
    (project.folder / "driver.py").write_text(driver)
    path = os.pathsep.join([str(project.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
    if java.home is not None:
        environment["JAVA_HOME"] = str(java.home)
    submit = (str(scripts / "spark-submit"), "--master", "local[2]", "driver.py")
    result = project.catch_up(project.launch(*submit, **environment))
    assert result.success, why_failed(result)
    assert bodies(project.lake) == list(range(RECORDS))
    assert (project.folder / "master").read_text() == "local[2]", "a session of ours has another master"
