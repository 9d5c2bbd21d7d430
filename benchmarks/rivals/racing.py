"""Runs another consumer on a stream, and measures it after a warm-up.

The consumer first reads half as many records as are measured. So neither the start of a JVM nor its just-in-time
compiler is measured. Then the consumer's processes are stopped while the measured records are put, so that it has
read none of them when the measurement begins. CPU is that of all processes of the consumer, without the embedded
AWS.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import cpu_between, cpu_times
from benchmarks.run_time import Cost
from benchmarks.source import Load, Source
from tests.interop import java_kcl

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CACHE = ROOT / ".cache" / "bench"
ARROW = "pyarrow==26.0.1"
ASYNC_KINESIS = "async-kinesis[kpl]==3.0.1"
# The only Kinesis connector for Spark that resolved from Maven. It was built for Spark 3.0 and Scala 2.12; the last
# Spark with that Scala is 3.5.
CONNECTOR_ARCHIVE = "com.qubole.spark:spark-sql-kinesis_2.12:1.2.0_spark-3.0"
SPARK_OF_CONNECTOR = "pyspark==3.5.9"
DAEMON = "software.amazon.kinesis.multilang.MultiLangDaemon"

WARM = 0.5  # megabytes for the warm-up, as a part of those that are measured
LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 150.0
STOP_SECONDS = 15.0
INSTALL_SECONDS = 300.0


class Unavailable(Exception):
    """This machine cannot run a consumer. The message says why."""


@dataclass(frozen=True)
class Rival:
    """Another consumer. `command` returns its command line for a stream. The second argument of `command` is the
    working folder."""

    name: str
    command: Callable[[Source, Path], list[str]]

    def race(self, load: Load, megabytes: float, endpoint: str, stream: str) -> Cost:
        """Measure the consumer. Raises Unavailable if it cannot be installed, if it ends, or if it does not read
        all records in time."""
        source = Source.fill(load, megabytes * WARM, endpoint, stream)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            store, counts = folder / "store", folder / "counts"
            store.mkdir()
            counts.mkdir()
            environment = {
                **os.environ,
                "STORE": str(store),
                "COUNTS": str(counts),
                "TRANSFORM": "json" if load.is_json else "",
                "AWS_ACCESS_KEY_ID": "bench",
                "AWS_SECRET_ACCESS_KEY": "bench",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_REGION": "us-east-1",
            }
            command = self.command(source, folder)
            log = folder / "log"
            with (
                log.open("w") as output,
                subprocess.Popen(
                    command, stdout=output, stderr=output, env=environment, start_new_session=True
                ) as process,
            ):
                try:
                    race = _Race(self.name, process, counts, log)
                    race.wait_for(source.records)
                    os.killpg(process.pid, signal.SIGSTOP)
                    records = source.put(megabytes)
                    began, before = time.monotonic(), cpu_times(process.pid)
                    os.killpg(process.pid, signal.SIGCONT)
                    race.wait_for(source.records + records)
                    seconds = time.monotonic() - began
                    used = cpu_between(before, cpu_times(process.pid))
                    return Cost(records, records * load.size, seconds, used)
                finally:
                    _stop(process)


@dataclass(frozen=True)
class _Race:
    name: str
    process: "subprocess.Popen[bytes]"
    counts: Path
    log: Path

    def wait_for(self, records: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (count := self._count()) < records:
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
                sys.stderr.write(f"{tail}\n")
                slow = f"was not done after {PATIENCE_SECONDS:.0f} s"
                state = "ended" if self.process.poll() is not None else slow
                raise Unavailable(f"{self.name} {state}, at {count:,} of {records:,} records")
            time.sleep(LOOK_SECONDS)

    def _count(self) -> int:
        # A file that the consumer is writing at this moment may be empty.
        return sum(int(file.read_text() or 0) for file in self.counts.iterdir())


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop the consumer, and all processes that it has started. They are in its process group."""
    for kill in (process.terminate, process.kill):
        if process.poll() is None:
            kill()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


# How each consumer is installed and started


def _environment(name: str, *packages: str) -> Path:
    """The path of the interpreter of a virtual environment with these packages. The environment is made at the
    first use."""
    folder = CACHE / name
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists() or ready.read_text() != " ".join(packages):
        shutil.rmtree(folder, ignore_errors=True)
        _install([sys.executable, "-m", "venv", str(folder)])
        _install([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
        ready.write_text(" ".join(packages))
    return python


def _install(command: list[str]) -> None:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (subprocess.TimeoutExpired, OSError) as error:
        raise Unavailable(f"could not be installed: {error}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise Unavailable(f"could not be installed: {lines[-1][:200]}")


def _kclpy(source: Source, folder: Path) -> list[str]:
    if shutil.which("java") is None:
        raise Unavailable("Java is not installed")
    python = _environment("kclpy", java_kcl.KCLPY, ARROW)
    jars = next(python.parents[1].glob("lib/python*/site-packages/amazon_kclpy/jars"), None)
    if jars is None:
        raise Unavailable(f"{java_kcl.KCLPY} brought no Java archives")
    settings = {
        "executableName": f"{python} {HERE / 'kclpy_processor.py'}",
        "applicationName": f"kclpy-{source.stream}",
        "streamName": source.stream,
        "workerId": "kclpy-1",
        "regionName": "us-east-1",
        "kinesisEndpoint": source.endpoint,
        "dynamoDBEndpoint": source.endpoint,
        "AwsCredentialsProvider": "EnvironmentVariableCredentialsProvider",
        "initialPositionInStream": "TRIM_HORIZON",
        "retrievalMode": "POLLING",
        "metricsLevel": "NONE",
        # The fastest settings: full pages, and the shortest pause with which Kinesis does not throttle.
        "maxRecords": "10000",
        "idleTimeBetweenReadsInMillis": "200",
        "failoverTimeMillis": "10000",  # the default; the consumer is stopped for a shorter time than this
    }
    file = folder / "kcl.properties"
    file.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    return ["java", "-cp", f"{HERE}:{jars}/*", DAEMON, "--properties-file", str(file)]


def _async_kinesis(source: Source, _folder: Path) -> list[str]:
    python = _environment("async-kinesis", ASYNC_KINESIS, ARROW)
    kind = "aggregated" if source.load.aggregated > 1 else "plain"
    return [str(python), str(HERE / "async_kinesis_consumer.py"), source.stream, source.endpoint, kind]


def _connector(source: Source, folder: Path) -> list[str]:
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")
    jars = CACHE / "spark-connector-jars"
    if not any(jars.glob("*.jar")):
        copy = ["mvn", "-B", "-q", "dependency:copy", f"-Dartifact={CONNECTOR_ARCHIVE}"]
        _install([*copy, f"-DoutputDirectory={jars}"])
    [jar] = jars.glob("*.jar")
    python = _environment("spark-connector", SPARK_OF_CONNECTOR, ARROW)
    script = str(HERE / "spark_connector_consumer.py")
    how = ["json"] if source.load.is_json else []
    return [str(python), script, source.stream, source.endpoint, str(jar), str(folder), *how]


KCL = Rival("KCL 3.1 (Python)", _kclpy)
CONNECTOR = Rival("Spark connector", _connector)
RIVALS = (KCL, Rival("async-kinesis", _async_kinesis), CONNECTOR)
