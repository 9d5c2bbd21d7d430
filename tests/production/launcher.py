"""Has each run started as a process by the host of runs, as Docker starts containers.

Like the DockerRunLauncher of deploy/dagster.yaml, it launches from the daemon, and Dagster asks it whether a run is
alive. It is installed beside each version of kcl_dagster, and imports none.
"""

import json
import socket
from collections.abc import Mapping
from typing import Any, Self

from dagster import DagsterInstance, DagsterRun
from dagster._config import UserConfigSchema
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import ConfigurableClass, ConfigurableClassData

ANSWER_SECONDS = 30.0


class ProcessRunLauncher(RunLauncher[DagsterInstance], ConfigurableClass):
    """`host`: the socket of the host of runs."""

    def __init__(self, host: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._host = host
        self._inst_data = inst_data

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        return self._inst_data

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        return {"host": str}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        run, origin = context.dagster_run, context.job_code_origin
        assert origin is not None
        command = ExecuteRunArgs(origin, run.run_id, self._instance.get_ref()).get_command_args()
        self._ask("start", run.run_id, command=list(command), job=run.job_name)

    def terminate(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        self._instance.report_run_canceling(run)
        return self._ask("stop", run_id)

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        if self._ask("is_alive", run.run_id):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"the process of run {run.run_id} is gone")

    def _ask(self, what: str, run: str, **more: Any) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(ANSWER_SECONDS)
            line.connect(self._host)
            line.sendall(json.dumps({"what": what, "run": run, **more}).encode() + b"\n")
            with line.makefile() as answer:
                return bool(json.loads(answer.readline()))
