"""The launch functions of docs/how-to/catch-up.md on EMR Serverless, EMR on EKS and Databricks: the real Pipes
clients, on fakes of the services that start the driver as a process of this machine, with what the job says."""

import os
import shlex
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import dagster as dg
import pytest
from botocore.config import Config
from dagster import DagsterInstance
from dagster_aws.pipes import PipesEMRContainersClient, PipesEMRServerlessClient, PipesS3MessageReader
from dagster_aws.pipes.clients.utils import WaiterConfig
from dagster_databricks import PipesDatabricksClient
from databricks.sdk.service.jobs import Run, RunLifeCycleState, RunResultState, RunState, SubmitTask
from moto import mock_aws
from moto.backends import get_backend

import kcl_dagster as kcl
from kcl_dagster.emulator import Endpoint
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.remote_launch import Launch
from kcl_dagster.testing import EmulatorResource
from tests.docs.pages import ROOT, blocks
from tests.unit.orchestration.conftest import Bench
from tests.unit.orchestration.fleet_beside import reading_fleet

PREVIEWS = "ignore:.*currently in preview"
pytestmark = [pytest.mark.server, pytest.mark.timeout(300), pytest.mark.filterwarnings(PREVIEWS)]

PAGE = ROOT / "docs/how-to/catch-up.md"
ACCOUNT, REGION = "123456789012", "eu-west-1"
DRIVER_SECONDS = 200.0  # it imports Dagster and Spark, on a busy machine
ENVIRONMENT = "--conf spark.emr-serverless.driverEnv."

PROJECT = """
    import kcl_dagster as kcl
    from kcl_dagster.testing import EmulatorResource


    @kcl.kcl_consumer(application="clicks-to-lake", stream="clicks", sink=kcl.parquet("{lake}"))
    def clicks(records):
        return records


    resource = EmulatorResource(endpoint_url="{endpoint}", region_name="us-east-1")
"""


@dataclass
class Machine:
    """Where drivers run: a folder with driver.py and the project. `started`: their arguments and variables."""

    folder: Path
    environment: Mapping[str, str]
    started: list[tuple[Sequence[str], Mapping[str, str]]] = field(default_factory=list)

    def drive(self, program: Sequence[str], variables: Mapping[str, str]) -> int:
        """Runs a driver, and returns its exit code."""
        self.started.append((program, variables))
        with subprocess.Popen(
            [sys.executable, *program], cwd=self.folder, env={**self.environment, **variables}
        ) as process:
            return process.wait(DRIVER_SECONDS)


@dataclass
class Lake:
    """The page's application on the embedded AWS, which a fleet reads: a driver waits for it, without Spark."""

    page: dict[str, Any]
    resource: kcl.KclResource
    machine: Machine
    instance: DagsterInstance

    @property
    def consumer(self) -> Consumer:
        found: Consumer = self.page["clicks"]
        return found

    def catch_up(self, launch: Launch, **clients: Any) -> dg.ExecuteInProcessResult:
        job = kcl.build_kcl_catch_up_job(self.consumer, launch=launch)
        with reading_fleet(self.consumer, self.resource):
            return job.execute_in_process(
                instance=self.instance, resources={"kcl": self.resource, **clients}, raise_on_error=False
            )

    def check(self, result: dg.ExecuteInProcessResult, **about: str) -> None:
        """The report of the driver has arrived, and what the client says of the job."""
        problems = [str(event.step_failure_data.error) for event in result.all_events if event.is_step_failure]
        assert result.success, problems
        [told] = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
        assert str(told["summary"].value).endswith("this run had nothing to do")
        assert {name: told[name].value for name in about} == about


def page_of(path: Path) -> dict[str, Any]:
    known: dict[str, Any] = {"__name__": "a_page"}
    for block in blocks(path):
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, str(path), "exec"), known)
    return known


@pytest.fixture
def lake(sidecar: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    page = page_of(PAGE)
    [driver] = [block.text for block in blocks(PAGE) if "from kcl_dagster.cli import main" in block.text]
    (tmp_path / "driver.py").write_text(driver)
    (tmp_path / "my_project").mkdir()
    project = PROJECT.format(lake=tmp_path / "lake", endpoint=sidecar.url)
    (tmp_path / "my_project/consumers.py").write_text(textwrap.dedent(project))
    resource = EmulatorResource(endpoint_url=sidecar.url, region_name="us-east-1")
    s3 = boto3.client(
        "s3", endpoint_url=sidecar.url, region_name="us-east-1", config=Config(s3={"addressing_style": "path"})
    )
    bucket = f"messages-{uuid.uuid4().hex[:8]}"
    s3.create_bucket(Bucket=bucket)
    # The page's functions make their readers, on buckets of AWS.
    page["PipesS3MessageReader"] = lambda **_: PipesS3MessageReader(bucket=bucket, client=s3, interval=0)
    machine = Machine(tmp_path, {**os.environ, **sidecar.environment()})
    with DagsterInstance.ephemeral() as instance:
        kinesis = resource.client("kinesis")
        if "clicks" not in kinesis.list_streams()["StreamNames"]:
            kinesis.create_stream(StreamName="clicks", ShardCount=2)
        Bench(page["clicks"], resource, instance).tick()
        yield Lake(page, resource, machine, instance)


@contextmanager
def platform(step: Callable[[], bool]) -> Iterator[None]:
    """Runs `step` until it returns True or the block ends: the service, which starts what was asked for."""
    over = threading.Event()

    def serve() -> None:
        while not over.wait(0.05):
            if step():
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.nightly
def test_emr_serverless(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moto.emrserverless.models.JOB_STATUS", "RUNNING")  # moto's jobs succeed at once
    with mock_aws():
        emr = boto3.client("emr-serverless", region_name=REGION)
        made = emr.create_application(name="spark", releaseLabel="emr-6.6.0", type="SPARK")["applicationId"]
        backend: Any = get_backend("emr-serverless")[ACCOUNT][REGION]
        backend.applications["00f1a2b3c4d5e60d"] = backend.applications.pop(made)
        # moto lacks this one request.
        emr.get_dashboard_for_job_run = lambda **_: {"url": "https://dashboard"}
        states: list[str] = []

        def serve() -> bool:
            for run in backend.job_runs.get("00f1a2b3c4d5e60d", ())[len(states) :]:
                job = run.job_driver["sparkSubmit"]
                options = shlex.split(job["sparkSubmitParameters"])
                given = [one.partition("=")[2] for one in options if one.startswith("spark.emr-serverless")]
                names = [one.partition("=")[0].rpartition(".")[2] for one in options if "driverEnv" in one]
                assert job["entryPoint"] == "s3://my-code/driver.py"
                code = lake.machine.drive(
                    ["driver.py", *job["entryPointArguments"]], dict(zip(names, given, strict=True))
                )
                run.state = "SUCCESS" if code == 0 else "FAILED"
                states.append(run.state)
                return True
            return False

        lake.page["PipesEMRServerlessClient"] = partial(PipesEMRServerlessClient, poll_interval=0.1)
        results = []
        for _ in range(2):  # in one process, as when a run of Dagster is retried there
            with platform(serve):
                results.append(lake.catch_up(lake.page["on_emr_serverless"], emr=emr))
    for result in results:
        lake.check(result, **{"AWS EMR Serverless Application ID": "00f1a2b3c4d5e60d"})
    for program, variables in lake.machine.started:
        assert program == ["driver.py", "catch-up", "my_project.consumers:clicks", "--pipes"]
        assert set(variables) == {"DAGSTER_PIPES_CONTEXT", "DAGSTER_PIPES_MESSAGES"}
    assert states == ["SUCCESS", "SUCCESS"]


@pytest.mark.nightly
def test_emr_on_eks(lake: Lake) -> None:
    with mock_aws():
        emr = boto3.client("emr-containers", region_name=REGION)
        place = {"type": "EKS", "id": "cluster", "info": {"eksInfo": {"namespace": "spark"}}}
        made = emr.create_virtual_cluster(name="spark", containerProvider=place)["id"]
        backend: Any = get_backend("emr-containers")[ACCOUNT][REGION]
        cluster = "abcdefghij0123456789klmno"
        backend.virtual_clusters[cluster] = backend.virtual_clusters.pop(made)

        def serve() -> bool:
            for run in list(backend.job_runs.values()):
                job = run.job_driver["sparkSubmitJobDriver"]
                assert job["entryPoint"] == "s3://my-code/driver.py"
                [exported] = [
                    inner["properties"]
                    for one in run.configuration_overrides["applicationConfiguration"]
                    if one["classification"] == "spark-env"
                    for inner in one["configurations"]
                    if inner["classification"] == "export"
                ]
                code = lake.machine.drive(["driver.py", *job["entryPointArguments"]], exported)
                run.state = "COMPLETED" if code == 0 else "FAILED"
                return True
            return False

        at_once = WaiterConfig(Delay=0, MaxAttempts=10**9)
        lake.page["PipesEMRContainersClient"] = partial(PipesEMRContainersClient, waiter_config=at_once)
        with platform(serve):
            result = lake.catch_up(lake.page["on_emr_on_eks"], emr=emr)
    lake.check(result, **{"AWS EMR Containers Virtual Cluster ID": cluster})
    [(program, variables)] = lake.machine.started
    assert program == ["driver.py", "catch-up", "my_project.consumers:clicks", "--pipes"]
    assert set(variables) == {"DAGSTER_PIPES_CONTEXT", "DAGSTER_PIPES_MESSAGES"}


@dataclass
class Workspace:
    """Databricks' jobs, as its client shows them. The task is the program of the wheel."""

    machine: Machine
    tasks: list[SubmitTask] = field(default_factory=list)
    run: Run | None = None

    @property
    def jobs(self) -> Any:
        return self

    def submit(self, tasks: Sequence[SubmitTask]) -> Any:
        self.tasks += tasks
        return SimpleNamespace(bind=lambda: {"run_id": 17})

    def get_run(self, run_id: int) -> Run:
        assert run_id == 17
        if self.run is None:
            [task] = self.tasks
            wheel = task.python_wheel_task
            assert wheel is not None
            assert (wheel.package_name, wheel.entry_point) == ("kcl-dagster", "kcl-dagster")
            variables = {} if task.new_cluster is None else task.new_cluster.spark_env_vars or {}
            code = self.machine.drive(["-m", "kcl_dagster.cli", *(wheel.parameters or ())], variables)
            result = RunResultState.SUCCESS if code == 0 else RunResultState.FAILED
            state = RunState(life_cycle_state=RunLifeCycleState.TERMINATED, result_state=result)
            self.run = Run(run_id=17, state=state)
        return self.run


def on_a_cluster_that_is_there(context: Any, extras: Any, databricks: Any) -> Any:
    """There, Pipes' parameters are arguments of the task."""
    wheel = {
        "package_name": "kcl-dagster",
        "entry_point": "kcl-dagster",
        "parameters": ["catch-up", "my_project.consumers:clicks", "--pipes"],
    }
    task = {"task_key": "catch-up", "python_wheel_task": wheel, "existing_cluster_id": "0123-456789-there"}
    return databricks.run(context=context, extras=extras, task=SubmitTask.from_dict(task))


@pytest.mark.nightly
@pytest.mark.parametrize("cluster", ["new", "existing"])
def test_databricks(lake: Lake, cluster: str) -> None:
    workspace: Any = Workspace(lake.machine)
    launch = lake.page["on_databricks"] if cluster == "new" else on_a_cluster_that_is_there
    client = PipesDatabricksClient(
        workspace,
        context_injector=dg.PipesEnvContextInjector(),
        message_reader=lake.page["PipesS3MessageReader"](),
        poll_interval_seconds=0.1,
    )
    result = lake.catch_up(launch, databricks=client)
    lake.check(result, **{"Databricks Job Run ID": "17"})
    [(program, variables)] = lake.machine.started
    assert program[2:5] == ["catch-up", "my_project.consumers:clicks", "--pipes"]
    options = [one for one in program[5:] if one.startswith("--")]
    pipes = {"DAGSTER_PIPES_CONTEXT", "DAGSTER_PIPES_MESSAGES"}
    assert set(variables) == (pipes if cluster == "new" else set())
    assert options == ([] if cluster == "new" else ["--dagster-pipes-context", "--dagster-pipes-messages"])
