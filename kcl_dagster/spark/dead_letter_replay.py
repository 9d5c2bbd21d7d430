"""Replays dead letters (records that failed and were stored elsewhere) with the same user code and the same sink.
Each letter is stored once.

A replay lists the letters, and records their names in its journal under a number. It then stores the letters as a
batch with this number, and removes them. If a replay is interrupted, the next replay finishes it with the same
number. So a sink that recognises repeated parts stores each letter once. Letters that fail again are kept, and do
not block other letters.

As with batches, the first number of a journal is the time in milliseconds. There are two reasons:

- Sinks remember the numbers of a former journal, even if it was removed together with its folder. The time in
  milliseconds is higher than these numbers.
- Sinks treat numbers below 10^12 as numbers of version 0.1, whose file names do not contain the application.
"""

import re
from base64 import b64decode
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

import msgspec
from pyspark.sql import SparkSession

from kcl_dagster.chains.store import found_content
from kcl_dagster.errors import ConfigurationError, ProcessLost, Unsafe
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Clock, SystemClock
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.row_types import RECORD_TYPE
from kcl_dagster.spark.storage import Store
from kcl_dagster.worker.batch import Batch, Part
from kcl_dagster.worker.dead_letter import DeadLetter
from kcl_dagster.worker.error_class import ErrorClass, class_of
from kcl_dagster.worker.error_text import full
from kcl_dagster.worker.instance import Instance
from kcl_dagster.worker.kclpy import checkpoint_error
from kcl_dagster.worker.parts_chain import PartsSink
from kcl_dagster.worker.processor import ProcessorFactory, Record
from kcl_dagster.worker.ranges import first_number_at

WORKER: Final = WorkerId("dead-letters")
JOURNAL: Final = "_replays"  # readers of letters ignore names that begin with an underscore
LETTERS_AT_ONCE: Final = 1_000  # the driver keeps them in memory; a letter has at most 10 MiB, usually 1 KB


class Recipient(Protocol):
    """Processes and stores dead letters."""

    def begin(self) -> bool:
        """Return whether the recipient guarantees both of the following. Called before letters are listed.

        - If another replay stores letters after this call, the replay that made this call fails.
        - If letters were stored under a number, nothing is stored again under this number, whatever letters are
          passed with it.

        With these guarantees, a replay that was paused stores no letter again if another replay was started
        meanwhile.
        """

    def has_stored(self, letters: Sequence[DeadLetter], number: int) -> bool:
        """Whether the letters are stored under this number. Called only if `begin` returned True."""

    def take(self, letters: Sequence[DeadLetter], number: int) -> None:
        """Process and store letters. After a crash, the same letters are passed again under the same number. If
        this method raises, the class of the error shows whether a letter may have caused it."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay. `stored`: the number of stored letters. `failing`: the names of letters that still
    fail, with their errors. `malformed`: the names of files that are no letters, with the reasons; the files are
    kept."""

    stored: int
    failing: dict[str, str]
    left: int = 0
    """The number of letters that were not tried, because a replay takes a limited number."""

    malformed: dict[str, str] = field(default_factory=dict)


def replay(
    store: Store,
    application: str,
    recipient: Recipient,
    *,
    most: int = LETTERS_AT_ONCE,
    clock: Clock | None = None,
) -> Replayed:
    """Process up to `most` letters of an application. Must not run beside another replay of the same application.

    `store`: the failure policy's `dead_letter_path`. Errors of AWS and of the sink are raised; the next replay then
    continues this one.
    """
    return _Replay(store, application, recipient, clock or SystemClock()).run(most)


class _Entry(msgspec.Struct, frozen=True):
    """The state of a number in the journal. `letters`: the names of the letters of this number. If `is_stored`,
    these letters were stored, but not removed yet. If not, they are in progress. Without letters, the number was
    used, and nothing remains to be done for it."""

    letters: tuple[str, ...] = ()
    is_stored: bool = False


@dataclass(slots=True)
class _Replay:
    store: Store
    application: str
    recipient: Recipient
    clock: Clock
    last: int = 0
    knows_numbers: bool = False
    """Whether the recipient itself knows which numbers it has stored."""

    def run(self, most: int) -> Replayed:
        self.knows_numbers = self.recipient.begin()
        stored, failing = 0, dict[str, str]()
        journal = self._journal()
        self.last = max(journal, default=0)
        under_way = []
        for number, entry in journal.items():
            if entry.is_stored:
                self._remove(number, entry.letters)
            elif entry.letters:
                under_way.append((number, entry.letters))
        # If two replays recorded the same letters and one of the replays has stored them, the number of that replay
        # is processed first. This removes the letters, so that they are not stored under the other number.
        for number, names in sorted(under_way, key=lambda noted: not self._is_stored(*noted)):
            letters = self._under_way(names)
            if letters:
                stored += self._process(number, letters, failing)
            else:
                self._note(number, _Entry())
        waiting = [name for name in self._names() if name not in failing]
        taken, malformed = dict[str, DeadLetter](), dict[str, str]()
        for name in waiting:
            if len(taken) == most:
                break
            try:
                taken[name] = _letter(self.store.get(name))
            except ValueError as error:
                malformed[name] = str(error)
        if taken:
            stored += self._process(self._next(), taken, failing)
        return Replayed(stored, failing, len(waiting) - len(taken) - len(malformed), malformed)

    def _is_stored(self, number: int, names: tuple[str, ...]) -> bool:
        """Whether it is known that these letters were stored under this number."""
        letters = self._under_way(names) if self.knows_numbers else {}
        return bool(letters) and self.recipient.has_stored(list(letters.values()), number)

    def _under_way(self, names: tuple[str, ...]) -> dict[str, DeadLetter]:
        """Read the letters that were recorded under a number and are possibly stored already. Raises if a letter is
        missing or was changed, because the number would then stand for different letters.

        With `knows_numbers`, missing letters are skipped instead. Letters can be missing if two replays overlapped:
        the first one listed the letters and was paused, the second one stored and removed them, and then the first
        one recorded their names in the journal.
        """
        letters = {}
        for name in names:
            content = found_content(self.store, name) if self.knows_numbers else self.store.get(name)
            if content is None:
                continue
            try:
                letters[name] = _letter(content)
            except ValueError as error:
                raise ConfigurationError(
                    f"{self.store.root}/{name} was changed while a replay was under way and is {error}. Restore it"
                ) from error
        return letters

    def _process(self, number: int, letters: Mapping[str, DeadLetter], failing: dict[str, str]) -> int:
        """Process letters together. If that fails because of a letter or user code, process each letter alone.
        Returns the number of stored letters."""
        error = self._attempt(number, letters)
        if error is None:
            return len(letters)
        if len(letters) == 1:
            failing[next(iter(letters))] = full(error)
            return 0
        return sum(self._process(self._next(), {name: one}, failing) for name, one in letters.items())

    def _attempt(self, number: int, found: Mapping[str, DeadLetter]) -> Exception | None:
        names, letters = tuple(found), list(found.values())
        self._note(number, _Entry(names))
        try:
            self.recipient.take(letters, number)
        except Exception as error:
            if not _may_be_caused_by_a_record(error):
                raise
            self._note(number, _Entry())
            return error
        self._note(number, _Entry(names, is_stored=True))
        self._remove(number, names)
        return None

    def _remove(self, number: int, names: Sequence[str]) -> None:
        self.store.delete(names)
        self._note(number, _Entry())

    def _next(self) -> int:
        self.last = max(self.last + 1, first_number_at(self.clock.now()))
        return self.last

    def _names(self) -> list[str]:
        return sorted(file.path for file in self.store.files(f"{self.application}/") if file.path.endswith(".json"))

    def _note(self, number: int, entry: _Entry) -> None:
        self.store.put(f"{self.application}/{JOURNAL}/{number:012d}.json", msgspec.json.encode(entry))

    def _journal(self) -> dict[int, _Entry]:
        form = re.compile(rf"{re.escape(self.application)}/{JOURNAL}/(\d{{12,}})\.json")
        found = self.store.files(f"{self.application}/{JOURNAL}/", hidden=True)
        matches = sorted((match for file in found if (match := form.fullmatch(file.path))), key=lambda one: one[0])
        return {int(match[1]): self._noted(match[0]) for match in matches}

    def _noted(self, path: str) -> _Entry:
        try:
            return msgspec.json.decode(self.store.get(path), type=_Entry)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Unsafe(
                f"{self.store.root}/{path} cannot be read, so it is not known which letters are stored: {error}. "
                "Restore the file. Without it, the letters that were in progress may be stored twice"
            ) from error


@dataclass(frozen=True, slots=True)
class ToSink:
    """Passes letters as batches to the application's own sink, which runs the application's transform."""

    spark: SparkSession
    sink: PartsSink[Records]
    worker: WorkerId = WORKER

    def begin(self) -> bool:
        return self.sink.open()

    def has_stored(self, letters: Sequence[DeadLetter], number: int) -> bool:
        return all(self.sink.holds(part) for part, _ in _parts(letters, number))

    def take(self, letters: Sequence[DeadLetter], number: int) -> None:
        parts = _parts(letters, number)
        rows = [
            (
                b64decode(letter.data),
                letter.partition_key,
                letter.explicit_hash_key,
                letter.sequence_number,
                letter.sub_sequence_number,
                None if letter.arrival_ms is None else datetime.fromtimestamp(letter.arrival_ms / 1000, UTC),
                _stream(letter).name,
                letter.shard_id,
                str(part.lease),
                None,
            )
            for part, some in parts
            for letter in some
        ]
        batch = Batch(letters[0].application, self.worker, tuple(part for part, _ in parts))
        try:
            self.sink.write(Records.of(self.spark.createDataFrame(rows, RECORD_TYPE)), batch)
        except Exception:
            # The attempt may have stored the batch before it failed. If the error were raised, the letters would be
            # stored again under another number.
            if not all(map(self.sink.holds, batch.parts)):
                raise


@dataclass(frozen=True, slots=True)
class ToProcessors:
    """Passes dead letters to record processors. Each call of `take` creates a new record processor for each shard.
    The checkpoints of these processors are discarded."""

    new_processor: ProcessorFactory

    def begin(self) -> bool:
        return False

    def has_stored(self, letters: Sequence[DeadLetter], number: int) -> bool:  # noqa: ARG002 - the same for all letters
        return False

    def take(self, letters: Sequence[DeadLetter], number: int) -> None:
        for part, some in _parts(letters, number):
            instance = Instance(self.new_processor(), part.shard_id, checkpoint_error())
            instance.initialize(part.after)
            records = [
                Record(
                    b64decode(letter.data),
                    letter.partition_key,
                    letter.sequence_number,
                    letter.sub_sequence_number,
                    letter.arrival_ms or 0,
                    letter.explicit_hash_key,
                )
                for letter in some
            ]
            instance.process([records], None, _Nowhere())
            instance.shutdown_requested(_Nowhere())


class _Nowhere:
    def checkpoint(self, *_: object) -> str | None:
        return None

    def set_aside(self, *_: object) -> bool:
        return False


def _may_be_caused_by_a_record(error: Exception) -> bool:
    """Whether a letter may have caused the error, so that other letters can still be stored. Also True if Spark
    lost a process, because a letter can crash the process that works on it."""
    return class_of(error) in {ErrorClass.RECORD, ErrorClass.CODE} or isinstance(error, ProcessLost)


def _letter(text: bytes) -> DeadLetter:
    """Parse a letter. Raises ValueError if no worker can have written this content."""
    letter = DeadLetter.from_json(text)
    try:
        _place(letter)
        b64decode(letter.data, validate=True)
    except ValueError as error:
        msg = f"not a dead letter: {error}"
        raise ValueError(msg) from error
    return letter


def _parts(letters: Sequence[DeadLetter], number: int) -> list[tuple[Part, list[DeadLetter]]]:
    """Make one part for each shard, with the letters of the shard in order. The part's lease key contains the
    number of the replay, so that it differs from the lease keys of all parts of the stream."""
    shards: dict[tuple[str, str], list[DeadLetter]] = defaultdict(list)
    for letter in letters:
        shards[letter.stream, letter.shard_id].append(letter)
    parts = []
    for (_, shard), some in sorted(shards.items()):
        some.sort(key=_place)
        stream = _stream(some[0])
        first, last = some[0], some[-1]
        part = Part(
            application=first.application,
            lease=LeaseKey(f"{stream.lease_key(shard)}.dead-letters-{number}"),
            stream=stream,
            shard_id=f"{shard}.dead-letters",
            after=Checkpoint(first.sequence_number, first.sub_sequence_number),
            through=Checkpoint(last.sequence_number, last.sub_sequence_number),
            number=number,
            records=len(some),
            bytes=sum(len(letter.data) for letter in some) * 3 // 4,
        )
        parts.append((part, some))
    return parts


def _place(letter: DeadLetter) -> tuple[int, int]:
    return int(letter.sequence_number), letter.sub_sequence_number


def _stream(letter: DeadLetter) -> StreamIdentifier:
    try:
        return StreamIdentifier.parse(letter.stream)
    except ValueError:
        return StreamIdentifier.single(letter.stream)
