"""Measures how long shards stay unread after their worker has ended, also with the KCL 3.1.3.

    python -m benchmarks.failover [--lease 10] [--repeats 5] [--java-repeats 2]     0 for no Java

Two workers read a stream of the embedded AWS, and one of them is killed or stopped. The figure is the time from
this moment until the other worker gets new records of each shard of the first worker. Workers and leader are
processes of their own. The workers of this package read without Spark (with the engine of `tests.doubles`), because
a JVM does not affect a takeover by a worker that is already running.

    by counter    kill -9; the leader only observes the leases' counters               bar: lease + 2 ticks
    run seen dead kill -9; the orchestrator saw the process end, as Dagster does       bar: 2 ticks
    clean stop    SIGTERM; the worker finishes its batch and releases its leases       bar: 1 tick

A tick is 5 s. The lease duration of this package and the failover time of the KCL are equal. Prints a table and one
JSON line for each figure.

A measurement mostly waits, so several measurements run at the same time, each in processes of its own: first the
three ways of this package, then all repetitions of the KCL. The KCL is started anew for each repetition, and takes
minutes to distribute the shards to its workers.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Literal

from benchmarks.failover_process import TICK_SECONDS, Plan
from benchmarks.source import traffic
from kcl_dagster.application import Application
from kcl_dagster.emulator import Emulator, environment
from kcl_dagster.leader.run_view import SlotRun
from kcl_dagster.model.lease import Lease
from kcl_dagster.model.worker_row import slot_name, worker_id
from kcl_dagster.runtime import system
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import detect_layout
from tests.chaos import orders

SEED = 20_270_101
SHARDS = 8
STREAM = "clicks"
PUT_SECONDS = 0.25  # between two rounds of one record for each shard; figures can be too large by this time
SETTLE_SECONDS = 90.0  # time limit until each worker reads half of the shards
GIVE_UP_SECONDS = 240.0
LOOK_SECONDS = 0.05

Way = Literal["by counter", "run seen dead", "clean stop"]
JavaWay = Literal["kill -9", "clean stop"]
WAYS: tuple[Way, ...] = ("by counter", "run seen dead", "clean stop")


@dataclass(frozen=True, slots=True)
class Figure:
    """The seconds for which shards had no reader, one number for each repetition. `bar`: the most seconds that are
    allowed; None for the KCL."""

    who: str
    way: str
    lease_seconds: float
    seconds: tuple[float, ...]
    bar: float | None = None

    def to_json(self) -> str:
        worst = max(self.seconds)
        told = {"figure": f"failover, {self.who}, {self.way}, worst", "value": worst, "unit": "s", "bar": self.bar}
        holds = None if self.bar is None else worst <= self.bar
        return json.dumps({**told, "ok": holds, "median": statistics.median(self.seconds), **asdict(self)})

    @classmethod
    def from_json(cls, line: str) -> "Figure":
        told = json.loads(line)
        return cls(told["who"], told["way"], told["lease_seconds"], tuple(told["seconds"]), told["bar"])


def bar_of(way: Way, lease_seconds: float) -> float:
    match way:
        case "by counter":
            return lease_seconds + 2 * TICK_SECONDS
        case "run seen dead":
            return 2 * TICK_SECONDS
        case "clean stop":
            return TICK_SECONDS


# --- ours ---


@dataclass
class OurWorker:
    slot: str
    run_id: str
    process: "subprocess.Popen[bytes]"
    said: Path

    @property
    def id(self) -> str:
        return worker_id(self.slot, self.run_id)

    def read_after(self, moment: float) -> dict[str, float]:
        """When the worker first got records of each shard after `moment`, by shard."""
        found: dict[str, float] = {}
        for line in self.said.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                at, shard = line.split()
                if float(at) > moment:
                    found.setdefault(shard, float(at))
        return found


@dataclass
class OurFleet:
    """A leader and workers, each in a process of its own. This process takes the place of the orchestrator."""

    emulator: Emulator
    lease_seconds: float
    directory: Path
    random: Random
    workers: dict[str, OurWorker] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    _numbers: "count[int]" = field(default_factory=count)

    def __post_init__(self) -> None:
        application = Application.model_validate(
            {
                "name": "failover",
                "streams": [STREAM],
                "timings": {"lease_duration": self.lease_seconds, "tick_interval": 4},
                "batch": {"max_seconds": 1.0, "idle_seconds": 0.2},
                "fleet": {"min_workers": 2, "max_workers": 2},
            }
        )
        self.application = application
        self.plan = Plan(
            application=application,
            endpoint_url=self.emulator.endpoint_url,
            runs=self.directory / "runs.json",
        )
        self._plan_path = self.directory / "plan.json"
        self._plan_path.write_text(self.plan.model_dump_json())
        self._publish()

    @contextmanager
    def running(self) -> Iterator[None]:
        leader = self._start("leader", "leader")
        try:
            wait_for(self._leases, "the leader makes the leases", SETTLE_SECONDS)
            yield
        finally:
            for process in (*(worker.process for worker in self.workers.values()), leader):
                process.kill()
                process.wait()

    def measure(self, way: Way) -> float:
        self._settle()
        victim, other = self.random.sample(sorted(self.workers.values(), key=lambda worker: worker.slot), 2)
        shards = {lease.shard_id for lease in self._leases() if lease.actual_owner == victim.id}
        time.sleep(self.random.uniform(0, TICK_SECONDS))  # so that the kill is at a random time between two ticks
        began = time.monotonic()
        victim.process.send_signal(signal.SIGTERM if way == "clean stop" else signal.SIGKILL)
        victim.process.wait()
        del self.workers[victim.slot]
        if way != "by counter":
            self.finished.add(victim.run_id)
        self._publish(hides=victim if way == "by counter" else None)
        wait_for(lambda: shards <= other.read_after(began).keys(), f"{other.id} reads {sorted(shards)}")
        read = other.read_after(began)
        return max(read[shard] for shard in shards) - began

    def _settle(self) -> None:
        """Start workers until there are two, and wait until each of them reads half of the shards."""
        for slot in map(slot_name, range(2)):
            if slot not in self.workers:
                number = next(self._numbers)
                run_id = f"{number:08d}-run"
                process = self._start(f"{slot}-{number}", "worker", slot, run_id)
                self.workers[slot] = OurWorker(slot, run_id, process, self.directory / f"{slot}-{number}.out")
        self._publish()

        def is_settled() -> bool:
            owners = [lease.actual_owner for lease in self._leases() if not lease.in_handoff]
            return all(owners.count(worker.id) == SHARDS // 2 for worker in self.workers.values())  # type: ignore[arg-type]

        wait_for(is_settled, "both workers have half of the shards", SETTLE_SECONDS)
        now = time.monotonic()
        wait_for(
            lambda: sum(len(worker.read_after(now)) for worker in self.workers.values()) == SHARDS,
            "every shard is read",
            SETTLE_SECONDS,
        )

    def _publish(self, hides: OurWorker | None = None) -> None:
        """Write the file with the runs. `hides`: a worker that has ended, but whose run is still listed as running,
        because the orchestrator has not observed its end."""
        workers = [*self.workers.values(), *([hides] if hides else [])]
        active = {
            worker.slot: SlotRun(worker.run_id, worker_id(worker.slot, worker.run_id), "running", time.time())
            for worker in workers
        }
        orders.write_runs(self.plan.runs, orders.Runs(active, frozenset(self.finished)))

    def _leases(self) -> list[Lease]:
        dynamodb = self.emulator.client("dynamodb")
        if self.application.lease_table not in dynamodb.list_tables()["TableNames"]:
            return []
        layout = detect_layout(dynamodb, self.application)
        return list(LeaseTable(dynamodb, self.application, layout, system()).scan().leases)

    def _start(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        role, *more = arguments
        command = [sys.executable, "-m", "benchmarks.failover_process", role, str(self._plan_path), *more]
        with (
            (self.directory / f"{name}.out").open("wb") as output,
            (self.directory / f"{name}.log").open("wb") as log,
        ):
            return subprocess.Popen(
                command,
                cwd=Path(__file__).parents[1],
                env={**os.environ, **environment(self.emulator.endpoint_url, "us-east-1")},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
            )


def wait_for(condition: Callable[[], object], what: str, seconds: float = GIVE_UP_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"within {seconds:g} s: {what}")
        time.sleep(LOOK_SECONDS)


def ours(way: Way, lease_seconds: float, repeats: int) -> Figure:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        emulator = stack.enter_context(Emulator())
        stack.enter_context(traffic(emulator.client("kinesis"), STREAM, SHARDS, PUT_SECONDS))
        fleet = OurFleet(emulator, lease_seconds, directory, Random(f"{SEED} {way}"))
        stack.enter_context(fleet.running())
        seconds = []
        for _ in range(repeats):
            seconds.append(round(fleet.measure(way), 2))
            print(f"kcl_dagster, {way}: {seconds[-1]:.2f} s", file=sys.stderr, flush=True)
    return Figure("kcl_dagster", way, lease_seconds, tuple(seconds), bar_of(way, lease_seconds))


# --- the KCL ---


JAVA_WAYS: tuple[JavaWay, ...] = ("kill -9", "clean stop")


def java(way: JavaWay, lease_seconds: float) -> Figure | None:
    """Measure the KCL 3.1.3 once. Returns None if this machine cannot run it."""
    from tests.interop import java_kcl

    try:
        kcl = java_kcl.legacy()
    except java_kcl.Unavailable as why:
        print(f"no Java KCL here: {why}", file=sys.stderr)
        return None
    measured = _java_once(kcl, lease_seconds, way)
    print(f"KCL {kcl.version}, {way}: {measured:.2f} s", file=sys.stderr, flush=True)
    return Figure(f"KCL {kcl.version}", way, lease_seconds, (measured,))


def _java_once(kcl: Any, lease_seconds: float, way: JavaWay) -> float:
    from tests.interop import java_kcl

    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        emulator = stack.enter_context(Emulator())
        stack.enter_context(traffic(emulator.client("kinesis"), STREAM, SHARDS, PUT_SECONDS))
        workers = [
            stack.enter_context(
                java_kcl.worker(
                    kcl,
                    endpoint=emulator.endpoint_url,
                    application="failover",
                    stream=STREAM,
                    worker_id=f"java-{number}",
                    log=directory / f"java-{number}.log",
                    settings={"failoverMillis": int(lease_seconds * 1000)},
                )
            )
            for number in range(2)
        ]

        def reads(worker: Any, moment: float) -> dict[str, float]:
            found: dict[str, float] = {}
            for record in list(worker.records):
                if record.at > moment:
                    found.setdefault(record.shard_id, record.at)
            return found

        def recent() -> list[set[str]]:
            return [set(reads(worker, time.monotonic() - 2.0)) for worker in workers]

        wait_for(lambda: all(recent()) and len(set.union(*recent())) == SHARDS, "both Java workers read")
        time.sleep(lease_seconds)  # so that the first assignments are over
        victim, other = workers
        shards = recent()[0]
        began = time.monotonic()
        if way == "kill -9":
            victim.quit()
        else:
            victim.stop()
        wait_for(lambda: shards <= reads(other, began).keys(), f"java-1 reads {sorted(shards)}")
        read = reads(other, began)
        return round(max(read[shard] for shard in shards) - began, 2)


def show(figures: list[Figure]) -> None:
    layout = "{:<13} {:<14} {:>8} {:>8} {:>8} {:>8} {:>4}  {}"
    print(layout.format("", "", "median", "worst", "bar", "lease", "n", ""))
    for figure in figures:
        bar = "" if figure.bar is None else f"{figure.bar:.0f} s"
        verdict = "" if figure.bar is None else "holds" if max(figure.seconds) <= figure.bar else "MISSED"
        print(
            layout.format(
                figure.who,
                figure.way,
                f"{statistics.median(figure.seconds):.1f} s",
                f"{max(figure.seconds):.1f} s",
                bar,
                f"{figure.lease_seconds:g} s",
                len(figure.seconds),
                verdict,
            )
        )
    print(f"\n{SHARDS} shards, 2 workers, a tick is {TICK_SECONDS:g} s; our workers read without Spark\n")


# --- side by side ---


def side_by_side(jobs: Iterable[Sequence[str]]) -> list[Figure]:
    """Run this module once for each job, with all jobs at the same time. `jobs`: the arguments of each. Raises
    CalledProcessError if a job has failed."""
    with ExitStack() as stack:
        running = []
        for job in jobs:
            command = [sys.executable, "-m", "benchmarks.failover", *job]
            running.append(stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
            stack.callback(running[-1].terminate)
        figures = []
        for process in running:
            said, _ = process.communicate()
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, process.args)
            figures += [Figure.from_json(line) for line in said.splitlines()]
    return figures


def together(figures: Iterable[Figure]) -> list[Figure]:
    """Combine figures that are repetitions of the same measurement."""
    found: dict[tuple[str, str], Figure] = {}
    for figure in figures:
        known = found.get((figure.who, figure.way))
        seconds = figure.seconds if known is None else (*known.seconds, *figure.seconds)
        found[figure.who, figure.way] = replace(figure, seconds=seconds)
    return list(found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lease", type=float, default=10.0, help="seconds; the KCL's failover time as well")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--java-repeats", type=int, default=2)
    parser.add_argument("--only", choices=WAYS, help="one of our ways; its JSON line alone")
    parser.add_argument("--only-java", choices=JAVA_WAYS, help="one of the KCL's, once; its JSON line alone")
    options = parser.parse_args()
    if options.only or options.only_java:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # `finally` blocks then end the processes
        if options.only:
            figure: Figure | None = ours(options.only, options.lease, options.repeats)
        else:
            figure = java(options.only_java, options.lease)
        if figure is not None:
            print(figure.to_json())
        return 0
    common = ["--lease", str(options.lease), "--repeats", str(options.repeats)]
    figures = side_by_side([*common, "--only", way] for way in WAYS) if options.repeats else []
    figures += side_by_side([*common, "--only-java", way] for way in JAVA_WAYS * options.java_repeats)
    figures = together(figures)
    show(figures)
    for figure in figures:
        print(figure.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
