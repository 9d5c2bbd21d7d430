"""A `dagster dev` on a project of its own, what can be seen of its runs, and what an operator does to them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.events import EngineEventData
from dagster._core.execution.backfill import BulkActionStatus

from kcl_dagster.application import Application
from kcl_dagster.emulator import Emulator
from kcl_dagster.model.lease import Lease
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.orchestration import processes
from kcl_dagster.orchestration.translator import identifier
from kcl_dagster.runtime import system
from tests.acceptance.family import ROOT, free_port, wait_for

# A shell that runs the tests in the background ignores Ctrl-C on behalf of all they start.
HEARS_INTERRUPTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "dagster", *sys.argv[1:]])
"""
STOPPED_SECONDS = 120.0
START_OF_A_RUN_SECONDS = 300  # Dagster waits for a minute, which a busy machine exceeds
PATIENCE_SECONDS = 900.0

TERMINATE = "mutation($run: String!) { terminateRun(runId: $run) { __typename } }"
BACKFILL = """
mutation($asked: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $asked) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }
"""


@dataclass(frozen=True)
class Deployment:
    """Applications are called like the streams they read."""

    folder: Path
    url: str
    instance: DagsterInstance
    aws: Emulator

    def wait(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        try:
            wait_for(condition, what, seconds)
        except AssertionError as error:
            log = (self.folder / "dagster.log").read_text(errors="replace")
            raise AssertionError(f"{error}: {log[-3000:]}") from error

    # --- what is seen

    def runs(self, application: str) -> list[DagsterRun]:
        """Of its workers, the oldest first."""
        return list(reversed(self.instance.get_runs(RunsFilter(job_name=f"{identifier(application)}_worker"))))

    def status_of(self, run: DagsterRun) -> DagsterRunStatus:
        found = self.instance.get_run_by_id(run.run_id)
        assert found is not None
        return found.status

    def pid_of(self, run: DagsterRun) -> int:
        """The process in which a run executes, as it has said itself."""
        events = (entry.dagster_event for entry in self.instance.all_logs(run.run_id))
        told = [event.event_specific_data for event in events if event is not None]
        pids = [data.metadata.get("pid") for data in told if isinstance(data, EngineEventData)]
        return next(int(str(pid.value)) for pid in pids if pid is not None)

    def leases(self, application: str) -> dict[str, Lease]:
        return {str(lease.key): lease for lease in self.opened(application).scan().leases}

    def owners(self, application: str) -> set[str | None]:
        return {lease.actual_owner for lease in self.leases(application).values()}

    def workers(self, application: str) -> list[str]:
        return [row.id for row in self.opened(application).workers.list()]

    # --- what is done

    def opened(self, application: str) -> OpenApplication:
        dynamodb, kinesis = (self.aws.client(service) for service in ("dynamodb", "kinesis"))
        return OpenApplication.open(
            Application(name=application, streams=application), dynamodb, kinesis, system(), "test"
        )

    def terminate(self, run: DagsterRun) -> str:
        """What the button in the UI does."""
        return str(self._ask(TERMINATE, {"run": run.run_id})["terminateRun"]["__typename"])

    def backfill(self, asset: str, partitions: Sequence[str], config: Mapping[str, Any]) -> str:
        """What the dialog in the UI does. The daemon does the rest."""
        asked = {"assetSelection": [{"path": [asset]}], "partitionNames": [*partitions], "runConfigData": config}
        answer = self._ask(BACKFILL, {"asked": asked})["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        return str(answer["backfillId"])

    def backfill_status(self, backfill: str) -> BulkActionStatus:
        found = self.instance.get_backfill(backfill)
        assert found is not None
        return found.status

    def runs_of(self, backfill: str) -> list[DagsterRun]:
        return list(self.instance.get_runs(RunsFilter(tags={"dagster/backfill": backfill})))

    def _ask(self, query: str, variables: Mapping[str, Any]) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            said = json.load(answer)
        assert not said.get("errors"), said
        return said["data"]


@contextmanager
def dagster_dev(folder: Path, aws: Emulator, project: str, environment: Mapping[str, str]) -> Iterator[Deployment]:
    """As the reference deployment configures it; ended as by Ctrl-C."""
    (folder / "project.py").write_text(project)
    home = folder / "home"
    home.mkdir()
    shutil.copy(ROOT / "dagster.yaml", home / "dagster.yaml")
    port = free_port()
    where = ("dev", "-f", "project.py", "-h", "127.0.0.1", "-p", str(port))
    with DagsterInstance.from_config(str(home)) as instance, (folder / "dagster.log").open("wb") as log:
        # Makes the storages, which two processes at once cannot.
        for look in (instance.get_runs, instance.all_asset_keys, instance.all_instigator_state):
            assert not look()
        process = subprocess.Popen(
            [sys.executable, "-c", HEARS_INTERRUPTS, *where],
            cwd=folder,
            env={
                **os.environ,
                **aws.environment(),
                "DAGSTER_HOME": str(home),
                "DAGSTER_DISABLE_TELEMETRY": "1",
                "DAGSTER_GRPC_TIMEOUT_SECONDS": str(START_OF_A_RUN_SECONDS),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield Deployment(folder, f"http://127.0.0.1:{port}", instance, aws)
        finally:
            _stop(process)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    family = processes.descendants(process.pid, processes.snapshot())
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(STOPPED_SECONDS)
    finally:
        for relative in family.values():
            if relative.is_alive():
                os.kill(relative.pid, signal.SIGKILL)
        process.kill()
        process.wait()
