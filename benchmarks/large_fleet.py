"""Measures the leader's tick with up to 100,000 leases and 1,000 workers: part of `make bench-scale`.

The tables are those of the embedded AWS, which is a process of its own. Between two ticks, each lease that has an
owner and each worker's row are written again, as in a running fleet. So the leader has to parse all these rows
again.

    first tick     a twentieth of the leases has no owner and is given to the workers
    steady tick    every lease is renewed, and there is nothing to do

The time of a tick includes the time in which the leader waits for the embedded AWS. The embedded AWS serves one
request at a time. The time in which the leader waits for scans is also a figure of its own.

CPU is that of this process: the client library of AWS, the parsing of the rows, the decision, and the report of the
sensor (assets and checks). In production, the process of Dagster that runs the sensor needs this CPU. Read units
are counted by the rules of DynamoDB, from the rows that were returned. For the figures per hour, the leader reads
as often as `ScanPace` allows with the default lease duration.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final

from benchmarks.leader_tick import BATCH, client, embedded, run_id
from benchmarks.worker import Figure
from kcl_dagster import kcl_consumer, parquet
from kcl_dagster.application import Application, FleetSettings, Timings
from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, WorkerLoad
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView, SlotRun
from kcl_dagster.leader.scan_pace import ScanPace
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange
from kcl_dagster.model.worker_row import WorkerRow, slot_name, worker_id
from kcl_dagster.orchestration import application_state
from kcl_dagster.orchestration.asset_reporting import Reporter
from kcl_dagster.orchestration.translator import KclTranslator
from kcl_dagster.tables.attributes import Item
from kcl_dagster.tables.items import lease_to_item
from tests.doubles.dynamodb.values import item_size

UNSERVED: Final = 0.05  # the part of the leases that has no owner at the first tick
STEADY_TICKS: Final = 2
MOST_SECONDS: Final = 10.0
TICK_SECONDS: Final = 5.0  # between two ticks, with the default `tick_interval`
TICK_BUDGET_SECONDS: Final = 45.0
LONG: Final = 3600.0  # seconds

READ_UNIT_BYTES: Final = 4096
KBPS: Final = 50.0
WRITERS: Final = 8  # threads that write rows between ticks


@dataclass
class ReadUnits:
    """Counts the requests of a client of DynamoDB and the read units that they need, while `is_on` is True."""

    is_on: bool = False
    units: float = 0.0
    waited: float = 0.0
    """The seconds that all scans took, including the work of the client itself."""

    requests: Counter[str] = field(default_factory=Counter)

    def note(self, method: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        self.requests[method] += 1
        found = answer.get("Items", [answer["Item"]] if "Item" in answer else None)
        if found is None and method != "get_item":
            return
        blocks = max(1, -(-sum(map(item_size, found or ())) // READ_UNIT_BYTES))
        self.units += blocks * (1.0 if request.get("ConsistentRead") else 0.5)


class Metered:
    """A client of DynamoDB that counts its requests in `counted`."""

    def __init__(self, of: Any, counted: ReadUnits) -> None:
        self._of, self._counted = of, counted

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if not callable(found) or not self._counted.is_on:
            return found

        def call(**request: Any) -> Any:
            began = time.perf_counter()
            answer = found(**request)
            self._counted.waited += time.perf_counter() - began if name == "scan" else 0.0
            self._counted.note(name, request, answer)
            return answer

        return call


@dataclass(frozen=True)
class Fleet:
    leases: int
    workers: int

    @property
    def name(self) -> str:
        return f"{self.leases:,} leases, {self.workers:,} workers"

    def lease(self, number: int) -> Lease:
        index, step = number % self.workers, (MAX_HASH_KEY + 1) // self.leases
        end = MAX_HASH_KEY if number == self.leases - 1 else (number + 1) * step - 1
        shard = f"shardId-{number:012d}"
        is_served = number >= self.leases * UNSERVED
        return Lease(
            LeaseKey(shard),
            shard,
            counter=1,
            owner=self.worker(index) if is_served else None,
            checkpoint=Checkpoint(f"495{number:053d}"),
            throughput_kbps=KBPS,
            hash_range=HashRange(number * step, end),
        )

    def worker(self, index: int) -> WorkerId:
        return worker_id(slot_name(index), run_id(index))


@dataclass(frozen=True)
class Ticked:
    """The measurements of one tick. `decision`: the seconds in which the policy ran. `reporting`: the CPU seconds
    of the report of the sensor after the tick. `read`: the seconds of the stage in which all leases are read and
    judged."""

    seconds: float
    cpu: float
    decision: float
    reporting: float
    read: float
    moves: int
    stages: Mapping[str, float]


def in_parallel(work: Callable[[Any], object], values: Sequence[Any]) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(work, values))


def put_leases(dynamodb: Any, table: str, leases: Sequence[Lease]) -> None:
    items: list[Item] = [lease_to_item(lease) for lease in leases]

    def put(start: int) -> None:
        puts = [{"PutRequest": {"Item": item}} for item in items[start : start + BATCH]]
        dynamodb.batch_write_item(RequestItems={table: puts})

    in_parallel(put, range(0, len(items), BATCH))


class Trial:
    """A leader, and the tables of one fleet with its leases."""

    def __init__(self, fleet: Fleet, endpoint: str) -> None:
        self.fleet = fleet
        self.units = ReadUnits()
        self._dynamodb = client("dynamodb", endpoint)
        name = f"bench-{fleet.leases}"
        application = Application(
            name=name,
            streams=name,
            fleet=FleetSettings(min_workers=fleet.workers, max_workers=fleet.workers),
            timings=Timings(shard_audit=LONG, lease_duration=LONG, tick_budget=TICK_BUDGET_SECONDS),
        )
        kinesis = client("kinesis", endpoint)
        kinesis.create_stream(StreamName=name, ShardCount=1)
        metered = Metered(self._dynamodb, self.units)
        self._leader = open_leader(application, dynamodb=metered, kinesis=kinesis, identity="bench")
        self._table = application.lease_table
        self._reporter = Reporter(consumer(name), KclTranslator())
        self._beats = 0
        put_leases(self._dynamodb, self._table, [fleet.lease(number) for number in range(fleet.leases)])

    def renew(self) -> None:
        """Renew all leases that have owners."""
        leases = self._leader.tables.leases.scan().leases
        owned = [lease for lease in leases if lease.owner is not None]
        put_leases(
            self._dynamodb,
            self._table,
            [replace(one, counter=one.counter + 1, throughput_kbps=KBPS + one.counter % 2) for one in owned],
        )

    def tick(self) -> Ticked:
        view, decided = RunView(self._beat()), [0.0]
        leader = self._leader
        policy = leader.policy

        def timed(
            leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: AssignmentLimits
        ) -> Assignment:
            began = time.perf_counter()
            try:
                return policy(leases, workers, limits)
            finally:
                decided[0] += time.perf_counter() - began

        leader.policy = timed
        leader.pace.reset()  # the leader reads in this tick, even if the last read took long
        began, cpu = time.perf_counter(), time.process_time()
        try:
            report = leader.tick(view)
        finally:
            leader.policy = policy
        took, used = time.perf_counter() - began, time.process_time() - cpu
        failed = report.problems
        if failed:
            raise RuntimeError(f"the tick failed: {failed}")
        stages = {stage.name: round(stage.seconds, 2) for stage in report.stages}
        reporting = self._report(report, view)
        return Ticked(took, used, decided[0], reporting, stages["observe"], len(report.moves), stages)

    def _report(self, report: TickReport, view: RunView) -> float:
        """Make the events of the tick, as the sensor does. Returns the CPU seconds that this took."""
        cpu = time.process_time()
        seen = application_state.of_tick(report, view.slots, time.time())
        now = time.monotonic()
        seen = replace(seen, decisions=self._reporter.news(seen.decisions, now))
        self._reporter.events(seen, now, self._reporter.new_shards(seen, now))
        return time.process_time() - cpu

    def _beat(self) -> dict[str, SlotRun]:
        """Write the rows of all workers. Returns the runs of the workers, by slot."""
        self._beats += 1
        now = time.time()

        def put(index: int) -> None:
            row = WorkerRow(
                self.fleet.worker(index),
                int(now),
                averages={},
                operating_range={},
                slot=slot_name(index),
                run_id=run_id(index),
                beat=self._beats,
            )
            self._leader.tables.workers.put(row)

        in_parallel(put, range(self.fleet.workers))
        return {
            slot_name(index): SlotRun(run_id(index), self.fleet.worker(index), "running", now)
            for index in range(self.fleet.workers)
        }


def consumer(name: str) -> Any:
    @kcl_consumer(application=name, stream=name, sink=parquet("unused"), name=name.replace("-", "_"))
    def records(found: Any) -> Any:
        return found

    return records


def seconds_between_reads(read: float) -> float:
    """The seconds from one read of the leader to the next, if nothing is to be done. `read`: how long a read takes.
    The leader reads only at a tick."""
    pace = ScanPace(Timings().lease_duration)
    pace.note(0.0, read, None, math.inf)
    return math.ceil(pace.due / TICK_SECONDS) * TICK_SECONDS


def measure(fleet: Fleet, say: Callable[[str], None] = print) -> list[Figure]:
    with embedded() as endpoint:
        trial = Trial(fleet, endpoint)
        say(f"{fleet.name}: the table is filled")
        first = trial.tick()
        say(f"{fleet.name}: first tick {first.seconds:.1f} s, {first.moves} moves, {first.stages}")
        steady: list[Ticked] = []
        while len(steady) < STEADY_TICKS:
            trial.renew()
            ticked = trial.tick()
            say(
                f"{fleet.name}: tick {ticked.seconds:.1f} s, CPU {ticked.cpu:.1f} s and {ticked.reporting:.1f} s,"
                f" {ticked.moves} moves,"
                f" {ticked.stages}"
            )
            # The leader may need several ticks until all leases have owners.
            steady += [] if ticked.moves else [ticked]
        trial.renew()
        trial.units.is_on = True
        trial.tick()
        units, waited = trial.units.units, trial.units.waited
    cpu, reporting = median(one.cpu for one in steady), median(one.reporting for one in steady)
    apart = seconds_between_reads(median(one.read for one in steady))
    return [
        Figure(f"{fleet.name}: first tick, decision", first.decision, "s", MOST_SECONDS, at_most=True),
        Figure(f"{fleet.name}: first tick, CPU", first.cpu, "CPU-s"),
        Figure(
            f"{fleet.name}: steady tick", median(one.seconds for one in steady), "s", MOST_SECONDS, at_most=True
        ),
        Figure(
            f"{fleet.name}: steady tick, decision",
            median(one.decision for one in steady),
            "s",
            MOST_SECONDS,
            at_most=True,
        ),
        Figure(f"{fleet.name}: steady tick, CPU", cpu, "CPU-s"),
        Figure(f"{fleet.name}: steady tick, CPU of the sensor's report", reporting, "CPU-s"),
        Figure(f"{fleet.name}: steady tick, waits for scans", waited, "s"),
        Figure(f"{fleet.name}: seconds between two reads", apart, "s"),
        Figure(f"{fleet.name}: CPU in the Dagster process", (cpu + reporting) / apart, "cores"),
        Figure(f"{fleet.name}: read units of a tick", units, "units"),
        Figure(f"{fleet.name}: read units", units * 3600 / apart, "units/h"),
    ]


FLEETS: Final = (Fleet(1_000, 10), Fleet(100_000, 1_000))
