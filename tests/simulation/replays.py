"""Replays of windows, and of dead letters, by processes that end anywhere. No fleet takes part.

    python -m tests.simulation --scenario replays --seeds 1-100

Several processes replay each window, some of them at once. A process that failed or was killed is started again,
and one that is paused is taken for dead. Workers write dead letters meanwhile. In the end, no fault happens any
more, and everything is replayed once more (S21).
"""

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final
from zlib import crc32

from kcl_dagster.application import Application
from kcl_dagster.chains.entry import PublishingEntry
from kcl_dagster.errors import KclError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange, Shard
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.operations.replay import Replay, ReplayWindow
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark import dead_letter_replay
from kcl_dagster.worker.batch import Batch, Budget, Part, PoisonRecord, Progress, Range
from kcl_dagster.worker.dead_letter import FORMAT_VERSION, DeadLetter
from kcl_dagster.worker.parts_chain import PartsChain
from tests.doubles.engine import Row
from tests.simulation.active_faults import ActiveFaults
from tests.simulation.bucket import Bucket, store_of
from tests.simulation.chained import COMMITS, DELETES, MAKES_ENTRY, PLANS_COMMIT, PUBLISHES, WAYS, Chained
from tests.simulation.chained_lake import ChainedLake
from tests.simulation.chained_sink import ChainedSink, destinations_of
from tests.simulation.consumer import FIRST_VERSION
from tests.simulation.faults import Fault, FaultKind
from tests.simulation.fleet import Outcome
from tests.simulation.kernel import Kernel, Process, Strand, Stuck
from tests.simulation.network import Line
from tests.simulation.processes import runtime_of
from tests.simulation.properties import Violations
from tests.simulation.scenario import APPLICATION, EPOCH, LONGEST_RETENTION, Scenario
from tests.simulation.trace import Trace

STREAM: Final = StreamIdentifier.single("clicks")
LETTERS: Final = "letters"
NOTES_LETTERS: Final = PLANS_COMMIT  # a put that makes no entry
HOUR: Final = 3600.0
# Long runs last until a day after a pause that is longer than staged files are kept which no entry names.
ACTIVE_SECONDS: Final = 2 * HOUR
LONG_ACTIVE_SECONDS: Final = 100 * HOUR
LONG_SHARE: Final = 0.3
PAUSED_SHARE: Final = 0.3  # of the others, in which a process with letters is paused
LONG_PAUSE_SECONDS: Final = (90_000.0, 150_000.0)
CALM_SECONDS: Final = 4 * HOUR
STEP_SECONDS: Final = 60.0
AGAIN_SECONDS: Final = (10.0, 120.0)
FETCH_SECONDS: Final = (0.1, 20.0)
# Within which of the start of a process a fault strikes: it replays for some minutes.
STRIKE_SECONDS: Final = 60.0
SOON_SECONDS: Final = 0.0001
SLOW_SECONDS: Final = 60.0  # that staging takes
FIRST_NUMBER: Final = 1000  # of the faults of long runs
_PROCESS: Final = (FaultKind.PAUSE_AT_CALL, FaultKind.PAUSE_AFTER_CALL, FaultKind.KILL_AT_CALL)
_FOLDER_CALLS: Final = (MAKES_ENTRY, MAKES_ENTRY, PUBLISHES, PUBLISHES, DELETES, NOTES_LETTERS, "")
_TABLE_CALLS: Final = (MAKES_ENTRY, MAKES_ENTRY, PLANS_COMMIT, COMMITS, "")
_SINK: Final = (FaultKind.SINK_REFUSES, FaultKind.SINK_LIES, FaultKind.SINK_SLOW, FaultKind.CODE_FAILS)


@dataclass(frozen=True, slots=True)
class Replays:
    """What is replayed. `starts`: of processes, by name of the window. `pieces`: of each shard of a window, with so
    many records. `letters`: when workers write them."""

    starts: Mapping[str, tuple[float, ...]]
    shards: int
    pieces: tuple[tuple[int, ...], ...]
    letters: tuple[float, ...]

    @property
    def windows(self) -> list[str]:
        return [name for name in self.starts if name != LETTERS]


def replays_of(scenario: Scenario) -> Replays:
    random = Random(f"what is replayed {scenario.seed}")
    shards = random.randint(1, 4)
    names = [f"2026-11-23-1{number}:00" for number in range(random.randint(1, 3))]
    starts = {name: _starts(random, scenario) for name in [*names, LETTERS]}
    if scenario.active == LONG_ACTIVE_SECONDS:
        first = starts[names[0]][0]
        starts[names[0]] = first, first + random.uniform(*LONG_PAUSE_SECONDS)
    pieces = tuple(tuple(random.randint(1, 4) for _ in range(random.randint(0, 6))) for _ in range(shards))
    letters = tuple(
        sorted(
            at - random.choice([0.0, 0.2, 300.0]) for at in starts[LETTERS] for _ in range(random.choice([0, 2]))
        )
    )
    return Replays(starts, shards, pieces, letters)


def _starts(random: Random, scenario: Scenario) -> tuple[float, ...]:
    """Soon after each other, or at once. In long runs, the last one starts a day or more later than the others."""
    at = ACTIVE_SECONDS * random.uniform(0.1, 0.3)
    found = [at]
    for _ in range(random.randint(1, 6)):
        at += random.choice([0.0, 1.0, 15.0, 60.0, 600.0])
        found.append(at)
    if scenario.active == LONG_ACTIVE_SECONDS:
        found.append(scenario.active * random.uniform(0.4, 0.9))
    return tuple(found)


def draw_replays(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(f"replays {seed}")
    chained = Chained(
        is_table=random.random() < 0.5, commit_seconds=random.choice([10.0, 30.0]), tasks=random.choice([1, 2, 3])
    )
    scenario = Scenario(
        seed=seed,
        application=Application(name=APPLICATION, streams="clicks"),
        stretch=random.choice([1, 20]),  # of requests that arrive late
        shards=(1,),
        deployments=1,
        daemons=0,
        one_run_per_slot=True,
        watchdog=False,
        monitor_seconds=0.0,
        record_seconds=0.0,
        history=0,
        legacy_tables=False,
        page_items=random.choice([3, 100]),
        staleness=0.0,
        skew=random.choice([0.0, 1.0, 300.0]),
        retention_hours=LONGEST_RETENTION,
        active=LONG_ACTIVE_SECONDS if random.random() < LONG_SHARE else ACTIVE_SECONDS,
        calm=CALM_SECONDS,
        chained=chained,
    )
    starts = [at for found in replays_of(scenario).starts.values() for at in found]
    faults = [
        _fault(random, number, scenario, random.choice(starts)) for number in range(random.choice([0, 5, 15, 30]))
    ]
    if scenario.active == LONG_ACTIVE_SECONDS:
        faults += _woken_late(random, scenario)
    elif random.random() < PAUSED_SHARE:
        faults += _paused_with_letters(scenario)
    return replace(scenario, faults=tuple(sorted(faults, key=lambda fault: (fault.at, fault.id))))


def _woken_late(random: Random, scenario: Scenario) -> list[Fault]:
    """A process that is about to make an entry is paused until, a day later, another one stages the same."""
    first, second = next(iter(replays_of(scenario).starts.values()))
    pause = Fault(
        id=FIRST_NUMBER,
        kind=FaultKind.PAUSE_AT_CALL,
        at=first + SOON_SECONDS,
        number=random.randrange(3) << 2,
        seconds=second - first + SLOW_SECONDS * random.random(),
        operation=MAKES_ENTRY,
    )
    slow = Fault(id=FIRST_NUMBER + 1, kind=FaultKind.SINK_SLOW, at=second, target="any", seconds=SLOW_SECONDS)
    return [pause, slow]


def _fault(random: Random, number: int, scenario: Scenario, start: float) -> Fault:
    assert scenario.chained is not None
    kind = random.choice([*_PROCESS, *_PROCESS, *WAYS, *_SINK])
    fault = Fault(
        id=number,
        kind=kind,
        at=start + STRIKE_SECONDS * random.random(),
        target=random.choice(["worker", "worker", "any"]),
        number=random.randrange(16),
        seconds=random.choice([20.0, 120.0, 600.0]),
        share=random.choice([0.1, 0.5, 1.0]),
        service="s3",
    )
    if kind in _PROCESS:
        # At one of the calls of a process that was just started.
        calls = _TABLE_CALLS if scenario.chained.is_table else _FOLDER_CALLS
        operation = random.choice(calls)
        until = random.randrange(4 if operation else 60)
        struck = replace(fault, at=start + SOON_SECONDS, target="worker", operation=operation)
        if kind is FaultKind.KILL_AT_CALL:
            return replace(struck, number=random.randrange(2), seconds=float(until))
        is_long = scenario.active == LONG_ACTIVE_SECONDS and random.random() < 0.5
        seconds = random.uniform(*LONG_PAUSE_SECONDS) if is_long else random.choice([5.0, 60.0, 600.0])
        return replace(struck, number=until << 2 | random.randrange(4), seconds=seconds)
    if kind is FaultKind.CUT:
        return replace(fault, target="worker", share=1.0)
    if kind is FaultKind.DENIED:
        return replace(
            fault, operation=random.choice(["put_object", "get_object", "copy_object", "delete_objects"])
        )
    return fault


def _paused_with_letters(scenario: Scenario) -> list[Fault]:
    """A process that has listed letters is paused before it notes which, and the next ones store them."""
    first, *others = replays_of(scenario).starts[LETTERS]
    pause = Fault(
        id=FIRST_NUMBER,
        kind=FaultKind.PAUSE_AT_CALL,
        at=first + SOON_SECONDS,
        seconds=max(others) - first + STRIKE_SECONDS,
        operation=NOTES_LETTERS,
    )
    return [pause]


@dataclass
class ReplayedLake(ChainedLake):
    """Also checks that readers see each record once (S21). The data of each record are its own."""

    seen: Counter[bytes] = field(default_factory=Counter)

    def _is_visible(self, decided: Any) -> None:
        entry: PublishingEntry = decided.entry
        found = [row.data for one in entry.ranges for row in decided.rows.get(one.lease, ())]
        if len(found) != sum(one.records for one in entry.ranges):
            self.violations.add("S21", f"{decided} has {len(found)} records")
        for data in found:
            self.seen[data] += 1
            if self.seen[data] > 1:
                self.violations.add("S21", f"readers see {data.decode()} {self.seen[data]} times")

    def unseen(self, records: Collection[bytes]) -> list[str]:
        return sorted(data.decode() for data in records if not self.seen[data])


@dataclass(slots=True)
class _Pieces:
    """A fetch of pieces. Fits `worker.batch.Fetched`."""

    progress: Mapping[LeaseKey, Progress]
    rows: Mapping[LeaseKey, list[Row]]
    failures: Mapping[LeaseKey, Exception] = field(default_factory=dict)

    def data(self, leases: Collection[LeaseKey]) -> list[Row]:
        return [row for lease in leases for row in self.rows[lease]]

    def midpoint(self, lease: LeaseKey) -> Checkpoint | None:
        return None

    def records(self, lease: LeaseKey) -> Sequence[PoisonRecord]:
        return ()

    def release(self) -> None:
        """They are not kept."""


@dataclass(slots=True)
class _WindowEngine:
    """Reads the pieces of a window, which are the same each time. Fits `worker.batch.Engine`."""

    window: str
    what: Replays
    process: Process
    draw: Callable[[float, float], float]

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> _Pieces:
        self.process.kernel.sleep(self.draw(*FETCH_SECONDS))
        progress, rows = {}, {}
        for one in ranges:
            pieces = self.what.pieces[int(one.shard_id.rpartition("-")[2])]
            records = pieces[one.number - 1] if pieces else 0
            first = sum(pieces[: one.number - 1]) + 1
            rows[one.lease] = [
                Row(one.lease, str(first + n), 0, "key", record_of(self.window, one.shard_id, first + n))
                for n in range(records)
            ]
            through = Checkpoint(str(first + records - 1)) if records else None
            size = sum(len(row.data) for row in rows[one.lease])
            is_last = one.number >= len(pieces)
            progress[one.lease] = Progress(one, through, str(first), records, size, ended=is_last)
        return _Pieces(progress, rows)

    def prefetch(self, ranges: Sequence[Range], budget: Budget) -> None:
        """They are read when they are wanted."""


def record_of(window: str, shard: str, number: int) -> bytes:
    return f"record {number} of {shard} in {window}".encode()


class _Frames:
    """Stands for a session of Spark: a frame is a list of rows."""

    def createDataFrame(self, rows: Sequence[Any], schema: str) -> list[Row]:  # noqa: N802 - as PySpark calls it
        return [Row(LeaseKey(row[8]), row[3], row[4], row[1], row[0]) for row in rows]


@dataclass(frozen=True, slots=True)
class _OfFrames:
    """Takes what a session of Spark makes. Fits `worker.parts_chain.PartsSink`."""

    chain: PartsChain[Sequence[Row]]

    def open(self) -> bool:
        return self.chain.open()

    def holds(self, part: Part) -> bool:
        return self.chain.holds(part)

    def write(self, data: Any, batch: Batch) -> None:
        self.chain.write(data.frame, batch)


class _Targets:
    """What faults strike, see `active_faults.Fleet`: there is nothing but processes."""

    def __init__(self, living: Callable[[], list[Process]]) -> None:
        self._living = living

    def worker(self, number: int) -> Process | None:
        """The one that was started last."""
        living = self._living()
        return living[-1] if living else None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class ReplayRuns:
    """All processes, and what they store. Made from a scenario, run once."""

    def __init__(self, scenario: Scenario, trace: Trace) -> None:
        assert scenario.chained is not None
        self.scenario, self.trace, self.what = scenario, trace, replays_of(scenario)
        self.counts: dict[str, int] = {}
        self.kernel = kernel = Kernel(self._note)
        kernel.on_strand_end = self._strand_ended
        self.violations = Violations(lambda: kernel.now)
        self.lake = ReplayedLake(
            self.violations,
            bucket=Bucket(self._time, scenario.page_items),
            tables=scenario.chained.tables,
            row_of=lambda _: None,
            truth_of=self._no_truth,
            application=APPLICATION,
        )
        self.letters = Bucket(self._time, scenario.page_items)
        targets: Any = _Targets(self.living)
        self.active_faults = ActiveFaults(kernel, targets, scenario.seed, scenario.stretch)
        self.processes: list[tuple[str, Process]] = []
        """All there ever were, with what they replay."""

        self.is_calm = False
        self.replayed: set[str] = set()
        """What was replayed since the faults stopped."""

        self.succeeded: list[Process] = []

    def run(self) -> Outcome:
        scenario, kernel = self.scenario, self.kernel
        self.active_faults.schedule(scenario.faults)
        for name, starts in self.what.starts.items():
            for at in starts:
                kernel.call_at(at, lambda name=name: self._start(name))  # type: ignore[misc]
        for number, at in enumerate(self.what.letters):
            kernel.call_at(at, lambda number=number: self._write_letter(number))  # type: ignore[misc]
        kernel.call_at(scenario.active, self._calm_down)
        try:
            while kernel.now < scenario.until and not self.violations.found and not self._is_over():
                kernel.run(min(scenario.until, kernel.now + STEP_SECONDS), self.violations.found)
            if not self.violations.found:
                self._check_end()
        except Stuck as stuck:
            self.violations.add("X1", str(stuck))
        simulated = kernel.now
        for process in self.living():
            process.kill()
        return Outcome(
            scenario,
            self.violations.found,
            simulated,
            kernel.steps,
            crc32(f"{kernel.digest}".encode(), self.trace.digest),
            len(self.lake.seen),
            self.counts,
            list(self.trace.lines),
        )

    def _is_over(self) -> bool:
        return self.is_calm and self.replayed == set(self.what.starts) and not self.living()

    def _check_end(self) -> None:
        if not self._is_over():
            left = sorted(set(self.what.starts) - self.replayed) or [process.name for process in self.living()]
            self.violations.add("S21", f"without faults, replays do not end: {left}")
        undecided = self.lake.undecided()
        if undecided:
            self.violations.add("S21", f"decided and never visible: {undecided[:3]}")

    # Processes

    def living(self) -> list[Process]:
        return [process for _, process in self.processes if process.is_alive]

    def _start(self, name: str) -> None:
        """Of letters, there is one process at a time; but one that is paused is taken for dead."""
        now = self.kernel.now
        at_work = [one for what, one in self.processes if what == name and one.is_alive and one.paused_until <= now]
        if name == LETTERS and at_work:
            return
        process_name = f"replay-{len(self.processes)} {name}"
        random, clocks = self.random(process_name), self.random(f"{process_name} clocks")
        skew = clocks.uniform(-self.scenario.skew, self.scenario.skew)
        process = Process(self.kernel, process_name, skew=skew, booted=clocks.uniform(0, 100_000))
        self.processes.append((name, process))
        process.on_end(lambda: self._ended(name, process))
        self.kernel.spawn(process, "main", lambda: self._work(name, process, random))

    def _ended(self, name: str, process: Process) -> None:
        """A process that did not succeed is started again. So is one that began before the faults stopped."""
        again = self.kernel.now + self.random(f"after {process.name}").uniform(*AGAIN_SECONDS)
        if name not in self.replayed and (self.is_calm or process not in self.succeeded):
            self.kernel.call_at(again, lambda: self._start(name))

    def _work(self, name: str, process: Process, random: Random) -> None:
        runtime = runtime_of(process, random)
        was_calm = self.is_calm
        letters = self._written_letters() if name == LETTERS else set()
        try:
            if name == LETTERS:
                self._replay_letters(process, runtime)
                wanted = letters
            else:
                wanted = self._replay_window(name, process, runtime, random)
        except (KclError, ValueError) as error:
            self.kernel.note("replay", f"{process.name} fails: {error}")
        else:
            self.succeeded.append(process)
            missing = self.lake.unseen(wanted)
            if missing:
                self.violations.add("S21", f"{process.name} has ended, and readers do not see {missing[:3]}")
            if was_calm:
                self.replayed.add(name)
        process.end()

    def _replay_window(self, name: str, process: Process, runtime: Runtime, random: Random) -> set[bytes]:
        shards = [
            Shard(f"shard-{number}", HashRange(0, MAX_HASH_KEY), "0", "1") for number in range(self.what.shards)
        ]
        engine = _WindowEngine(name, self.what, process, random.uniform)
        sink = self._chain(process, runtime, f"{APPLICATION}/replay", name)
        Replay(APPLICATION, STREAM, ReplayWindow(name, 0, 1), shards, engine, sink).run()
        return {
            record_of(name, shard.id, number + 1)
            for shard, pieces in zip(shards, self.what.pieces, strict=True)
            for number in range(sum(pieces))
        }

    def _replay_letters(self, process: Process, runtime: Runtime) -> None:
        frames: Any = _Frames()
        sink = _OfFrames(self._chain(process, runtime, f"{APPLICATION}/{LETTERS}", LETTERS))
        store = store_of(self._line(process, self.letters, "letters"), runtime)
        recipient = dead_letter_replay.ToSink(frames, sink)
        done = dead_letter_replay.replay(store, APPLICATION, recipient, clock=runtime.clock)
        if done.failing:
            raise ValueError(f"{len(done.failing)} letters fail again")

    def _chain(self, process: Process, runtime: Runtime, owner: str, name: str) -> PartsChain[Sequence[Row]]:
        chained, draw = self.scenario.chained, self.random(f"{process.name} sink").random
        assert chained is not None
        line, faults = self._line(process, self.lake.backend, "s3"), self.active_faults.sink
        destinations = destinations_of(chained, line, runtime, faults, draw)
        sink = ChainedSink(self.lake, destinations, process, faults, draw, FIRST_VERSION, chained.tasks)
        return PartsChain(sink, owner, name, runtime)

    def _line(self, process: Process, backend: object, what: str) -> Line:
        random = self.random(f"{process.name} {what}")
        return Line(process, "s3", backend, random, self.active_faults.fate, self._served)

    def _served(self, process: Process, service: str, operation: str, request: dict[str, Any], answer: Any) -> None:
        self.trace.detail(
            self.kernel.now, "call", lambda: f"{process.name} {operation} {request.get('Key', '')} {answer!r:.60}"
        )
        self.active_faults.served(process, operation, request)

    # Letters

    def _write_letter(self, number: int) -> None:
        letter = DeadLetter(
            version=FORMAT_VERSION,
            application=APPLICATION,
            stream=str(STREAM),
            shard_id=f"shard-{number % self.what.shards}",
            sequence_number=str(number + 1),
            sub_sequence_number=0,
            partition_key="key",
            explicit_hash_key=None,
            arrival_ms=0,
            data=b64encode(letter_of(number)).decode(),
            batch_number=1,
            worker="worker",
            attempts=1,
            failed_at_ms=0,
            error_type="ValueError",
            error="injected",
        )
        self.letters.put(letter.name, letter.to_json())

    def _written_letters(self) -> set[bytes]:
        return {letter_of(number) for number, at in enumerate(self.what.letters) if at <= self.kernel.now}

    # Around it

    def _calm_down(self) -> None:
        self.kernel.note("calm", "the faults stop")
        self.is_calm = True
        self.active_faults.clear()
        for process in self.living():
            process.resume()
        for name in self.what.starts:
            self.kernel.call_at(self.kernel.now + STEP_SECONDS, lambda name=name: self._start(name))  # type: ignore[misc]

    def _time(self) -> float:
        return EPOCH + self.kernel.now

    def random(self, what: str) -> Random:
        return Random(f"{self.scenario.seed} {what}")

    def _note(self, now: float, kind: str, text: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.trace.note(now, kind, text)

    def _strand_ended(self, strand: Strand) -> None:
        if strand.failure is not None:
            self.violations.add("X1", f"{strand.name} raised {strand.failure!r}")

    def _no_truth(self, _row: object) -> Any:
        raise AssertionError("no lease is replayed")


def letter_of(number: int) -> bytes:
    return f"letter {number}".encode()


def run_replays(scenario: Scenario, *, keep_trace: bool = False) -> Outcome:
    """One scenario, from the beginning to its end or its first violation."""
    return ReplayRuns(scenario, Trace(keep=keep_trace)).run()
