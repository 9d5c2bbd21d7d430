"""Measures the steps from `dagster dev` to the first stored record: `make bench-start`.

    python -m benchmarks.start [--repeat 1]

The demo's deployment is started as `make demo` starts it: the embedded AWS, a producer, and `dagster dev` with the
leader sensor, which launches two workers. The times of the steps are those at which a process began, an event
entered Dagster's storage, a request reached the embedded AWS, or a data file got its final name.

    dagster dev to first stored record           bar: 30 s
    launched run to first read, slower worker    bar: 8 s, of two workers that start side by side

Prints a table, the CPU that each kind of process had used when the first record was stored, and one JSON line for
each figure. The times depend on the other work of the machine. The table has the load of the machine at the
beginning.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.machine import tree
from benchmarks.worker import Figure
from kcl_dagster.emulator import Emulator
from kcl_dagster.emulator.gateway import Gateway
from kcl_dagster.emulator.http.http_messages import HttpRequest
from kcl_dagster.emulator.kinesis.iterator import ShardIterator
from kcl_dagster.spark.class_archive import class_archive
from kcl_dagster.spark.java import find_java

MOST_START_SECONDS: Final = 30.0
MOST_WORKER_SECONDS: Final = 8.0
WORKERS: Final = 2
LOOK_SECONDS: Final = 0.2
GIVE_UP_SECONDS: Final = 240.0
# The name of a data file has the name of the worker that decided its batch.
OF_WORKER: Final = re.compile(r"[^.]+\.(worker-\d+)-")
STOP_SECONDS: Final = 30.0
GET_RECORDS: Final = "Kinesis_20131202.GetRecords"
LEASE_ACQUIRED: Final = re.compile(r"lease acquired: (shardId-\d+)")
LAUNCHER: Final = "org.apache.spark.launcher.Main"  # a JVM that prints the command line of Spark's JVM
READY: Final = "ready to read"

Moments = dict[str, float]
"""The times of steps, in epoch seconds, by the name of the step."""

DEPLOYMENT: Final = (
    "dagster dev",
    "its code server begins",
    "the process that loads the code begins",
    "code is loaded; the daemon begins",
    "first tick begins",
    "runs are queued",
    "first tick ends",
)
RUN: Final = (
    "launched",
    "process begins",
    "Dagster is imported",
    "definitions are loaded",
    "its work begins",
    "Spark's JVM begins",
    "first lease",
    "Spark is ready",
    "first read",
    "first stored record",
)


# --- processes ---


@dataclass
class Process:
    """A process that `ProcessWatch` has seen. `cpu`: its CPU seconds when it was seen last."""

    parent: int
    began: float
    command: str
    cpu: float

    @property
    def is_java(self) -> bool:
        return self.command.partition(" ")[0].endswith("java")


class ProcessWatch:
    """Records the process `root` and all its descendants, several times per second, until it is closed."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._closed = threading.Event()
        self.seen: dict[int, Process] = {}
        self._thread = threading.Thread(target=self._watch, name="process-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        boot, ticks = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME), os.sysconf("SC_CLK_TCK")
        for pid in tree(self._root):
            folder = Path(f"/proc/{pid}")
            with suppress(OSError, IndexError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_text().replace("\0", " ")
                cpu = sum(map(int, fields[11:13])) / ticks
                known = self.seen.get(pid)
                began = boot + int(fields[19]) / ticks if known is None else known.began
                self.seen[pid] = Process(int(fields[1]), began, command or (known.command if known else ""), cpu)

    def first(self, *words: str) -> float | None:
        """When the first process began that has all of these words in its command line. None if there is no such
        process."""
        began = (one.began for one in self.seen.values() if all(word in one.command for word in words))
        return min(began, default=None)

    def cpu(self, runs: Mapping[int, str]) -> dict[str, float]:
        """The CPU seconds by kind of process. `runs`: the slots of the runs, by process id."""
        used: dict[str, float] = {}
        for pid, one in self.seen.items():
            kind = self._kind(pid, runs)
            used[kind] = used.get(kind, 0.0) + one.cpu
        return used

    def _kind(self, pid: int, runs: Mapping[int, str]) -> str:
        if pid == self._root:
            return "dagster dev"
        one = self.seen[pid]
        above = list(self._above(pid))
        slot = next((runs[each] for each in (pid, *above) if each in runs), None)
        if slot is not None:
            if pid in runs:
                return f"{slot}, driver"
            return f"{slot}, {self._part(one, above)}"
        for words, kind in KINDS.items():
            if words in one.command:
                return kind
        return "other"

    def _part(self, one: Process, above: Sequence[int]) -> str:
        if LAUNCHER in one.command:
            return "Spark's launcher"
        if one.is_java:
            return "JVM"
        return "Python workers" if any(self.seen[each].is_java for each in above if each in self.seen) else "other"

    def _above(self, pid: int) -> Iterator[int]:
        while pid in self.seen:
            pid = self.seen[pid].parent
            yield pid


KINDS: Final = {
    "code-server start": "code server, proxy",
    "api grpc": "code server",
    "dagster_webserver": "webserver",
    "dagster._daemon": "daemon",
}


# --- requests ---


@contextmanager
def noting_reads(reads: dict[str, list[float]]) -> Iterator[None]:
    """Add to `reads`, by shard, the times at which GetRecords requests reach the emulator in this process."""
    handle = Gateway.__call__

    def noting(gateway: Gateway, request: HttpRequest) -> Any:
        if request.headers.get("x-amz-target") == GET_RECORDS:
            with suppress(ValueError, KeyError):
                shard = ShardIterator.decode(json.loads(request.body)["ShardIterator"]).shard
                reads.setdefault(shard, []).append(time.time())
        return handle(gateway, request)

    Gateway.__call__ = noting  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Gateway.__call__ = handle  # type: ignore[method-assign]


# --- one start ---


@dataclass
class Start:
    """The measurements of one start of the deployment. `load`: the load of the machine before it."""

    load: float
    has_archive: bool
    """Whether `kcl-dagster prepare` has run."""

    deployment: Moments = field(default_factory=dict)
    runs: dict[str, Moments] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)

    @property
    def to_stored(self) -> float | None:
        moments = [one["first stored record"] for one in self.runs.values() if "first stored record" in one]
        return min(moments) - self.deployment["dagster dev"] if moments else None

    @property
    def to_read(self) -> float | None:
        """The seconds from the launch of a run to its first read, for the slower worker. None if a worker has not
        read."""
        took = [one["first read"] - one["launched"] for one in self.runs.values() if "first read" in one]
        return max(took) if len(took) == WORKERS else None


def measure(directory: Path) -> Start:
    """Start the deployment in `directory`, wait until both workers have stored something, and stop it."""
    from demo import embedded
    from demo.folders import DemoFolders
    from demo.started_process import StartedProcess
    from demo.stored_rows import data_files
    from kcl_dagster.orchestration import processes

    has_archive = class_archive(find_java(os.environ), os.environ).exists
    start, reads = Start(os.getloadavg()[0], has_archive), dict[str, list[float]]()
    with ExitStack() as stack:
        folders = DemoFolders(directory)
        folders.prepare()
        home = folders.dagster_home
        shutil.copy("dagster.yaml", home / "dagster.yaml")
        stack.enter_context(noting_reads(reads))
        aws = stack.enter_context(Emulator())
        since = embedded.make_stream(aws.endpoint_url)
        environment = {
            **embedded.environment(aws.endpoint_url, folders, since),
            "DAGSTER_HOME": str(home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "DAGSTER_GRPC_TIMEOUT_SECONDS": "300",
        }
        logs = folders.logs
        command = embedded.producer_command(aws.endpoint_url, folders, processes.current())
        producer = StartedProcess.start("producer", command, environment, logs / "producer.log")
        stack.callback(producer.stop, signal.SIGTERM)
        command = [sys.executable, "-m", "dagster", "dev", "--workspace", "workspace.yaml"]
        command += ["--host", "127.0.0.1", "--port", str(_free_port())]
        start.deployment["dagster dev"] = time.time()
        dagster = StartedProcess.start("dagster dev", command, environment, logs / "dagster.log")
        watch = ProcessWatch(dagster.process.pid)
        stack.callback(_stop, dagster)
        stack.callback(watch.close)
        stored: dict[str, float] = {}
        cpu_at_first: dict[int, float] | None = None
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < deadline and not dagster.ended:
            time.sleep(LOOK_SECONDS)
            for path in data_files(folders.clicks):
                slot = OF_WORKER.match(path.name)
                if slot is not None and slot[1] not in stored:
                    with suppress(OSError):  # merged meanwhile
                        stored[slot[1]] = path.stat().st_ctime
            if stored and cpu_at_first is None:
                watch.look()
                cpu_at_first = {pid: one.cpu for pid, one in watch.seen.items()}
            if len(stored) >= WORKERS:
                break
        watch.close()
        _fill(start, home, watch, reads, stored)
        pids = {pid: slot for slot, pid in _pids(home).items()}
        for pid, one in watch.seen.items():
            one.cpu = (cpu_at_first or {}).get(pid, 0.0)
        start.cpu = watch.cpu(pids)
    return start


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _stop(dagster: Any) -> None:
    """Stop Dagster as Ctrl-C in a terminal does. Then kill the processes that are left."""
    family = tree(dagster.process.pid)
    dagster.stop(signal.SIGINT, group=True)
    dagster.wait(STOP_SECONDS)
    for pid in family:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    dagster.wait(STOP_SECONDS)


def _instance(home: Path) -> Any:
    from dagster import DagsterInstance

    return DagsterInstance.from_config(str(home))


def _pids(home: Path) -> dict[str, int]:
    """The process ids of the workers' runs, by slot."""
    found = {}
    with _instance(home) as instance:
        for run in instance.get_runs():
            slot = run.tags.get("dagster/partition")
            if slot is not None and "kcl/worker" in run.tags:
                for entry in instance.all_logs(run.run_id):
                    match = re.match(r"Started process for run \(pid: (\d+)\)", entry.message or "")
                    if match is not None:
                        found[slot] = int(match[1])
    return found


def _fill(
    start: Start,
    home: Path,
    watch: ProcessWatch,
    reads: Mapping[str, Sequence[float]],
    stored: Mapping[str, float],
) -> None:
    told: dict[str, float | None] = {
        "its code server begins": watch.first("code-server start"),
        "the process that loads the code begins": watch.first("api grpc"),
        "code is loaded; the daemon begins": watch.first("dagster._daemon"),
    }
    with _instance(home) as instance:
        for state in instance.all_instigator_state():
            if state.instigator_name.endswith("_leader"):
                ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id)
                if ticks:
                    first = min(ticks, key=lambda tick: tick.timestamp)
                    told |= {"first tick begins": first.timestamp, "first tick ends": first.end_timestamp}
        for run in instance.get_runs():
            slot = run.tags.get("dagster/partition")
            if slot is None or "kcl/worker" not in run.tags:
                continue
            moments = start.runs.setdefault(slot, {})
            acquired: dict[str, float] = {}
            for entry in instance.all_logs(run.run_id):
                _note(entry, moments, acquired, watch)
                queued = moments.pop("queued", None)
                if queued is not None:
                    told["runs are queued"] = max(queued, told.get("runs are queued") or 0.0)
            if acquired:
                moments["first lease"] = min(acquired.values())
            read = [at for shard, since in acquired.items() for at in reads.get(shard, ()) if at >= since]
            moments |= {"first read": min(read)} if read else {}
            moments |= {"first stored record": stored[slot]} if slot in stored else {}
    start.deployment |= {name: at for name, at in told.items() if at is not None}


def _note(entry: Any, moments: Moments, acquired: dict[str, float], watch: ProcessWatch) -> None:
    at, message = entry.timestamp, entry.message or ""
    match entry.dagster_event.event_type_value if entry.dagster_event is not None else None:
        case "PIPELINE_ENQUEUED":
            moments["queued"] = at
        case "PIPELINE_STARTING":
            moments["launched"] = at
        case "PIPELINE_START":
            moments["definitions are loaded"] = at
        case "STEP_START":
            moments["its work begins"] = at
        case "ENGINE_EVENT":
            match = re.match(r"Started process for run \(pid: (\d+)\)", message)
            if match is not None:
                pid = int(match[1])
                moments["Dagster is imported"] = at
                if pid in watch.seen:
                    moments["process begins"] = watch.seen[pid].began
                java = [one.began for one in watch.seen.values() if one.parent == pid and "java" in one.command]
                if java:
                    moments["Spark's JVM begins"] = min(java)
        case _:
            lease = LEASE_ACQUIRED.match(message)
            if lease is not None:
                acquired.setdefault(lease[1], at)
            elif message.startswith(READY):
                moments["Spark is ready"] = at


# --- what is printed ---


def show(start: Start) -> None:
    began = start.deployment["dagster dev"]
    slots = sorted(start.runs)
    archive = "with" if start.has_archive else "without"
    print("seconds since dagster dev")
    print(f"load of the machine before: {start.load:.1f}; Spark's JVM {archive} an archive of its classes\n")
    last = began
    for name in DEPLOYMENT:
        at = start.deployment.get(name)
        print(f"{name:<42}{_cell(at, began, last)}")
        last = at or last
    print(f"\n{'':<42}" + "".join(f"{slot:>18}" for slot in slots))
    lasts = dict.fromkeys(slots, last)
    for name in RUN:
        cells = []
        for slot in slots:
            at = start.runs[slot].get(name)
            cells.append(_cell(at, began, lasts[slot]))
            lasts[slot] = at or lasts[slot]
        print(f"{name:<42}" + "".join(cells))
    print("\nCPU-seconds until the first stored record\n")
    for kind, seconds in sorted(start.cpu.items(), key=lambda one: -one[1]):
        print(f"{kind:<42}{seconds:10.1f}")
    print(f"{'all':<42}{sum(start.cpu.values()):10.1f}\n", flush=True)


def _cell(at: float | None, began: float, last: float) -> str:
    return f"{'-':>18}" if at is None else f"{at - began:9.1f} ({at - last:+6.1f})"


def figures(starts: Sequence[Start]) -> list[Figure]:
    """The figures of all starts: the median of each measurement."""

    def middle(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return median(known) if len(known) == len(values) else None

    def of_run(before: str, after: str) -> float | None:
        took = [
            max(
                (run[after] - run[before] for run in one.runs.values() if {before, after} <= run.keys()),
                default=None,
            )
            for one in starts
        ]
        return middle(took)

    def of_deployment(name: str) -> float | None:
        return middle(
            [
                one.deployment[name] - one.deployment["dagster dev"] if name in one.deployment else None
                for one in starts
            ]
        )

    why = None if all(one.to_stored is not None for one in starts) else "nothing was stored in time"
    return [
        Figure(
            "start: dagster dev to the first stored record",
            middle([one.to_stored for one in starts]),
            "s",
            MOST_START_SECONDS,
            at_most=True,
            why=why,
        ),
        Figure(
            "start: launched run to its first read, slower of two workers",
            middle([one.to_read for one in starts]),
            "s",
            MOST_WORKER_SECONDS,
            at_most=True,
        ),
        Figure("start: dagster dev to the first tick", of_deployment("first tick begins"), "s"),
        Figure("start: dagster dev to queued runs", of_deployment("runs are queued"), "s"),
        Figure(
            "start: launched run to its work, slower of two workers", of_run("launched", "its work begins"), "s"
        ),
        Figure("start: Spark, slower of two workers", of_run("Spark's JVM begins", "Spark is ready"), "s"),
        Figure(
            "start: CPU until the first stored record", middle([sum(one.cpu.values()) for one in starts]), "CPU-s"
        ),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=1, help="starts; the figures are the middle of them")
    options = parser.parse_args(arguments)
    os.chdir(Path(__file__).parents[1])
    starts = []
    for _ in range(options.repeat):
        with tempfile.TemporaryDirectory(prefix="kcl-start-") as directory:
            starts.append(measure(Path(directory).resolve()))
        show(starts[-1])
    for figure in figures(starts):
        print(figure.as_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
