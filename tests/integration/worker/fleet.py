"""A whole fleet in one process: the real leader, real workers on real threads, over HTTP to the embedded AWS."""

import itertools
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from kcl_dagster.application import Application
from kcl_dagster.emulator import Emulator
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView, SlotRun
from kcl_dagster.model.worker_row import worker_id
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.worker.batch import Batch, Engine
from kcl_dagster.worker.events import WorkerEvent
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.opening import open_surroundings
from kcl_dagster.worker.stop import StopSignal
from tests.doubles.engine import MemoryEngine, Row
from tests.doubles.sink import RecordingSink

TICK_SECONDS = 0.5
LEASE_SECONDS = 3.0
PATIENCE_SECONDS = 120.0  # a busy machine takes ten times as long for what takes seconds
READS_PER_SECOND = 20.0  # the embedded stream has no limits in these tests


class Killed(SystemExit):
    """The process ends here: every thread of it, without a word."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One that was granted. `at` by the monotonic clock."""

    shard_id: str
    start: Mapping[str, Any]
    at: float


class Wire:
    """A worker's clients. Once cut, nothing passes any more: its process is gone. What is held, waits."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.is_cut = False
        self.passes = threading.Event()
        self.passes.set()
        self.subscriptions: list[Subscription] = []

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._client, method)
        if not callable(real):
            return real

        def call(**request: Any) -> Any:
            self.passes.wait()
            if self.is_cut:
                raise Killed(method)
            return self._subscribe(real, request) if method == "subscribe_to_shard" else real(**request)

        return call

    def _subscribe(self, subscribe: Callable[..., Any], request: Mapping[str, Any]) -> Any:
        answer = subscribe(**request)
        self.subscriptions.append(Subscription(request["ShardId"], request["StartingPosition"], time.monotonic()))
        return answer


class LockedSink:
    """One lake for all workers, which run in one process here."""

    def __init__(self) -> None:
        self.recorded = RecordingSink()
        self._lock = threading.Lock()

    def write(self, data: list[Row], batch: Batch) -> None:
        with self._lock:
            self.recorded.write(data, batch)


@dataclass
class Process:
    """A worker run, from launch to end."""

    slot: str
    run_id: str
    worker: Worker[list[Row]]
    engine: Engine[list[Row]]
    wires: list[Wire]
    stop: StopSignal
    events: list[WorkerEvent]
    started: float
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name=f"run {self.run_id}")
        self.thread.start()

    def _run(self) -> None:
        try:
            self.worker.run(self.stop)
        except Killed:
            return

    def kill(self) -> None:
        for wire in self.wires:
            wire.is_cut = True

    @property
    def dynamodb(self) -> Wire:
        return self.wires[0]

    @property
    def kinesis(self) -> Wire:
        return self.wires[1]

    @property
    def is_over(self) -> bool:
        return not self.thread.is_alive()


NewEngine = Callable[[Wire, Runtime], Engine[list[Row]]]


def polling(wire: Wire, runtime: Runtime) -> Engine[list[Row]]:
    return MemoryEngine(wire, runtime, limits=ShardLimits(reads_per_second=READS_PER_SECOND))


class Fleet:
    """Launches what the leader asks for. Use as `with Fleet(...) as fleet`."""

    def __init__(
        self,
        aws: Emulator,
        stream: str,
        shards: int,
        workers: int,
        new_engine: NewEngine | None = None,
        **settings: Any,
    ) -> None:
        self.aws = aws
        self.stream = stream
        self.kinesis = aws.client("kinesis")
        self.kinesis.create_stream(StreamName=stream, ShardCount=shards)
        self.application = Application(
            name=f"app-{stream}",
            streams=(stream,),
            timings={"lease_duration": LEASE_SECONDS, "heartbeat": 1.0, "handoff_timeout": 3.0},
            fleet={"min_workers": workers, "max_workers": workers},
            **{"batch": {"idle_seconds": 0.1, "max_seconds": 0.5}, **settings},
        )
        self.runtime = system()
        self._new_engine = new_engine or polling
        self.leader = open_leader(
            self.application, dynamodb=aws.client("dynamodb"), kinesis=self.kinesis, identity="tests"
        )
        self.sink = LockedSink()
        self.processes: dict[str, Process] = {}
        self.past: list[Process] = []
        self.produced: dict[str, list[str]] = {}
        self._numbers = itertools.count()
        self._run_ids = itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._lead, name="leader")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)
        for process in self.processes.values():
            process.dynamodb.passes.set()
            process.stop.request()
        for process in self.processes.values():
            process.thread.join(PATIENCE_SECONDS)
        self.kinesis.delete_stream(StreamName=self.stream, EnforceConsumerDeletion=True)

    def _lead(self) -> None:
        while not self._stop.wait(TICK_SECONDS):
            for slot, process in list(self.processes.items()):
                if process.is_over:
                    self.past.append(self.processes.pop(slot))
            report = self.leader.tick(RunView(self._slots(), self._finished))
            for launch in report.launches:
                if launch.slot not in self.processes:
                    self.processes[launch.slot] = self._launch(launch.slot)

    def _slots(self) -> dict[str, SlotRun]:
        return {
            slot: SlotRun(p.run_id, p.worker.identity.worker, "running", p.started)
            for slot, p in self.processes.items()
        }

    def _finished(self, run_ids: Collection[str]) -> set[str]:
        return {process.run_id for process in self.past} & set(run_ids)

    def _launch(self, slot: str) -> Process:
        run_id = f"{next(self._run_ids):08d}-run"
        wires = [Wire(self.aws.client(service)) for service in ("dynamodb", "kinesis")]
        events: list[WorkerEvent] = []
        engine = self._new_engine(wires[1], self.runtime)
        around = open_surroundings(
            self.application,
            dynamodb=wires[0],
            kinesis=wires[1],
            engine=engine,
            sink=self.sink,
            runtime=self.runtime,
            on_event=events.append,
        )
        worker = Worker(around, Identity(worker_id(slot, run_id), slot, run_id), self.runtime)
        return Process(slot, run_id, worker, engine, wires, StopSignal(), events, time.time())

    # The stream

    def produce(self, count: int) -> None:
        """`count` in hundreds."""
        for _ in range(0, count, 100):
            texts = [str(next(self._numbers)) for _ in range(100)]
            records = [{"PartitionKey": f"key-{int(text) % 37}", "Data": text.encode()} for text in texts]
            answer = self.kinesis.put_records(StreamName=self.stream, Records=records)
            for text, result in zip(texts, answer["Records"], strict=True):
                self.produced.setdefault(result["ShardId"], []).append(text)

    def open_shards(self) -> list[str]:
        return [
            shard["ShardId"]
            for shard in self.kinesis.list_shards(StreamName=self.stream)["Shards"]
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        ]

    def split(self) -> None:
        shards = self.kinesis.list_shards(StreamName=self.stream)["Shards"]
        [first, *_] = [s for s in shards if "EndingSequenceNumber" not in s["SequenceNumberRange"]]
        hashes = first["HashKeyRange"]
        middle = (int(hashes["StartingHashKey"]) + int(hashes["EndingHashKey"])) // 2
        self.kinesis.split_shard(
            StreamName=self.stream, ShardToSplit=first["ShardId"], NewStartingHashKey=str(middle)
        )

    def merge(self) -> None:
        shards = self.kinesis.list_shards(StreamName=self.stream)["Shards"]
        alive = [s for s in shards if "EndingSequenceNumber" not in s["SequenceNumberRange"]]
        alive.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
        self.kinesis.merge_shards(
            StreamName=self.stream, ShardToMerge=alive[0]["ShardId"], AdjacentShardToMerge=alive[1]["ShardId"]
        )

    # What must be true

    def stored(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for part in list(self.sink.recorded.parts.values()):
            found.setdefault(part.part.shard_id, []).extend(row.data.decode() for row in part.rows)
        return found

    def wait_until_everything_is_stored(self) -> None:
        eventually(lambda: total(self.stored()) >= total(self.produced))

    def check_exactly_once(self) -> None:
        """Per shard the same records in the same order, and no part ever changed."""
        assert self.stored() == self.produced
        assert self.sink.recorded.conflicts == []


def total(records: dict[str, list[str]]) -> int:
    return sum(len(some) for some in records.values())


def eventually(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
