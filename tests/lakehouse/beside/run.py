"""One run from its start to its verdict."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as parquet

from demo import ledger, reaper
from kcl_dagster import aws
from kcl_dagster.emulator import environment
from kcl_dagster.orchestration import processes
from tests.chaos.child_processes import Child
from tests.lakehouse.beside import commit_times
from tests.lakehouse.beside.commit_times import Trend, figures
from tests.lakehouse.beside.followed import FollowedDelta, FollowedIceberg, FollowedTable
from tests.lakehouse.beside.maintenance import TITLES, Maintenance, Rounds, exported
from tests.lakehouse.beside.plan import ICEBERG_TABLE, KINDS, REGION, SHARDS, STREAM, Kind, Plan, application_of
from tests.lakehouse.beside.verdict import StoredOrder, TableRow, TableVerdict, judged, last_line, produced
from tests.lakehouse.engine import engine
from tests.lakehouse.feed import embedded_aws
from tests.lakehouse.places import rest

MARKER_VARIABLE: Final = "KCL_BESIDE"
LOOK_SECONDS: Final = 2.0
REPORT_SECONDS: Final = 60.0
START_PATIENCE_SECONDS: Final = 300.0
DRAIN_PATIENCE_SECONDS: Final = 180.0  # without progress, after the producer has ended
STOP_PATIENCE_SECONDS: Final = 120.0
FEWEST_ROUNDS: Final = 3  # for each table; only then are there snapshots to expire
ROUNDS_PATIENCE_SECONDS: Final = 900.0
EXAMPLES: Final = 5


class Ended(Exception):
    """The run ends before its time."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`rate`: records a second. `every`: seconds between two rounds of the other engine, for each table."""

    directory: Path
    seconds: float
    rate: float
    every: float


@dataclass
class Watched:
    """A table while the run lasts."""

    followed: FollowedTable
    worker: Child
    order: StoredOrder = field(default_factory=StoredOrder)

    def look(self) -> None:
        for commit in self.followed.new_commits():
            self.order.add(commit)


class Run:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._began = time.monotonic()
        self._watched: dict[Kind, Watched] = {}
        self._problems: list[str] = []

    def tell(self, line: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        sys.stdout.write(f"{minutes:3}:{seconds:02}  {line}\n")
        sys.stdout.flush()

    def run(self) -> int:
        """The exit code. Raises Unavailable if a part cannot be had on this machine."""
        with signals(), ExitStack() as stack:
            try:
                return self._run(stack)
            except Ended as ended:
                self.tell(f"WRONG: ended early: {ended}; see {self._settings.directory}")
                return 1

    def _run(self, stack: ExitStack) -> int:
        settings = self._settings
        shutil.rmtree(settings.directory, ignore_errors=True)
        marker = f"{os.getpid()}-{time.monotonic_ns()}"
        os.environ[MARKER_VARIABLE] = marker
        reaper.start(processes.current(), f"{MARKER_VARIABLE}={marker}")
        plan, maintenance, rounds = self._started(stack)
        producer = self._produce(stack, plan)
        self._wait_for_tables(producer)
        rounds.start()
        stack.callback(rounds.end)
        self._pass_time(plan, producer, maintenance)
        rounds.stop()
        while not rounds.is_over:
            self._step(producer)
        self.tell("stopping the producer")
        producer.send(signal.SIGTERM)
        producer.close()
        self._drain(plan)
        self._stop_workers()
        return self._judge(plan, maintenance)

    # --- start ---

    def _started(self, stack: ExitStack) -> tuple[Plan, Maintenance, Rounds]:
        settings, directory = self._settings, self._settings.directory
        for folder in (directory / "logs", directory / "iceberg", directory / "engine"):
            folder.mkdir(parents=True)
        self.tell(f"everything this run writes is in {directory}")
        other = stack.enter_context(engine(directory / "engine"))
        served = stack.enter_context(embedded_aws(directory))
        place = stack.enter_context(rest(directory / "iceberg", served.endpoint_url))
        place.configure(other)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            os.environ.pop(name, None)
        os.environ.update(environment(served.endpoint_url, REGION))
        chains = place.chains_of(ICEBERG_TABLE)
        assert chains is not None
        plan = Plan(
            directory=directory, endpoint_url=served.endpoint_url, catalog=dict(place.catalog), chains=chains
        )
        path = plan.write()
        aws.call(served.client("kinesis"), "create_stream", StreamName=STREAM, ShardCount=SHARDS)
        followed: dict[Kind, FollowedTable] = {
            "iceberg": FollowedIceberg(plan.catalog, application_of("iceberg")),
            "delta": FollowedDelta(plan.delta_path, application_of("delta")),
        }
        for kind in KINDS:
            worker = _child(stack, kind, "tests.lakehouse.beside.worker", [str(path), kind], plan.logs)
            self._watched[kind] = Watched(followed[kind], worker)
        keep = 2 * settings.every
        maintenance = Maintenance(other, place.name, plan, keep)
        self.tell(
            f"{settings.seconds / 60:g} minutes, {settings.rate:g} records a second into Iceberg (REST) and Delta; "
            f"beside them Spark {other.version}, a round for each table every {settings.every:g} s"
        )
        return plan, maintenance, Rounds(maintenance, settings.every, settings.seconds / 2)

    def _produce(self, stack: ExitStack, plan: Plan) -> Child:
        arguments = ["--stream", STREAM, "--endpoint-url", plan.endpoint_url, "--rate", str(self._settings.rate)]
        arguments += ["--ledger", str(plan.ledger), "--watch", processes.current().identity]
        return _child(stack, "producer", "demo.producer", arguments, plan.logs)

    def _wait_for_tables(self, producer: Child) -> None:
        deadline = time.monotonic() + START_PATIENCE_SECONDS
        while not all(one.order.commits for one in self._watched.values()):
            self._step(producer)
            if time.monotonic() > deadline:
                raise Ended(f"no commit to each table within {START_PATIENCE_SECONDS:g} s")
        self.tell("both tables have a commit: the time begins")

    # --- meanwhile ---

    def _step(self, producer: Child | None = None) -> None:
        time.sleep(LOOK_SECONDS)
        for child in [*(one.worker for one in self._watched.values()), *([producer] if producer else [])]:
            if not child.is_alive:
                raise Ended(f"{child.name} has ended, see {child.log}")
        self._look()

    def _look(self) -> None:
        for one in self._watched.values():
            one.look()

    def _pass_time(self, plan: Plan, producer: Child, maintenance: Maintenance) -> None:
        began = reported = time.monotonic()
        while (now := time.monotonic()) - began < self._settings.seconds or self._lacks_rounds(maintenance, now):
            self._step(producer)
            if now - reported >= REPORT_SECONDS:
                reported += REPORT_SECONDS
                self._report(plan, maintenance)
        self._report(plan, maintenance)

    def _lacks_rounds(self, maintenance: Maintenance, now: float) -> bool:
        """Whether a short run on a slow machine has to go on, so that there is something beside the consumers."""
        is_late = now - self._began > self._settings.seconds + ROUNDS_PATIENCE_SECONDS
        return not is_late and any(maintenance.rounds[kind] <= FEWEST_ROUNDS for kind in KINDS)

    def _report(self, plan: Plan, maintenance: Maintenance) -> None:
        parts = [f"produced {ledger.count(plan.ledger):,}"]
        for kind, one in self._watched.items():
            made = [time_.seconds for time_ in commit_times.read(plan.commit_times(kind)) if time_.is_made]
            last = f", last commit {made[-1]:.2f} s" if made else ""
            parts.append(f"{TITLES[kind]} {one.order.rows:,} in {one.order.commits} commits{last}")
        rounds = " and ".join(str(maintenance.rounds[kind]) for kind in KINDS)
        parts.append(f"rounds {rounds}, gave way {len(maintenance.gave_way)}, errors {len(maintenance.wrong)}")
        self.tell(" · ".join(parts))

    # --- the end ---

    def _drain(self, plan: Plan) -> None:
        """Wait until both tables have the last record of each shard."""
        ends: dict[str, int] = {}
        for record in ledger.read(plan.ledger):
            ends[record.shard] = max(record.sequence, ends.get(record.shard, 0))
        seen, moved = 0, time.monotonic()
        while True:
            behind = [
                f"{TITLES[kind]} {shard}"
                for kind, one in self._watched.items()
                for shard, end in ends.items()
                if one.order.last.get(shard, 0) < end
            ]
            if not behind:
                return
            rows = sum(one.order.rows for one in self._watched.values())
            if rows != seen:
                seen, moved = rows, time.monotonic()
            if time.monotonic() - moved > DRAIN_PATIENCE_SECONDS:
                self._problems.append(f"not stored to the end: {', '.join(behind)}")
                return
            self._step()

    def _stop_workers(self) -> None:
        self.tell("stopping the workers")
        workers = [one.worker for one in self._watched.values()]
        for child in workers:
            child.send(signal.SIGTERM)
        deadline = time.monotonic() + STOP_PATIENCE_SECONDS
        while any(child.is_alive for child in workers) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        for child in workers:
            if child.is_alive or child.has_failed:
                self._problems.append(f"{child.name} did not stop in good order, see {child.log}")
        self._look()

    def _judge(self, plan: Plan, maintenance: Maintenance) -> int:
        for kind in KINDS:
            self.tell(f"the other engine, {maintenance.summary(kind)}")
        self.tell(f"gave way to a commit of a consumer: {len(maintenance.gave_way)} statements")
        self.tell(f"operation compact of the Delta table: {maintenance.compaction}")
        self._problems += maintenance.wrong[:EXAMPLES]
        self._problems += [f"the other engine has done nothing: {what}" for what in maintenance.idle()]
        wanted = produced(ledger.read(plan.ledger))
        verdicts: dict[Kind, TableVerdict] = {}
        ratios: dict[str, float | None] = {}
        for kind, one in self._watched.items():
            folder = exported(maintenance.engine, maintenance.name(kind), plan.directory / "read" / kind)
            verdicts[kind] = judged(wanted, _rows(folder), maintenance.inserted[kind], one.order)
            self._problems += [f"{TITLES[kind]}: {problem}" for problem in verdicts[kind].problems]
            times = commit_times.read(plan.commit_times(kind))
            trend = Trend.of([time_.seconds for time_ in times if time_.is_made])
            ratios[TITLES[kind]] = None if trend is None else trend.ratio
            for line in figures(TITLES[kind], times):
                sys.stdout.write(f"{line}\n")
        for problem in self._problems:
            self.tell(f"WRONG: {problem}")
        holds = not self._problems and all(verdict.holds for verdict in verdicts.values())
        if not holds:
            self.tell(f"everything is in {plan.directory}")
        sys.stdout.write(f"{last_line(verdicts['iceberg'], verdicts['delta'], ratios)}\n")
        return 0 if holds else 1


def _rows(folder: Path) -> Iterator[TableRow]:
    for path in folder.glob("*.parquet"):
        for batch in parquet.ParquetFile(path).iter_batches():
            names = ("shard_id", "sequence_number", "user", "number")
            columns: list[Any] = [batch.column(name).to_pylist() for name in names]
            for shard, sequence, user, number in zip(*columns, strict=True):
                yield TableRow(shard, int(sequence), user, number)


def _child(stack: ExitStack, name: str, module: str, arguments: list[str], logs: Path) -> Child:
    """A process that ends with the run."""
    child = Child.start(name, module, arguments, logs)

    def end() -> None:
        child.send(signal.SIGTERM)
        deadline = time.monotonic() + STOP_PATIENCE_SECONDS
        while child.is_alive and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS / 10)
        child.send(signal.SIGKILL)
        child.close()

    stack.callback(end)
    return child


@contextmanager
def signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run in good order. Further ones are ignored."""

    def end(number: int, _: object) -> None:
        for one in watched:
            signal.signal(one, signal.SIG_IGN)
        raise Ended(f"asked to, by {signal.Signals(number).name}")

    watched = (signal.SIGINT, signal.SIGTERM)
    before: dict[Any, Callable[..., Any] | int | None] = {one: signal.signal(one, end) for one in watched}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
