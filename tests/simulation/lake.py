"""The simulated sink, and the records that were put into the streams. Checks that no record is lost, duplicated or
out of order."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from kcl_dagster.errors import SinkError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.worker.batch import Batch, Part
from tests.doubles.engine import Row
from tests.doubles.sink import Identity, identity
from tests.simulation.consumer import FIRST_VERSION, CodeVersion
from tests.simulation.files import check_values
from tests.simulation.kernel import Process
from tests.simulation.properties import Violations

# Writing a part takes as long as putting a small file somewhere.
PART_SECONDS: Final = 0.05


@dataclass(slots=True)
class ShardTruth:
    """The records that were put into one shard, in order, and how many of them are stored."""

    name: str
    parents: tuple[str, ...]
    numbers: list[int] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    """As the stream tells them: epoch seconds, not strictly in order."""

    wanted_from: int = 0
    """Records before this index come before the application's start. It is known with the first part."""

    start_limit: int | None = None
    """The number of records in the shard when the application began: no later record may be omitted, except the
    first ones that the stream dates before `start_moment`."""

    start_moment: float = 0.0
    """When the application began, in epoch seconds."""

    stored_to: int = 0
    """Records before this index are stored, or come before the start."""

    last_part: Part | None = None
    is_repeated: bool = False
    """The shard's lease was deleted by hand: its records may be stored again, and no sink can detect that."""

    is_put_back: bool = False
    """An operator put its lease back, and nothing was stored again since."""

    is_shared: bool = False
    """Java workers read the shard, too: records that they processed may be stored by our workers as well."""

    is_leased: bool = False
    """The shard has or had a lease."""

    waits_from: int | None = None
    """Several processes ended while they wrote the batch that begins at this index. The worker reads the shard
    again after five minutes or more. Each new owner waits again."""

    told_to: int = 0
    """A worker reported that records before this index left the stream unread."""

    given_up_to: int = 0
    """Records before this index belong to a batch that was begun, and reported as lost after its first record had
    left the stream."""

    is_told: bool = False
    """A worker reported that records, if there were any, left the stream unread."""

    @property
    def begins_at(self) -> int:
        """How many records came before the application's start, as far as that is known without a part: those that
        were there, and the next ones that the stream dates before that moment."""
        begin = self.start_limit
        if begin is None:
            return 0
        while begin < len(self.arrivals) and self.arrivals[begin] < self.start_moment:
            begin += 1
        return begin

    def index_after(self, checkpoint: Checkpoint) -> int:
        """The number of records that `checkpoint` covers."""
        if checkpoint.is_shard_end:
            return len(self.numbers)
        if checkpoint.is_initial_position:
            return self.wanted_from
        return self.index_of(int(checkpoint.sequence))

    def index_of(self, number: int) -> int:
        """The number of records through the one with this sequence number."""
        return bisect_right(self.numbers, number)

    @property
    def read_to(self) -> int:
        """How far the shard is read. If its lease was deleted, it is read again from its start."""
        if self.last_part is None or not self.is_repeated:
            return self.stored_to
        return min(self.stored_to, self.index_after(self.last_part.through))

    @property
    def is_drained(self) -> bool:
        return max(self.stored_to, self.begins_at) >= len(self.numbers)


def _nothing(_stream: str, _shard: str, _numbers: Sequence[int]) -> int:
    return 0


@dataclass(slots=True)
class Lake:
    """An exactly-once sink that checks each part against what was put (S1, S2, S6, S12)."""

    HAS_NUMBERS: ClassVar = True
    """Whether each part has a number of its own."""

    violations: Violations
    goes_on: bool = False
    """Whether the application's policy is to continue after a loss. The loss has to be reported."""

    expired: Callable[[str, str, Sequence[int]], int] = _nothing
    """How many of the records with these numbers have left their stream."""

    shards: dict[tuple[str, str], ShardTruth] = field(default_factory=dict)
    former: dict[tuple[str, int], dict[str, ShardTruth]] = field(default_factory=dict)
    """Shards of streams that were deleted, by name and second of creation."""

    stored: dict[Identity, tuple[Row, ...]] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=lambda: dict(FIRST_VERSION.columns))
    """Name and type of the columns of the table. It was made for the first version of the code, whichever version
    stores the first batch. Columns may be added, types may not change."""

    highest: dict[tuple[str, str], int] = field(default_factory=dict)
    """The highest stored number of each stream and shard. It remains if the lease is deleted."""

    withdrawn: dict[tuple[str, str], int] = field(default_factory=dict)
    """Of each stream and shard, the number up to which workers with chains have withdrawn parts."""

    refused: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """Shards of which a part was refused because of its number, and none was stored since: the writer and the
    part."""

    records: int = 0

    def truth(self, stream: str, shard: str, created: int | None = None) -> ShardTruth:
        """The truth about a shard. `created` distinguishes a stream from former ones of the same name."""
        former = self.former.get((stream, created)) if created is not None else None
        return former[shard] if former is not None else self.shards[stream, shard]

    def forget(self, stream: str, created: int) -> None:
        """Record that a stream was deleted: records that are not stored yet will never be."""
        self.former[stream, created] = {
            shard: self.shards.pop((name, shard)) for name, shard in list(self.shards) if name == stream
        }

    def opened(self, stream: str, shard: str, parents: Sequence[str]) -> None:
        self.shards[stream, shard] = ShardTruth(f"{stream}/{shard}", tuple(parents))

    def put(self, stream: str, shard: str, number: str, payload: bytes, arrival: float = 0.0) -> None:
        truth = self.shards[stream, shard]
        truth.numbers.append(int(number))
        truth.payloads.append(payload)
        truth.arrivals.append(arrival)

    def repeats(self, stream: str, shard: str | None) -> None:
        """Record that a lease was deleted by hand: its shard, and its ancestors without leases, are read again. If
        `shard` is None, no lease remains, and all shards are read again."""
        if shard is None:
            for truth in self.shards.values():
                truth.is_repeated = True
            return
        above = [shard]
        while above:
            truth_above = self.shards.get((stream, above.pop()))
            if truth_above is not None and not truth_above.is_repeated:
                truth_above.is_repeated = True
                above += truth_above.parents

    def store(
        self,
        part: Part,
        rows: tuple[Row, ...],
        worker: str = "",
        code: CodeVersion = FIRST_VERSION,
    ) -> None:
        """One part, once. Raises RecordRefused for a value that no folder can be named by."""
        check_values(rows, code)
        self.admit(code)
        key = identity(part)
        known = self.stored.get(key)
        truth = self.truth(part.stream.name, part.shard_id, part.stream.creation_epoch)
        if known is not None:
            if known != rows:
                self.violations.add("S12", f"{_named(part)} came again with other records")
                return
            if truth.is_repeated and (truth.last_part is None or part.number >= truth.last_part.number):
                truth.last_part = part  # a former owner that stores its part late does not put the shard back
            return
        self._check_names(part, truth, worker)
        self._withdraw_replaced(part, truth)
        self.stored[key] = rows
        self.add(part, rows, truth)

    def add(self, part: Part, rows: tuple[Row, ...], truth: ShardTruth) -> None:
        """Readers see the rows of a part that they have not seen before."""
        self.records += len(rows)
        if truth.start_limit is not None:
            self._begin(part, rows, truth)
        start = self._start_of(part, rows, truth)
        self._check_parents(_named(part), truth, part.stream.name, part.stream.creation_epoch)
        self._check_content(part, rows, truth, start)
        self._check_place(part, truth, start)
        truth.last_part, truth.is_put_back = part, False

    def _withdraw_replaced(self, part: Part, truth: ShardTruth) -> None:
        """Remove the parts that this one takes the place of, as the Parquet sink does. One of them may be stored:
        its worker ended before the checkpoint, and it was cut in two when three owners had ended."""
        if part.instead_of is None:
            return
        place, numbers = identity(part)[:-2], range(part.instead_of, part.number)
        for key in [key for key in self.stored if key[:-2] == place and key[-1] in numbers]:
            self.records -= len(self.stored.pop(key))
            truth.stored_to = min(truth.stored_to, truth.index_after(part.after))

    def admit(self, code: CodeVersion) -> None:
        """Raises SinkError for code whose columns do not fit those of the table."""
        for name, kind in code.columns:
            if self.columns.setdefault(name, kind) != kind:
                raise SinkError(f"column {name} of the table is {self.columns[name]}, and of the batch {kind}")

    def _check_names(self, part: Part, truth: ShardTruth, worker: str) -> None:
        """A new part has a number above all others of its shard, whatever became of the lease in between (S13).

        A table refuses a number that is lower. That is right for a former owner of a deleted lease that comes late;
        a present owner would be refused for ever.
        """
        shard = (str(part.stream), part.shard_id)
        highest = self.highest.get(shard, -1)
        if part.number <= self.withdrawn.get(shard, -1):
            raise SinkError(f"{_named(part)} was withdrawn: the table refuses it")
        if part.number < highest and self._was_given_up(part, truth):
            raise SinkError(f"{_named(part)} was given up before number {highest}: the table refuses it")
        if part.number == highest:
            self.violations.add("S13", f"{_named(part)} is not the first with its number")
        if part.number < highest and (truth.is_repeated or truth.is_shared):
            self.refused[shard] = worker, f"{_named(part)} comes after number {highest}"
            raise SinkError(f"{self.refused[shard][1]}: the table refuses it")
        self.refused.pop(shard, None)
        self.highest[shard] = max(highest, part.number)

    def _was_given_up(self, part: Part, truth: ShardTruth) -> bool:
        """Whether the records of a begun batch were reported as lost, and the shard was read on behind them. The
        worker that began it may still be trying to store it."""
        return self.goes_on and truth.index_after(part.through) <= truth.told_to

    # Workers that decide their batches in chains find parts of former workers

    def stored_to(self, part: Part) -> Checkpoint | None:
        """See `worker.staging.FormerParts`."""
        found = self._replaced_by(part)
        return None if not found else found[0][-2]

    def withdraw(self, part: Part) -> None:
        """See `worker.staging.FormerParts`. Readers see these records again when they are stored again."""
        truth = self.truth(part.stream.name, part.shard_id, part.stream.creation_epoch)
        for key in self._replaced_by(part):
            self.records -= len(self.stored.pop(key))
            truth.stored_to = min(truth.stored_to, truth.index_after(part.after))
        shard = (str(part.stream), part.shard_id)
        self.withdrawn[shard] = max(self.withdrawn.get(shard, -1), part.number)

    def _replaced_by(self, part: Part) -> list[Identity]:
        first = part.number if part.instead_of is None else part.instead_of
        place = identity(part)[:-2]
        return [key for key in self.stored if key[:-2] == place and first <= key[-1] <= part.number]

    def is_said_complete(self, through: int) -> None:
        """Check a written moment: everything that arrived before `through` is stored (S16)."""
        for truth in self.shards.values():
            if truth.is_shared and truth.is_repeated:
                continue  # what Java workers deliver again is not known
            read_to = 0 if truth.is_put_back else truth.read_to
            begin = max(read_to, truth.begins_at, truth.wanted_from)
            if all(arrival >= through for arrival in truth.arrivals[begin:]):
                continue
            given_up_to = truth.given_up_to if self.goes_on else 0
            begin = max(begin, self._expired(truth), given_up_to)
            left = sum(arrival < through for arrival in truth.arrivals[begin:])
            if left and not self.is_excused(truth):
                self.violations.add("S16", f"{truth.name} has {left} records before {through} that are not stored")

    # Records that left the stream

    def told(self, truth: ShardTruth, until: str | None) -> None:
        """Record the report of a loss: of the records before the number `until`, or of all."""
        index = bisect_left(truth.numbers, int(until)) if until else len(truth.numbers)
        truth.told_to = max(truth.told_to, index)
        truth.is_told = True

    def gave_up(self, truth: ShardTruth, first: str | None, until: str | None) -> None:
        """Record that a batch was reported as lost that had been begun. It is given up as a whole, because the sink
        may hold it; so are records of it that are still in the stream. This needs its first record to be gone."""
        if first is None or self._expired(truth) > bisect_left(truth.numbers, int(first)):
            truth.given_up_to = bisect_left(truth.numbers, int(until)) if until else len(truth.numbers)

    def is_there_after(self, truth: ShardTruth, number: int) -> bool:
        """Whether all records after the one with this number, which may be below all, are still in the stream."""
        return self._expired(truth) <= max(truth.wanted_from, bisect_right(truth.numbers, number))

    def _start_of(self, part: Part, rows: tuple[Row, ...], truth: ShardTruth) -> int:
        """The index of the part's first record; those before it may have left the stream.

        A worker has to report that, and the policy has to be to continue. At the first shards of an application,
        and at children of shards that were never read, no worker can detect that there were records before.
        """
        start = truth.index_after(part.after)
        first = bisect_left(truth.numbers, int(rows[0].sequence_number)) if rows else start
        if first <= start or first > self._expired(truth):
            return start
        is_told = self.goes_on and first <= truth.told_to
        if not is_told and not (part.after.is_initial_position and self._knows_nothing(part, truth)):
            return start
        if part.after.is_initial_position:
            truth.wanted_from = first
        truth.stored_to = max(truth.stored_to, first)
        return first

    def _knows_nothing(self, part: Part, truth: ShardTruth) -> bool:
        """Whether no lease records that the shard had records: none of its parents was read, or the lease with that
        knowledge, its own or a parent's, was deleted by hand."""
        above = [self._sibling(part.stream.name, name, part.stream.creation_epoch) for name in truth.parents]
        were_read = [one for one in above if one is not None and one.last_part is not None and not one.is_repeated]
        return truth.is_repeated or not were_read

    def _expired(self, truth: ShardTruth) -> int:
        stream, _, shard = truth.name.partition("/")
        return self.expired(stream, shard, truth.numbers)

    def is_gone(self, truth: ShardTruth) -> bool:
        """Whether none of the shard's records can be read any more."""
        return self._expired(truth) >= len(truth.numbers)

    def is_excused(self, truth: ShardTruth) -> bool:
        """Whether nothing of the shard is left to be stored, and the fleet could not prevent or has reported
        that."""
        if self._may_skip(truth, len(truth.numbers)):
            return True
        if not self.is_gone(truth):
            return False
        looks_unread = truth.is_repeated or truth.stored_to <= truth.wanted_from
        return not truth.is_leased or looks_unread or (self.goes_on and truth.told_to >= len(truth.numbers))

    def _is_held_up(self, stream: str, truth: ShardTruth) -> bool:
        """Whether a loss of records or of processes has stopped the shard or an ancestor of it. Lost records may
        have been stored before: if the record at the checkpoint is gone, a worker cannot know whether the next one
        is still there. A shard whose lease was deleted looks as if it was never read."""
        seen, waiting = {truth.name}, [truth]
        while waiting:  # each ancestor once: after n splits and merges, 2^n paths lead to it
            one = waiting.pop()
            if one.waits_from is not None and one.stored_to <= one.waits_from:
                return True
            is_lost = one.is_repeated or one.told_to >= one.stored_to or self.is_gone(one)
            if one.is_told and is_lost and not self.goes_on:
                return True
            for parent in (self.shards.get((stream, name)) for name in one.parents):
                if parent is not None and parent.name not in seen:
                    seen.add(parent.name)
                    waiting.append(parent)
        return False

    def is_stopped(self, truth: ShardTruth) -> bool:
        """Whether a loss of records or of processes has stopped the shard: its own, or one of an ancestor."""
        return self._is_held_up(truth.name.partition("/")[0], truth)

    # Checks

    def _begin(self, part: Part, rows: tuple[Row, ...], truth: ShardTruth) -> None:
        """Check the first part of a shard that existed when the application began at LATEST."""
        first = bisect_left(truth.numbers, int(rows[0].sequence_number)) if rows else 0
        lost = self._expired(truth) if truth.is_repeated else min(self._expired(truth), truth.told_to)
        if truth.start_limit is not None and first > max(truth.begins_at, lost):
            skipped = first - truth.begins_at
            self.violations.add("S1", f"{_named(part)} skips {skipped} records that came after the start")
        truth.wanted_from, truth.start_limit = first, None
        truth.stored_to = max(truth.stored_to, first)

    def deliver(self, stream: str, shard: str, rows: list[tuple[int, bytes]]) -> None:
        """Check a delivery to a Java worker's record processor: at least once, in order, without gaps."""
        truth = self.truth(stream, shard)
        truth.is_shared = True
        name = f"{len(rows)} records of {truth.name} from {rows[0][0]} on for Java"
        self._check_parents(name, truth, stream, None)
        first = bisect_left(truth.numbers, rows[0][0])
        end = first + len(rows)
        if rows != list(zip(truth.numbers[first:end], truth.payloads[first:end], strict=True)):
            self.violations.add("S2", f"{name} are not what was put")
        if first > truth.stored_to:
            self.violations.add("S1", f"{name} leave out {first - truth.stored_to} records before them")
        truth.stored_to = max(truth.stored_to, end)
        self.records += len(rows)

    def _check_parents(self, name: str, truth: ShardTruth, stream: str, created: int | None) -> None:
        for parent in truth.parents:
            above = self._sibling(stream, parent, created)
            # A parent whose lease was deleted by hand delays no child: it looks like one that was cleaned up.
            if above is None or above.is_repeated or above.is_drained:
                continue
            if not self.is_excused(above):
                left = len(above.numbers) - above.stored_to
                self.violations.add("S6", f"{name} is stored while {left} records of {above.name} are not")

    def _sibling(self, stream: str, shard: str, created: int | None) -> ShardTruth | None:
        try:
            return self.truth(stream, shard, created)
        except KeyError:
            return None

    def _check_content(self, part: Part, rows: tuple[Row, ...], truth: ShardTruth, start: int) -> None:
        end = truth.index_after(part.through)
        expected = [
            (number, data) for number, data in zip(truth.numbers[start:end], truth.payloads[start:end], strict=True)
        ]
        found = [(int(row.sequence_number), row.data) for row in rows]
        if found != expected:
            name = "S1" if len(found) < len(expected) else "S2"
            held = {row.data for row in rows}
            missing = [data.decode() for _, data in expected if data not in held]
            self.violations.add(
                name,
                f"{_named(part)} should hold {len(expected)} records and holds {len(found)}; not {missing[:5]}",
            )

    def _check_place(self, part: Part, truth: ShardTruth, start: int) -> None:
        end = truth.index_after(part.through)
        may_repeat = truth.is_repeated or truth.is_shared
        if start > truth.stored_to and not self._may_skip(truth, start):
            self.violations.add("S1", f"{_named(part)} leaves out {start - truth.stored_to} records before it")
        if start < truth.stored_to and not may_repeat:
            self.violations.add(
                "S12", f"{_named(part)} repeats {truth.stored_to - start} records: {truth.last_part}"
            )
        last = truth.last_part
        if self.HAS_NUMBERS and last is not None and part.number <= last.number and not may_repeat:
            self.violations.add("S12", f"{_named(part)} has a number that does not grow: {last.number}")
        truth.stored_to = max(truth.stored_to, end)

    def _may_skip(self, truth: ShardTruth, start: int) -> bool:
        """Whether records before `start` belong to a batch that was begun, and left the stream before its
        repetition. A batch that was begun after a reset may begin with records that were stored before."""
        if not self.goes_on:
            return False
        return start <= truth.given_up_to or (start <= truth.told_to and self._expired(truth) > truth.stored_to)

    def missing(self) -> list[str]:
        """Shards with records that are not stored and could be."""
        return [
            f"{truth.name}: {len(truth.numbers) - truth.stored_to} of {len(truth.numbers)}"
            for truth in self._behind()
        ]

    def behind(self) -> int:
        """The number of records that are not stored and could be, including those that have to be read again
        first."""
        return sum(len(truth.numbers) - truth.read_to for truth in self._behind())

    def _behind(self) -> list[ShardTruth]:
        return [
            truth
            for (stream, _), truth in self.shards.items()
            if not truth.is_drained
            and not self.is_gone(truth)
            and not self._is_held_up(stream, truth)
            and not self._is_cut_out(stream, truth)
        ]

    def _is_cut_out(self, stream: str, truth: ShardTruth) -> bool:
        """Whether the shard's lease was deleted by hand when its children had leases: then nothing shows that the
        shard was not read to its end."""
        shard = truth.name.partition("/")[2]
        children = [t for (name, _), t in self.shards.items() if name == stream and shard in t.parents]
        return truth.is_repeated and any(child.is_leased for child in children)


def _named(part: Part) -> str:
    return f"part {part.number} of {part.shard_id} ({part.after}, {part.through}]"


# How often hung code checks whether the faults have ended.
HANG_SECONDS: Final = 5.0


@dataclass(slots=True)
class SinkFaults:
    """The faults of the sink at the moment."""

    refuses: float = 0.0
    lies: float = 0.0
    slow_seconds: float = 0.0
    code_fails: float = 0.0
    """Share of the batches in which user code raises."""

    hangs: dict[str, float] = field(default_factory=dict)
    """For how many seconds user code hangs in the next batch of a process."""

    times_cleared: int = 0

    def clear(self) -> None:
        self.refuses = self.lies = self.slow_seconds = self.code_fails = 0.0
        self.hangs.clear()
        self.times_cleared += 1

    def hang(self, process: Process) -> None:
        """Return after the seconds that are drawn for the process, or soon after the faults have stopped."""
        kernel, times_cleared = process.kernel, self.times_cleared
        until = kernel.now + self.hangs.pop(process.name, 0.0)
        while (left := until - kernel.now) > 0 and self.times_cleared == times_cleared:
            kernel.sleep(min(left, HANG_SECONDS))


def _any_part(_: Part) -> None:
    """The default, for a sink whose writes are not observed."""


@dataclass(slots=True)
class LakeSink:
    """The sink of one worker. Parts are written one after another; the worker may end after each."""

    lake: Lake
    process: Process
    faults: SinkFaults
    draw: Callable[[], float]
    on_write: Callable[[Part], None] = _any_part
    code: CodeVersion = FIRST_VERSION

    def write(self, data: Sequence[Row], batch: Batch) -> None:
        kernel = self.process.kernel
        for part in batch.parts:
            self.on_write(part)
        kernel.sleep(self.faults.slow_seconds)
        if self.faults.hangs:
            self.faults.hang(self.process)
        if self.faults.code_fails and self.draw() < self.faults.code_fails:
            raise ValueError("user code fails, injected")
        for part in batch.parts:
            kernel.sleep(PART_SECONDS * self.draw())
            if self.draw() < self.faults.refuses:
                kernel.note("sink", f"{self.process.name} {_named(part)} is refused")
                raise SinkError("the sink refuses, injected")
            rows = tuple(row for row in data if row.lease == part.lease)
            self.lake.store(part, rows, str(batch.worker), self.code)
            kernel.note("sink", f"{self.process.name} {_named(part)} is stored")
            if self.draw() < self.faults.lies:
                raise SinkError("the sink lies, injected")
            kernel.sleep(PART_SECONDS * self.draw())
