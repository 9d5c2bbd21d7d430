"""The Spark session of a worker: an existing one, or a local one with settings that suit a fetch loop."""

import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final, Literal

from py4j.protocol import Py4JError
from pydantic import BaseModel, ConfigDict, Field
from pyspark import SparkConf, SparkContext
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
from kcl_dagster.spark.server_address import refuse_unreachable
from kcl_dagster.spark.session_extensions import postpone_functions
from kcl_dagster.spark.warm_up import mark_new

# There are more slots than cores, because a fetch spends its time waiting for the network.
LOCAL_SLOTS_PER_CORE: Final = 2

# For each page of a shard, a Python worker allocates and frees some megabytes. By default, glibc and Arrow return
# such memory to the system at once, and the worker spends a third of its time on page faults. With these settings,
# glibc keeps freed memory up to this size.
KEPT_BYTES: Final = str(256 * 1024 * 1024)
KEEPS_MEMORY: Final = {
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": KEPT_BYTES,
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": KEPT_BYTES,
    "spark.executorEnv.MALLOC_ARENA_MAX": "2",
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
}

# With this module, Spark's Python workers can send every error of the consumer's functions. With Spark's own
# daemon, a job never ends if the text of an error cannot be encoded.
SENDS_EVERY_ERROR: Final = {"spark.python.daemon.module": "kcl_dagster.spark.python_daemon"}

# If part of a shuffle is lost, Spark evaluates that part again, although tasks have already used the first result.
# If the transform distributes rows by a value that is not deterministic, some records would then be stored twice,
# and others not at all. Spark 4.2 detects most such cases; Spark 4.0 and 4.1 detect none. With this setting, the
# job fails instead. The batch is then void: it is never visible, and its records are read again.
REPEATS_NO_STAGE: Final = {"spark.stage.maxConsecutiveAttempts": "1"}

# Spark passes rows to Python functions in Arrow batches. With the default of 10,000 rows, the memory of most
# batches is allocated by the system and returned to it, which takes CPU. Spark also limits the bytes of a batch, to
# 64 MB. This limit is not changed: without it, the buffers of large rows exceed the JVM's direct memory, and the
# JVM ends.
PASSES_SMALL_BATCHES: Final = {"spark.sql.execution.arrow.maxRecordsPerBatch": "4000"}

# Since Spark 4.1, a union of inputs with one partition each has one partition by default. A fetch by fan-out is a
# union of this kind. Its tasks must read at the same time. As one task, they would read one after another.
KEEPS_TASKS_APART: Final = {"spark.sql.unionOutputPartitioning": "false"}

LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # With TCP instead of Unix sockets, every Python task waits 40 ms because of Nagle's algorithm.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.cleaner.periodicGC.interval": "5min",
    "spark.speculation": "false",
    # At the level WARN, Spark would warn for every released batch that its records cannot be recomputed. They need
    # not be recomputed.
    "spark.log.level": "ERROR",
    # For each query, Spark writes the plan of the query as a text for its UI, which a local session does not have.
    # In this mode, the text is shortest.
    "spark.sql.ui.explainMode": "simple",
    **KEEPS_MEMORY,
    **SENDS_EVERY_ERROR,
    **REPEATS_NO_STAGE,
    **PASSES_SMALL_BATCHES,
    **KEEPS_TASKS_APART,
}
"""The configuration of a local session; everything can be overridden."""

CLUSTER: Final = {
    "spark.speculation": "false",
    "spark.locality.wait": "0s",
    "spark.sql.session.timeZone": "UTC",
    **SENDS_EVERY_ERROR,
    **REPEATS_NO_STAGE,
    **PASSES_SMALL_BATCHES,
    **KEEPS_TASKS_APART,
}
"""The configuration of a cluster's session; everything can be overridden."""

# Java's second compiler takes a quarter of the CPU time of a start. With ten times its default thresholds, it still
# compiles within the first minutes the code that every batch runs. Java ignores options that it does not know.
COMPILES_LATER: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

# Systems allow 103 bytes for the path of a socket. Spark's sockets are in the JVM's temporary folder, and have
# names of 42 bytes.
LONGEST_SOCKET_FOLDER: Final = 60

# These loggers of PySpark write each error with its message, which can quote a record. The events of this package
# report the error without values of records.
QUERY_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
# Spark's setting for the interpreter of the executors' Python workers.
WORKER_PYTHON: Final = "spark.pyspark.python"


class SparkSettings(BaseModel):
    """How a worker gets its session.

    - `local` starts a local session in this process.
    - `existing` uses the session of the environment (spark-submit, Databricks, EMR, Kubernetes) unchanged.
    - `connect` uses the Spark Connect server at `url`.
    - `cluster` starts a driver in this process for the master at `url`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["local", "existing", "connect", "cluster"] = "local"
    url: str | None = None
    """`sc://host:port` for connect, a master URL for cluster."""

    slots: Annotated[int, Field(ge=1)] | None = None
    """Task slots of a local session. Default: twice the number of cores."""

    memory: str = "1g"
    """Heap of the driver; a batch needs about five times its size."""

    attempts: Annotated[int, Field(ge=1)] = 2
    """How often a local session tries a task."""

    java_options: str = "-XX:+UseSerialGC"
    local_root: str | None = None
    """The folder in which a local session creates the folder of its temporary files. Default: the system's
    temporary folder."""

    conf: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """The settings with which a session is started: the master or the Spark Connect server, Spark's
    configuration, and environment variables of the driver's process, which do not replace existing ones."""

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def starts_java(self) -> bool:
        return self.master is not None


def plan_session(settings: SparkSettings, *, python: str, cores: int, folder: Path | None = None) -> SessionPlan:
    """Make the plan of the session that `settings` describe. Pure. `python`: the path of this interpreter.
    `folder`: the folder for a local session's temporary files; None leaves the choice to Spark.

    Only a local session uses the loopback address and runs this interpreter in its Python workers. Executors of a
    cluster cannot reach a driver at 127.0.0.1, and do not have this interpreter at the same path. They run the
    interpreter that `spark.pyspark.python` in `conf` or the variable PYSPARK_PYTHON names, otherwise `python3`.

    Raises ConfigurationError if the mode needs a url and there is none.
    """
    match settings.mode:
        case "local":
            slots = settings.slots or LOCAL_SLOTS_PER_CORE * cores
            # If the user's Java options already choose how Java compiles, no such options are added.
            compiling = [] if "Tier" in settings.java_options else [COMPILES_LATER]
            java_options = " ".join([settings.java_options, *compiling]).strip()
            conf = LOCAL | {"spark.driver.memory": settings.memory, JAVA_OPTIONS: java_options}
            if folder is not None:
                conf |= _inside(folder, java_options)
            conf |= settings.conf
            # Without SPARK_LOCAL_IP, Spark looks up its own host name, which fails or takes seconds on laptops.
            environment = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_DRIVER_PYTHON": python}
            environment["PYSPARK_PYTHON"] = conf.get(WORKER_PYTHON, python)
            # Without a number of attempts, Spark fails a local job at its first failed task.
            return SessionPlan(f"local[{slots},{settings.attempts}]", None, conf, environment)
        case "cluster":
            conf = CLUSTER | settings.conf
            # PySpark takes the executors' interpreter only from the driver's environment.
            asked = {"PYSPARK_PYTHON": conf[WORKER_PYTHON]} if WORKER_PYTHON in conf else {}
            return SessionPlan(_url(settings), None, conf, {"PYSPARK_DRIVER_PYTHON": python} | asked)
        case "connect":
            return SessionPlan(None, _url(settings), dict(settings.conf))
        case "existing":
            return SessionPlan(conf=dict(settings.conf))


def start_session(settings: SparkSettings, name: str) -> SparkSession:
    """Start the session that `settings` describe. If a JVM has to be started, this takes 5 to 10 seconds, and half
    of that with an archive of Spark's classes.

    Raises JavaMissing if there is no Java runtime. Raises ConfigurationError if no server listens at the url, the
    session cannot be started, or its executors cannot run this package.
    """
    plan = plan_session(
        settings, python=sys.executable, cores=os.cpu_count() or 1, folder=_prepared_folder(settings)
    )
    server = plan.remote or plan.master
    if server is not None:
        refuse_unreachable(server, os.environ)
    conf = {**plan.conf, "spark.app.name": name}
    if plan.starts_java:
        java = find_java(os.environ)
        if java.home is not None:
            os.environ["JAVA_HOME"] = str(java.home)
        if settings.mode == "local":
            conf[JAVA_OPTIONS] = class_archive(java, os.environ).used_by(conf[JAVA_OPTIONS])
    for key, value in plan.environment.items():
        os.environ.setdefault(key, value)
    if settings.mode == "local":
        # PySpark imports pandas before it uses the JVM. Here, this is done while the JVM starts.
        threading.Thread(target=_import_pandas, name="kcl-import-pandas", daemon=True).start()
    is_classic = settings.mode == "local" and not _is_connect(conf)
    is_new = is_classic and SparkContext._active_spark_context is None  # noqa: SLF001 - otherwise Spark returns it
    try:
        session = _started(plan, conf, is_classic=is_classic)
    except (PySparkException, Py4JError, RuntimeError, OSError) as error:
        raise ConfigurationError(
            f"the Spark session ({settings.mode}) could not be started: {line_of_java(error)}"
        ) from error
    if settings.mode != "local":
        check_executors(session)
    if is_new:
        mark_new(session)
    if settings.mode != "existing":
        _silence_query_loggers()
    return session


def _import_pandas() -> None:
    with suppress(ImportError):  # if pandas is missing, Spark reports this where it needs pandas
        import_module("pandas")


def _is_connect(conf: Mapping[str, str]) -> bool:
    """Whether Spark starts a server of Spark Connect of its own for a local session."""
    return conf.get("spark.api.mode", os.environ.get("SPARK_API_MODE", "")).lower() == "connect"


def _started(plan: SessionPlan, conf: Mapping[str, str], *, is_classic: bool) -> SparkSession:
    builder: SparkSession.Builder = SparkSession.builder
    if plan.master is not None:
        builder = builder.master(plan.master)
    if plan.remote is not None:
        builder = builder.remote(plan.remote)
    for key, value in conf.items():
        builder = builder.config(key, value)
    if is_classic:
        all_of_it = SparkConf().setAll([*conf.items(), ("spark.master", str(plan.master))])
        postpone_functions(SparkContext.getOrCreate(all_of_it))
    return builder.getOrCreate()


def _silence_query_loggers() -> None:
    for name in QUERY_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True


def stop_session(spark: SparkSession) -> None:
    """Stop a session, even if its JVM has ended already."""
    with suppress(PySparkException, Py4JError, OSError):
        spark.stop()


def _prepared_folder(settings: SparkSettings) -> Path | None:
    """Create the folder of a local session, and remove folders that killed processes left behind. Returns None if
    the session is not local, or if the user has chosen a folder."""
    if settings.mode != "local" or is_chosen_by_user(settings.conf, os.environ):
        return None
    folder = own_folder(None if settings.local_root is None else Path(settings.local_root))
    remove_left_behind(folder.parent, this_machine())
    return folder


def _inside(folder: Path, java_options: str) -> dict[str, str]:
    """The configuration with which all temporary files are in `folder`: Spark's blocks, and files that the JVM
    unpacks."""
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
