"""The status that refreshes itself."""

import io
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from kcl_dagster import aws, cli
from kcl_dagster.application import Application, StreamSettings
from kcl_dagster.errors import TableNotFound, Throttled
from kcl_dagster.leader.liveness import CLOCK_TOLERANCE, KCL_ROW_SECONDS, MISSED_BEATS, is_recent
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.stored import BatchCounts
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker_row import BOUNDED_SLOT, WorkerRow, worker_id
from kcl_dagster.operations import status as status_module
from kcl_dagster.operations.doctor.diagnosis import judge_bounded_run
from kcl_dagster.operations.pausing import pause
from kcl_dagster.operations.printable import show
from kcl_dagster.operations.reset import reset
from kcl_dagster.operations.reset_target import ResetTarget
from kcl_dagster.operations.status import FOREIGN, REST_SECONDS, Status, read_status
from kcl_dagster.operations.unread_lag import Unread
from kcl_dagster.operations.watching import view, watch
from kcl_dagster.tables.bounded_run_row import BoundedRunRow, EndedRun
from kcl_dagster.tables.completeness_row import SetBack, WrittenThrough
from kcl_dagster.tables.control import Control
from kcl_dagster.tables.places import LayoutKind
from tests.unit.operations.conftest import ANNA, STREAM, Shop

A, B = LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001")


def interrupt() -> None:
    raise KeyboardInterrupt


def status_of(shop: Shop) -> Status:
    return read_status(shop.application, shop.dynamodb, shop.runtime)


def complete(status: Status) -> Status:
    """The same, with a moment through which everything is stored, so that no line names a shard for want of it."""
    return replace(status, complete=WrittenThrough(int(status.at)))


def shown(renderable: Any, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_it_shows_who_reads_what_and_how_far_behind_the_worst_first(shop: Shop) -> None:
    shop.serve()
    shop.beat(lag_ms=90_500, behind={B: 90_500, A: 250})
    text = shown(view(complete(status_of(shop))))
    assert "2 open leases, 0 unserved, 1 worker, 90.5 s behind" in text
    assert text.index(B) < text.index(A)
    assert ANNA in text
    assert "0.2" in text


def test_between_bounded_runs_leases_are_at_rest_until_the_next_run_is_overdue(shop: Shop) -> None:
    shop.serve()
    for key in (A, B):
        shop.opened.leases.release(shop.leases()[key])
    status = replace(status_of(shop), complete_within=7200.0)
    recent = replace(status, complete=WrittenThrough(through=int(status.at) - 7190))
    assert (recent.is_well, recent.unserved) == (True, [])
    assert {recent.state_of(lease) for lease in recent.leases} == {"at rest"}
    overdue = replace(status, complete=WrittenThrough(through=int(status.at) - 7210))
    assert [one.to_document()["overdue"] for one in (recent, overdue, status_of(shop))] == [False, True, None]
    assert (overdue.is_well, len(overdue.unserved)) == (False, 2)
    assert not replace(status, complete=WrittenThrough()).is_well, "it was never complete"
    assert not replace(recent, complete_within=None).is_well, "a fleet that always runs"


def told_unknown(status: Status) -> str:
    """The reason why the moment is not known, as the document has it. The text has the same."""
    document = status.to_document()
    assert document["complete_through"] is None
    reason = document["complete_unknown"]
    assert f"complete through a moment that is not known: {reason}" in shown(view(status), 300)
    return str(reason)


def test_while_it_is_not_known_through_when_all_is_stored_status_says_why(shop: Shop) -> None:
    shop.serve()
    status = status_of(shop)
    assert told_unknown(status) == f"{A}: it has not been read yet"
    java = [replace(row, slot=None) for row in status.workers]
    assert told_unknown(replace(status, workers=java)) == f"{A}: {FOREIGN}"
    paused = replace(status, control=Control(leases=frozenset({A})))
    assert told_unknown(paused) == f"{A}: it is paused"
    assert told_unknown(replace(status, unreadable=("row x",))).startswith("row x: ")
    assert told_unknown(replace(status, leases=())) == f"{STREAM}: it has no lease"
    read = replace(status, leases=[replace(lease, stored_through=100) for lease in status.leases])
    assert told_unknown(read) == "no leader and no bounded run has found it out"
    imported = replace(read, complete=WrittenThrough(epoch=1_700_000_000))
    assert told_unknown(imported).endswith("since the reset or the import of 2023-11-14T22:13:20+00:00")
    known = replace(status, complete=WrittenThrough(1_700_000_000))
    assert known.to_document()["complete_unknown"] is None
    assert "complete through 2023-11-14T22:13:20+00:00\n" in shown(view(known), 300)


def test_a_stream_that_does_not_exist_is_named_and_is_a_reason_for_an_alert() -> None:
    shop = Shop()
    shop.kinesis.delete_stream(StreamName=STREAM)
    shop.clock.advance(60)
    shop.tick()
    status = status_of(shop)
    assert f"stream {STREAM} has no lease, so nothing of it is read" in shown(view(status))
    assert not status.is_well
    assert status.to_document()["streams_without_leases"] == [STREAM]


def test_each_stream_of_an_application_needs_leases(shop: Shop) -> None:
    shop.serve()
    status = status_of(shop)
    assert status.streams_without_leases == [], "the leases of an application with one stream do not name it"
    streams = tuple(StreamSettings(name=name) for name in ("clicks", "orderz"))
    clicks = [replace(lease, stream=StreamIdentifier("clicks")) for lease in status.leases]
    both = replace(status, application=shop.application.model_copy(update={"streams": streams}), leases=clicks)
    assert both.streams_without_leases == ["orderz"]
    assert not replace(both, unreadable=("row x",)).streams_without_leases, "the row may be its lease"
    assert not replace(both, control=Control(paused=True)).streams_without_leases, "no tick could make leases"


def after_a_run(shop: Shop, problem: str = "", *, reached: tuple[LeaseKey, ...] = (A, B)) -> Status:
    """The status after a bounded run, which has given its leases back. `reached`: those that it read."""
    shop.serve()
    bound = int(shop.clock.now())
    for key, lease in shop.leases().items():
        read = shop.opened.leases.renew(lease, stored_through=bound + 10) if key in reached else lease
        shop.opened.leases.release(read)
    worker = shop.opened.workers.get(ANNA)
    assert worker is not None
    assert shop.opened.workers.delete(worker)
    shop.leader.resign()
    row = BoundedRunRow(shop.dynamodb, shop.application, shop.opened.layout, shop.runtime)
    assert row.save(EndedRun("run-0001-4711", int(shop.clock.now()), bound, problem))
    return status_of(shop)


def test_after_a_bounded_run_that_failed_status_has_its_error_and_when(shop: Shop) -> None:
    why = f"what is left cannot be read now: {B}: stopped: ValueError: no price (orders.py:31 in price)"
    status = after_a_run(shop, why, reached=(A,))
    moment = datetime.fromtimestamp(int(shop.clock.now()), UTC).isoformat()
    text = shown(view(status), 300)
    assert f"the last bounded run (run-0001) failed at {moment}: {why}" in text
    assert {lease.key: status.state_of(lease) for lease in status.leases} == {A: "at rest", B: "unserved"}
    assert not status.is_well
    document = status.to_document()
    assert document["last_bounded_run"] == {
        "run": "run-0001-4711",
        "ended": moment,
        "bound": moment,
        "problem": why,
        "stored_since": False,
        "set_back_since": False,
    }
    since = replace(status, complete=WrittenThrough(int(shop.clock.now())))
    assert since.failed_run is None, "it was stored since"
    assert "the last bounded run" not in shown(view(replace(since, leader="dagster")), 300)


def test_after_a_bounded_run_that_ended_well_leases_are_at_rest_for_a_day(shop: Shop) -> None:
    status = after_a_run(shop)
    text = shown(view(status), 300)
    assert "0 unserved" in text
    moment = datetime.fromtimestamp(int(shop.clock.now()), UTC).isoformat()
    stored = f"everything that had arrived by {moment} was stored"
    assert f"the last bounded run (run-0001) ended well at {moment}; {stored}" in text
    assert {status.state_of(lease) for lease in status.leases} == {"at rest"}
    assert status.is_well
    assert not replace(status, at=status.at + REST_SECONDS + 1).is_well, "no run came for a day"
    assert not replace(status, leader="dagster").is_well, "a fleet should serve them"
    assert replace(status, leader="standby:catch-up:4711").is_well, "the next run has begun"


def test_a_bounded_run_that_was_killed_is_named(shop: Shop) -> None:
    after_a_run(shop)
    run, last = "4f2a9c01-11aa", int(shop.clock.now())
    killed = WorkerRow(worker_id(BOUNDED_SLOT, run), last, averages={}, slot=BOUNDED_SLOT, run_id=run)
    shop.opened.workers.put(killed)
    assert shop.opened.leases.assign(shop.leases()[A], killed.id) is not None
    shop.clock.advance(60)
    assert not status_of(shop).unended_runs, "it may have missed some heartbeats"
    shop.clock.advance(60)
    status = status_of(shop)
    text = shown(view(status), 300)
    assert "a bounded run (4f2a9c01) has not ended: its worker, which has 1 open lease, has not reported " in text
    assert f"since {datetime.fromtimestamp(last, UTC).isoformat()}." in text
    assert "the last bounded run that ended (run-0001) ended well" in text
    assert {lease.key: status.state_of(lease) for lease in status.leases} == {A: "unserved", B: "at rest"}
    assert status.to_document()["unended_bounded_runs"] == [run]
    assert [one.check for one in judge_bounded_run(status)] == ["bounded run"]
    shop.opened.leases.release(shop.leases()[A])
    assert not status_of(shop).about_unended_runs, "another worker has read its leases"


def test_what_was_set_back_since_a_bounded_run_is_not_said_to_be_stored(shop: Shop) -> None:
    ended = after_a_run(shop).last_run
    assert ended is not None
    shop.opened.completeness.advance(shop.opened.completeness.load(), ended.bound)
    shop.clock.advance(60)
    back_to = int(shop.clock.now()) - 3600
    moment = datetime.fromtimestamp(back_to, UTC).isoformat()
    reset(shop.opened, ResetTarget.parse(moment, shop.clock.now()))

    status = status_of(shop)
    text = shown(view(status), 300)
    assert "was stored" not in text
    assert f"; what arrived after {moment} is read again, because leases were reset or imported at " in text
    assert {status.state_of(lease) for lease in status.leases} == {"unserved"}
    assert status.to_document()["last_bounded_run"]["set_back_since"] is True
    unknown = replace(status, complete=WrittenThrough(None, 1, None, (SetBack(ended.ended_at, None),)))
    assert "; what it stored is read again, because leases" in shown(view(unknown), 300)
    for other in (
        WrittenThrough(ended.bound, 1, back_to, (SetBack(ended.ended_at + 10, back_to),)),
        WrittenThrough(back_to, 1, back_to, (SetBack(ended.ended_at - 31, back_to),)),
        WrittenThrough(None, 1, None, (SetBack(ended.ended_at + 10, ended.bound),)),
    ):
        assert "was stored" in shown(view(replace(status, complete=other)), 300), "stored again, before, not behind"


def test_a_bounded_run_that_failed_because_of_a_pause_is_said_and_calls_nobody(shop: Shop) -> None:
    status = after_a_run(shop, f"{A}: paused by ann", reached=(B,))
    paused = replace(status, control=Control(leases=frozenset({A}), changed_by="ann"))
    assert f"failed at {status.to_document()['last_bounded_run']['ended']}: {A}: paused by ann" in shown(
        view(paused), 300
    )
    assert (paused.is_well, status.is_well) == (True, False)


def test_a_shard_that_nobody_serves_comes_first(shop: Shop) -> None:
    shop.serve()
    shop.beat(lag_ms=90_500, behind={A: 90_500})
    shop.opened.leases.release(shop.leases()[B])
    assert [lease.key for lease in status_of(shop).worst_first] == [B, A]
    assert "1 unserved" in shown(view(status_of(shop)))


def test_what_is_paused_is_said_and_is_not_unserved(shop: Shop) -> None:
    shop.serve()
    shop.opened.leases.release(shop.leases()[B])
    pause(shop.opened, [B])
    pause(shop.opened, workers=["worker-003"])
    status = status_of(shop)
    assert status.unserved == []
    assert status.state_of(shop.leases()[B]) == "paused"
    assert f"paused by olga@laptop: {B}, worker-003" in shown(view(status))
    assert status.to_document()["paused"] == {"application": False, "leases": [B], "workers": ["worker-003"]}


@pytest.mark.parametrize("is_terminal", [False, True])
def test_lines_of_text_are_wrapped_only_in_a_terminal(shop: Shop, is_terminal: bool) -> None:
    shop.serve()
    console = Console(file=io.StringIO(), width=80, force_terminal=is_terminal, color_system=None)
    show(view(status_of(shop)), console)
    output = cast("io.StringIO", console.file).getvalue()
    [about_leader] = [line for line in output.splitlines() if "leader" in line]
    assert about_leader.rstrip().endswith("UTC)") is not is_terminal
    assert max(len(line) for line in output.splitlines() if "│" in line) <= 80


def test_a_low_terminal_shows_the_worst_and_says_that_there_are_more() -> None:
    shop = Shop(shards=9)
    shop.serve()
    text = shown(view(complete(status_of(shop)), rows=2))
    assert text.count("shardId-") == 2
    assert "and 7 leases less far behind" in text


@pytest.mark.parametrize("is_terminal", [False, True])
def test_it_looks_again_and_again_until_it_is_interrupted(shop: Shop, is_terminal: bool) -> None:
    shop.serve()
    looks: list[Status] = []

    def look() -> Status:
        looks.append(status_of(shop))
        return looks[-1]

    shop.clock.call_in(9, interrupt)
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=120, height=30)
    watch(look, 2.0, console, shop.clock)
    assert len(looks) == 5


def test_a_look_that_fails_is_said_and_the_next_one_counts(shop: Shop) -> None:
    shop.serve()
    answers: list[Any] = [status_of(shop), Throttled("the table is busy"), status_of(shop)]

    def look() -> Status:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        found: Status = answer
        return found

    shop.clock.call_in(5, interrupt)
    console = Console(file=io.StringIO(), width=120)
    watch(look, 2.0, console, shop.clock)
    assert answers == []
    file = console.file
    assert isinstance(file, io.StringIO)
    assert "the table is busy" in file.getvalue()


def test_where_there_is_nothing_to_watch_it_ends_at_once(shop: Shop) -> None:
    def look() -> Status:
        raise TableNotFound("no table yet")

    with pytest.raises(TableNotFound):
        watch(look, 2.0, Console(file=io.StringIO()), shop.clock)


@pytest.fixture
def at_the_terminal(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    clients = {"dynamodb": shop.dynamodb, "kinesis": shop.kinesis}
    monkeypatch.setattr(aws, "client", lambda service, **_: clients[service])
    monkeypatch.setattr(cli, "system", lambda: shop.runtime)
    monkeypatch.setitem(sys.modules, "my_project", SimpleNamespace(orders=shop.application))
    shop.serve()
    return shop


def test_ctrl_c_ends_it_cleanly(at_the_terminal: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    at_the_terminal.clock.call_in(5, interrupt)
    assert cli.main(["status", "my_project:orders", "--watch"]) == cli.WELL
    assert capsys.readouterr().out.count("open leases") == 3


def test_machines_get_a_document_a_line(at_the_terminal: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    at_the_terminal.beat(lag_ms=1000, behind={A: 1000})
    at_the_terminal.clock.call_in(25, interrupt)
    assert cli.main(["status", "my_project:orders", "--json", "--watch", "10"]) == cli.WELL
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(documents) == 3
    assert {lease["lease"]: lease["behind_ms"] for lease in documents[0]["leases"]} == {A: 1000, B: None}


def test_a_look_ten_times_a_second_is_the_most(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["status", "my_project:orders", "--watch", "0"])
    assert "input should be greater than or equal to 0.1" in capsys.readouterr().err


@pytest.mark.audit("F2")
def test_a_paused_shard_is_behind_by_the_clock_and_unknown_is_not_zero(shop: Shop) -> None:
    shop.serve()
    shop.beat(lag_ms=0, behind={A: 0})
    shop.opened.leases.release(shop.leases()[B])
    pause(shop.opened, [B])
    status = status_of(shop)
    assert (status.behind_ms(shop.leases()[B]), status.furthest_behind_ms) == (None, None)
    assert "lag not known" in shown(view(status))
    seen = [replace(lease, stored_through=int(status.at) - 600) for lease in status.leases]
    status = replace(status, leases=seen)
    assert status.furthest_behind_ms == pytest.approx(600_000, abs=1000)
    assert "600.0 s behind" in shown(view(replace(status, at=float(int(status.at)))))


@pytest.mark.audit("F3")
def test_a_stopped_shard_is_shown_with_its_error(shop: Shop) -> None:
    shop.serve()
    shop.beat(lag_ms=0, stopped=(A,), why_stopped={A: "ValueError: my bug 42 (orders.py:31 in price)"})
    status = status_of(shop)
    assert [status.state_of(shop.leases()[key]) for key in (A, B)] == ["stopped", "served"]
    text = shown(view(status))
    assert f"{A} is stopped: ValueError: my bug 42 (orders.py:31 in price)" in text
    [document] = [lease for lease in status.to_document()["leases"] if lease["lease"] == A]
    assert (document["state"], "my bug 42" in document["why_stopped"]) == ("stopped", True)


def test_a_failing_shard_is_shown_with_its_error(shop: Shop) -> None:
    shop.serve()
    shop.beat(lag_ms=0, failing=(A,), why_failing={A: "KeyError: 'pagee' (clicks.py:31 in clicks)"})
    status = status_of(shop)
    line = f"{A} is failing: KeyError: 'pagee' (clicks.py:31 in clicks)"
    assert line in shown(view(status))
    [document] = [lease for lease in status.to_document()["leases"] if lease["lease"] == A]
    assert document["why_failing"] == "KeyError: 'pagee' (clicks.py:31 in clicks)"
    shop.beat(lag_ms=0, failing=(A,), why_failing={A: "KeyError"}, attempts={A: "2 of 5"})
    assert status_of(shop).about_failing == [f"{A} is failing, attempt 2 of 5: KeyError"]


def put(shop: Shop, shard: LeaseKey, records: int = 1) -> list[str]:
    """Records for a shard; their sequence numbers."""
    described = shop.kinesis.list_shards(StreamName=STREAM)["Shards"]
    key = next(one["HashKeyRange"]["StartingHashKey"] for one in described if one["ShardId"] == shard)
    return [
        shop.kinesis.put_record(StreamName=STREAM, Data=b"x", PartitionKey="k", ExplicitHashKey=key)[
            "SequenceNumber"
        ]
        for _ in range(records)
    ]


def without_worker(shop: Shop) -> Status:
    """The status with a look at the stream, after the worker has gone."""
    for lease in shop.leases().values():
        if lease.actual_owner is not None:
            shop.opened.leases.release(lease)
    worker = shop.opened.workers.get(ANNA)
    if worker is not None:
        assert shop.opened.workers.delete(worker)
    return read_status(shop.application, shop.dynamodb, shop.runtime, Unread(shop.kinesis, shop.runtime))


@pytest.mark.audit("F13")
def test_without_a_worker_the_lag_is_the_age_of_the_first_unread_record(shop: Shop) -> None:
    shop.serve()
    [first] = put(shop, A)
    shop.clock.advance(600.0)
    put(shop, A)
    assert shop.opened.leases.checkpoint(shop.leases()[A], Checkpoint(first)) is not None
    shop.clock.advance(90.0)
    status = without_worker(shop)
    assert {lease.key: status.behind_by(lease) for lease in status.leases} == {A: "stream", B: "stream"}
    assert status.behind_ms(shop.leases()[A]) == pytest.approx(90_000, abs=1_000)
    assert status.behind_ms(shop.leases()[B]) == 0, "an empty shard has nothing unread"
    assert "no worker: seconds behind by the arrival of the first unread record" in shown(view(status))
    assert status.to_document()["leases"][0]["behind_by"] == "stream"


def test_status_has_the_rows_that_count_for_no_window(shop: Shop) -> None:
    shop.serve()
    counts = BatchCounts((), outside=3)
    assert shop.opened.leases.checkpoint(shop.leases()[A], Checkpoint("77"), counts=counts) is not None
    found = {one["lease"]: one for one in without_worker(shop).to_document()["leases"]}
    assert (found[A]["rows_without_window"], found[A]["late_rows_uncounted"]) == (3, 0)
    assert found[B]["rows_without_window"] is None


@pytest.mark.audit("F13")
def test_without_a_worker_and_without_the_stream_the_lag_is_said_not_to_be_known(shop: Shop) -> None:
    shop.serve()
    shop.kinesis.denied["get_shard_iterator"] = "AccessDeniedException"
    status = without_worker(shop)
    assert {status.behind_by(lease) for lease in status.leases} <= {None, "clock"}
    assert "lag not known" in shown(view(status)) or "since the shard was last read" in shown(view(status))


@pytest.mark.audit("F2")
def test_after_a_power_cut_no_lease_is_served_and_the_lag_grows(shop: Shop) -> None:
    shop.serve()
    shop.beat(lag_ms=0, behind={A: 0, B: 0}, stopped=(A,), why_stopped={A: "ValueError"})
    shop.clock.advance(60.0)
    put(shop, A)
    shop.clock.advance(6 * 3600.0)
    status = read_status(shop.application, shop.dynamodb, shop.runtime, Unread(shop.kinesis, shop.runtime))
    assert [lease.key for lease in status.unserved] == [A, B]
    assert {status.state_of(lease) for lease in status.leases} == {"unserved"}
    assert {status.behind_by(lease) for lease in status.leases} == {"stream"}
    assert status.furthest_behind_ms == pytest.approx(6 * 3_600_000, abs=1_000)
    [worker] = status.to_document()["workers"]
    assert (worker["alive"], worker["state"]) == (False, "gone")
    assert "2 open leases, 2 unserved, 0 workers, 21600.0 s behind" in shown(view(status))


@pytest.mark.parametrize("owned", ["old", "young", None])
def test_leases_of_former_streams_are_not_unserved(shop: Shop, owned: str | None) -> None:
    """Of two streams that had one name, the one is read whose leases have owners, be it the older one."""
    streams = {
        "old": StreamIdentifier("orders", "123456789012", 100),
        "young": StreamIdentifier("orders", "123456789012", 200),
        "left": StreamIdentifier("clicks", "123456789012", 100),
    }
    application = Application(name="many-app", streams=("orders",), multi_stream=True)
    leases = [
        Lease(
            LeaseKey(stream.lease_key(str(A))),
            str(A),
            checkpoint=Checkpoint("1"),
            stream=stream,
            owner=ANNA if name == owned else None,
        )
        for name, stream in streams.items()
    ]
    status = Status(application, LayoutKind.SINGLE, None, leases, (), (), shop.clock.now())
    assert [lease.stream for lease in status.unserved] == [streams[owned or "young"]]
    assert [status.state_of(lease) for lease in leases].count("former") == 2


def test_the_work_of_a_status_grows_with_leases_and_workers_not_with_their_product(
    monkeypatch: pytest.MonkeyPatch, shop: Shop
) -> None:
    """It took minutes for thousands of leases, because each of them asked anew which workers are alive."""
    looked = list[str]()

    def counted(row: WorkerRow, heartbeat: float, now: float) -> bool:
        looked.append(row.id)
        return is_recent(row, heartbeat, now)

    monkeypatch.setattr(status_module, "is_recent", counted)
    now = shop.clock.now()
    workers = [WorkerRow(WorkerId(f"w{number}"), last_update=int(now)) for number in range(20)]
    leases = [
        Lease(LeaseKey(f"shard-{number}"), f"shard-{number}", owner=workers[number % 20].id)
        for number in range(200)
    ]
    status = Status(Application(name="large", streams=(STREAM,)), LayoutKind.SINGLE, None, leases, workers, (), now)
    document = status.to_document()
    assert [row["leases"] for row in document["workers"]] == [10] * 20
    assert {row["state"] for row in document["leases"]} == {"served"}
    assert len(status.worst_first) == 200
    assert sorted(looked) == sorted(row.id for row in workers)


@pytest.mark.audit("F2")
def test_without_the_stream_the_lag_grows_from_the_last_heartbeat(shop: Shop) -> None:
    shop.serve()
    shop.beat(lag_ms=4_000, behind={A: 4_000})
    shop.clock.advance(3600.0)
    status = status_of(shop)
    lags = {lease.key: (status.behind_ms(lease), status.behind_by(lease)) for lease in status.leases}
    assert lags == {A: (pytest.approx(3_604_000, abs=1_000), "clock"), B: (None, None)}
    assert status.furthest_behind_ms is None


@pytest.mark.parametrize("seconds", [1.0, 60.0])
def test_a_worker_is_alive_to_the_status_as_long_as_to_a_new_leader(shop: Shop, seconds: float) -> None:
    shop.serve()
    shop.beat()
    shop.clock.advance(seconds)
    assert (list(status_of(shop).living), status_of(shop).unserved) == ([ANNA], [])
    shop.clock.advance(max(MISSED_BEATS * 5.0, KCL_ROW_SECONDS) + CLOCK_TOLERANCE)
    assert list(status_of(shop).living) == []


@pytest.mark.audit("F13")
def test_a_watched_status_asks_the_stream_twice_a_minute(shop: Shop) -> None:
    shop.serve()
    without_worker(shop)
    asked: list[float] = []
    shop.kinesis.changed["get_records"] = lambda _: asked.append(shop.clock.monotonic())
    unread = Unread(shop.kinesis, shop.runtime)
    for _ in range(30):
        read_status(shop.application, shop.dynamodb, shop.runtime, unread)
        shop.clock.advance(2.0)
    assert len(asked) == 4, "two shards, twice"


def test_a_checkpoint_is_shortened_in_the_table_and_whole_in_the_document(shop: Shop) -> None:
    shop.tick()
    [first] = put(shop, A)
    number = f"49{first.rjust(54, '0')}"
    shop.serve()
    status = status_of(shop)
    leases = [replace(lease, checkpoint=Checkpoint(number, 3)) for lease in status.leases]
    status = complete(replace(status, leases=leases))
    text = shown(view(status), width=120)
    assert f"…{number[-8:]}/3" in text
    assert number not in text
    assert status.to_document()["leases"][0]["checkpoint"] == f"{number}/3"
    assert all(len(line) <= 120 for line in text.splitlines())
    assert text.count(A) == 1, "no row is folded"


AT_13_47 = 1_700_056_020  # 13:47 UTC


@pytest.mark.parametrize(
    ("trouble", "says", "state", "is_well"),
    [
        ({"stopped": (A,), "why_stopped": {A: "ValueError: no price"}}, "stopped", "stopped", False),
        ({"slow_since": {A: AT_13_47}}, "hangs in your code since 13:47 UTC", "hung", False),
        ({"failing": (A,), "attempts": {A: "3 of 5"}}, "failing (attempt 3 of 5)", "failing", True),
        ({"failing": (A,)}, "failing", "failing", True),
    ],
)
def test_each_shard_has_a_state_and_those_that_do_not_go_on_end_status_with_1(
    trouble: dict[str, Any], says: str, state: str, is_well: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop()
    shop.serve()
    shop.beat(**trouble)
    status = status_of(shop)
    assert says in shown(view(status), 200)
    document = status.to_document()
    assert document["well"] is is_well
    assert [lease["state"] for lease in document["leases"]] == [state, "served"]
    assert status.worst_first[0].key == A or is_well
    monkeypatch.setattr(
        aws, "client", lambda service, **_: shop.dynamodb if service == "dynamodb" else shop.kinesis
    )
    monkeypatch.setattr(cli, "system", lambda: shop.runtime)
    arguments = ["status", "--application", "orders-app", "--stream", STREAM]
    assert cli.main(arguments) == (0 if is_well else 1)
    assert cli.main([*arguments, "--json"]) == (0 if is_well else 1)


def test_status_of_an_application_without_tables_names_where_it_looked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop()
    dynamodb = cast("Any", shop.dynamodb)
    monkeypatch.setattr(dynamodb, "meta", SimpleNamespace(region_name="eu-west-1", endpoint_url=""), raising=False)
    sts = SimpleNamespace(
        get_caller_identity=lambda: {"Account": "123456789012", "Arn": "arn:aws:iam::1:user/olga"}
    )
    clients = {"dynamodb": dynamodb, "kinesis": shop.kinesis, "sts": sts}
    monkeypatch.setattr(aws, "client", lambda service, **_: clients[service])
    monkeypatch.setattr(cli, "system", lambda: shop.runtime)
    assert cli.main(["status", "--application", "others", "--stream", STREAM]) != 0
    told = " ".join(capsys.readouterr().err.split())
    assert "there is no table others in region eu-west-1" in told
    assert "The account is 123456789012, as arn:aws:iam::1:user/olga" in told


def test_a_worker_whose_renewals_do_not_go_on_is_named_and_ends_status_with_1() -> None:
    shop = Shop()
    shop.serve()
    assert status_of(shop).is_well
    shop.beat(held_since={"renewals": AT_13_47})
    status = status_of(shop)
    [line] = status.held_threads
    assert line.endswith("its thread of renewals has not gone on since 13:47 UTC")
    assert line in shown(view(status), 200)
    document = status.to_document()
    assert document["well"] is False
    assert [row["held_since"] for row in document["workers"]] == [{"renewals": AT_13_47}]


def test_names_of_shards_and_workers_are_whole_at_80_columns(shop: Shop) -> None:
    shop.serve()
    worker = WorkerId("worker-000:1a2b3c4d")
    for shard, lease in shop.leases().items():
        shop.opened.leases.release(lease)
        assert shard in (A, B)
    shop.beat(lag_ms=90_500, behind={A: 90_500}, slow_since={A: AT_13_47})
    status = status_of(shop)
    status = replace(
        status,
        leases=[replace(lease, owner=worker) for lease in status.leases],
        workers=[replace(row, id=worker, run_id="1a2b3c4d-0000-4000-8000-000000000000") for row in status.workers],
    )
    text = shown(view(status), 80)
    for name in (A, B, worker):
        assert name in text
    assert text.count(worker) == 3
    assert max(map(len, text.splitlines())) <= 80
