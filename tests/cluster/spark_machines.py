"""Spark's own processes on machines of their own: master, workers, and a Spark Connect server."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from demo.started_process import StartedProcess
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.processor_hosts.spark_processor_hosts import PORT
from tests.cluster.image import Image
from tests.cluster.machines import Machine

MASTER_PORT, CONNECT_PORT, HOSTS_PORT = 7077, 15002, 7079
READY_SECONDS = 180.0
LOOK_SECONDS = 0.2
EXECUTOR = "CoarseGrainedExecutorBackend"
WORKERS = ("worker-1", "worker-2")
SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# Of any session. A machine that vanishes refuses nothing, so Spark has to wait for it; by default, two minutes.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": SMALL,
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "10s",
    "spark.executor.heartbeatInterval": "5s",
    "spark.log.level": "WARN",
}
# What docs/how-to/spark.md asks of a session that is not ours, such as a Spark Connect server's.
ASKED = {
    "spark.speculation": "false",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.python.daemon.module": "kcl_dagster.spark.python_daemon",
}


@dataclass
class SparkMachines:
    """`environment`: of each machine, as an instance profile and a network give it."""

    machines: Mapping[str, Machine]
    image: Image
    logs: Path
    environment: Mapping[str, str]
    started: list[StartedProcess] = field(default_factory=list)

    @property
    def master_url(self) -> str:
        return f"spark://master:{MASTER_PORT}"

    def start(self) -> None:
        """The master and both workers."""
        self._start_class(
            self.machines["master"],
            ("org.apache.spark.deploy.master.Master", "--host", "master", "--port", str(MASTER_PORT)),
            "I have been elected leader",
        )
        for name in WORKERS:
            self.start_worker(name)

    def start_worker(self, name: str) -> None:
        options = ("--host", name, "-c", "2", "-m", "2g", "-d", "work")
        self._start_class(
            self.machines[name],
            ("org.apache.spark.deploy.worker.Worker", *options, self.master_url),
            "Successfully registered with master",
        )

    def start_connect(self) -> str:
        """A Spark Connect server whose executors are on the workers. Returns its address."""
        conf = SETTINGS | ASKED | {"spark.connect.grpc.binding.port": str(CONNECT_PORT)}
        conf |= {"spark.pyspark.python": str(self.image.python), "spark.log.level": "INFO"}
        conf |= {"spark.executorEnv.PYTHONPATH": str(self.image.installed)}
        options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--name", "connect")
        self._start_class(
            self.machines["connect"],
            (
                "org.apache.spark.deploy.SparkSubmit",
                *server,
                "--master",
                self.master_url,
                *options,
                "spark-internal",
            ),
            "Spark Connect server started",
        )
        return f"sc://connect:{CONNECT_PORT}"

    def conf_of_driver(self, archive: Path) -> dict[str, str]:
        """Of a session in mode cluster. `archive`: the package, as the driver's machine sees it."""
        return {
            **SETTINGS,
            "spark.pyspark.python": str(self.image.python),
            "spark.archives": f"{archive}#package",
            "spark.executorEnv.PYTHONPATH": "package",
            "spark.driver.extraJavaOptions": SMALL,
            PORT: str(HOSTS_PORT),
        }

    def executors(self, name: str) -> list[int]:
        return [
            pid for pid, command in self.machines[name].processes() if any(EXECUTOR in word for word in command)
        ]

    def stop(self) -> None:
        for machine in self.machines.values():
            machine.kill()
        for process in self.started:
            process.wait(READY_SECONDS)

    def _start_class(self, machine: Machine, arguments: Sequence[str], ready: str) -> None:
        log = self.logs / f"{machine.name}.log"
        before = log.stat().st_size if log.exists() else 0
        environment = {
            **self.environment,
            "SPARK_HOME": str(self.image.spark),
            "SPARK_LOCAL_DIRS": "/tmp",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "512m",
            "SPARK_DAEMON_JAVA_OPTS": SMALL,
            "PYSPARK_PYTHON": str(self.image.python),
            "PYTHONPATH": "",
        }
        command = machine.command([str(self.image.spark / "bin" / "spark-class"), *arguments])
        process = StartedProcess.start(machine.name, command, environment, log)
        self.started.append(process)

        def is_ready() -> bool:
            with log.open("rb") as file:
                file.seek(before)
                return ready.encode() in file.read()

        wait_until(is_ready, READY_SECONDS, f"{machine.name} is not ready; its log is {log}", process)


def wait_until(
    is_true: Callable[[], bool], seconds: float, what: str, process: StartedProcess | None = None
) -> None:
    """Raises ConfigurationError if it does not become true in time, or the process ends before."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline or (process is not None and process.ended):
            raise ConfigurationError(what)
        time.sleep(LOOK_SECONDS)
