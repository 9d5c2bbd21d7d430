"""One application, its tables, its streams, its workers and its orchestrator, under a clock that the test moves."""

import itertools
from collections.abc import Callable, Collection
from random import Random
from typing import Any

from botocore.exceptions import ClientError

from kcl_dagster.application import Application
from kcl_dagster.emulator.kinesis import KinesisService, Limits
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import LoadedCode, RunView, SlotRun
from kcl_dagster.leader.tick import Leader
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import ChildShard
from kcl_dagster.model.worker_row import WorkerState, worker_id
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.listing import list_shards
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.worker.discovery import Discoverer
from kcl_dagster.worker.heartbeat import Heartbeat, Identity
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.renewal import Renewer
from kcl_dagster.worker.shard_end import child_lease
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.doubles.kinesis import FakeKinesis

TICK = 5.0


class Client:
    """A client that can be made to fail, or to take its time."""

    def __init__(self, client: Any, clock: FakeClock) -> None:
        self._client = client
        self._clock = clock
        self.fails: Callable[[str, dict[str, Any]], bool] = lambda _method, _request: False
        self.latency = 0.0
        self.calls: list[str] = []

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._client, method)
        if not callable(real):
            return real

        def call(**request: Any) -> Any:
            self.calls.append(method)
            if self.latency:
                self._clock.advance(self.latency)
            if self.fails(method, request):
                problem = {"Error": {"Code": "AccessDeniedException", "Message": "not today"}}
                raise ClientError(problem, method)  # type: ignore[arg-type]
            return real(**request)

        return call


class Worker:
    """A worker's coordination, without its batches."""

    def __init__(self, town: "Town", slot: str, run_id: str, *, is_former: bool = False) -> None:
        """`is_former`: of version 0.1, as its row shows."""
        self.id = worker_id(slot, run_id)
        self.town = town
        self.alive = True
        self.busy = False
        timings = town.application.timings
        self.holdings = Holdings(town.leases, self.id, timings.lease_duration, timings.heartbeat, town.runtime)
        self.discoverer = Discoverer(town.leases, self.id, self.holdings)
        self.renewer = Renewer(self.holdings, timings.renewal_interval, timings.handoff_timeout, town.clock)
        self.heartbeat = Heartbeat(
            town.workers_table,
            Identity(self.id, slot, run_id),
            town.clock,
            lease_duration=None if is_former else timings.lease_duration,
        )
        self.heartbeat.state = WorkerState.RUNNING

    def step(self) -> None:
        if not self.alive:
            return
        self.heartbeat.step()
        self.discoverer.step()
        if self.busy:
            self.holdings.begin(self.holdings.keys())
        self.renewer.step()

    def shards(self) -> list[str]:
        return [holding.lease.shard_id for holding in self.holdings.holdings()]

    def finish(self, shard: str) -> None:
        """Reach the end of a closed shard: leases for its children, then SHARD_END."""
        [holding] = [held for held in self.holdings.holdings() if held.lease.shard_id == shard]
        stream = holding.lease.stream.name if holding.lease.stream is not None else "orders"
        children = [one for one in self.town.listed(stream) if shard in one.parents]
        for child in children:
            self.town.leases.create(
                child_lease(holding.lease, ChildShard(child.id, child.hash_range, child.parents))
            )
        names = frozenset(child.id for child in children)
        self.holdings.checkpoint(holding.key, holding.token, SHARD_END, names)

    def progress(self, shard: str, sequence: str) -> None:
        [holding] = [held for held in self.holdings.holdings() if held.lease.shard_id == shard]
        self.holdings.checkpoint(holding.key, holding.token, Checkpoint(sequence))


class Town:
    """Everything around a leader. `step` is five seconds: workers act, then the leader ticks."""

    def __init__(
        self, application: Application, shards: int | dict[str, int] = 4, clock_ahead: float = 0.0
    ) -> None:
        """`clock_ahead`: by how much the clocks of our machines are ahead of the service's."""
        self.application = application
        self.clock = FakeClock()
        numbers = itertools.count()
        self.runtime = Runtime(clock=self.clock, new_id=lambda: f"id-{next(numbers)}", random=Random(5))
        service = KinesisService(lambda: self.clock.now() - clock_ahead, Limits.none())
        self.fake_kinesis = FakeKinesis(self.clock, service=service)
        self.dynamodb = Client(FakeDynamoDB(self.clock), self.clock)
        self.kinesis = Client(self.fake_kinesis, self.clock)
        for stream in application.streams:
            number = shards if isinstance(shards, int) else shards.get(stream.name, 0)
            if number:
                self.kinesis.create_stream(StreamName=stream.name, ShardCount=number)
        self.runs: dict[str, SlotRun] = {}
        self.code: LoadedCode | None = None
        self.over: set[str] = set()
        self.workers: dict[WorkerId, Worker] = {}
        self.reports: list[TickReport] = []
        self.leader = self.open_leader()
        layout = TableLayout.single(application)
        self.leases = LeaseTable(self.dynamodb, application, layout, self.runtime)
        self.workers_table = WorkerTable(self.dynamodb, application, layout, self.runtime)

    def open_leader(self, identity: str = "the-leader") -> Leader:
        return open_leader(
            self.application,
            dynamodb=self.dynamodb,
            kinesis=self.kinesis,
            identity=identity,
            runtime=self.runtime,
            parallel=map,
        )

    def restart_leader(self, identity: str = "the-leader") -> None:
        """The process of the leader is gone with everything it knew; another one starts."""
        self.leader = self.open_leader(identity)

    def view(self) -> RunView:
        return RunView(dict(self.runs), self.finished, code=self.code)

    def finished(self, run_ids: Collection[str]) -> set[str]:
        return self.over & set(run_ids)

    def tick(self) -> TickReport:
        report = self.leader.tick(self.view())
        self.reports.append(report)
        return report

    def step(self, steps: int = 1) -> TickReport:
        for _ in range(steps):
            self.clock.advance(TICK)
            for worker in self.workers.values():
                worker.step()
            report = self.tick()
        return report

    def until(self, condition: Callable[[TickReport], bool], within: float = 300.0) -> float:
        """Step until `condition`; how many seconds that took."""
        started = self.clock.monotonic()
        while not condition(self.step()):
            assert self.clock.monotonic() - started < within, self.reports[-1]
        return self.clock.monotonic() - started

    # --- runs and workers

    def start(self, slot: str, run_id: str = "", *, is_former: bool = False) -> Worker:
        """A run of a slot, and its worker."""
        run_id = run_id or f"{len(self.over) + len(self.runs):08d}-{slot}"
        worker = Worker(self, slot, run_id, is_former=is_former)
        code = None if self.code is None else self.code.version
        self.runs[slot] = SlotRun(run_id, worker.id, "running", self.clock.now(), code)
        self.workers[worker.id] = worker
        worker.heartbeat.step()
        return worker

    def kill(self, worker: Worker, *, seen: bool) -> None:
        """The process is gone. `seen`: the orchestrator knows."""
        worker.alive = False
        slot = worker.id.rpartition(":")[0]
        if seen:
            self.end(slot)

    def end(self, slot: str) -> None:
        self.over.add(self.runs.pop(slot).run_id)

    def obey(self, report: TickReport) -> None:
        """Launch what the leader wants launched."""
        for launch in report.launches:
            self.start(launch.slot, f"{launch.generation}"[-6:] + launch.slot)

    # --- what is in the tables

    def scan(self) -> dict[LeaseKey, Lease]:
        return {lease.key: lease for lease in self.leases.scan().leases}

    def lease(self, key: str) -> Lease:
        return self.scan()[LeaseKey(key)]

    def owners(self) -> dict[str, str | None]:
        return {lease.key: lease.actual_owner for lease in self.scan().values() if not lease.is_finished}

    def split(self, shard: str, stream: str = "orders") -> None:
        [found] = [one for one in self.listed(stream) if one.id == shard]
        middle = (found.hash_range.start + found.hash_range.end) // 2
        self.kinesis.split_shard(StreamName=stream, ShardToSplit=shard, NewStartingHashKey=str(middle))

    def listed(self, stream: str = "orders") -> list[Any]:
        return list_shards(self.fake_kinesis, stream, runtime=self.runtime)

    def first_lease(self, shard: str) -> Lease:
        return Lease(LeaseKey(shard), shard, checkpoint=TRIM_HORIZON)


def shard_id(number: int) -> str:
    return f"shardId-{number:012d}"
