"""The Spark session of a worker: one that is given, or a local one with settings that fit a fetch loop."""

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from py4j.protocol import Py4JError
from pydantic import BaseModel, ConfigDict, Field
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.machine import this_machine
from kcl_dagster.spark.class_archive import class_archive
from kcl_dagster.spark.executors import check_executors
from kcl_dagster.spark.failures import line_of_java
from kcl_dagster.spark.java import find_java
from kcl_dagster.spark.local_dir import LOCAL_DIR, is_chosen_by_user, own_folder, remove_left_behind

# Twice the cores: a fetch spends its time waiting for the network.
LOCAL_SLOTS_PER_CORE: Final = 2

# A page of a shard is megabytes that come and go. Left to themselves, glibc and Arrow give such memory back at once
# and a Python worker spends a third of its time on page faults. What is smaller than this is kept instead.
KEPT_BYTES: Final = str(256 * 1024 * 1024)
KEEPS_MEMORY: Final = {
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": KEPT_BYTES,
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": KEPT_BYTES,
    "spark.executorEnv.MALLOC_ARENA_MAX": "2",
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
}

# Its workers can send every error of the consumer's functions. With Spark's own daemon, an error whose text has no
# encoding hangs the job.
SENDS_EVERY_ERROR: Final = {"spark.python.daemon.module": "kcl_dagster.spark.python_daemon"}

# If part of a shuffle is lost, Spark evaluates that part again, beside results that tasks have made of the first
# evaluation. If the transform moves rows by a value that is not deterministic, records are then stored twice, and
# others are not stored. Spark 4.2 finds most such cases, 4.0 and 4.1 none. So the job fails, and the batch is void.
REPEATS_NO_STAGE: Final = {"spark.stage.maxConsecutiveAttempts": "1"}

LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # Without it every Python task waits 40 ms for Nagle's algorithm.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.cleaner.periodicGC.interval": "5min",
    "spark.speculation": "false",
    # Every batch that is released draws a warning that its records cannot be recomputed, which is the point.
    "spark.log.level": "ERROR",
    **KEEPS_MEMORY,
    **SENDS_EVERY_ERROR,
    **REPEATS_NO_STAGE,
}
"""What a local session starts with; everything can be overridden."""

CLUSTER: Final = {
    "spark.speculation": "false",
    "spark.locality.wait": "0s",
    "spark.sql.session.timeZone": "UTC",
    **SENDS_EVERY_ERROR,
    **REPEATS_NO_STAGE,
}
"""What a cluster's session starts with; everything can be overridden."""

# Systems allow 103 bytes for the path of a socket; Spark's have names of 42, in the JVM's temporary folder.
LONGEST_SOCKET_FOLDER: Final = 60

# PySpark's own loggers, which write each error with its message. The message may quote a record, and our events
# report the error without it.
QUERY_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
WORKER_PYTHON: Final = "spark.pyspark.python"  # of Spark: the interpreter of the executors' Python workers


class SparkSettings(BaseModel):
    """How a worker gets its session.

    `local` starts one in this process. `existing` takes what the environment provides (spark-submit, Databricks,
    EMR, Kubernetes) and changes nothing about it. `connect` talks to the Spark Connect server at `url`, `cluster`
    starts a driver here for the master at `url`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["local", "existing", "connect", "cluster"] = "local"
    url: str | None = None
    """`sc://host:port` for connect, a master URL for cluster."""

    slots: Annotated[int, Field(ge=1)] | None = None
    """Task slots of a local session; twice the cores when left out."""

    memory: str = "1g"
    """Heap of the driver; a batch needs about five times its size."""

    attempts: Annotated[int, Field(ge=1)] = 2
    """How often a local session runs a task that fails."""

    java_options: str = "-XX:+UseSerialGC"
    local_root: str | None = None
    """Where a local session makes the folder of its temporary files; left out, the system's temporary folder."""

    conf: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What a session is started with: the master or the Spark Connect server, Spark's configuration, and the
    variables that the driver's process gets unless they are set already."""

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def starts_java(self) -> bool:
        return self.master is not None


def plan_session(settings: SparkSettings, *, python: str, cores: int, folder: Path | None = None) -> SessionPlan:
    """The session that `settings` ask for. Pure. `python`: the path of this interpreter. `folder`: of a local
    session's temporary files; None leaves the choice to Spark.

    Only a local session is tied to this machine: its address is the loopback address, and its Python workers run
    this interpreter. Executors of a cluster cannot reach a driver at 127.0.0.1, and this interpreter's path means
    nothing to them: they run `spark.pyspark.python` of `conf`, PYSPARK_PYTHON of the environment, or `python3`.

    Raises ConfigurationError without the url that the mode needs.
    """
    match settings.mode:
        case "local":
            slots = settings.slots or LOCAL_SLOTS_PER_CORE * cores
            conf = LOCAL | {
                "spark.driver.memory": settings.memory,
                JAVA_OPTIONS: settings.java_options,
            }
            if folder is not None:
                conf |= _inside(folder, settings.java_options)
            conf |= settings.conf
            # Spark looks up its own host name otherwise, which fails or takes seconds on laptops.
            environment = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_DRIVER_PYTHON": python}
            environment["PYSPARK_PYTHON"] = conf.get(WORKER_PYTHON, python)
            # Without an attempt count Spark fails a local job at its first failed task.
            return SessionPlan(f"local[{slots},{settings.attempts}]", None, conf, environment)
        case "cluster":
            conf = CLUSTER | settings.conf
            # PySpark takes the executors' interpreter from the driver's environment and from nowhere else.
            asked = {"PYSPARK_PYTHON": conf[WORKER_PYTHON]} if WORKER_PYTHON in conf else {}
            return SessionPlan(_url(settings), None, conf, {"PYSPARK_DRIVER_PYTHON": python} | asked)
        case "connect":
            return SessionPlan(None, _url(settings), dict(settings.conf))
        case "existing":
            return SessionPlan(conf=dict(settings.conf))


def start_session(settings: SparkSettings, name: str) -> SparkSession:
    """The session that `settings` ask for. Takes 5 to 10 seconds where a JVM has to be started, half of it with an
    archive of Spark's classes.

    Raises JavaMissing without a Java runtime, ConfigurationError when the session cannot be had, or its executors
    cannot run our code.
    """
    plan = plan_session(
        settings, python=sys.executable, cores=os.cpu_count() or 1, folder=_prepared_folder(settings)
    )
    builder: SparkSession.Builder = SparkSession.builder.appName(name)
    conf = dict(plan.conf)
    if plan.starts_java:
        java = find_java(os.environ)
        if java.home is not None:
            os.environ["JAVA_HOME"] = str(java.home)
        if settings.mode == "local":
            conf[JAVA_OPTIONS] = class_archive(java, os.environ).used_by(conf[JAVA_OPTIONS])
    for key, value in plan.environment.items():
        os.environ.setdefault(key, value)
    if plan.master is not None:
        builder = builder.master(plan.master)
    if plan.remote is not None:
        builder = builder.remote(plan.remote)
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, Py4JError, RuntimeError, OSError) as error:
        raise ConfigurationError(
            f"the Spark session ({settings.mode}) could not be started: {line_of_java(error)}"
        ) from error
    if settings.mode != "local":
        check_executors(session)
    if settings.mode != "existing":
        _silence_query_loggers()
    return session


def _silence_query_loggers() -> None:
    for name in QUERY_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True


def stop_session(spark: SparkSession) -> None:
    """Stop a session, also one whose JVM is gone already."""
    with suppress(PySparkException, Py4JError, OSError):
        spark.stop()


def is_classic(spark: SparkSession) -> bool:
    """Whether the session's driver runs in this process; a Spark Connect session's does not."""
    return "connect" not in type(spark).__module__


def _prepared_folder(settings: SparkSettings) -> Path | None:
    """The folder of a local session, after those of killed processes are removed; None if the user chose one."""
    if settings.mode != "local" or is_chosen_by_user(settings.conf, os.environ):
        return None
    folder = own_folder(None if settings.local_root is None else Path(settings.local_root))
    remove_left_behind(folder.parent, this_machine())
    return folder


def _inside(folder: Path, java_options: str) -> dict[str, str]:
    """Configuration that keeps everything temporary in `folder`: Spark's blocks, and what the JVM unpacks."""
    conf = {LOCAL_DIR: str(folder)}
    if "-Djava.io.tmpdir" not in java_options:
        conf[JAVA_OPTIONS] = f'{java_options} "-Djava.io.tmpdir={folder}"'
    if len(str(folder)) > LONGEST_SOCKET_FOLDER:
        conf["spark.python.unix.domain.socket.dir"] = tempfile.gettempdir()
    return conf


def _url(settings: SparkSettings) -> str:
    if settings.url is None:
        raise ConfigurationError(f"Spark mode {settings.mode} needs a url")
    return settings.url
