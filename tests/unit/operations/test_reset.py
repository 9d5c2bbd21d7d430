"""Putting an application somewhere else, and refusing to."""

from dataclasses import replace
from datetime import UTC, datetime

import dagster as dg
import pytest

import kcl_dagster as kcl
from kcl_dagster.application import Position
from kcl_dagster.errors import ConfigurationError, Unsafe
from kcl_dagster.leader.application_completeness import HeldBy, Hindrance, complete_through, window_counts
from kcl_dagster.leader.sync import plan_sync
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.checkpoint import LATEST, SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.stored import BatchCounts, StoredRows
from kcl_dagster.operations.reset import STORED_WITH_THE_DATA, reset
from kcl_dagster.operations.reset_target import ResetTarget
from kcl_dagster.orchestration.complete_windows import CompleteWindows
from kcl_dagster.streams.arrivals import MOST_SECONDS, Span
from kcl_dagster.streams.listing import list_shards
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.tables.control import Control
from tests.unit.operations.conftest import ANNA, STREAM, Shop

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"
NOW = 1_798_761_600.0


@pytest.mark.parametrize(
    ("text", "checkpoint", "timestamp_ms"),
    [
        ("trim_horizon", "TRIM_HORIZON", None),
        ("LATEST", "LATEST", 1_798_761_600_000),
        ("2026-12-31T23:00:00Z", "AT_TIMESTAMP", 1_798_758_000_000),
        ("2027-01-01T00:30:00+01:00", "AT_TIMESTAMP", 1_798_759_800_000),
        ("49587497311274533994574834252742144236107130636007899138", None, None),
    ],
)
def test_a_target_is_what_was_typed(text: str, checkpoint: str | None, timestamp_ms: int | None) -> None:
    target = ResetTarget.parse(text, NOW)
    assert target.checkpoint.sequence == (checkpoint or text)
    assert target.timestamp_ms == timestamp_ms


@pytest.mark.parametrize("text", ["yesterday", "2026-12-31T23:00:00", "2027-06-01T00:00:00Z", ""])
def test_a_target_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--to"):
        ResetTarget.parse(text, NOW)


def progressed(shop: Shop) -> str:
    """Leases with a checkpoint and without an owner, the application paused."""
    sequences = shop.put(b"one", b"two", b"three")
    shop.serve()
    lease = shop.leases()[FIRST]
    shop.opened.leases.checkpoint(lease, Checkpoint(sequences[1]), batch=7)
    for lease in shop.leases().values():
        shop.opened.leases.release(lease)
    worker = shop.opened.workers.get(ANNA)
    assert worker is not None
    assert shop.opened.workers.delete(worker)
    shop.opened.control.save(Control(paused=True, changed_by="olga"))
    return sequences[1]


def target(shop: Shop, text: str) -> ResetTarget:
    return ResetTarget.parse(text, shop.clock.now())


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(shop: Shop) -> None:
    sequence = progressed(shop)
    before = shop.leases()
    report = reset(shop.opened, target(shop, "trim_horizon"), dry=True)
    assert report.changed == {FIRST: sequence, SECOND: "TRIM_HORIZON"}
    assert shop.leases() == before
    assert shop.opened.audit.all() == []


def sold(shop: Shop) -> None:
    """Three records in the first shard; the second of them, an hour old, was processed last. The other is empty."""
    first = [*shop.put(b"one")]
    shop.clock.advance(11_520.0)
    first += shop.put(b"two")
    shop.clock.advance(3_600.0)
    shop.put(b"three")
    shop.serve()
    shop.opened.leases.checkpoint(shop.leases()[FIRST], Checkpoint(first[1]), batch=7)
    for lease in shop.leases().values():
        shop.opened.leases.release(lease)
    worker = shop.opened.workers.get(ANNA)
    assert worker is not None
    assert shop.opened.workers.delete(worker)
    shop.opened.control.save(Control(paused=True, changed_by="olga"))


@pytest.mark.audit("F13")
def test_a_dry_run_says_how_much_time_is_read_again(shop: Shop) -> None:
    sold(shop)
    report = reset(shop.opened, target(shop, "trim_horizon"), dry=True)
    line = next(line for line in report.lines() if line.startswith(FIRST))
    assert "-> TRIM_HORIZON; re-reads 3 h 12 min (from 20" in line
    assert report.to_document()["spans"][FIRST]["seconds"] == -11_520.0
    assert report.to_document()["spans"][SECOND]["seconds"] == 0.0, "an empty shard"


@pytest.mark.audit("F13")
def test_a_dry_run_says_how_much_time_is_skipped(shop: Shop) -> None:
    sold(shop)
    report = reset(shop.opened, target(shop, "latest"), dry=True)
    assert f"; skips 1 h 0 min (from {report.to_document()['spans'][FIRST]['from']} to " in report.lines()[0]


@pytest.mark.audit("F13")
def test_the_time_of_a_record_that_is_gone_is_unknown(shop: Shop) -> None:
    sold(shop)
    shop.clock.advance(86_400.0 - 3_000.0)
    report = reset(shop.opened, target(shop, "trim_horizon"), dry=True)
    assert "how much time lies between is unknown (from unknown to 20" in report.lines()[0]
    assert report.to_document()["spans"][FIRST]["seconds"] is None


@pytest.mark.audit("F13")
def test_a_stream_that_does_not_answer_ends_a_dry_run_in_time(shop: Shop) -> None:
    sold(shop)
    shop.kinesis.denied["get_records"] = "ProvisionedThroughputExceededException"
    began = shop.clock.monotonic()
    report = reset(shop.opened, target(shop, "trim_horizon"), dry=True)
    assert {span.seconds for span in report.spans.values()} == {None}
    assert shop.clock.monotonic() - began <= 2 * MOST_SECONDS


@pytest.mark.audit("F13")
def test_a_reset_looks_up_no_times(shop: Shop) -> None:
    sold(shop)
    shop.kinesis.denied["get_records"] = "AccessDeniedException"
    assert "spans" not in reset(shop.opened, target(shop, "trim_horizon")).to_document()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-59.0, "re-reads 59 s"),
        (90.0, "skips 2 min"),
        (-3_599.9, "re-reads 1 h 0 min"),
        (-11_520.0, "re-reads 3 h 12 min"),
        (2 * 86_400.0 + 3_600.0, "skips 2 d 1 h"),
        (0.0, "re-reads and skips nothing"),
    ],
)
@pytest.mark.audit("F13")
def test_a_span_is_said_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert str(Span(1_000_000_000_000, 1_000_000_000_000 + int(seconds * 1000))).startswith(f"{text} (from 2001-")


def test_leases_go_to_the_beginning_and_keep_their_batch_number(shop: Shop) -> None:
    progressed(shop)
    counter = shop.leases()[FIRST].counter
    report = reset(shop.opened, target(shop, "trim_horizon"))
    lease = shop.leases()[FIRST]
    assert (lease.checkpoint, lease.batch, lease.owner) == (TRIM_HORIZON, 7, None)
    assert lease.counter > counter
    assert report.overtaken == ()


def test_who_did_it_when_from_where_and_to_where_is_kept(shop: Shop) -> None:
    sequence = progressed(shop)
    reset(shop.opened, target(shop, "latest"))
    [entry] = shop.opened.audit.all()
    assert (entry.action, entry.by, entry.at) == ("reset", "olga@laptop", int(shop.clock.now() * 1000))
    assert entry.detail["from"][FIRST] == sequence
    assert entry.detail["to"].startswith("LATEST")


def test_latest_means_the_moment_of_the_reset_for_whoever_reads_then(shop: Shop) -> None:
    progressed(shop)
    moment = int(shop.clock.now() * 1000)
    reset(shop.opened, target(shop, "latest"))
    start = shop.opened.starts.get(STREAM)
    assert start is not None
    assert (start.position, start.timestamp_ms) == (Position.LATEST, moment)
    assert shop.leases()[FIRST].checkpoint == LATEST


def test_owned_leases_are_not_touched(shop: Shop) -> None:
    shop.serve()
    before = shop.leases()
    with pytest.raises(Unsafe, match=f"{FIRST} is owned by {ANNA}.*kcl-dagster pause"):
        reset(shop.opened, target(shop, "trim_horizon"))
    assert shop.leases() == before


def test_a_leader_that_may_give_the_leases_away_is_a_reason_to_refuse(shop: Shop) -> None:
    shop.tick()
    with pytest.raises(Unsafe, match="dagster leads"):
        reset(shop.opened, target(shop, "trim_horizon"))


def test_leases_of_dead_workers_are_taken_after_they_were_watched(shop: Shop) -> None:
    shop.serve()
    began = shop.clock.monotonic()
    report = reset(shop.opened, target(shop, "trim_horizon"), wait_for_dead=True)
    assert shop.clock.monotonic() - began >= shop.application.timings.lease_duration
    assert report.overtaken == ()
    assert {lease.owner for lease in shop.leases().values()} == {None}


def test_a_worker_that_renews_while_it_is_watched_keeps_its_leases(shop: Shop) -> None:
    shop.serve()
    lease = shop.leases()[FIRST]

    def renew() -> None:
        shop.opened.leases.renew(lease)

    shop.clock.call_in(10, renew)
    with pytest.raises(Unsafe, match=f"{FIRST} is owned by"):
        reset(shop.opened, target(shop, "trim_horizon"), wait_for_dead=True)


def test_a_worker_is_watched_for_the_duration_by_which_it_renews(shop: Shop) -> None:
    shop.serve()
    longer = 3 * shop.application.timings.lease_duration
    row = shop.opened.workers.get(ANNA)
    assert row is not None
    shop.opened.workers.put(replace(row, lease_ms=round(longer * 1000)))
    lease = shop.leases()[FIRST]

    def renew() -> None:
        shop.opened.leases.renew(lease)

    shop.clock.call_in(longer / 2, renew)
    with pytest.raises(Unsafe, match=f"{FIRST} is owned by"):
        reset(shop.opened, target(shop, "trim_horizon"), wait_for_dead=True)


def test_a_leader_that_ticks_while_it_is_watched_is_alive(shop: Shop) -> None:
    shop.serve()
    shop.tick_in(10)
    with pytest.raises(Unsafe, match="dagster leads and is alive"):
        reset(shop.opened, target(shop, "trim_horizon"), wait_for_dead=True)


def test_a_moment_is_not_changed_under_a_worker_that_lives(shop: Shop) -> None:
    progressed(shop)
    shop.beat()
    with pytest.raises(Unsafe, match=f"{ANNA} would go on with the moment"):
        reset(shop.opened, target(shop, "latest"))
    shop.clock.call_in(10, lambda: shop.beat(beat=1))
    with pytest.raises(Unsafe, match="would go on with the moment"):
        reset(shop.opened, target(shop, "latest"), wait_for_dead=True)
    assert reset(shop.opened, target(shop, "trim_horizon")).overtaken == ()


def test_the_row_of_a_dead_worker_is_no_obstacle_to_a_moment(shop: Shop) -> None:
    shop.serve()
    reset(shop.opened, target(shop, "latest"), wait_for_dead=True)
    assert shop.leases()[FIRST].checkpoint == LATEST


def test_one_shard_goes_to_a_record_that_it_has(shop: Shop) -> None:
    progressed(shop)
    [sequence] = shop.put(b"four")
    reset(shop.opened, target(shop, sequence), shards=[FIRST])
    assert shop.leases()[FIRST].checkpoint == Checkpoint(sequence)
    assert shop.leases()[SECOND].checkpoint == TRIM_HORIZON


def test_a_record_of_another_shard_is_refused(shop: Shop) -> None:
    sequence = progressed(shop)
    with pytest.raises(ConfigurationError, match="has no record"):
        reset(shop.opened, target(shop, sequence), shards=[SECOND])


def test_a_shard_that_is_not_there_is_refused(shop: Shop) -> None:
    progressed(shop)
    with pytest.raises(ConfigurationError, match="no shard shardId-9"):
        reset(shop.opened, target(shop, "trim_horizon"), shards=["shardId-9"])


def test_a_parent_is_not_read_again_behind_the_back_of_its_child(shop: Shop) -> None:
    progressed(shop)
    lease = shop.leases()[SECOND]
    child = replace(lease, key=LeaseKey("shardId-000000000002"), shard_id="shardId-000000000002")
    child = replace(child, parents=frozenset({FIRST}), checkpoint=Checkpoint("99999999999999"), counter=0)
    assert shop.opened.leases.create(child)
    with pytest.raises(Unsafe, match="shardId-000000000002 follows shardId-000000000000"):
        reset(shop.opened, target(shop, "trim_horizon"), shards=[FIRST])


def test_a_moment_is_not_moved_under_leases_that_were_not_named(shop: Shop) -> None:
    progressed(shop)
    reset(shop.opened, target(shop, "latest"))
    with pytest.raises(Unsafe, match=f"{SECOND}, not begun yet, would move"):
        reset(shop.opened, target(shop, "2026-12-31T23:00:00Z"), shards=[FIRST])


def test_shards_without_a_lease_get_one(shop: Shop) -> None:
    progressed(shop)
    assert shop.opened.leases.delete(shop.leases()[SECOND], forced=True)
    report = reset(shop.opened, target(shop, "trim_horizon"))
    assert report.created == (SECOND,)
    assert shop.leases()[SECOND].checkpoint == TRIM_HORIZON


def test_finished_leases_of_closed_shards_are_read_again(shop: Shop) -> None:
    progressed(shop)
    assert shop.opened.leases.rewind(shop.leases()[FIRST], SHARD_END)
    reset(shop.opened, target(shop, "trim_horizon"))
    assert shop.leases()[FIRST].checkpoint == TRIM_HORIZON


MERGED = "shardId-000000000002"


@pytest.mark.parametrize(
    ("shards", "ended", "awaited"),
    [
        pytest.param([], MERGED, {FIRST, SECOND}, id="all"),
        pytest.param([FIRST, MERGED], SECOND, {FIRST}, id="with one parent"),
        pytest.param([MERGED], None, set(), id="alone"),
    ],
)
def test_a_child_awaits_those_parents_that_are_read_again(
    shop: Shop, shards: list[str], ended: str | None, awaited: set[str]
) -> None:
    progressed(shop)
    shop.kinesis.merge_shards(StreamName=STREAM, ShardToMerge=FIRST, AdjacentShardToMerge=SECOND)
    reset(shop.opened, target(shop, "trim_horizon"), shards=shards)
    created = shop.leases()[MERGED]
    reset(shop.opened, target(shop, "trim_horizon"), shards=shards)
    again = shop.leases()[MERGED]
    assert [one.ended_parent for one in (created, again)] == [ended, ended]
    assert created.awaited_parents == again.awaited_parents == awaited


def test_after_a_reset_to_latest_no_parent_is_made_again_that_was_cleaned_up(shop: Shop) -> None:
    """For clean-up, a child at LATEST was read."""
    progressed(shop)
    shop.kinesis.merge_shards(StreamName=STREAM, ShardToMerge=FIRST, AdjacentShardToMerge=SECOND)
    reset(shop.opened, target(shop, "latest"))
    for parent in (FIRST, SECOND):
        assert shop.opened.leases.delete(shop.leases()[parent], forced=True)
    listed = list_shards(shop.opened.kinesis, STREAM, runtime=shop.runtime)
    assert plan_sync(listed, list(shop.leases().values()), Position.LATEST).creates == ()


def test_a_parent_that_lost_its_lease_after_a_reset_is_read_before_its_child(shop: Shop) -> None:
    progressed(shop)
    shop.kinesis.merge_shards(StreamName=STREAM, ShardToMerge=FIRST, AdjacentShardToMerge=SECOND)
    reset(shop.opened, target(shop, "trim_horizon"))
    assert shop.opened.leases.delete(shop.leases()[FIRST], forced=True)
    held = list(shop.leases().values())
    assert complete_through(held, [STREAM], 0.0, now=NOW).held_by == HeldBy(FIRST, Hindrance.MISSING, None)
    listed = list_shards(shop.opened.kinesis, STREAM, runtime=shop.runtime)
    plan = plan_sync(listed, held, Position.TRIM_HORIZON)
    assert [lease.shard_id for lease in plan.creates] == [FIRST]


def test_a_recreated_stream_is_begun_anew(shop: Shop) -> None:
    progressed(shop)
    shop.kinesis.delete_stream(StreamName=STREAM)
    shop.clock.advance(60)
    shop.kinesis.create_stream(StreamName=STREAM, ShardCount=3)
    with pytest.raises(Unsafe, match="deleted and created again"):
        reset(shop.opened, target(shop, "trim_horizon"), shards=[FIRST])
    report = reset(shop.opened, target(shop, "trim_horizon"))
    assert report.forgotten == (FIRST, SECOND)
    shop.clock.advance(120)
    shop.opened.control.save(Control())
    report_of_tick = shop.tick()
    assert report_of_tick.ok, report_of_tick.stages
    assert len(shop.leases()) == 3


def created_anew(shop: Shop) -> int:
    """The stream of an application that has stored records is created anew. Returns when."""
    progressed(shop)
    shop.kinesis.delete_stream(StreamName=STREAM)
    shop.clock.advance(7200)
    shop.kinesis.create_stream(StreamName=STREAM, ShardCount=2)
    created = int(shop.clock.now())
    shop.clock.advance(100)
    return created


def known_windows(shop: Shop, *starts: int) -> list[bool]:
    leases = list(shop.leases().values())
    assert len(leases) == 2
    return [window_counts(leases, start).is_known for start in starts]


def test_the_window_in_which_a_stream_was_created_anew_has_no_known_numbers(shop: Shop) -> None:
    """The leases with the counts of the former stream are gone."""
    created = created_anew(shop)
    reset(shop.opened, target(shop, "trim_horizon"))
    shop.opened.control.save(Control())
    shop.clock.advance(120)
    assert shop.tick().ok
    windows = (0, created - 1, created + 1)
    assert known_windows(shop, *windows) == [False, False, True]
    shop.opened.control.save(Control(paused=True, changed_by="olga"))
    reset(shop.opened, target(shop, "trim_horizon"))
    assert known_windows(shop, *windows) == [False, False, True], "a later reset does not bring them back"


def test_numbers_from_before_a_stream_was_created_anew_are_not_known_after_two_resets_at_once(shop: Shop) -> None:
    created = created_anew(shop)
    for _ in range(2):  # the second one makes the leases, and not the leader
        reset(shop.opened, target(shop, "trim_horizon"))
    assert known_windows(shop, created - 1, created + 1) == [False, True]


@pytest.mark.parametrize(("to", "expected"), [("trim_horizon", -86_410), ("latest", -60), ("moment", -7200)])
def test_a_reset_sets_back_through_when_the_application_is_complete(shop: Shop, to: str, expected: int) -> None:
    progressed(shop)
    shop.clock.advance(10_000)
    now = int(shop.clock.now())
    shop.opened.completeness.advance(WrittenThrough(), now - 60)
    before = shop.opened.completeness.load()
    text = datetime.fromtimestamp(now - 7200, UTC).isoformat() if to == "moment" else to
    report = reset(shop.opened, target(shop, text))
    row = shop.opened.completeness.load()
    assert row.epoch > before.epoch
    assert row.through == row.back_to == report.complete_through == now + expected
    said = datetime.fromtimestamp(now + expected, UTC).isoformat()
    assert report.lines()[-2:] == [f"complete through: goes back to {said}", STORED_WITH_THE_DATA]
    # A leader that read the leases before does not go on from there.
    assert shop.opened.completeness.advance(before, now) == row


def test_a_reset_that_is_dry_sets_nothing_back(shop: Shop) -> None:
    progressed(shop)
    before = shop.opened.completeness.advance(WrittenThrough(), int(shop.clock.now()))
    reset(shop.opened, target(shop, "trim_horizon"), dry=True)
    assert shop.opened.completeness.load() == before


def test_after_a_reset_windows_before_its_place_and_around_it_have_no_known_numbers(shop: Shop) -> None:
    progressed(shop)
    shop.clock.advance(10_000)
    place = int(shop.clock.now()) - 3000
    reset(shop.opened, target(shop, datetime.fromtimestamp(place, UTC).isoformat()))
    lease = shop.leases()[FIRST]
    after = Checkpoint("49587497311274533994574834252742144236107130636007899138")
    stored = BatchCounts((StoredRows(place - 60, 5),)).added_to(lease.stored, lease.checkpoint, after)
    for reset_lease in (
        lease,
        replace(lease, stored=stored, checkpoint=after),
    ):  # before the first batch, and after
        known = [window_counts([reset_lease], start).is_known for start in (place - 3600, place - 60, place)]
        assert known == [False, False, True]


def test_after_a_reset_to_the_beginning_numbers_are_known_if_the_beginning_is_still_there(shop: Shop) -> None:
    progressed(shop)
    for later, since in ((100, 0), (90_000, None)):
        shop.clock.advance(later)
        reset(shop.opened, target(shop, "trim_horizon"))
        stored = shop.leases()[FIRST].stored
        assert stored is not None
        assert stored.since == (int(shop.clock.now()) if since is None else since)


def stored_through(shop: Shop, moment: float) -> TickReport:
    """All shards are stored through a moment, and the leader finds it out."""
    for lease in shop.leases().values():
        shop.opened.leases.renew(lease, stored_through=int(moment))
    return shop.tick()


def begun_at_latest() -> tuple[Shop, int]:
    """An application that began a while ago and has no complete window yet, paused; and when it began."""
    shop = Shop(start=Position.LATEST)
    shop.clock.advance(10_000)
    shop.serve()
    began = shop.opened.starts.get(STREAM)
    assert began is not None
    assert began.timestamp_ms is not None
    for lease in shop.leases().values():
        shop.opened.leases.checkpoint(lease, Checkpoint("8" * 56), batch=7)
    stored_through(shop, shop.clock.now())
    released(shop)
    return shop, -(-began.timestamp_ms // 1000)


def released(shop: Shop) -> None:
    for lease in shop.leases().values():
        shop.opened.leases.release(lease)
    worker = shop.opened.workers.get(ANNA)
    assert worker is not None
    assert shop.opened.workers.delete(worker)
    shop.opened.control.save(Control(paused=True, changed_by="olga"))


def declared(report: TickReport) -> list[int]:
    """The starts of windows of ten minutes that are declared."""
    tens = dg.TimeWindowPartitionsDefinition(
        cron_schedule="*/10 * * * *", start="2026-11-01-00:00", fmt="%Y-%m-%d-%H:%M"
    )
    make = kcl.kcl_consumer(application="orders-app", stream=STREAM, partitions=tens, sink=kcl.parquet("s3://a/b"))
    consumer = make(lambda records: records)
    assert report.completeness is not None
    with dg.DagsterInstance.ephemeral() as instance:
        windows = CompleteWindows(consumer, kcl.KclTranslator())
        events = windows.events(instance, report.completeness, report.leases, resets=report.resets)
    return [start for event in events if (start := consumer.windows.start_of_key(str(event.partition))) is not None]


def read_again(shop: Shop, shards: list[str]) -> TickReport:
    """Shards that were put back are read from there on, to the present; an hour later."""
    place = int(shop.clock.now()) - 7200
    reset(shop.opened, target(shop, datetime.fromtimestamp(place, UTC).isoformat()), shards=shards)
    assert declared(shop.tick()) == []
    for lease in shop.leases().values():
        if lease.shard_id in (shards or [FIRST, SECOND]):
            counts = BatchCounts(
                tuple(StoredRows(start, 5) for start in range(place - place % 600, place + 7200, 600))
            )
            shop.opened.leases.checkpoint(lease, Checkpoint("9" * 56), batch=8, counts=counts)
    shop.clock.advance(3600)
    stored_through(shop, shop.clock.now())  # refused: the leader had read the row before the reset
    return stored_through(shop, shop.clock.now())


def test_a_reset_of_one_shard_to_before_the_start_completes_no_window_that_others_did_not_read() -> None:
    shop, began = begun_at_latest()
    found = declared(read_again(shop, [FIRST]))
    assert found
    assert began <= min(found) < began + 600


def test_a_reset_of_all_shards_to_before_the_start_completes_windows_from_there_on() -> None:
    shop, _ = begun_at_latest()
    place = int(shop.clock.now()) - 7200
    found = declared(read_again(shop, []))
    assert place <= min(found) < place + 600


@pytest.mark.parametrize(
    ("shards", "says"), [([FIRST], "remains {began}"), ([], "goes back to {place}")], ids=["one shard", "all"]
)
def test_a_reset_to_before_the_first_moment_says_what_becomes_of_it(shards: list[str], says: str) -> None:
    shop, began = begun_at_latest()
    place = int(shop.clock.now()) - 7200
    to = target(shop, datetime.fromtimestamp(place, UTC).isoformat())
    texts = {"began": datetime.fromtimestamp(began, UTC), "place": datetime.fromtimestamp(place, UTC)}
    wanted = "first moment: " + says.format(**{name: text.isoformat() for name, text in texts.items()})
    dry = reset(shop.opened, to, shards=shards, dry=True)
    report = reset(shop.opened, to, shards=shards)
    assert [line for line in report.lines() if line.startswith(wanted)]
    assert [line for line in dry.lines() if line.startswith(wanted.replace("goes", "would go"))]
    assert report.to_document()["first_moment"] == dry.to_document()["first_moment"]


def test_leases_of_other_workers_leave_the_first_moment_unknown(shop: Shop) -> None:
    assert shop.leader.tables.leases.create(Lease(LeaseKey(FIRST), shard_id=FIRST, checkpoint=Checkpoint("17")))
    shop.tick()
    start = shop.opened.starts.get(STREAM)
    assert start is not None
    assert start.is_adopted
    report = stored_through(shop, shop.clock.now())
    assert report.completeness is not None
    assert report.completeness.through is not None
    assert report.completeness.first is None


def test_after_a_reset_to_a_record_numbers_are_known_from_the_next_window_on(shop: Shop) -> None:
    sequence = progressed(shop)
    reset(shop.opened, target(shop, sequence), shards=[FIRST])
    lease = shop.leases()[FIRST]
    assert lease.pending_checkpoint is None
    assert not window_counts([lease], 600).is_known
    batch, after = BatchCounts((StoredRows(600, 5),), restart=1200), Checkpoint("9" * 56)
    stored = batch.added_to(lease.stored, lease.checkpoint, after)
    known = [window_counts([replace(lease, stored=stored, checkpoint=after)], at).is_known for at in (600, 1200)]
    assert known == [False, True]
