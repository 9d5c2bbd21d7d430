"""What a driver elsewhere reports to the Dagster run that launched it, where it need not read: the driver's program
runs in this process, and its messages go through a file."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster_pipes import (
    PipesContext,
    PipesDbfsContextLoader,
    PipesDbfsMessageWriter,
    PipesDefaultContextLoader,
    PipesDefaultMessageWriter,
    PipesS3ContextLoader,
    PipesS3MessageWriter,
    PipesUnityCatalogVolumesMessageWriter,
)
from pyspark.sql import SparkSession

import kcl_dagster as kcl
from kcl_dagster import cli
from kcl_dagster.model.worker_row import BOUNDED_SLOT, WorkerRow, worker_id
from kcl_dagster.operations.status import read_status
from kcl_dagster.orchestration import remote_driver
from kcl_dagster.orchestration.bounded_outcome import BoundedOutcome
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.remote_driver import context_loader, message_writer
from kcl_dagster.orchestration.remote_report import (
    EVENT,
    OUTCOME,
    VERSIONS,
    RemoteReport,
    read_report,
    send_event,
    send_outcome,
    send_problem,
    send_versions,
)
from kcl_dagster.runtime import system
from kcl_dagster.tables.control import Control, ControlRow
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.worker.stop import StopReason
from tests.unit.orchestration.conftest import Bench
from tests.unit.orchestration.fleet_beside import reading_fleet

PREVIEW = "ignore:.*expected_writer_count"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(PREVIEW)]


@dataclass
class Here:
    """Launches: the driver's program runs in this process. `codes`: how it ended."""

    bench: Bench
    monkeypatch: pytest.MonkeyPatch
    codes: list[int]

    def __call__(self, *arguments: str, **extras: Any) -> dg.ExecuteInProcessResult:
        """Runs the job, whose driver is `kcl-dagster catch-up` with these arguments. `extras`: over ours."""
        return self.launched(lambda: cli.main(["catch-up", *arguments, "--pipes"]), **extras)

    def launched(self, drive: Callable[[], int], **extras: Any) -> dg.ExecuteInProcessResult:
        def launch(context: dg.OpExecutionContext, given: Mapping[str, Any]) -> dg.PipesClientCompletedInvocation:
            injector, reader = dg.PipesTempFileContextInjector(), dg.PipesTempFileMessageReader()
            with dg.open_pipes_session(context, injector, reader, {**given, **extras}) as session:
                self.monkeypatch.setattr(PipesContext, "_instance", None)
                for name, value in session.get_bootstrap_env_vars().items():
                    self.monkeypatch.setenv(name, value)
                self.codes.append(drive())
            return dg.PipesClientCompletedInvocation(session, metadata={"job": "j-1"})

        job = kcl.build_kcl_catch_up_job(self.bench.consumer, launch=launch)
        return job.execute_in_process(
            instance=self.bench.instance, resources={"kcl": self.bench.resource}, raise_on_error=False
        )


@pytest.fixture
def here(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Here]:
    monkeypatch.chdir(tmp_path)  # the sink's folder is relative
    timings = kcl.Timings(arrival_margin=1.0)  # a run that waits for a fleet waits for all of it
    application = bench.consumer.application.model_copy(update={"timings": timings})
    bench.consumer = replace(bench.consumer, application=application)
    project = SimpleNamespace(things=bench.consumer, resource=bench.resource)
    monkeypatch.setitem(sys.modules, "driven", project)
    yield Here(bench, monkeypatch, [])
    PipesContext._instance = None


def why_failed(result: dg.ExecuteInProcessResult) -> str:
    assert not result.success
    [event] = [event for event in result.all_events if event.is_step_failure]
    failure = event.step_failure_data.user_failure_data
    assert failure is not None, event.step_failure_data.error
    return str(failure.description)


@pytest.mark.server
def test_a_failure_of_the_driver_is_that_of_the_dagster_run(here: Here) -> None:
    bench = here.bench
    bench.tick()
    dynamodb, application = bench.resource.client("dynamodb"), bench.consumer.application
    layout = detect_layout(dynamodb, application, system())
    ControlRow(dynamodb, application, layout, system()).save(Control(paused=True, changed_by="ann"))
    result = here("driven:things")
    assert "shardId-000000000000: paused by ann; shardId-000000000001: paused by ann" in why_failed(result)
    assert here.codes == [cli.WELL], "a Pipes client would drop what a failed process reported"
    status = read_status(application, dynamodb, system())
    assert f"the last bounded run ({result.run_id[:8]}) failed at" in str(status.about_last_run)
    [event] = [event for event in result.all_events if event.is_step_failure]
    failure = event.step_failure_data.user_failure_data
    assert failure is not None
    assert failure.metadata["job"].value == "j-1", "what the client says of the driver"


@pytest.mark.server
def test_a_driver_that_has_nothing_to_read_is_well_and_says_so(here: Here) -> None:
    here.bench.tick()
    with reading_fleet(here.bench.consumer, here.bench.resource):
        result = here("driven:things")
    assert result.success
    [told] = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    assert str(told["summary"].value).endswith("this run had nothing to do")
    assert (told["job"].value, told["worked"].value) == ("j-1", False)


class BrokenSpark:
    @property
    def spark_session(self) -> Any:
        raise RuntimeError("no memory for the JVM")


@pytest.mark.server
def test_what_kept_a_driver_from_reading_is_reported(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    resources = {"kcl": here.bench.resource, "spark": BrokenSpark()}
    defs = kcl.build_kcl_definitions(here.bench.consumer, resources=resources, compaction=None)
    monkeypatch.setattr(sys.modules["driven"], "defs", defs, raising=False)
    assert "RuntimeError: no memory for the JVM" in why_failed(here("driven:defs"))
    assert "driven:nothing cannot be loaded" in why_failed(here("driven:nothing"))
    assert here.codes == [cli.WELL, cli.WELL]


@pytest.mark.server
def test_a_driver_of_another_application_is_refused(here: Here) -> None:
    asked = why_failed(here("driven:things", **{"kcl/application": "other"}))
    assert "the Dagster run asks for application other, and this driver was started for test-" in asked
    assert "the Dagster run has passed no extras" in why_failed(here("driven:things", **{"kcl/application": None}))


@pytest.mark.server
def test_a_driver_that_is_started_again_for_one_run_is_refused(here: Here) -> None:
    bench = here.bench
    bench.tick()
    dynamodb, application = bench.resource.client("dynamodb"), bench.consumer.application
    table = WorkerTable(dynamodb, application, detect_layout(dynamodb, application, system()), system())

    def started_before() -> int:
        run = PipesContext._instance or remote_driver._open_pipes()
        now = int(system().clock.now())
        table.put(WorkerRow(worker_id(BOUNDED_SLOT, run.run_id), now, {}, {}, run_id=run.run_id))
        return cli.main(["catch-up", "driven:things", "--pipes"])

    assert "the platform has started the driver a second time" in why_failed(here.launched(started_before))


@pytest.mark.server
def test_a_driver_that_ends_without_a_report_fails_the_dagster_run(here: Here) -> None:
    assert "the driver ended without a report" in why_failed(here.launched(lambda: 0))


@pytest.mark.server
def test_a_driver_whose_code_hangs_reports_that_and_ends(here: Here) -> None:
    class Hanging:
        def __init__(self, *_: Any, end_process: Callable[[str], object], **__: Any) -> None:
            self.end_process = end_process

        def run(self, *_: object) -> BoundedOutcome:
            self.end_process("hung in your code")
            return BoundedOutcome(0.0, StopReason.CAUGHT_UP)

    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    def drive() -> int:
        resources = {"kcl": here.bench.resource, "spark": BrokenSpark()}
        with remote_driver.reporting() as pipes, pytest.raises(Ended, match="0"):
            remote_driver.run_in_driver(here.bench.consumer, kcl.KclTranslator(), resources, pipes, end)
        return 0

    here.monkeypatch.setattr(remote_driver, "BoundedRun", Hanging)
    assert "hung in your code" in why_failed(here.launched(drive))


def test_pipes_needs_a_process_that_a_client_has_launched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_PIPES_CONTEXT", raising=False)
    assert cli.main(["catch-up", "driven:things", "--pipes"]) == cli.UNANSWERED
    assert "--pipes is for a process that a Pipes client of Dagster has launched" in capsys.readouterr().err
    assert cli.main(["catch-up", "driven:things", "--pipes", "--through", "2026-01-01T00:00Z"]) == cli.UNANSWERED
    assert "the Dagster run sets the moment" in capsys.readouterr().err


def test_a_report_is_what_was_sent() -> None:
    sent: list[Any] = ["of the consumer's code", {"also": "of the consumer's code"}]
    seen = dg.AssetObservation("things", metadata={"kcl/records": 3}, partition="2026-11-24-15:00")
    failed = dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey("things"), check_name="no_data_loss", passed=False, metadata={"what": "lost"}
    )
    outcome = BoundedOutcome(17.5, StopReason.STUCK, "shard 1 is paused", 3, worked=True)
    send_event(sent.append, seen)
    send_event(sent.append, failed)
    send_outcome(sent.append, outcome)
    assert read_report(sent) == RemoteReport((seen, failed), outcome, led=False)
    send_problem(sent.append, "no rights")
    assert read_report(sent).problem == "no rights"
    assert read_report([]) == RemoteReport()


UNREADABLE = ('{"__class__": "EventOfTomorrow"}', '{"__class__": "AssetObservation", "x": 1}', "{", "3", 4, None)


def test_an_event_that_this_version_cannot_read_is_left_out_of_the_report() -> None:
    sent: list[Any] = []
    seen, outcome = dg.AssetObservation("things"), BoundedOutcome(17.5, StopReason.CAUGHT_UP, records=3)
    send_versions(sent.append)
    sent += [{EVENT: event} for event in UNREADABLE]
    send_event(sent.append, seen)
    send_outcome(sent.append, outcome)
    report = read_report(sent)
    assert (report.events, report.outcome, report.problem) == ((seen,), outcome, "")
    assert len(report.unread) == len(UNREADABLE)
    assert report.versions == f"kcl-dagster {kcl.__version__} and Dagster {dg.__version__}"


@pytest.mark.parametrize("changed", [{"reason": None}, {"reason": "a reason of tomorrow"}, {"led": None}])
@pytest.mark.parametrize("has_versions", [True, False])
def test_an_outcome_that_this_version_cannot_read_is_a_problem(
    changed: Mapping[str, str | None], has_versions: bool
) -> None:
    sent: list[Any] = [{VERSIONS: "kcl-dagster 9.1 and Dagster 2.0"}] if has_versions else []
    send_outcome(sent.append, BoundedOutcome(17.5, StopReason.CAUGHT_UP))
    told = {**sent[-1][OUTCOME], **changed}
    sent[-1] = {OUTCOME: {name: value for name, value in told.items() if value is not None}}
    report = read_report(sent)
    assert report.outcome is None
    driver = "kcl-dagster 9.1 and Dagster 2.0" if has_versions else "unknown versions"
    assert f"the driver has {driver}, and this process has kcl-dagster {kcl.__version__}" in report.problem
    assert read_report([{OUTCOME: "done"}]).problem


@pytest.mark.server
def test_the_outcome_of_a_driver_of_another_version_counts_although_an_event_is_unknown(here: Here) -> None:
    def drive() -> int:
        with remote_driver.reporting() as pipes:
            pipes.report_custom_message({EVENT: '{"__class__": "EventOfTomorrow"}'})
            send_outcome(pipes.report_custom_message, BoundedOutcome(17.5, StopReason.CAUGHT_UP))
        return 0

    result = here.launched(drive)
    assert result.success
    records = here.bench.instance.get_records_for_run(result.run_id).records
    logged = "\n".join(record.event_log_entry.user_message for record in records)
    assert "1 of the driver's events cannot be read here" in logged
    assert f"the driver has kcl-dagster {kcl.__version__}" in logged


@pytest.mark.server
def test_an_outcome_of_another_version_fails_the_dagster_run_with_both_versions(here: Here) -> None:
    def drive() -> int:
        with remote_driver.reporting() as pipes:
            pipes.report_custom_message({OUTCOME: {"through": 17.5}})
        return 0

    why = why_failed(here.launched(drive))
    assert "the outcome of the driver cannot be read (KeyError: " in why
    assert f"the driver has kcl-dagster {kcl.__version__}" in why


def test_messages_are_written_to_where_the_reader_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    (tmp_path / "dbfs/tmp/x").mkdir(parents=True)
    (tmp_path / "volume").mkdir()
    (tmp_path / "messages").touch()
    dbfs = tmp_path / "dbfs"
    for params, writer in (
        ({"bucket": "b", "key_prefix": "p"}, PipesS3MessageWriter),
        ({"path": "/tmp/x"}, PipesDbfsMessageWriter),
        ({"path": str(tmp_path / "volume")}, PipesUnityCatalogVolumesMessageWriter),
        ({"path": str(tmp_path / "messages")}, PipesDefaultMessageWriter),
        ({"stdio": "stdout"}, PipesDefaultMessageWriter),
    ):
        assert type(message_writer(params, dbfs)) is writer, params
    for params, loader in (
        ({"bucket": "b", "key": "k"}, PipesS3ContextLoader),
        ({"path": "/tmp/x"}, PipesDbfsContextLoader),
        ({"data": "{}"}, PipesDefaultContextLoader),
        ({"path": str(tmp_path / "messages")}, PipesDefaultContextLoader),
    ):
        assert type(context_loader(params, dbfs)) is loader, params


def test_a_session_that_the_platform_provides_comes_before_a_local_one(monkeypatch: pytest.MonkeyPatch) -> None:
    local, cluster = kcl.KclSparkResource(memory="2g"), kcl.KclSparkResource(mode="cluster", url="yarn")
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    assert remote_driver._session_here(local) is local
    monkeypatch.setenv(remote_driver.SUBMITTED, "1")
    assert remote_driver._session_here(local).mode == "existing"
    assert remote_driver._session_here(cluster) is cluster
    assert isinstance(remote_driver._session_here(BrokenSpark()), BrokenSpark)


def test_a_launch_function_asks_for_resources_by_its_parameters(consumer: Consumer) -> None:
    def launch(context: Any, extras: Any, emr: Any) -> Any:
        raise AssertionError

    job = kcl.build_kcl_catch_up_job(consumer, launch=launch)
    [definition] = [node.definition for node in job.nodes]
    assert isinstance(definition, dg.OpDefinition)
    assert definition.required_resource_keys == {"kcl", "emr"}
