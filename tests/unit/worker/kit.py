"""A small world for worker tests: a stream and a sink in memory, the real lease protocol over a table in memory.

Nothing here runs by itself: tests step workers one by one and move the clock.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from kcl_dagster.application import Application
from kcl_dagster.errors import DataLoss, SinkError
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import MAX_HASH_KEY, ChildShard, HashRange, Shard
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.attributes import LEASE_KEY
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.testing.local_processors import LocalProcessorHost
from kcl_dagster.worker.batch import Batch, Budget, MinuteRecords, Part, PoisonRecord, Progress, Range
from kcl_dagster.worker.concurrency import ForEach, one_by_one
from kcl_dagster.worker.dead_letter import DeadLetter
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.processor import ProcessorFactory
from kcl_dagster.worker.report import BatchReport
from kcl_dagster.worker.surroundings import Surroundings
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB

STREAM = "orders"
Payload = tuple[str, int, str]
"""What a sink is handed per record: shard, sequence number, data."""

Data = list[Payload]


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Fuse:
    """Kills whoever passes its n-th point. Every table call has two points: before it and after it was applied."""

    burns_at: int | None = None
    passed: int = 0

    def point(self) -> None:
        self.passed += 1
        if self.passed == self.burns_at:
            raise Killed(f"at point {self.passed}")


@dataclass
class Client:
    """A worker's own way to DynamoDB."""

    service: FakeDynamoDB
    fuse: Fuse
    before: list[Callable[[str, Mapping[str, Any]], None]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(**request: Any) -> Any:
            self.calls.append(method)
            for hook in list(self.before):
                hook(method, request)
            self.fuse.point()
            answer = getattr(self.service, method)(**request)
            self.fuse.point()
            return answer

        return call


@dataclass
class MemoryShard:
    id: str
    hash_range: HashRange
    parents: tuple[str, ...] = ()
    records: list[tuple[int, str]] = field(default_factory=list)
    children: tuple[ChildShard, ...] = ()
    is_closed: bool = False
    trimmed_through: int = -1

    def read(self, wanted: Range, limit: int, arrival_ms: int | None = None) -> Progress:
        first = self._first(wanted)
        if wanted.is_pinned and first <= self.trimmed_through:
            raise DataLoss(f"{self.id}: pinned records are gone")
        last = int(wanted.through.sequence) if wanted.through is not None else None
        kept = [r for r in self.records if r[0] > self.trimmed_through]
        found = [r for r in kept if r[0] >= first and (last is None or r[0] <= last)]
        found = found if last is not None else found[:limit]
        end = found[-1][0] if found else first - 1
        rest = [r for r in kept if r[0] > end]
        return Progress(
            range=wanted,
            through=Checkpoint(str(end)) if found else None,
            first=str(found[0][0]) if found else None,
            records=len(found),
            bytes=sum(len(data) for _, data in found),
            millis_behind=1000 * len(rest),
            ended=self.is_closed and not rest,
            children=self.children if self.is_closed and not rest else (),
            first_arrival_ms=arrival_ms if found else None,
            last_arrival_ms=arrival_ms if found else None,
            minutes=None if arrival_ms is None else _minutes(found, arrival_ms),
            start_trimmed=not wanted.after.is_initial_position and first - 1 <= self.trimmed_through,
        )

    def between(self, progress: Progress) -> Data:
        if progress.through is None or not progress.records:
            return []
        first, last = int(progress.first or 0), int(progress.through.sequence)
        return [(self.id, sequence, data) for sequence, data in self.records if first <= sequence <= last]

    def _first(self, wanted: Range) -> int:
        if wanted.first is not None:
            return int(wanted.first)
        return 0 if wanted.after.is_initial_position else int(wanted.after.sequence) + 1


def _minutes(found: Sequence[tuple[int, str]], arrival_ms: int) -> tuple[MinuteRecords, ...]:
    if not found:
        return ()
    size = sum(len(data) for _, data in found)
    return (MinuteRecords(arrival_ms // 60_000 * 60, len(found), size, str(found[0][0]), str(found[-1][0])),)


class MemoryStream:
    """Shards with records that nobody numbers but the order they were put in."""

    def __init__(self, shards: int = 1) -> None:
        self.shards: dict[str, MemoryShard] = {}
        self.gone: set[str] = set()
        self.arrival_ms: int | None = None
        self.sequences = count(100)
        width = (MAX_HASH_KEY + 1) // shards
        for index in range(shards):
            self._add(HashRange(index * width, (index + 1) * width - 1 if index < shards - 1 else MAX_HASH_KEY))

    def put(self, shard: str, *data: str) -> None:
        assert not self.shards[shard].is_closed
        self.shards[shard].records += [(next(self.sequences), text) for text in data]

    def split(self, shard: str) -> tuple[str, str]:
        old = self.shards[shard]
        middle = (old.hash_range.start + old.hash_range.end) // 2
        low = self._add(HashRange(old.hash_range.start, middle), shard)
        high = self._add(HashRange(middle + 1, old.hash_range.end), shard)
        self._close(old, low, high)
        return low, high

    def merge(self, one: str, other: str) -> str:
        low, high = self.shards[one], self.shards[other]
        child = self._add(HashRange(low.hash_range.start, high.hash_range.end), one, other)
        for parent in (low, high):
            self._close(parent, child)
        return child

    def expire(self, shard: str) -> None:
        """The shard leaves the stream with everything in it."""
        self.gone.add(shard)

    def listing(self, _: StreamIdentifier) -> list[Shard]:
        return [
            Shard(shard.id, shard.hash_range, "0", "1" if shard.is_closed else None, shard.parents)
            for shard in self.shards.values()
            if shard.id not in self.gone
        ]

    def everything(self) -> Data:
        return [(shard.id, seq, data) for shard in self.shards.values() for seq, data in shard.records]

    def _add(self, hash_range: HashRange, *parents: str) -> str:
        shard_id = f"shardId-{len(self.shards):012d}"
        self.shards[shard_id] = MemoryShard(shard_id, hash_range, parents)
        return shard_id

    def _close(self, shard: MemoryShard, *children: str) -> None:
        shard.is_closed = True
        made = (self.shards[child] for child in children)
        shard.children = tuple(ChildShard(child.id, child.hash_range, child.parents) for child in made)


class MemoryFetched:
    def __init__(self, stream: MemoryStream, ranges: Sequence[Range], limit: int) -> None:
        self._stream = stream
        self.progress: dict[LeaseKey, Progress] = {}
        self.failures: dict[LeaseKey, Exception] = {}
        self.is_released = False
        for wanted in ranges:
            if wanted.shard_id in stream.gone:
                self.progress[wanted.lease] = Progress(wanted, ended=True, gone=True)
                continue
            try:
                self.progress[wanted.lease] = stream.shards[wanted.shard_id].read(wanted, limit, stream.arrival_ms)
            except DataLoss as error:
                self.failures[wanted.lease] = error

    def data(self, leases: Collection[LeaseKey]) -> Data:
        return [row for lease in sorted(leases) for row in self._rows(lease)]

    def midpoint(self, lease: LeaseKey) -> Checkpoint | None:
        rows = self._rows(lease)
        return Checkpoint(str(rows[(len(rows) - 1) // 2][1])) if len(rows) > 1 else None

    def records(self, lease: LeaseKey) -> list[PoisonRecord]:
        return [PoisonRecord(data.encode(), "key", str(seq), 0) for _, seq, data in self._rows(lease)]

    def release(self) -> None:
        assert not self.is_released
        self.is_released = True

    def _rows(self, lease: LeaseKey) -> Data:
        progress = self.progress[lease]
        return self._stream.shards[progress.range.shard_id].between(progress)


@dataclass
class MemoryEngine:
    """Reads at most `limit` records per shard and batch."""

    stream: MemoryStream
    fuse: Fuse = field(default_factory=Fuse)
    limit: int = 3
    asked: list[list[Range]] = field(default_factory=list)
    fetched: list[MemoryFetched] = field(default_factory=list)
    hints: list[list[Range]] = field(default_factory=list)
    hooks: list[Callable[[], None]] = field(default_factory=list)

    def fetch(self, ranges: Sequence[Range], _: Budget) -> MemoryFetched:
        self.fuse.point()
        self.asked.append(list(ranges))
        fetched = MemoryFetched(self.stream, ranges, self.limit)
        self.fetched.append(fetched)
        for hook in list(self.hooks):
            hook()
        self.fuse.point()
        return fetched

    def prefetch(self, ranges: Sequence[Range], _: Budget) -> None:
        self.hints.append(list(ranges))


class MemoryDeadLetters:
    def __init__(self) -> None:
        self.letters: dict[str, DeadLetter] = {}

    def write(self, letter: DeadLetter) -> None:
        self.letters[letter.name] = letter


@dataclass
class MemoryStore:
    """What all sinks of an application wrote together, by where a part begins. As tables do, it refuses a part that
    smaller ones have replaced."""

    parts: dict[tuple[str, str], Data] = field(default_factory=dict)
    identities: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    writes: int = 0

    def put(self, part: Part, rows: Data) -> None:
        place = (part.shard_id, str(part.after))
        if part.number < self.numbers.get(place, 0):
            raise SinkError(f"batch {part.number} at {place} was replaced by {self.numbers[place]}")
        if part.instead_of is not None and part.number > self.numbers.get(place, 0):
            self.identities.pop(place, None)
        self.parts[place] = rows
        self.identities.setdefault(place, []).append(f"{part.number}:{part.through}")
        self.numbers[place] = part.number
        self.writes += 1

    def everything(self) -> Data:
        return [row for part in self.parts.values() for row in part]


@dataclass
class MemorySink:
    """Stores part by part, so a kill may leave a batch half written."""

    store: MemoryStore
    fuse: Fuse = field(default_factory=Fuse)
    refuses: Callable[[Data], None] | None = None
    hooks: list[Callable[[Batch], None]] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)

    def write(self, data: Data, batch: Batch) -> None:
        self.fuse.point()
        for hook in list(self.hooks):
            hook(batch)
        if self.refuses is not None:
            self.refuses(data)
        for part in batch.parts:
            rows = [row for row in data if row[0] == part.shard_id]
            assert len(rows) == part.records > 0
            self.store.put(part, rows)
            self.fuse.point()
        self.batches.append(batch)


def in_nobodys_background(*_: object) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass
class Run:
    """One worker and what can be seen of it."""

    worker: Worker[Data]
    client: Client
    engine: MemoryEngine
    sink: MemorySink
    fuse: Fuse
    letters: MemoryDeadLetters
    events: list[WorkerEvent]
    reports: list[BatchReport]
    hosts: LocalProcessorHost | None = None

    @property
    def id(self) -> WorkerId:
        return self.worker.identity.worker

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.events]

    def round(self) -> BatchReport:
        """Discover, renew, and process one batch."""
        self.worker.step_discovery()
        self.worker.step_renewal()
        return self.worker.step_batch()

    def watch_budgets(self) -> list[float]:
        """Return a list to which each further fetch appends the seconds that it may read."""
        found: list[float] = []
        fetch = self.engine.fetch

        def watched(ranges: Sequence[Range], budget: Budget) -> Any:
            found.append(budget.seconds)
            return fetch(ranges, budget)

        self.engine.fetch = watched  # type: ignore[assignment, method-assign]
        return found

    def hand_over(self, key: str) -> None:
        """Notice that the lease is in a handoff, and complete the handoff after the time for which it is read."""
        self.worker.holdings.renew(LeaseKey(key))
        clock = self.worker._clock
        assert isinstance(clock, FakeClock)
        clock.advance(self.worker.settings.reads_on)
        self.worker.step_renewal()

    def until_idle(self, rounds: int = 100) -> None:
        """Process everything there is."""
        for _ in range(rounds):
            if self.round().is_idle:
                return
        raise AssertionError(f"still busy after {rounds} rounds: {self.events[-3:]}")


class World:
    def __init__(self, *, shards: int = 1, **settings: Any) -> None:
        self.clock = FakeClock()
        self.runtime = Runtime(clock=self.clock, random=random.Random(7))
        self.stream = MemoryStream(shards)
        self.store = MemoryStore()
        self.application = Application(name="clicks", streams=(STREAM,), **settings)
        self.service = FakeDynamoDB(self.clock, strict=False)
        self.service.create_table(
            TableName=self.application.lease_table,
            KeySchema=[{"AttributeName": LEASE_KEY, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": LEASE_KEY, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        self.leases = self.lease_table(self.service)
        for shard in self.stream.listing(StreamIdentifier.single(STREAM)):
            self.create(shard.id)

    def lease_table(self, client: Any) -> LeaseTable:
        return LeaseTable(client, self.application, TableLayout.single(self.application), self.runtime)

    def worker_table(self, client: Any) -> WorkerTable:
        return WorkerTable(client, self.application, TableLayout.single(self.application), self.runtime)

    def worker(
        self,
        name: str,
        *,
        processors: ProcessorFactory | None = None,
        for_each: ForEach = one_by_one,
        **extra: Any,
    ) -> Run:
        fuse = Fuse()
        client = Client(self.service, fuse)
        engine, sink = MemoryEngine(self.stream, fuse), MemorySink(self.store, fuse)
        events: list[WorkerEvent] = []
        reports: list[BatchReport] = []
        letters = MemoryDeadLetters()
        hosts = None if processors is None else LocalProcessorHost(processors, engine)
        around = Surroundings(
            application=self.application,
            leases=self.lease_table(client),
            workers=self.worker_table(client),
            list_shards=self.stream.listing,
            engine=engine,
            sink=sink,
            dead_letters=letters,
            on_event=events.append,
            on_batch=reports.append,
            processors=hosts,
        )
        worker = Worker(
            replace(around, **extra),
            Identity(WorkerId(name), slot=name, run_id=f"run-{name}"),
            self.runtime,
            in_nobodys_background,
            for_each,
        )
        return Run(worker, client, engine, sink, fuse, letters, events, reports, hosts)

    # What a leader does

    def create(self, shard: str, **lease: Any) -> Lease:
        described = self.stream.shards[shard]
        made = Lease(
            key=LeaseKey(shard),
            shard_id=shard,
            checkpoint=TRIM_HORIZON,
            parents=frozenset(described.parents),
            hash_range=described.hash_range,
        )
        made = replace(made, **lease)
        assert self.leases.create(made)
        return made

    def lease(self, key: str) -> Lease:
        lease = self.leases.get(LeaseKey(key))
        assert lease is not None
        return lease

    def assign(self, run: Run, *keys: str) -> None:
        """Give leases to a worker, whoever had them; all that there are when none is named."""
        for key in keys or self.lease_keys():
            assert self.leases.assign(self.lease(key), run.id) is not None

    def hand_over(self, key: str, to: Run) -> None:
        """To a worker that has a row, as a leader knows no others."""
        if self.worker_table(self.service).get(to.id) is None:
            to.worker.heartbeat.write()
        assert self.leases.initiate_handoff(self.lease(key), to.id) is not None

    def lease_keys(self) -> list[str]:
        return [lease.key for lease in self.leases.scan().leases]

    # What must be true

    def check_exactly_once(self) -> None:
        """Everything produced is stored, once; per shard in order; and a replay never changed its identity."""
        assert sorted(self.store.everything()) == sorted(self.stream.everything())
        for place, identities in self.store.identities.items():
            assert len(set(identities)) == 1, f"{place} was written as {identities}"
