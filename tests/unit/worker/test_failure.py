"""User code fails; the policy decides; order is never given up."""

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.errors import (
    AccessDenied,
    BatchError,
    ConfigurationError,
    ProcessLost,
    RecordRefused,
    SinkError,
    TransformError,
)
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import Batch, Part
from kcl_dagster.worker.dead_letter import DeadLetter, FiledDeadLetters, NoDeadLetters, from_json
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.failure import LOSS_PAUSE
from kcl_dagster.worker.pending import Pin, pin_of
from kcl_dagster.worker.report import Outcome
from kcl_dagster.worker.stop import StopReason
from tests.unit.worker.kit import Data, Killed, MemorySink, Run, World

A, B, C = (f"shardId-{index:012d}" for index in range(3))


def fails_on(*poison: str) -> Callable[[Data], None]:
    def refuse(data: Data) -> None:
        for _, _, text in data:
            if text in poison:
                raise ValueError(f"cannot parse {text!r}")

    return refuse


def world_with(policy: dict[str, Any], shards: int = 1, limit: int = 100) -> tuple[World, Run]:
    world = World(shards=shards, batch={"failure": policy})
    run = world.worker("w1")
    run.engine.limit = limit
    return world, run


def work(world: World, run: Run, rounds: int = 200) -> None:
    """Let backoffs pass as well."""
    for _ in range(rounds):
        run.round()
        world.clock.advance(1)


def stored(world: World, shard: str = A) -> str:
    return "".join(text for s, _, text in sorted(world.store.everything()) if s == shard)


def test_a_failing_shard_stops_by_default_and_the_others_go_on() -> None:
    world, run = world_with({"attempts": 3}, shards=3)
    world.assign(run)
    world.stream.put(A, *"abc")
    world.stream.put(B, *"x!z")
    world.stream.put(C, *"uvw")
    run.sink.refuses = fails_on("!")

    work(world, run, 20)
    world.stream.put(A, *"def")
    work(world, run, 20)

    assert (stored(world, A), stored(world, B), stored(world, C)) == ("abcdef", "", "uvw")
    assert run.kinds().count(EventKind.SHARD_STOPPED) == 1
    assert run.worker.step_batch().stopped == (B,)

    run.sink.refuses = None  # a new deploy
    work(world, run, 100)
    world.check_exactly_once()
    assert run.worker.step_batch().stopped == ()


def test_a_worker_reports_which_attempt_failed_until_the_shard_is_stopped_or_stored() -> None:
    world, run = world_with({"attempts": 3})
    world.assign(run)
    world.stream.put(A, *"x!z")
    run.sink.refuses = fails_on("!")
    told: list[str] = []
    for _ in range(60):
        run.round()
        run.worker.step_heartbeat()
        [row] = world.worker_table(world.service).list()
        told.append("stopped" if row.stopped else (row.attempts or {}).get(LeaseKey(A), ""))
        world.clock.advance(1)
    assert list(dict.fromkeys(filter(None, told))) == ["1 of 3", "2 of 3", "stopped"]
    assert row.attempts == {}
    run.sink.refuses = lambda _: None
    world.clock.advance(120)
    run.round()
    run.worker.step_heartbeat()
    [row] = world.worker_table(world.service).list()
    assert (row.attempts, row.stopped, row.failing) == ({}, (), ())


def test_a_shard_counts_as_failing_from_its_first_attempt_alone_until_it_is_stored() -> None:
    world, run = world_with({"action": "stop", "attempts": 5}, shards=2)
    world.assign(run)
    world.stream.put(A, "!")
    world.stream.put(B, "x")
    run.sink.refuses = fails_on("!")
    seen: list[tuple[LeaseKey, ...]] = []
    while run.kinds().count(EventKind.SHARD_STOPPED) == 0:
        run.round()
        seen.append(run.worker.heartbeat.failing)
        world.clock.advance(1)
    assert seen[0] == (), "it failed with the other shard, so the cause is not known yet"
    assert set(seen[1:]) <= {(), (LeaseKey(A),)}
    assert seen[-1] == (LeaseKey(A),)
    assert seen.count((LeaseKey(A),)) > 1, "it is failing before it is stopped"
    run.sink.refuses = None
    work(world, run)
    assert run.worker.heartbeat.failing == ()


def test_a_stopped_shard_is_tried_more_and_more_seldom() -> None:
    world, run = world_with({})
    world.assign(run)
    world.stream.put(A, "!")
    run.sink.refuses = fails_on("!")
    work(world, run, 600)
    tries = run.kinds().count(EventKind.BATCH_FAILED)
    assert 10 < tries < 30


def test_a_failing_record_is_found_and_dead_lettered() -> None:
    world, run = world_with({"action": "dead_letter", "attempts": 2, "dead_letter_path": "/letters"})
    world.assign(run)
    world.stream.put(A, *"abcdef!hijklmnop")
    run.sink.refuses = fails_on("!")

    work(world, run)

    assert stored(world) == "abcdefhijklmnop"
    [letter] = run.letters.letters.values()
    sequence = str(world.stream.shards[A].records[6][0])
    assert (letter.sequence_number, letter.shard_id, letter.stream) == (sequence, A, "orders")
    assert (letter.error_type, letter.attempts) == ("ValueError", 2)
    assert letter.name == f"clicks/orders/{A}/{sequence}-0.json"
    assert from_json(letter.to_json()) == letter
    assert run.kinds().count(EventKind.RECORD_DEAD_LETTERED) == 1
    assert world.lease(A).checkpoint is not None
    assert world.lease(A).pending_checkpoint is None


def test_several_failing_records_are_skipped_one_by_one() -> None:
    world, run = world_with({"action": "skip", "attempts": 1})
    world.assign(run)
    world.stream.put(A, *"!bc?ef#")
    run.sink.refuses = fails_on("!", "?", "#")
    work(world, run)
    assert stored(world) == "bcef"
    assert run.kinds().count(EventKind.RECORD_SKIPPED) == 3


def test_bisecting_gets_everything_before_the_failing_record_through() -> None:
    world, run = world_with({"action": "bisect", "attempts": 1})
    world.assign(run)
    world.stream.put(A, *"abcde!gh")
    run.sink.refuses = fails_on("!")
    work(world, run)
    assert stored(world) == "abcde"
    assert EventKind.SHARD_STOPPED in run.kinds()
    run.sink.refuses = None
    work(world, run)
    world.check_exactly_once()


def test_a_narrowed_batch_has_a_number_of_its_own() -> None:
    """A stalled former owner may still write the whole under the old one."""
    world, run = world_with({"action": "skip", "attempts": 1})
    world.assign(run)
    world.stream.put(A, *"ab!")
    numbers: list[tuple[int, str]] = []
    run.sink.hooks.append(lambda batch: numbers.append((batch.parts[0].number, str(batch.parts[0].through))))
    run.sink.refuses = fails_on("!")
    work(world, run)
    assert [number for number, _ in numbers] == sorted(number for number, _ in numbers)
    assert len(dict(numbers)) == len(set(numbers))


def test_a_record_that_fails_by_chance_is_not_set_aside() -> None:
    world, run = world_with({"action": "skip", "attempts": 3})
    world.assign(run)
    world.stream.put(A, *"abcdefgh")
    failures = iter([True] * 3 + [False, True, True] * 50)

    def flaky(_: Data) -> None:
        if next(failures):
            raise ValueError("bad luck")

    run.sink.refuses = flaky
    work(world, run)
    assert EventKind.RECORD_SKIPPED not in run.kinds()
    assert sorted(world.store.everything()) == sorted(world.stream.everything())


def test_when_the_sink_fails_nothing_is_set_aside_and_all_come_back_together() -> None:
    world, run = world_with({"action": "skip", "attempts": 1}, shards=3)
    world.assign(run)
    for shard in (A, B, C):
        world.stream.put(shard, *"abc")

    def down(_: Data) -> None:
        raise SinkError("the bucket is gone")

    run.sink.refuses = down
    work(world, run, 5)
    assert EventKind.RECORD_SKIPPED not in run.kinds()
    run.sink.refuses = None
    work(world, run, 90)
    assert [len(batch.parts) for batch in run.sink.batches] == [3]
    world.check_exactly_once()


def test_attempts_of_user_code_do_not_count_failures_of_the_sink() -> None:
    world, run = world_with({"action": "skip", "attempts": 2})
    world.assign(run)
    world.stream.put(A, "a")
    errors = iter([SinkError("down"), SinkError("down"), SinkError("down"), ValueError("bad luck"), None])

    def refuse(_: Data) -> None:
        error = next(errors)
        if error is not None:
            raise error

    run.sink.refuses = refuse
    work(world, run, 60)
    assert EventKind.RECORD_SKIPPED not in run.kinds()
    world.check_exactly_once()


@pytest.mark.parametrize("arrived", [0.0, 7200.0])
def test_a_record_that_fails_for_too_long_is_given_no_more_attempts(arrived: float) -> None:
    """However long ago it arrived: after a long stop all records are old."""
    world, run = world_with({"action": "skip", "attempts": 1000, "max_age": 60.0})
    world.assign(run)
    world.stream.put(A, "!")
    world.stream.arrival_ms = round((world.clock.now() - arrived) * 1000)
    run.sink.refuses = fails_on("!")
    work(world, run, 50)
    assert EventKind.RECORD_SKIPPED not in run.kinds()
    work(world, run, 70)
    assert EventKind.RECORD_SKIPPED in run.kinds()


def test_an_old_record_that_fails_by_chance_is_not_set_aside() -> None:
    world, run = world_with({"action": "skip", "attempts": 5, "max_age": 60.0})
    world.assign(run)
    world.stream.put(A, *"abc")
    world.stream.arrival_ms = round((world.clock.now() - 7200) * 1000)
    errors = [*[SinkError("down")] * 8, ValueError("by chance")]

    def refuse(_: Data) -> None:
        if errors:
            raise errors.pop(0)

    run.sink.refuses = refuse
    work(world, run, 600)
    assert not errors
    assert EventKind.RECORD_SKIPPED not in run.kinds()
    world.check_exactly_once()


@pytest.mark.parametrize(
    ("records", "most_seconds"), [(["!", "ok"], 1000), (["ok", "!"], 1000), (["!", "!", "!", "ok"], 2000)]
)
def test_what_fails_beside_a_record_does_not_make_the_record_old(records: list[str], most_seconds: int) -> None:
    """To find the bad records takes longer than `max_age`; a good one fails once, when it is tried alone."""
    world, run = world_with({"action": "skip", "attempts": 1000, "max_age": 60.0})
    world.assign(run)
    world.stream.put(A, *records)
    chance = [ValueError("by chance")]

    def refuse(data: Data) -> None:
        texts = [text for _, _, text in data]
        if "!" in texts:
            raise ValueError("bad")
        if texts == ["ok"] and chance:
            raise chance.pop()

    run.sink.refuses = refuse
    work(world, run, most_seconds)
    assert not chance
    assert stored(world) == "ok"
    assert run.kinds().count(EventKind.RECORD_SKIPPED) == records.count("!")


def test_an_outage_makes_no_record_old() -> None:
    world, run = world_with({"action": "skip", "attempts": 5, "max_age": 600.0})
    world.assign(run)
    world.stream.put(A, "ok")
    chance = [ValueError("by chance"), ValueError("by chance")]
    begin = world.clock.monotonic()

    def refuse(_: Data) -> None:
        if len(chance) == 2:
            raise chance.pop()
        if world.clock.monotonic() - begin < 3600:
            raise SinkError("down")
        if chance:
            raise chance.pop()

    run.sink.refuses = refuse
    work(world, run, 3800)
    assert not chance
    assert stored(world) == "ok"
    assert EventKind.RECORD_SKIPPED not in run.kinds()


def test_a_record_grows_old_between_outages() -> None:
    world, run = world_with({"action": "skip", "attempts": 1000, "max_age": 300.0})
    world.assign(run)
    world.stream.put(A, "!")
    begin = world.clock.monotonic()

    def refuse(_: Data) -> None:
        is_out = (world.clock.monotonic() - begin) % 200 < 100
        raise SinkError("down") if is_out else ValueError("bad")

    run.sink.refuses = refuse
    work(world, run, 300)
    assert EventKind.RECORD_SKIPPED not in run.kinds()
    work(world, run, 900)
    assert EventKind.RECORD_SKIPPED in run.kinds()


def test_a_dead_letter_that_cannot_be_stored_stops_the_shard_until_it_can() -> None:
    world = World(batch={"failure": {"action": "dead_letter", "attempts": 1, "dead_letter_path": "/x"}})
    files: dict[str, bytes] = {}
    is_full = True

    def put(name: str, content: bytes) -> None:
        if is_full:
            raise OSError("no space left on device")
        files[name] = content

    run = world.worker("w1", dead_letters=FiledDeadLetters(put))
    world.assign(run)
    world.stream.put(A, "!", "b")
    run.sink.refuses = fails_on("!")
    work(world, run, 30)
    assert world.lease(A).checkpoint is not None
    assert stored(world) == ""
    is_full = False
    work(world, run, 100)
    assert stored(world) == "b"
    assert len(files) == 1


class Unnameable(Exception):
    def __str__(self) -> str:
        raise KeyError("the text needs a value that is not there")


HALF = json.loads('"\\ud83d"')  # half a surrogate pair, as any record's JSON may hold it


@pytest.mark.parametrize(
    ("error", "told"),
    [(ValueError(f"unknown kind {HALF}"), "unknown kind \\ud83d"), (Unnameable(), "its text could not be made")],
    ids=["half a pair", "no text"],
)
def test_an_error_whose_text_cannot_be_encoded_is_a_failure_like_others(error: Exception, told: str) -> None:
    world = World(batch={"failure": {"action": "dead_letter", "attempts": 2, "dead_letter_path": "/x"}})
    files: dict[str, bytes] = {}
    run = world.worker("w1", dead_letters=FiledDeadLetters(files.__setitem__))
    world.assign(run)
    world.stream.put(A, "a", "!", "b")

    def refuse(data: Data) -> None:
        if any(text == "!" for _, _, text in data):
            raise error

    run.sink.refuses = refuse
    work(world, run, 100)
    assert stored(world) == "ab"
    [letter] = map(from_json, files.values())
    assert told in letter.error
    for event in run.events:
        event.message.encode()


def test_a_dead_letter_that_cannot_be_stored_for_an_unknown_reason_ends_no_worker() -> None:
    world = World(shards=2, batch={"failure": {"action": "dead_letter", "attempts": 1, "dead_letter_path": "/x"}})

    def put(name: str, _: bytes) -> None:
        raise UnicodeError(name)

    class Broken(NoDeadLetters):
        def write(self, letter: DeadLetter) -> None:
            raise RuntimeError(f"no such place, {letter.name}")

    for letters in (FiledDeadLetters(put), Broken()):
        run = world.worker(type(letters).__name__, dead_letters=letters)
        world.assign(run)
        if not world.stream.shards[A].records:
            world.stream.put(A, "!")
            world.stream.put(B, "b")
        run.sink.refuses = fails_on("!")
        work(world, run, 100)
        assert stored(world, B) == "b"
        assert A in run.reports[-1].failing
        assert any("while treating a poison record" in event.message for event in run.events)


def test_letters_need_a_place() -> None:
    world, run = world_with({"action": "dead_letter", "attempts": 1, "dead_letter_path": "/x"})
    world.assign(run)
    world.stream.put(A, "!")
    run.sink.refuses = fails_on("!")
    work(world, run, 20)
    [letter] = run.letters.letters.values()
    with pytest.raises(SinkError, match="no place"):
        NoDeadLetters().write(letter)
    with pytest.raises(ValueError, match="not a dead letter"):
        from_json(b"{}")


@given(
    st.binary(max_size=30)
    | st.dictionaries(
        st.sampled_from([*DeadLetter.__struct_fields__, "more"]),
        st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=1),
    ).map(lambda document: json.dumps(document).encode())
)
def test_any_file_is_a_letter_or_refused(text: bytes) -> None:
    with contextlib.suppress(ValueError):
        letter = from_json(text)
        assert from_json(letter.to_json()) == letter


def test_a_failing_fetch_is_tried_again_with_pauses() -> None:
    world, run = world_with({"action": "skip", "attempts": 1})
    world.assign(run)
    world.stream.put(A, *"abc")

    def fail() -> None:
        raise RuntimeError("the executor is gone")

    run.engine.hooks.append(fail)
    report = run.round()
    assert [lease.outcome for lease in report.leases] == [Outcome.NOT_READ]
    assert "executor is gone" in (report.error or "")
    assert run.worker.step_batch().leases == ()
    run.engine.hooks.clear()
    work(world, run, 5)
    world.check_exactly_once()


def test_the_next_owner_takes_a_failing_batch_over_as_it_is() -> None:
    world, first = world_with({"attempts": 2})
    world.assign(first)
    world.stream.put(A, *"ab!")
    first.sink.refuses = fails_on("!")
    work(world, first, 10)
    pinned = world.lease(A)
    assert pinned.pending_checkpoint is not None
    second = world.worker("w2")
    world.assign(second)
    second.until_idle()
    world.check_exactly_once()
    assert world.lease(LeaseKey(A)).batch == pinned.batch


# Every class of error has an end


@pytest.mark.audit("B1")
@pytest.mark.parametrize(
    "error",
    [
        SinkError("no such bucket"),
        BatchError("Spark went away"),
        AccessDenied("s3:PutObject"),
        TransformError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_error_is_retried_in_silence_for_ever(error: Exception) -> None:
    world, run = world_with({"action": "skip", "attempts": 3, "outage_attempts": 4}, shards=2)
    world.assign(run)
    world.stream.put(A, *"ab!")
    world.stream.put(B, *"cde")

    def refuse(data: Data) -> None:
        if any(shard == A for shard, _, _ in data):
            raise error

    run.sink.refuses = refuse
    work(world, run, 120)

    assert stored(world, B) == "cde"
    assert EventKind.RECORD_SKIPPED not in run.kinds()
    [event] = [event for event in run.events if event.kind is EventKind.SHARD_STOPPED]
    assert event.lease == A
    assert str(error) in event.message
    report = run.worker.step_batch()
    assert report.stopped == (A,)
    assert str(error) in report.why_stopped[LeaseKey(A)]

    run.sink.refuses = None  # the outage ends
    work(world, run, 61)
    world.check_exactly_once()
    assert run.worker.step_batch().stopped == ()


@pytest.mark.audit("B1")
def test_the_shard_that_the_sink_refuses_is_found_and_the_others_go_on() -> None:
    world, run = world_with({}, shards=9)
    world.assign(run)
    shards = sorted(world.stream.shards)
    for shard in shards:
        world.stream.put(shard, *"ab")
    writes: list[int] = []

    def refuse(data: Data) -> None:
        writes.append(len({shard for shard, _, _ in data}))
        if any(shard == shards[5] for shard, _, _ in data):
            raise SinkError("the table does not take it")

    run.sink.refuses = refuse
    work(world, run, 150)
    assert [shard for shard in shards if not stored(world, shard)] == [shards[5]]
    assert run.worker.step_batch().stopped == (shards[5],)
    for shard in shards:
        world.stream.put(shard, *"cd")
    writes.clear()
    run.round()
    run.round()
    assert max(writes) == 8  # the healthy ones are together again


@pytest.mark.audit("B1")
def test_a_stopped_shard_is_tried_once_a_minute() -> None:
    world, run = world_with({"outage_attempts": 3})
    world.assign(run)
    world.stream.put(A, "a")
    tries: list[float] = []

    def refuse(_: Data) -> None:
        tries.append(world.clock.monotonic())
        raise SinkError("down")

    run.sink.refuses = refuse
    work(world, run, 900)
    last_hour = [at for at in tries if at > tries[0] + 300]
    assert 8 <= len(last_hour) <= 22


@pytest.mark.audit("B1")
def test_an_outage_stops_a_shard_after_max_age_however_old_its_records_are() -> None:
    world, run = world_with({"max_age": 60.0, "outage_attempts": 1000})
    world.assign(run)
    world.stream.put(A, "a")
    world.stream.arrival_ms = round((world.clock.now() - 100) * 1000)

    def refuse(_: Data) -> None:
        raise SinkError("down")

    run.sink.refuses = refuse
    work(world, run, 50)
    assert EventKind.SHARD_STOPPED not in run.kinds()
    work(world, run, 100)
    assert run.kinds().count(EventKind.SHARD_STOPPED) == 1


@pytest.mark.audit("B1")
@pytest.mark.parametrize(("action", "left"), [("dead_letter", "ab"), ("skip", "ab"), ("bisect", "a"), ("stop", "")])
def test_a_record_that_the_sink_cannot_store_meets_the_failure_policy(action: str, left: str) -> None:
    policy = {"action": action, "attempts": 1, "dead_letter_path": "/letters"}
    world, run = world_with(policy, shards=2)
    world.assign(run)
    world.stream.put(A, *"a!b")
    world.stream.put(B, *"c")

    def refuse(data: Data) -> None:
        if any(text == "!" for _, _, text in data):
            raise RecordRefused("column json has an invalid value")

    run.sink.refuses = refuse
    work(world, run)
    assert (stored(world, A), stored(world, B)) == (left, "c")
    assert len(run.letters.letters) == (action == "dead_letter")
    assert run.worker.step_batch().stopped == ((A,) if action in {"bisect", "stop"} else ())


@pytest.mark.audit("B1")
def test_an_error_of_the_configuration_ends_the_worker_with_its_message() -> None:
    world, run = world_with({"action": "skip", "attempts": 1})
    world.assign(run)
    world.stream.put(A, "a")

    def refuse(_: Data) -> None:
        raise ConfigurationError("partition_by names ['kind'], which the output does not have")

    run.sink.refuses = refuse
    run.worker.start()
    run.round()
    assert run.worker.stop.reason is StopReason.MISCONFIGURED
    with pytest.raises(ConfigurationError, match="partition_by names"):
        run.worker.run()
    assert world.lease(A).owner is None
    assert EventKind.RECORD_SKIPPED not in run.kinds()


@pytest.mark.audit("B16")
def test_a_record_that_crashes_python_is_found_and_meets_the_failure_policy() -> None:
    world, run = world_with({"action": "skip", "attempts": 2})
    world.assign(run)
    world.stream.put(A, *"abc!def")

    def crash(data: Data) -> None:
        if any(text == "!" for _, _, text in data):
            raise ProcessLost("Python worker exited unexpectedly (crashed)")

    run.sink.refuses = crash
    work(world, run, 200)
    assert stored(world) == "abcdef"
    assert run.kinds().count(EventKind.RECORD_SKIPPED) == 1


@pytest.mark.audit("B16")
def test_a_process_that_is_lost_once_in_a_while_narrows_nothing() -> None:
    world, run = world_with({"action": "skip", "attempts": 3})
    world.assign(run)
    world.stream.put(A, *"abc")
    errors = iter([ProcessLost("gone"), BatchError("no executor"), ProcessLost("gone"), BatchError("no"), None])

    def lose(_: Data) -> None:
        if (error := next(errors)) is not None:
            raise error

    run.sink.refuses = lose
    work(world, run, 60)
    assert {EventKind.RECORD_SKIPPED, EventKind.BATCH_NARROWED}.isdisjoint(run.kinds())
    world.check_exactly_once()


# Batches that end the process of their worker


def kills_on(*deadly: str) -> Callable[[Data], None]:
    def kill(data: Data) -> None:
        if any(text in deadly for _, _, text in data):
            raise Killed("out of memory")

    return kill


def work_of_owners(world: World, refuses: Callable[[Data], None], owners: int, rounds: int = 12) -> list[Run]:
    """Workers follow each other; each has all leases until it is killed, or for `rounds`."""
    runs = []
    for number in range(owners):
        runs.append(world.worker(f"owner-{number}"))
        runs[-1].sink.refuses, runs[-1].engine.limit = refuses, 100
        world.assign(runs[-1])
        with contextlib.suppress(Killed):
            work(world, runs[-1], rounds)
    return runs


@pytest.mark.audit("B16")
@pytest.mark.parametrize("action", ["stop", "bisect", "skip", "dead_letter"])
def test_a_batch_that_kills_its_workers_is_narrowed_to_the_record(action: str) -> None:
    world = World(shards=2, batch={"failure": {"action": action, "attempts": 2, "dead_letter_path": "/dead"}})
    world.stream.put(A, *"abcde!gh")
    world.stream.put(B, *"xyz")
    runs = work_of_owners(world, kills_on("!"), owners=9)
    goes_on = action in {"skip", "dead_letter"}
    assert stored(world, A) == ("abcdegh" if goes_on else "abcde")
    assert stored(world, B) == "xyz"
    assert runs[-1].worker.step_batch().stopped == (() if goes_on else (A,))
    assert sum(run.kinds().count(EventKind.BATCH_NARROWED) for run in runs) >= 2


@pytest.mark.audit("B16")
def test_a_lone_record_that_kills_its_workers_is_tried_at_long_intervals() -> None:
    world = World(shards=1, batch={"failure": {"action": "stop"}})
    world.stream.put(A, "!")
    attempts: list[float] = []

    def kill(_: Data) -> None:
        attempts.append(world.clock.monotonic())
        raise Killed("out of memory")

    work_of_owners(world, kill, owners=6, rounds=4000)
    gaps = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert len(attempts) == 6
    assert gaps[2:] == sorted(gaps[2:])
    assert min(gaps[2:]) >= LOSS_PAUSE
    healed = world.worker("healed")
    world.assign(healed)
    work(world, healed, 4000)
    assert stored(world) == "!"
    assert healed.worker.step_batch().stopped == ()


@pytest.mark.audit("B16")
def test_a_batch_that_was_lost_is_written_without_the_leases_that_are_well() -> None:
    world = World(shards=2)
    world.stream.put(A, "!")
    work_of_owners(world, kills_on("!"), owners=2, rounds=3)
    assert pin_losses(world) == 1
    world.stream.put(B, *"xyz")
    third = world.worker("third")
    world.assign(third)
    work(world, third, 6)
    assert [{part.lease for part in batch.parts} for batch in third.sink.batches].count(
        {LeaseKey(A), LeaseKey(B)}
    ) == 0
    assert (stored(world, A), stored(world, B)) == ("!", "xyz")
    world.check_exactly_once()


def pin_losses(world: World) -> int | None:
    pin = pin_of(world.lease(A))
    return None if pin is None else pin.losses


@pytest.mark.audit("B16")
def test_a_failure_that_the_process_survives_is_no_loss() -> None:
    """Handing a failing batch on again and again narrows nothing."""
    world = World(shards=1, batch={"failure": {"action": "stop", "attempts": 2}})
    world.stream.put(A, *"ab!d")
    runs = work_of_owners(world, kills_on("!"), owners=2, rounds=3)
    assert pin_losses(world) == 1
    runs += work_of_owners(world, fails_on("!"), owners=5, rounds=5)
    assert pin_losses(world) == 0
    assert EventKind.BATCH_NARROWED not in {kind for run in runs for kind in run.kinds()}
    last = world.worker("mended")
    world.assign(last)
    work(world, last, 20)
    world.check_exactly_once()


@pytest.mark.audit("B16")
def test_a_pin_that_was_never_lost_says_nothing_of_losses() -> None:
    assert b"losses" not in Pin(7, "1").to_state()
    assert b"losses" in Pin(7, "1", losses=1).to_state()


# Batches that were stored although they failed


class StoresAndFails:
    """Keeps whatever it is given, keyed by number as tables are, and then raises what user code might."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.parts: dict[tuple[str, int], Data] = {}

    def write(self, data: Data, batch: Batch) -> None:
        for part in batch.parts:
            self.parts[part.shard_id, part.number] = [row for row in data if row[0] == part.shard_id]
        if self.failures:
            self.failures -= 1
            raise ValueError("after it was stored")

    def holds(self, part: Part) -> bool:
        return (part.shard_id, part.number) in self.parts


@pytest.mark.parametrize("action", ["bisect", "skip", "dead_letter"])
def test_a_batch_that_was_stored_before_it_failed_is_committed_and_not_cut(action: str) -> None:
    world, run = world_with({"action": action, "attempts": 2, "dead_letter_path": "/letters"})
    sink = StoresAndFails(failures=5)
    run = world.worker("w2", sink=sink)
    world.assign(run)
    world.stream.put(A, *"abcdefgh")
    work(world, run, 40)
    world.stream.put(A, *"ij")
    work(world, run, 10)
    assert sorted(row for rows in sink.parts.values() for row in rows) == world.stream.everything()
    assert run.letters.letters == {}


def test_what_a_table_may_still_be_given_keeps_its_number() -> None:
    """A former owner may yet store the batch; under another number it would be refused, though it is the same."""
    world = World(batch={"failure": {"action": "dead_letter", "attempts": 1, "dead_letter_path": "/letters"}})

    class Table(StoresAndFails):
        def write(self, data: Data, batch: Batch) -> None:
            raise ValueError("for the time being")

    class Full:
        def write(self, letter: DeadLetter) -> None:
            raise SinkError(f"no space for {letter.name}")

    sink = Table(failures=0)
    run = world.worker("w1", sink=sink, dead_letters=Full())
    world.assign(run)
    world.stream.put(A, "a")
    run.round()
    lease = world.lease(A)
    assert lease.pending_checkpoint == Checkpoint("100")
    sink.parts[A, lease.batch] = [(A, 100, "a")]  # by the former owner
    work(world, run, 5)
    assert world.lease(A).pending_checkpoint is None
    assert world.lease(A).checkpoint == lease.pending_checkpoint


class Files(MemorySink):
    """Named as files of Parquet are, and kept when user code fails."""

    def write(self, data: Data, batch: Batch) -> None:
        for part in batch.parts:
            for number in range(part.number if part.instead_of is None else part.instead_of, part.number):
                self._remove(part, number)
            self.fuse.point()
            rows = [row for row in data if row[0] == part.shard_id]
            self.store.parts[part.shard_id, f"{part.after}.{part.number}"] = rows
            self.fuse.point()
        for hook in list(self.hooks):
            hook(batch)
        if self.refuses is not None:
            self.refuses(data)
        self.batches.append(batch)

    def withdraw(self, part: Part) -> None:
        for number in range(part.number if part.instead_of is None else part.instead_of, part.number + 1):
            self._remove(part, number)
            self.fuse.point()

    def _remove(self, part: Part, number: int) -> None:
        self.store.parts.pop((part.shard_id, f"{part.after}.{number}"), None)


@pytest.mark.parametrize("action", ["skip", "dead_letter"])
def test_what_failed_attempts_left_is_removed_when_a_record_is_set_aside(action: str) -> None:
    world, _ = world_with({"action": action, "attempts": 2, "dead_letter_path": "/letters"})
    run = world.worker("w2", sink=Files(world.store, refuses=fails_on("!")))
    world.assign(run)
    world.stream.put(A, *"!abcdefg")
    work(world, run, 80)
    assert stored(world) == "abcdefg"
    aside = EventKind.RECORD_SKIPPED if action == "skip" else EventKind.RECORD_DEAD_LETTERED
    assert run.kinds().count(aside) == 1


@pytest.mark.parametrize("action", ["skip", "dead_letter"])
def test_a_batch_with_a_bad_record_is_stored_once_whenever_its_worker_dies(action: str) -> None:
    """Before and after each request, and each file, from the first attempt to the end: another worker goes on."""
    point, killed = 0, True
    while killed:
        point += 1
        world = World(batch={"failure": {"action": action, "attempts": 1, "dead_letter_path": "/letters"}})
        files = Files(world.store, refuses=fails_on("!"))
        old, new = (
            world.worker("old", sink=files),
            world.worker("new", sink=Files(world.store, refuses=fails_on("!"))),
        )
        files.fuse = old.fuse
        world.assign(old)
        old.worker.step_discovery()
        world.stream.put(A, *"ab!cd")
        old.fuse.passed, old.fuse.burns_at = 0, point
        killed = False
        try:
            work(world, old, 20)
        except Killed:
            killed = True
        world.assign(new)
        work(world, new, 40)
        assert stored(world) == "abcd", f"killed at point {point}"
    assert point > 50


@pytest.mark.parametrize("action", ["bisect", "skip", "dead_letter"])
@pytest.mark.parametrize("records", ["a", "abc"])
def test_who_gives_up_after_its_lease_has_gone_removes_nothing_of_the_next_owner(action: str, records: str) -> None:
    """User code hangs until the handoff is forced; the next owner stores the batch; then the hung code fails."""
    failure = {"action": action, "attempts": 1, "dead_letter_path": "/letters" if action == "dead_letter" else None}
    world = World(batch={"failure": failure})
    new = world.worker("new", sink=Files(world.store))

    def hangs_and_fails(batch: Batch) -> None:
        world.hand_over(A, new)
        while world.lease(A).actual_owner != new.id:
            world.clock.advance(1)
            old.worker.step_renewal()
        new.until_idle()
        assert world.lease(A).pending_checkpoint is None
        raise TimeoutError("at last")

    old = world.worker("old", sink=Files(world.store, hooks=[hangs_and_fails]))
    world.assign(old)
    world.stream.put(A, *records)
    old.round()
    work(world, new, 5)
    assert stored(world) == records
    assert old.letters.letters == {}


def test_an_owner_that_falls_asleep_while_it_sets_a_record_aside_removes_nothing_of_the_next_one() -> None:
    """It may remove what failed attempts left, and does so when the next owner has stored the record."""
    world = World(batch={"failure": {"action": "skip", "attempts": 1}})
    new = world.worker("new", sink=Files(world.store))

    class Sleeper(Files):
        def withdraw(self, part: Part) -> None:
            world.assign(new)
            new.until_idle()
            assert stored(world) == "a"
            super().withdraw(part)

    old = world.worker("old", sink=Sleeper(world.store, refuses=fails_on("a")))
    world.assign(old)
    world.stream.put(A, "a")
    old.round()
    work(world, new, 5)
    assert stored(world) == "a"


def test_a_piece_says_what_it_is_a_piece_of_whoever_writes_it() -> None:
    world, run = world_with({"action": "bisect", "attempts": 1})
    world.assign(run)
    world.stream.put(A, *"abcdefgh")
    run.sink.refuses = fails_on("a", "h")
    numbers: list[int] = []
    run.sink.hooks.append(lambda batch: numbers.append(batch.parts[0].number))
    for _ in range(4):
        run.round()
    assert run.kinds().count(EventKind.BATCH_NARROWED) >= 2
    second = world.worker("w2")
    world.assign(second)
    second.round()
    (piece,) = second.sink.batches[0].parts
    assert (piece.instead_of, piece.number) == (numbers[0], world.lease(A).batch)
    work(world, second, 20)
    assert all(part.instead_of is None for batch in second.sink.batches[1:] for part in batch.parts)


@pytest.mark.audit("A4")
def test_a_piece_whose_pin_got_no_answer_is_not_stored_under_the_number_of_the_whole() -> None:
    """The pin of the first half is written, its answer is lost, and DynamoDB is away until the worker gives up."""
    world, run = world_with({"action": "skip", "attempts": 1})
    world.assign(run)
    world.stream.put(A, *"abc!")
    run.sink.refuses = fails_on("!")
    piece = re.compile(r'"instead_of":\d')
    is_away = False

    def lose_the_answer(method: str, request: Mapping[str, Any]) -> None:
        nonlocal is_away
        if is_away:
            raise EndpointConnectionError(endpoint_url="https://dynamodb")
        if method == "update_item" and piece.search(str(request)):
            is_away = True
            run.client.service.update_item(**request)
            raise ReadTimeoutError(endpoint_url="https://dynamodb")

    run.client.before.append(lose_the_answer)
    run.round()
    assert is_away
    run.client.before.clear()
    pinned = world.lease(A)
    assert pinned.pending_checkpoint is not None

    run.sink.refuses = None  # the next attempt would store whatever it is given
    run.worker.step_batch()

    assert all(part.number >= pinned.batch for batch in run.sink.batches for part in batch.parts)
    work(world, run)
    world.check_exactly_once()


def test_a_child_whose_parents_row_cannot_be_read_is_shown_as_stopped_until_it_can() -> None:
    world = World()
    children = world.stream.split(A)
    for child in children:
        world.create(child)
    world.stream.put(children[0], "x")
    run = world.worker("w1")
    world.assign(run, *children)
    sound = world.service.get_item(TableName="clicks", Key={"leaseKey": {"S": A}})["Item"]
    world.service.put_item(TableName="clicks", Item={**sound, "checkpoint": {"N": "5"}})
    run.round()
    run.worker.step_heartbeat()
    work(world, run, 900)
    run.worker.step_heartbeat()
    row = run.worker.heartbeat
    assert set(row.stopped) == set(row.failing) == set(children)
    assert all(A in why for why in row.why_stopped.values())
    assert set(run.reports[-1].why_stopped) == set(children)
    assert run.kinds().count(EventKind.SHARD_STOPPED) == 2
    assert run.kinds().count(EventKind.FETCH_FAILED) < 100  # it pauses between its looks
    assert row.lag_ms is not None
    assert row.lag_ms >= 800_000
    world.service.put_item(TableName="clicks", Item=sound)
    work(world, run, 70)
    assert not row.stopped  # its parent is not finished, and can be read
    assert not run.reports[-1].stopped
    world.service.put_item(TableName="clicks", Item={**sound, "checkpoint": {"S": "SHARD_END"}})
    work(world, run, 70)
    assert stored(world, children[0]) == "x"
