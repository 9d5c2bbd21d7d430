"""Record processors get their shard in order, keep their state, and checkpoint when they want to."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import pytest

from kcl_dagster import cli
from kcl_dagster.errors import EndpointUnreachable, SinkError, Unavailable
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker import kclpy
from kcl_dagster.worker.batch import PoisonRecord, Progress
from kcl_dagster.worker.batch_retries import LOSS_PAUSE
from kcl_dagster.worker.dead_letter import DeadLetter
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.hosted_processor import HostLost
from kcl_dagster.worker.instance import Instance
from kcl_dagster.worker.pins import pin_of
from kcl_dagster.worker.processor import (
    CheckpointError,
    InitializeInput,
    LeaseLostInput,
    ProcessRecordsInput,
    RecordProcessorBase,
    ShardEndedInput,
    ShutdownRequestedInput,
    record_of,
)
from kcl_dagster.worker.processor_protocol import ProcessorProtocol, is_processor
from tests.unit.worker.kit import Killed, MemoryDeadLetters, Run, World

pytestmark = pytest.mark.slow

A, B = "shardId-000000000000", "shardId-000000000001"


class CallLog:
    """What all instances of a processor saw."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.data: list[str] = []
        self.instances = 0


class Recorder(RecordProcessorBase):
    """Checkpoints after every call, unless told otherwise."""

    def __init__(self, log: CallLog, checkpoints: bool = True, poison: Callable[[str], bool] | None = None) -> None:
        self.log = log
        self.checkpoints = checkpoints
        self.poison = poison or (lambda _: False)
        self.shard = ""
        log.instances += 1

    def initialize(self, initialize_input: InitializeInput) -> None:
        self.shard = initialize_input.shard_id
        self.log.calls.append(f"initialize at {initialize_input.sequence_number}")

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        for record in process_records_input.records:
            text = record.binary_data.decode()
            if self.poison(text):
                raise ValueError(text)
            self.log.data.append(text)
        if self.checkpoints:
            process_records_input.checkpointer.checkpoint()

    def lease_lost(self, lease_lost_input: LeaseLostInput) -> None:
        self.log.calls.append("lease_lost")

    def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
        self.log.calls.append("shard_ended")
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
        self.log.calls.append("shutdown_requested")
        shutdown_requested_input.checkpointer.checkpoint()


def worker(world: World, log: CallLog, name: str = "w1", **options: Any) -> Run:
    return world.worker(name, processors=lambda: Recorder(log, **options))


def checkpoint(world: World, shard: str = A) -> str:
    return str(world.lease(shard).checkpoint)


def work(world: World, run: Run, rounds: int = 60) -> None:
    for _ in range(rounds):
        run.round()
        world.clock.advance(1)


def test_a_shard_from_its_first_record_to_its_children() -> None:
    world, log = World(), CallLog()
    world.stream.put(A, *"abcdefgh")
    low, _ = world.stream.split(A)
    run = worker(world, log)
    world.assign(run)
    run.until_idle()
    assert log.data == list("abcdefgh")
    assert log.calls == ["initialize at TRIM_HORIZON", "shard_ended"]
    assert checkpoint(world) == "SHARD_END"
    assert world.lease(low).parents == {A}
    assert world.lease(A).children == {low, "shardId-000000000002"}


def test_state_is_kept_while_nothing_is_checkpointed() -> None:
    world, log = World(), CallLog()
    world.stream.put(A, *"abcdefgh")
    run = worker(world, log, checkpoints=False)
    world.assign(run)
    run.until_idle()
    assert log.data == list("abcdefgh")
    assert log.instances == 1
    assert checkpoint(world) == "TRIM_HORIZON"

    second = worker(world, log, "w2")
    world.assign(second)
    second.until_idle()
    assert log.data == list("abcdefgh") * 2  # delivered again, in order
    assert checkpoint(world) != "TRIM_HORIZON"
    world.clock.advance(11)
    run.round()
    assert log.calls[-1] == "lease_lost"


def test_the_next_owner_begins_after_the_checkpoint() -> None:
    world, log = World(), CallLog()
    world.stream.put(A, *"abcd")
    first = worker(world, log)
    world.assign(first)
    first.round()
    second = worker(world, log, "w2")
    world.assign(second)
    second.until_idle()
    assert log.data == list("abcd")
    assert log.calls[-1] == f"initialize at {world.stream.shards[A].records[2][0]}"


def test_a_processor_is_asked_before_its_shard_is_handed_over() -> None:
    world, log = World(), CallLog()
    world.stream.put(A, *"abc")
    old, new = worker(world, log, "old", checkpoints=False), worker(world, log, "new")
    world.assign(old)
    old.round()
    world.hand_over(A, new)
    world.clock.advance(11)
    old.worker.step_renewal()
    old.worker.step_renewal()
    assert world.lease(A).checkpoint_owner == old.id  # the processor was not asked yet
    old.worker.step_batch()
    old.worker.step_renewal()
    assert log.calls[-1] == "shutdown_requested"
    assert world.lease(A).checkpoint_owner is None
    new.until_idle()
    assert log.data == list("abc")


def test_every_processor_has_its_last_chance_when_the_worker_stops() -> None:
    world, log = World(shards=2), CallLog()
    world.stream.put(A, *"ab")
    world.stream.put(B, *"xy")
    run = worker(world, log, checkpoints=False)
    world.assign(run)
    run.round()
    run.worker.stop.request()
    run.worker.run()
    assert log.calls.count("shutdown_requested") == 2
    assert checkpoint(world, A) == str(world.stream.shards[A].records[-1][0])
    assert checkpoint(world, B) == str(world.stream.shards[B].records[-1][0])
    assert world.lease(A).owner is None


def test_a_processor_that_raises_is_replaced_and_loses_nothing() -> None:
    world, log = World(), CallLog()
    world.stream.put(A, *"abcdef")
    bad_luck = iter([False] * 4 + [True] + [False] * 99)
    run = worker(world, log, poison=lambda _: next(bad_luck))
    world.assign(run)
    work(world, run)
    assert log.instances == 2
    assert sorted(set(log.data)) == list("abcdef")
    assert checkpoint(world) == str(world.stream.shards[A].records[-1][0])


def test_a_processor_whose_process_ends_is_replaced_and_nobody_is_blamed() -> None:
    world, log = World(batch={"failure": {"action": "skip", "attempts": 1}}), CallLog()
    world.stream.put(A, *"abcdef")
    run = worker(world, log, checkpoints=False)
    hosts = run.hosts
    assert hosts is not None
    world.assign(run)
    run.round()  # a, b, c were delivered and not checkpointed
    hosts.lose_all()
    work(world, run, 4)
    assert "".join(log.data) == "abc" + "abcdef"
    run.engine.hooks.append(hosts.lose_all)  # what was read then went with the process
    world.stream.put(A, "g")
    run.round()
    run.engine.hooks.clear()
    work(world, run, 5)
    assert "".join(log.data) == "abc" + "abcdef" + "abcdefg"
    assert log.calls == ["initialize at TRIM_HORIZON"] * log.instances
    assert EventKind.RECORD_SKIPPED not in run.kinds()


def ends_the_process(text: str) -> bool:
    if text == "!":
        raise HostLost("its process is gone")
    return False


def test_a_record_that_ends_its_process_stops_its_shard_however_many_records_are_before_it() -> None:
    """Nothing is checkpointed, so each new process begins with records that do no harm."""
    world, log = World(batch={"failure": {"outage_attempts": 4}}), CallLog()
    world.stream.put(A, *"abcdefgh!z")
    run = worker(world, log, checkpoints=False, poison=ends_the_process)
    world.assign(run)
    run.engine.limit = 2
    work(world, run, 200)
    assert run.kinds().count(EventKind.SHARD_STOPPED) == 1
    assert run.worker.step_batch().stopped == (A,)
    instances = log.instances
    work(world, run, 600)
    assert log.instances - instances <= 20, "it is tried once a minute"
    assert "z" not in log.data


def test_the_policy_decides_about_a_record_however_many_records_are_before_it() -> None:
    world, log = World(batch={"failure": {"action": "skip", "attempts": 3}}), CallLog()
    world.stream.put(A, *"abcdefgh!z")
    run = worker(world, log, checkpoints=False, poison=lambda text: text == "!")
    world.assign(run)
    run.engine.limit = 2
    work(world, run, 200)
    assert run.kinds().count(EventKind.RECORD_SKIPPED) == 1
    assert "".join(log.data).endswith("abcdefghz")
    assert run.worker.step_batch().stopped == ()


@pytest.mark.parametrize(
    ("action", "delivered", "event"),
    [
        ("stop", "abcd", EventKind.SHARD_STOPPED),
        ("bisect", "abcd", EventKind.SHARD_STOPPED),
        ("skip", "abcdf", EventKind.RECORD_SKIPPED),
        ("dead_letter", "abcdf", EventKind.RECORD_DEAD_LETTERED),
    ],
)
def test_the_failure_policy_decides_about_a_record_that_always_fails(
    action: str, delivered: str, event: EventKind
) -> None:
    path = "/letters" if action == "dead_letter" else None
    world = World(batch={"failure": {"action": action, "attempts": 3, "dead_letter_path": path}})
    log = CallLog()
    world.stream.put(A, *"abcd!f")
    run = worker(world, log, poison=lambda text: text == "!")
    world.assign(run)
    work(world, run)
    assert "".join(sorted(set(log.data))) == delivered
    assert run.kinds().count(event) == 1
    assert len(run.letters.letters) == (action == "dead_letter")


def test_a_record_that_fails_once_when_it_is_delivered_alone_is_not_set_aside() -> None:
    """x always fails, so records are delivered one by one; c fails in this mode, and only the first time."""
    world, log = World(batch={"failure": {"action": "skip", "attempts": 1}}), CallLog()
    world.stream.put(A, *"abcdxe")
    failed: list[str] = []

    def fails(text: str) -> bool:
        if text == "c" and "x" in failed and "c" not in failed:
            failed.append(text)
            return True
        if text == "x":
            failed.append(text)
        return text == "x"

    run = worker(world, log, poison=fails, checkpoints=False)
    world.assign(run)
    work(world, run, 200)
    assert "c" in failed
    skipped = [event.facts["sequence"] for event in run.events if event.kind is EventKind.RECORD_SKIPPED]
    assert skipped == ["104"]
    assert "".join(dict.fromkeys(log.data)) == "abcde"


def test_no_record_is_set_aside_while_the_processor_lacks_what_it_needs() -> None:
    """x always fails, so records are delivered one by one; then what c needs is away for a while."""
    world, log = World(batch={"failure": {"action": "skip", "attempts": 1}}), CallLog()
    world.stream.put(A, *"abcdxe")
    away = 0

    def fails(text: str) -> bool:
        nonlocal away
        if text == "c" and 0 < away < 8:
            away += 1
            raise Unavailable("no database")
        away = away or int(text == "x")
        return text == "x"

    run = worker(world, log, poison=fails, checkpoints=False)
    world.assign(run)
    work(world, run, 900)
    assert away == 8
    skipped = [event.facts["sequence"] for event in run.events if event.kind is EventKind.RECORD_SKIPPED]
    assert skipped == ["104"]
    assert "".join(dict.fromkeys(log.data)) == "abcde"


def test_a_record_is_not_passed_over_because_its_letter_cannot_be_stored() -> None:
    failure = {"action": "dead_letter", "attempts": 1, "dead_letter_path": "/letters"}
    world, log = World(batch={"failure": failure}), CallLog()
    world.stream.put(A, *"ab!cd")

    class Full(MemoryDeadLetters):
        refusals = 3

        def write(self, letter: DeadLetter) -> None:
            if self.refusals:
                self.refusals -= 1
                raise SinkError("no room")
            super().write(letter)

    letters = Full()
    run = world.worker("w1", processors=lambda: Recorder(log, poison=lambda t: t == "!"), dead_letters=letters)
    world.assign(run)
    work(world, run, 12)
    assert "c" not in log.data or letters.letters
    work(world, run)
    assert len(letters.letters) == 1
    assert sorted(set(log.data)) == list("abcd")
    assert any("no room" in event.message for event in run.events)


def test_a_shard_does_not_end_without_its_processor() -> None:
    world, log = World(), CallLog()
    world.stream.put(A, "a")
    world.stream.split(A)
    says_so = False

    class Silent(Recorder):
        def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
            self.log.calls.append("shard_ended")
            if says_so:
                shard_ended_input.checkpointer.checkpoint()

    run = world.worker("w1", processors=lambda: Silent(log))
    world.assign(run)
    work(world, run, 5)
    assert checkpoint(world) != "SHARD_END"
    says_so = True
    work(world, run)
    assert checkpoint(world) == "SHARD_END"
    assert log.instances == 1
    assert log.data == ["a"]


def test_a_processor_hears_that_its_lease_is_lost_when_it_checkpoints() -> None:
    world, log = World(), CallLog()
    world.stream.put(A, *"abc")
    second = world.worker("w2")
    values: list[str] = []

    class Late(Recorder):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            world.assign(second)
            try:
                process_records_input.checkpointer.checkpoint()
            except CheckpointError as error:
                values.append(error.value)

    run = world.worker("w1", processors=lambda: Late(log))
    world.assign(run)
    run.round()
    run.round()
    assert values == ["ShutdownException"]
    assert log.calls[-1] == "lease_lost"


@pytest.mark.parametrize(
    ("number", "sub_sequence", "value"),
    [
        ("9999", None, "IllegalArgumentException"),
        ("1", None, "IllegalArgumentException"),
        ("not a number", None, "IllegalArgumentException"),
        ("101", None, None),
        ("101", 0, None),
        (None, None, None),
    ],
)
def test_checkpoints_must_be_within_what_was_delivered(
    number: str | None, sub_sequence: int | None, value: str | None
) -> None:
    world, log = World(), CallLog()
    world.leases.delete(world.lease(A), forced=True)
    world.create(A, checkpoint=Checkpoint("99"))
    world.stream.put(A, *"abc")  # 100, 101, 102
    values: list[str | None] = []

    class Choosy(Recorder):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            try:
                process_records_input.checkpointer.checkpoint(number, sub_sequence)
                values.append(None)
            except CheckpointError as error:
                values.append(error.value)

    run = world.worker("w1", processors=lambda: Choosy(log))
    world.assign(run)
    run.round()
    assert values == [value]
    stored = "99" if value else number or "102"
    assert checkpoint(world) == stored


def test_a_record_has_the_attributes_that_processors_of_the_kcl_use() -> None:
    record = record_of(PoisonRecord(b"\x00data", "key", "17", 2, None, 1_700_000_000_123))
    assert (record.binary_data, record.data) == (b"\x00data", "AGRhdGE=")
    assert (record.partition_key, record.sequence_number, record.sub_sequence_number) == ("key", "17", 2)
    assert record.approximate_arrival_timestamp == datetime.fromtimestamp(1_700_000_000.123)  # noqa: DTZ006
    assert [
        record.get(field)
        for field in ("data", "partitionKey", "sequenceNumber", "subSequenceNumber", "approximateArrivalTimestamp")
    ] == ["AGRhdGE=", "key", "17", 2, 1_700_000_000_123]
    assert record["partitionKey"] == "key"
    with pytest.raises(KeyError):
        record.get("explicitHashKey")


SAMPLE = """
from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor
from amazon_kclpy.messages import Record


class SampleProcessor(processor.RecordProcessorBase):
    seen = []

    def initialize(self, initialize_input):
        self._largest = (None, None)

    def process_records(self, process_records_input):
        for record in process_records_input.records:
            assert isinstance(record, Record)
            self._largest = (record.sequence_number, record.sub_sequence_number)
            self.seen.append(record.binary_data.decode("utf-8"))
        try:
            process_records_input.checkpointer.checkpoint(str(self._largest[0]), self._largest[1])
        except kcl.CheckpointError as error:
            if "ShutdownException" == error.value:
                return
            raise

    def lease_lost(self, lease_lost_input):
        pass

    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        shutdown_requested_input.checkpointer.checkpoint()


if __name__ == "__main__":
    kcl.KCLProcess(SampleProcessor()).run()
"""


@pytest.fixture
def without_the_original() -> Iterator[None]:
    def forget() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "amazon_kclpy"]:
            del sys.modules[name]

    forget()
    yield
    forget()


@pytest.mark.usefixtures("without_the_original")
def test_a_processor_written_for_the_kcl_runs_unchanged(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_processor.py").write_text(SAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    assert kclpy.install_stand_in()
    assert kclpy.install_stand_in()
    theirs = importlib.import_module("their_processor").SampleProcessor
    assert is_processor(theirs())
    assert not is_processor(object())

    world = World()
    world.stream.put(A, *"abcdefgh")
    world.stream.split(A)
    run = world.worker("w1", processors=theirs)
    world.assign(run)
    run.until_idle()

    assert theirs.seen == list("abcdefgh")
    assert checkpoint(world) == "SHARD_END"
    assert kclpy.checkpoint_error() is CheckpointError
    with pytest.raises(Exception, match="give its class to kcl_dagster"):
        kclpy.KCLProcess(theirs()).run()


THEIR_PROJECT = """
import amazon_kclpy.v3.processor

import kcl_dagster


@kcl_dagster.kcl_consumer(application="orders-app", stream="orders")
class Orders(amazon_kclpy.v3.processor.RecordProcessorBase):
    def process_records(self, process_records_input): ...
"""


@pytest.mark.usefixtures("without_the_original")
def test_the_command_line_loads_a_project_that_imports_the_package(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_project.py").write_text(THEIR_PROJECT)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli._load("their_project:Orders").application.name == "orders-app"


@pytest.mark.usefixtures("without_the_original")
def test_where_the_original_is_installed_its_own_errors_are_raised(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "amazon_kclpy"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kcl.py").write_text("class CheckpointError(Exception):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not kclpy.install_stand_in()
    assert kclpy.checkpoint_error().__module__ == "amazon_kclpy.kcl"


def owners(
    world: World, log: CallLog, count: int, rounds: int = 12, *, limit: int = 2, **options: Any
) -> tuple[list[Run], list[float]]:
    """Workers follow each other; each has the lease until a record ends it, or for `rounds`, and then it is lost.
    Returns the workers, and when records ended one."""
    runs, ends = [], []
    for number in range(count):
        runs.append(worker(world, log, f"owner-{number}-{world.clock.now():.0f}", **options))
        runs[-1].engine.limit = limit
        world.assign(runs[-1])
        try:
            work(world, runs[-1], rounds)
        except Killed:
            ends.append(world.clock.monotonic())
    return runs, ends


def ends_the_worker(text: str) -> bool:
    if text == "!":
        raise Killed("out of memory")
    return False


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("action", ["stop", "skip"])
def test_a_record_that_ends_the_worker_of_its_processor_stops_the_shard(action: str, checkpoints: bool) -> None:
    world, log = World(batch={"failure": {"action": action}}), CallLog()
    world.stream.put(A, *"abcde!z")
    runs, ends = owners(world, log, 8, poison=ends_the_worker, checkpoints=checkpoints)
    assert len(ends) == (4 if checkpoints else 3), "the first owner checkpoints before it pins anything"
    assert runs[-1].kinds().count(EventKind.SHARD_STOPPED) == 1
    assert runs[-1].worker.step_batch().stopped == (A,)
    _, ends = owners(world, log, 2, 4000, poison=ends_the_worker, checkpoints=checkpoints)
    assert len(ends) == 2
    assert ends[1] - ends[0] >= LOSS_PAUSE
    [healed], _ = owners(world, log, 1, 4000)
    assert log.data[-1] == "z"
    assert healed.worker.step_batch().stopped == ()
    assert pin_of(world.lease(A)) is None


def test_owners_that_end_by_chance_while_nothing_is_checkpointed_stop_no_shard() -> None:
    world, log = World(), CallLog()
    world.stream.put(A, *"abcdefgh")
    runs, _ = owners(world, log, 8, checkpoints=False)
    assert [run.kinds().count(EventKind.SHARD_STOPPED) for run in runs] == [0] * 8
    assert "".join(log.data) == "abcdefgh" * 8


def test_an_attempt_costs_a_processor_that_checkpoints_one_write() -> None:
    world, log = World(), CallLog()
    world.stream.put(A, *"abcdefgh")
    before = world.lease(A).counter
    runs, _ = owners(world, log, 1, 4, limit=1)
    assert len(log.data) == 4
    writes = world.lease(A).counter - before
    assert writes == 1 + 1 + 4 + 1, "it is assigned and acquired, four checkpoints, one attempt"
    assert runs[0].worker.holdings.keys() == {A}


def test_the_attempts_of_a_processor_that_never_checkpoints_cost_one_write_a_minute() -> None:
    world, log, pins = World(), CallLog(), list[float]()
    world.stream.put(A, *"abcdefghij" * 15)
    run = worker(world, log, checkpoints=False)
    run.engine.limit = 1

    def see(_: str, request: Mapping[str, Any]) -> None:
        if "pendingCheckpointState" in str(request):
            pins.append(world.clock.monotonic())

    run.client.before.append(see)
    world.assign(run)
    work(world, run, 150)
    assert len(log.data) == 150
    assert [round(at - pins[0]) for at in pins] == [0, 60, 120]


def test_what_is_kept_of_a_processor_that_never_checkpoints_does_not_grow() -> None:
    world, log = World(), CallLog()
    world.stream.put(A, *"abcdefghij" * 5)
    run = worker(world, log, checkpoints=False)
    run.engine.limit = 1
    world.assign(run)
    work(world, run, 50)
    assert len(log.data) == 50
    assert isinstance(run.worker.protocol, ProcessorProtocol)
    assert len(run.worker.protocol._processes[LeaseKey(A)]._store.delivered) == 1


@pytest.mark.parametrize("between", [0.2, 1, 3])
def test_a_record_that_ends_the_worker_long_after_its_first_attempt_stops_the_shard(between: float) -> None:
    world, log = World(), CallLog()
    world.stream.put(A, *"abcdefgh" * 8, "!", "z")
    ends, stopped = 0, False
    for number in range(6):
        run = worker(world, log, f"owner-{number}", poison=ends_the_worker, checkpoints=False)
        run.engine.limit = 1
        world.assign(run)
        try:
            for _ in range(70):
                run.round()
                run.worker.step_renewal()
                world.clock.advance(between / (number + 1))  # what has waited is read faster
        except Killed:
            ends += 1
        stopped = stopped or EventKind.SHARD_STOPPED in run.kinds()
    assert (ends, stopped) == (3, True)


def test_owners_that_end_by_chance_far_behind_the_tip_stop_no_shard() -> None:
    world, log = World(), CallLog()
    world.stream.put(A, *"abcdefgh" * 100)
    for number in range(6):
        run = worker(world, log, f"owner-{number}", checkpoints=False)
        run.engine.limit = 1
        world.assign(run)
        for _ in range(80 * (number + 2)):  # each lives for some minutes more than the one before
            run.round()
            run.worker.step_renewal()
            world.clock.advance(2)
        assert EventKind.SHARD_STOPPED not in run.kinds()


class NeverCheckpoints(RecordProcessorBase):
    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Keeps its places elsewhere."""


def test_a_sink_that_follows_a_processor_reads_ordinary_batches_from_the_checkpoint() -> None:
    world = World()
    processor = world.worker("p", processors=NeverCheckpoints)
    world.assign(processor)
    for number in range(300):
        world.stream.put(A, f"r{number}")
        processor.round()
        world.clock.advance(5)
        processor.worker.step_renewal()
    assert pin_of(world.lease(A)) is not None
    sink = world.worker("s")
    world.assign(sink)
    sink.round()
    assert [batch.parts[0].records for batch in sink.sink.batches] == [3]
    assert pin_of(world.lease(A)) is None
    sink.until_idle()
    assert sorted(world.store.everything()) == sorted(world.stream.everything())


def test_a_processor_does_not_extend_the_batch_that_a_sink_has_begun() -> None:
    world = World()
    world.stream.put(A, *"abc")
    sink = world.worker("s")
    world.assign(sink)
    sink.sink.refuses = ends_with_the_batch
    with pytest.raises(Killed):
        sink.round()
    begun = world.lease(A)
    world.stream.put(A, *"defghi")
    processor = world.worker("p", processors=NeverCheckpoints)
    world.assign(processor)
    work(world, processor, 5)
    assert world.lease(A).pending_checkpoint == begun.pending_checkpoint
    assert world.lease(A).batch == begun.batch


def ends_with_the_batch(_: Any) -> None:
    raise Killed("before it is stored")


def test_losses_of_processors_count_for_the_sink_that_follows() -> None:
    world, log = World(batch={"failure": {"action": "skip"}}), CallLog()
    world.stream.put(A, *"ab!d")
    _, ends = owners(world, log, 3, poison=ends_the_worker, checkpoints=False)
    assert len(ends) == 3

    def ends_with_it(data: Any) -> None:
        if any(row[2] == "!" for row in data):
            raise Killed("out of memory")

    kills, runs = 0, []
    for number in range(6):
        run = world.worker(f"sink-{number}")
        runs.append(run)
        run.sink.refuses = ends_with_it
        world.assign(run)
        try:
            work(world, run, 400)
        except Killed:
            kills += 1
    assert EventKind.BATCH_NARROWED in runs[0].kinds(), "before it is written for the first time"
    assert [row[2] for row in sorted(world.store.everything())] == ["a", "b", "d"]


def test_the_pending_checkpoint_of_another_program_is_left_alone() -> None:
    world, log = World(), CallLog()
    world.stream.put(A, *"ab")
    other = Checkpoint(str(world.stream.shards[A].records[1][0]))
    lease = world.lease(A)
    world.leases.prepare(lease, other, state=b"theirs", batch=lease.batch)
    run = worker(world, log, checkpoints=False)
    world.assign(run)
    work(world, run, 3)
    assert "".join(log.data) == "ab"
    assert world.lease(A).pending_state == b"theirs"


def test_a_record_for_which_a_processor_exits_is_offered_to_the_failure_policy() -> None:
    class Exits(RecordProcessorBase):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            sys.exit(3)

    offered: list[str] = []

    class SetsAside:
        def checkpoint(self, at: Checkpoint | None, delivered: Checkpoint | None) -> str | None:
            return None

        def set_aside(self, record: PoisonRecord, error_type: str, error: str) -> bool:
            offered.append(error_type)
            return True

    record = record_of(PoisonRecord(b"x", "key", "100", 0))
    instance = Instance(Exits(), A, CheckpointError)
    assert instance.process([[record]], 0, SetsAside(), one_by_one=True) == Checkpoint("100", 0)
    assert offered == ["SystemExit"]


def test_a_shard_that_fails_is_not_well_because_a_batch_had_no_time_for_it() -> None:
    world, log = World(), CallLog()
    run = worker(world, log)
    world.assign(run)
    run.round()
    is_silent = False

    def answer() -> None:
        fetched = run.engine.fetched[-1]
        for key, found in list(fetched.progress.items()):
            if is_silent:
                fetched.progress[key] = Progress(found.range)
            else:
                del fetched.progress[key]
                fetched.failures[key] = EndpointUnreachable("no answer")

    run.engine.hooks.append(answer)
    assert run.round().failing == (A,)
    is_silent = True
    world.clock.advance(10)
    assert run.round().failing == (A,)
    run.engine.hooks.clear()
    assert run.round().failing == ()
