"""Dead letters are processed again, each once, wherever a replay is cut off."""

import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import (
    AccessDenied,
    ConfigurationError,
    ProcessingTimeout,
    ProcessLost,
    RecordRefused,
    SinkError,
    TransformError,
    Unsafe,
)
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.dead_letter_replay import ToProcessors, ToSink, replay
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.worker.batch import Batch, Part, PoisonRecord
from kcl_dagster.worker.dead_letter import DeadLetter, dead_letter
from kcl_dagster.worker.parts_chain import PartsChain
from kcl_dagster.worker.processor import (
    InitializeInput,
    ProcessRecordsInput,
    RecordProcessorBase,
    ShutdownRequestedInput,
)
from kcl_dagster.worker.staging import StagedBatch
from tests.doubles.clock import FakeClock
from tests.unit.chains.memory import MemoryFiles
from tests.unit.spark.buckets import Bucket
from tests.unit.worker.chains import NO_FORMER_PARTS, MemoryStagingSink, WorkersFiles
from tests.unit.worker.kit import Data

pytestmark = pytest.mark.slow

APP = "clicks"


class Killed(BaseException):
    """The process ends here."""


@dataclass(frozen=True)
class Brittle(LocalStore):
    """Dies at its n-th write, before or after it was done."""

    fuse: list[int] = field(default_factory=lambda: [0])

    def put(self, path: str, content: memoryview | bytes) -> None:
        self._burn()
        super().put(path, content)
        self._burn()

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._burn()
            super().delete([path])
        self._burn()

    def _burn(self) -> None:
        self.fuse[0] -= 1
        if self.fuse[0] == 0:
            raise Killed


def letter(number: int, shard: str = "shardId-000000000000", stream: str = APP) -> DeadLetter:
    at = Checkpoint(str(number))
    identifier = StreamIdentifier.parse(stream) if ":" in stream else StreamIdentifier.single(stream)
    part = Part(APP, LeaseKey(shard), identifier, shard, TRIM_HORIZON, at, 1, 1, 1)
    record = PoisonRecord(b"%d" % number, f"key-{number}", str(number), 0, None, 1_700_000_000_000)
    return dead_letter(record, part, worker="w1", attempts=5, failed_at_ms=1, error=ValueError("once"))


def box(folder: Path, *letters: DeadLetter) -> LocalStore:
    store = LocalStore(str(folder))
    for one in letters:
        store.put(one.name, one.to_json())
    return store


def names(store: LocalStore) -> list[str]:
    return [file.path for file in store.files()]


@dataclass
class Table:
    """Keeps letters by number, as sinks keep parts."""

    stored: dict[int, list[str]] = field(default_factory=dict)
    poison: set[str] = field(default_factory=set)
    broken: bool = False
    refusal: type[Exception] = ValueError

    def begin(self) -> bool:
        return False

    def has_stored(self, letters: Sequence[DeadLetter], number: int) -> bool:
        return False

    def take(self, letters: Sequence[DeadLetter], number: int) -> None:
        if self.broken:
            raise SinkError("no room")
        found = [one.sequence_number for one in letters]
        assert self.stored.get(number, found) == found, "a number came again with other letters"
        if self.poison & set(found):
            raise self.refusal(f"cannot parse {sorted(self.poison & set(found))}")
        self.stored[number] = found

    def everything(self) -> list[str]:
        return sorted(number for numbers in self.stored.values() for number in numbers)


@pytest.mark.audit("D4")
def test_a_journal_that_names_files_outside_is_refused(tmp_path: Path) -> None:
    precious = tmp_path / "precious.json"
    precious.write_text("{}")
    store = box(tmp_path / "letters", letter(1))
    store.put(f"{APP}/_replays/000000000001.json", b'{"letters": ["../precious.json"], "is_stored": true}')
    with pytest.raises(Unsafe, match=r"precious\.json"):
        replay(store, APP, Table())
    assert precious.exists()


def test_other_files_beside_the_journal_are_ignored_and_an_unreadable_one_is_named(tmp_path: Path) -> None:
    store, table = box(tmp_path, letter(101)), Table()
    for name in ("000000000007 (1).json", "copy/000000000008.json", "notes.json"):
        store.put(f"{APP}/_replays/{name}", b"")
    store.put(f"{APP}/_replays/000000000007.json", b"{")
    with pytest.raises(Unsafe, match=rf"{tmp_path}/{APP}/_replays/000000000007\.json cannot be read"):
        replay(store, APP, table)
    assert table.stored == {}
    store.delete([f"{APP}/_replays/000000000007.json"])
    assert replay(store, APP, table).stored == 1


def test_numbers_go_on_growing_when_the_folder_was_emptied(tmp_path: Path) -> None:
    """A table refuses what comes under a number that it has passed."""
    clock, table = FakeClock(), Table()
    for number in range(3):
        replay(box(tmp_path, letter(number)), APP, table, clock=clock)
    shutil.rmtree(tmp_path)
    clock.advance(1)
    replay(box(tmp_path, letter(4)), APP, table, clock=clock)
    assert [table.stored[number] for number in sorted(table.stored)] == [["0"], ["1"], ["2"], ["4"]]


def test_a_replay_that_version_0_1_left_goes_on_under_its_number(tmp_path: Path) -> None:
    store, table = box(tmp_path, letter(101)), Table()
    store.put(f"{APP}/_replays/000000000007.json", json.dumps({"letters": [letter(101).name]}).encode())
    assert replay(store, APP, table).stored == 1
    assert table.stored == {7: ["101"]}


def test_why_a_letter_fails_again_does_not_quote_its_record(tmp_path: Path) -> None:
    class Parser(Table):
        def take(self, letters: Sequence[DeadLetter], number: int) -> None:
            raise ValueError(f"cannot parse {letters[0].partition_key!r}")

    done = replay(box(tmp_path, letter(101)), APP, Parser())
    assert "ValueError: cannot parse" in done.failing[letter(101).name]
    assert letter(101).partition_key not in done.failing[letter(101).name]


def test_letters_are_stored_and_removed(tmp_path: Path) -> None:
    store, table = box(tmp_path, letter(100), letter(101), letter(7, "shardId-000000000001")), Table()
    done = replay(store, APP, table)
    assert (done.stored, done.failing, done.left) == (3, {}, 0)
    assert table.everything() == ["100", "101", "7"]
    assert names(store) == []
    assert replay(store, APP, table).stored == 0
    assert len(table.stored) == 1


def test_letters_of_others_are_left_alone(tmp_path: Path) -> None:
    store, table = box(tmp_path, letter(100)), Table()
    assert replay(store, "another", table).stored == 0
    assert len(names(store)) == 1


def test_letters_that_fail_again_stay_and_keep_no_others(tmp_path: Path) -> None:
    store, table = box(tmp_path, *[letter(number) for number in range(100, 106)]), Table(poison={"102", "104"})
    done = replay(store, APP, table)
    assert done.stored == 4
    assert sorted(done.failing) == names(store) == [letter(102).name, letter(104).name]
    assert "cannot parse" in done.failing[letter(102).name]
    table.poison = {"104"}  # half mended
    again = replay(store, APP, table)
    assert (again.stored, list(again.failing)) == (1, [letter(104).name])
    assert table.everything() == ["100", "101", "102", "103", "105"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"\xff",
        msgspec.json.encode(msgspec.structs.replace(letter(1), sequence_number="x")),
        msgspec.json.encode(msgspec.structs.replace(letter(1), data="%")),
    ],
)
def test_files_that_are_no_letters_are_passed_over_and_named(tmp_path: Path, text: bytes) -> None:
    store, table = box(tmp_path, letter(100), letter(101), letter(102)), Table(poison={"101"})
    store.put(f"{APP}/0-0.json", text)
    done = replay(store, APP, table, most=2)
    assert (done.stored, list(done.failing), done.left) == (1, [letter(101).name], 1)
    assert list(done.malformed) == [f"{APP}/0-0.json"]
    assert "not a dead letter" in done.malformed[f"{APP}/0-0.json"]
    assert table.everything() == ["100"]
    assert f"{APP}/0-0.json" in names(store)


def test_a_letter_that_changes_under_a_replay_that_was_cut_off_is_named(tmp_path: Path) -> None:
    store, table = box(tmp_path, letter(100)), Table(broken=True)
    with pytest.raises(SinkError):
        replay(store, APP, table)
    store.put(letter(100).name, b"{}")
    table.broken = False
    with pytest.raises(ConfigurationError, match=r"100-0\.json was changed"):
        replay(store, APP, table)
    assert table.everything() == []


@pytest.mark.parametrize("refusal", [RecordRefused, TransformError, ProcessingTimeout, ProcessLost])
def test_a_letter_that_is_refused_keeps_no_others(tmp_path: Path, refusal: type[Exception]) -> None:
    store = box(tmp_path, *[letter(number) for number in range(100, 104)])
    table = Table(poison={"101"}, refusal=refusal)
    for stored in (3, 0):
        replayed = replay(store, APP, table)
        assert replayed.stored == stored
        assert list(replayed.failing) == [letter(101).name]
    assert table.everything() == ["100", "102", "103"]
    table.poison = set()
    assert replay(store, APP, table).stored == 1


@dataclass
class Rows:
    """Stands in for a Spark session."""

    def createDataFrame(self, rows: list[tuple[object, ...]], _: str) -> list[tuple[object, ...]]:  # noqa: N802
        return rows


@dataclass
class Answerless:
    """A table that stores a batch, and loses a process before it can say so."""

    parts: list[Part] = field(default_factory=list)

    def write(self, _: object, batch: Batch) -> None:
        self.parts += batch.parts
        raise ProcessLost("after the commit")

    def open(self) -> bool:
        return False

    def holds(self, part: Part) -> bool:
        return part in self.parts


def test_letters_that_were_stored_by_an_attempt_that_failed_are_not_stored_again(tmp_path: Path) -> None:
    store, table = box(tmp_path, letter(100), letter(101)), Answerless()
    spark: Any = Rows()
    assert replay(store, APP, ToSink(spark, table)).stored == 2
    assert len(table.parts) == 1


def test_a_sink_that_refuses_blames_no_letter(tmp_path: Path) -> None:
    store, table = box(tmp_path, letter(100), letter(101)), Table(broken=True)
    with pytest.raises(SinkError):
        replay(store, APP, table)
    store.put(letter(102).name, letter(102).to_json())
    table.broken = False
    assert replay(store, APP, table).stored == 3
    assert table.everything() == ["100", "101", "102"]
    assert sorted(map(len, table.stored.values())) == [1, 2]  # what was begun came again as it was


def test_one_replay_takes_so_many(tmp_path: Path) -> None:
    store, table = box(tmp_path, *[letter(number) for number in range(100, 105)]), Table()
    assert replay(store, APP, table, most=2).left == 3
    assert replay(store, APP, table, most=2).left == 1
    assert replay(store, APP, table, most=2).left == 0
    assert len(table.everything()) == 5


@pytest.mark.parametrize("poison", [set(), {"101"}])
def test_a_replay_that_is_killed_anywhere_stores_each_letter_once(tmp_path: Path, poison: set[str]) -> None:
    expected = [str(number) for number in range(100, 104) if str(number) not in poison]
    for point in range(1, 80):
        folder, table = tmp_path / str(point), Table(poison=poison)
        box(folder, *[letter(number) for number in range(100, 104)])
        try:
            replay(Brittle(str(folder), fuse=[point]), APP, table)
        except Killed:
            replay(LocalStore(str(folder)), APP, table)
        else:
            break
        assert table.everything() == expected, point
        assert len(names(LocalStore(str(folder)))) == len(poison)
    assert point > 10


@dataclass(frozen=True)
class Interrupted(LocalStore):
    """Something happens at its n-th write, before or after it was done."""

    happens: Callable[[], object] = lambda: None
    fuse: list[int] = field(default_factory=lambda: [0])

    def put(self, path: str, content: memoryview | bytes) -> None:
        self._burn()
        super().put(path, content)
        self._burn()

    def delete(self, paths: Sequence[str]) -> None:
        self._burn()
        super().delete(paths)
        self._burn()

    def _burn(self) -> None:
        self.fuse[0] -= 1
        if self.fuse[0] == 0:
            self.happens()


class Numbers:
    """Makes frames that a sink of chains in memory takes."""

    def createDataFrame(self, rows: Sequence[Any], schema: str) -> Data:  # noqa: N802 - as PySpark calls it
        return [(row[7], int(row[3]), row[0].decode()) for row in rows]


class StagingRecords(MemoryStagingSink):
    def stage(self, data: Any, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        return super().stage(data.frame, batch, chain, number)


def to_chain(files: MemoryFiles, ids: Iterator[int]) -> ToSink:
    shared = WorkersFiles(content=files.content, times=files.times)
    spark: Any = Numbers()
    runtime = Runtime(clock=FakeClock(), new_id=lambda: str(next(ids)))
    sink: Any = PartsChain(
        StagingRecords(shared, ids.__next__, NO_FORMER_PARTS), f"{APP}/letters", "letters", runtime
    )
    return ToSink(spark, sink)


@pytest.mark.parametrize("killed_at", [0, *range(1, 9)])
def test_a_replay_that_is_paused_beside_another_one_stores_no_letter_again(tmp_path: Path, killed_at: int) -> None:
    """The other one is killed or not, and a third one goes on from there."""
    for point in itertools.count(1):
        folder, files, ids = tmp_path / str(point), MemoryFiles(), itertools.count()
        store = box(folder, *[letter(number) for number in range(100, 103)])
        other, recipient = Brittle(str(folder), fuse=[killed_at]), to_chain(files, ids)

        def another(other: Brittle = other, recipient: ToSink = recipient) -> None:
            with suppress(Killed):
                replay(other, APP, recipient, clock=FakeClock(2000.0))

        paused = Interrupted(str(folder), happens=another, fuse=[point])
        with suppress(Unsafe):
            replay(paused, APP, to_chain(files, ids), clock=FakeClock(1000.0))
        replay(store, APP, to_chain(files, ids), clock=FakeClock(3000.0))
        rows = [row for path in files.published() for row in json.loads(files.content[path])]
        assert sorted(row[1] for row in rows) == [100, 101, 102], point
        assert names(store) == []
        if paused.fuse[0] > 0:
            assert point > 6
            return


def test_letters_that_s3_does_not_remove_are_not_done_with(aws: Emulator) -> None:
    bucket, table = Bucket(aws), Table()
    for number in (100, 101):
        bucket.store.put(letter(number).name, letter(number).to_json())
    bucket.keep(letter(100).name)
    for _ in range(2):
        with pytest.raises(AccessDenied):
            replay(bucket.store, APP, table)
    bucket.let_go()
    assert replay(bucket.store, APP, table).stored == 0
    assert list(bucket.store.files()) == []
    assert table.everything() == ["100", "101"]


def test_processors_get_letters_of_their_shard_in_order(tmp_path: Path) -> None:
    seen: list[tuple[str, list[str]]] = []

    class Processor(RecordProcessorBase):
        def initialize(self, initialize_input: InitializeInput) -> None:
            self.shard = initialize_input.shard_id

        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            records = process_records_input.records
            assert all(record.partition_key == f"key-{record.sequence_number}" for record in records)
            seen.append((self.shard, [record.binary_data.decode() for record in records]))
            process_records_input.checkpointer.checkpoint()

        def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
            shutdown_requested_input.checkpointer.checkpoint()
            seen.append((self.shard, []))

    stream = "123456789012:clicks:17"
    store = box(tmp_path, letter(99), letter(100), letter(7, "shardId-000000000001", stream))
    assert replay(store, APP, ToProcessors(Processor)).stored == 3
    one, other = "shardId-000000000000.dead-letters", "shardId-000000000001.dead-letters"
    assert sorted(seen) == sorted([(one, ["99", "100"]), (one, []), (other, ["7"]), (other, [])])
