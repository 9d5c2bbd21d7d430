"""The consumer's code fails; the policy decides; the order of a shard is kept."""

import contextlib
import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.application import FailurePolicy
from kcl_dagster.errors import (
    SinkError,
)
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch_retries import Failures
from kcl_dagster.worker.dead_letter import DeadLetter, FiledDeadLetters, NoDeadLetters
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.report import Outcome
from tests.doubles.clock import FakeClock
from tests.unit.worker.failing import A, B, C, away_after, fails_on, stored, work, world_with
from tests.unit.worker.kit import Data, World


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
    errors: set[str | None] = set()
    for _ in range(60):
        run.round()
        run.worker.step_heartbeat()
        [row] = world.worker_table(world.service).list()
        if row.failing and not row.stopped:
            errors.add((row.why_failing or {}).get(LeaseKey(A)))
        told.append("stopped" if row.stopped else (row.attempts or {}).get(LeaseKey(A), ""))
        world.clock.advance(1)
    assert list(dict.fromkeys(filter(None, told))) == ["1 of 3", "2 of 3", "stopped"]
    [error] = errors
    assert (row.attempts, row.why_failing) == ({}, {}), "it is stopped, and why_stopped has the error"
    assert row.why_stopped == {LeaseKey(A): error}
    run.sink.refuses = lambda _: None
    world.clock.advance(120)
    run.round()
    run.worker.step_heartbeat()
    [row] = world.worker_table(world.service).list()
    assert (row.attempts, row.stopped, row.failing, row.why_failing) == ({}, (), (), {})


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
    assert DeadLetter.from_json(letter.to_json()) == letter
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
    [letter] = map(DeadLetter.from_json, files.values())
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
        DeadLetter.from_json(b"{}")


@given(
    st.binary(max_size=30)
    | st.dictionaries(
        st.sampled_from([*DeadLetter.__struct_fields__, "more"]),
        st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=1),
    ).map(lambda document: json.dumps(document).encode())
)
def test_any_file_is_a_letter_or_refused(text: bytes) -> None:
    with contextlib.suppress(ValueError):
        letter = DeadLetter.from_json(text)
        assert DeadLetter.from_json(letter.to_json()) == letter


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


def test_a_suspect_that_neither_fails_nor_succeeds_holds_no_other_one_up() -> None:
    clock = FakeClock()
    failures = Failures(FailurePolicy(), clock, Random(1))
    keys = [LeaseKey(shard) for shard in (A, B, C)]
    failures.failed(keys, ValueError("one of them"))
    tried = []
    for _ in range(6):
        tried += failures.next_group(keys)
        clock.advance(1)
    assert tried == [A, B, C, A, B, C]


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
    with away_after(run, r'"instead_of":\d'):
        run.round()
    pinned = world.lease(A)
    assert pinned.pending_checkpoint is not None

    run.sink.refuses = None  # the next attempt would store whatever it is given
    run.worker.step_batch()

    assert all(part.number >= pinned.batch for batch in run.sink.batches for part in batch.parts)
    work(world, run)
    world.check_exactly_once()
