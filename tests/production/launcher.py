"""Launches each run as a process that is a child of no other, as a container is on the machine of `deploy/`.

Like the DockerRunLauncher of deploy/dagster.yaml, it launches from the daemon, and Dagster asks it whether a run is
alive.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from signal import SIGTERM
from typing import Any, Self

from dagster import DagsterInstance, DagsterRun
from dagster._config import UserConfigSchema
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import ConfigurableClass, ConfigurableClassData

from kcl_dagster.orchestration import processes

TAG = "production/process"

# The shell prints the id of the process and ends, so that init becomes the parent.
DETACHED = 'setsid "$@" </dev/null >>"$0" 2>&1 & echo $!'


class ProcessRunLauncher(RunLauncher[DagsterInstance], ConfigurableClass):
    """`logs`: the folder for what runs write."""

    def __init__(self, logs: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._logs = Path(logs)
        self._inst_data = inst_data

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        return self._inst_data

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        return {"logs": str}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        run, origin = context.dagster_run, context.job_code_origin
        assert origin is not None
        command = ExecuteRunArgs(origin, run.run_id, self._instance.get_ref()).get_command_args()
        log = self._logs / f"run-{run.run_id}.log"
        started = subprocess.run(
            ["sh", "-c", DETACHED, str(log), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "DAGSTER_RUN_JOB_NAME": run.job_name},
        )
        process = processes.find(int(started.stdout))
        if process is None:
            msg = f"the process of run {run.run_id} has ended already; its log is {log}"
            raise RuntimeError(msg)
        self._instance.add_run_tags(run.run_id, {TAG: process.identity})

    def terminate(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        self._instance.report_run_canceling(run)
        process = _process(run)
        if process is None:
            return False
        process.send(SIGTERM)
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        if _process(run) is None:
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"the process {run.tags.get(TAG)} is gone")
        return CheckRunHealthResult(WorkerStatus.RUNNING)


def _process(run: DagsterRun) -> processes.Process | None:
    identity = run.tags.get(TAG)
    return None if identity is None else processes.parse(identity)
