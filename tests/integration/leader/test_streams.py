"""Leases follow the shards: splits, merges, losses, streams that come and go."""

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kcl_dagster.application import Application, BatchSettings, FleetSettings, Position, StartAt, StreamSettings
from kcl_dagster.leader import sync_stage
from kcl_dagster.leader.application_completeness import window_counts
from kcl_dagster.leader.liveness import CLOCK_TOLERANCE
from kcl_dagster.model.checkpoint import LATEST, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.tables.attributes import START_POSITION
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.table_layout import create_tables
from tests.doubles.kinesis import FakeKinesis
from tests.integration.leader.town import Client, Town, Worker, shard_id

FLEET = FleetSettings(max_workers=3, shards_per_worker=100)


def running(town: Town) -> Worker:
    town.tick()
    worker = town.start("worker-000")
    town.step(2)
    assert len(worker.shards()) == len(town.owners())
    return worker


def held_by(worker: Worker) -> list[LeaseKey]:
    return [holding.key for holding in worker.holdings.holdings()]


def in_order(town: Town) -> list[str]:
    return sorted(town.scan())


def test_children_of_a_split_are_served_and_the_parent_is_deleted_when_they_have_started(town: Town) -> None:
    worker = running(town)
    town.split(shard_id(0))
    worker.finish(shard_id(0))
    town.step(2)
    children = {shard_id(4), shard_id(5)}
    assert children <= set(worker.shards())
    assert town.lease(shard_id(0)).is_finished
    town.until(lambda report: report.stage("sync") is not None, within=10.0)
    town.step(20)
    assert LeaseKey(shard_id(0)) in town.scan(), "its children have not been started"
    worker.progress(shard_id(4), "100")
    town.step(20)
    assert LeaseKey(shard_id(0)) in town.scan(), "one of its children has not been started"
    worker.progress(shard_id(5), "100")
    town.step(20)
    assert LeaseKey(shard_id(0)) not in town.scan()


@pytest.mark.parametrize("answer", [{}, {"Items": [], "Count": 0}], ids=["cut off", "without rows"])
def test_one_scan_without_leases_makes_no_lease_of_a_shard_that_was_cleaned_up(
    town: Town, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = running(town)
    town.split(shard_id(0))
    worker.finish(shard_id(0))
    town.step(2)
    worker.progress(shard_id(4), "100")
    worker.progress(shard_id(5), "100")
    town.step(20)
    before = set(town.scan())
    assert LeaseKey(shard_id(0)) not in before
    empty = [1]

    def scan(**request: Any) -> Any:
        return dict(answer) if empty and empty.pop() else real(**request)

    real = town.dynamodb.scan
    monkeypatch.setattr(town.dynamodb, "scan", scan, raising=False)
    town.tick()
    assert not empty
    assert set(town.scan()) == before


def test_a_merged_shard_is_served_once_and_both_parents_go(town: Town) -> None:
    worker = running(town)
    town.kinesis.merge_shards(StreamName="orders", ShardToMerge=shard_id(0), AdjacentShardToMerge=shard_id(1))
    worker.finish(shard_id(0))
    worker.finish(shard_id(1))
    town.step(2)
    worker.progress(shard_id(4), "100")
    town.step(20)
    assert in_order(town) == [shard_id(2), shard_id(3), shard_id(4)]


def test_finished_leases_need_no_owner_and_count_for_nothing(town: Town) -> None:
    worker = running(town)
    town.split(shard_id(0))
    worker.finish(shard_id(0))
    report = town.step(2)
    assert shard_id(0) not in report.unserved
    town.kill(worker, seen=True)
    report = town.step()
    assert shard_id(0) not in {move.lease for move in report.moves}


def test_a_child_whose_lease_got_lost_is_found_and_read_from_its_beginning(town: Town) -> None:
    worker = running(town)
    town.split(shard_id(0))
    worker.finish(shard_id(0))
    town.step(2)
    town.leases.delete(town.lease(shard_id(5)), forced=True)
    town.until(lambda report: LeaseKey(shard_id(5)) in town.scan(), within=30.0)
    assert town.lease(shard_id(5)).checkpoint == TRIM_HORIZON
    assert town.lease(shard_id(5)).parents == {shard_id(0)}


def test_a_lease_that_somebody_deleted_comes_back(town: Town) -> None:
    running(town)
    town.leases.delete(town.lease(shard_id(2)), forced=True)
    took = town.until(lambda report: LeaseKey(shard_id(2)) in town.scan(), within=30.0)
    assert took <= 15.0
    assert all(stream.hole is None for stream in town.reports[-1].streams)


def test_what_was_read_already_is_not_read_again(town: Town) -> None:
    """The lease of a middle generation is gone, its children are being read."""
    worker = running(town)
    town.split(shard_id(0))
    worker.finish(shard_id(0))
    town.step(2)
    town.split(shard_id(4))
    worker.progress(shard_id(5), "100")
    worker.finish(shard_id(4))
    town.step(2)
    for child in (shard_id(6), shard_id(7)):
        worker.progress(child, "100")
    town.leases.delete(town.lease(shard_id(4)), forced=True)
    town.step(30)
    assert shard_id(4) not in in_order(town)


def test_closed_shards_with_records_are_read_by_an_application_that_starts_late() -> None:
    town = Town(Application(name="late-app", streams="orders", fleet=FLEET), shards=2)
    town.clock.advance(60.0)
    town.split(shard_id(0))
    town.clock.advance(3600.0)
    town.tick()
    assert in_order(town) == [shard_id(0), shard_id(1)]
    assert {lease.checkpoint for lease in town.scan().values()} == {TRIM_HORIZON}


def test_a_start_at_the_tip_is_written_down_and_stays() -> None:
    streams = (StreamSettings(name="orders", start=StartAt(position=Position.LATEST)),)
    town = Town(Application(name="tip-app", streams=streams, fleet=FLEET), shards=2)
    town.split(shard_id(0))
    town.clock.advance(10.0)
    began = town.clock.now()
    town.tick()
    assert in_order(town) == [shard_id(1), shard_id(2), shard_id(3)]
    assert {lease.checkpoint for lease in town.scan().values()} == {LATEST}
    town.clock.advance(600.0)
    town.restart_leader()
    town.step(20)
    [start] = town.leader.tables.starts.all().values()
    assert start.timestamp_ms == int(began * 1000)


def test_the_tip_is_a_moment_of_the_stream_and_not_of_our_clock() -> None:
    """Kinesis reads nothing from the future, and what was written before that future came would be lost."""
    streams = (StreamSettings(name="orders", start=StartAt(position=Position.LATEST)),)
    town = Town(Application(name="tip-app", streams=streams, fleet=FLEET), shards=2, clock_ahead=180.0)
    town.tick()
    [start] = town.leader.tables.starts.all().values()
    assert start.timestamp_ms is not None
    assert town.clock.now() - 181.0 <= start.timestamp_ms / 1000 <= town.clock.now() - 180.0


def test_a_start_in_the_future_is_waited_for() -> None:
    moment = datetime.fromtimestamp(1_798_761_600 + 60, UTC)
    start = StartAt(position=Position.AT_TIMESTAMP, timestamp=moment)
    streams = (StreamSettings(name="orders", start=start),)
    town = Town(Application(name="future-app", streams=streams, fleet=FLEET), shards=2)
    assert "lies in the future" in (town.tick().stage("sync").error or "")  # type: ignore[union-attr]
    assert town.until(lambda report: len(report.leases) == 2) >= 60.0


@pytest.mark.audit("C7")
def test_a_thousand_leases_are_made_in_a_few_requests() -> None:
    """Each of them writes the row of the lock, so no two of them may be under way together."""
    town = Town(Application(name="wide-app", streams=("orders",), fleet=FLEET), shards=1000)
    sent: list[int] = []

    def count(method: str, request: dict[str, Any]) -> bool:
        if method == "transact_write_items":
            sent.append(len(request["TransactItems"]))
        return False

    town.dynamodb.fails = count
    report = town.tick()
    assert report.stage("sync").ok  # type: ignore[union-attr]
    assert len(in_order(town)) == 1000
    assert sum(sent) - len(sent) == 1000
    assert len(sent) == 20


def test_a_start_that_was_cut_off_is_completed_even_if_shards_were_closed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first leader wrote down the moment and dies before it has made all leases."""
    monkeypatch.setattr(sync_stage, "CREATED_AT_ONCE", 1)
    streams = (StreamSettings(name="orders", start=StartAt(position=Position.LATEST)),)
    town = Town(Application(name="tip-app", streams=streams, fleet=FLEET), shards=4)

    def second_create(method: str, request: dict[str, Any]) -> bool:
        return method == "transact_write_items" and shard_id(1) in str(request)

    town.clock.advance(10.0)
    town.dynamodb.fails = second_create
    assert not town.tick().stage("sync").ok  # type: ignore[union-attr]
    assert in_order(town) == [shard_id(0)]
    town.dynamodb.fails = lambda method, request: False
    town.clock.advance(5.0)
    town.split(shard_id(2))
    town.clock.advance(5.0)
    town.restart_leader()
    town.step(3)
    assert in_order(town) == [shard_id(0), shard_id(1), shard_id(2), shard_id(3)]


def test_a_shard_whose_lease_was_deleted_is_begun_again_even_if_it_was_closed_meanwhile() -> None:
    """By the leader that has been there all the time, and below which nobody else has begun."""
    streams = (StreamSettings(name="orders", start=StartAt(position=Position.LATEST)),)
    town = Town(Application(name="tip-app", streams=streams, fleet=FLEET), shards=2)
    town.clock.advance(10.0)
    town.step(3)
    town.leases.delete(town.lease(shard_id(0)), forced=True)
    town.split(shard_id(0))
    town.clock.advance(5.0)
    town.split(shard_id(2))
    town.step(30)
    assert in_order(town) == [shard_id(0), shard_id(1)]
    assert town.lease(shard_id(0)).checkpoint == LATEST


def test_a_start_at_a_timestamp_stays_when_the_configuration_changes() -> None:
    def application(moment: float) -> Application:
        start = StartAt(position=Position.AT_TIMESTAMP, timestamp=datetime.fromtimestamp(moment, UTC))
        return Application(name="past-app", streams=(StreamSettings(name="orders", start=start),), fleet=FLEET)

    town = Town(application(1_798_761_600.0), shards=2)
    town.tick()
    town.application = application(1_798_769_999.0)
    town.restart_leader()
    town.step(20)
    [start] = town.leader.tables.starts.all().values()
    assert start.timestamp_ms == 1_798_761_600_000


def test_a_stream_that_was_made_anew_is_an_error_and_not_a_new_beginning(town: Town) -> None:
    running(town)
    before = {key: lease.checkpoint for key, lease in town.scan().items()}
    town.kinesis.delete_stream(StreamName="orders")
    town.clock.advance(5.0)
    town.kinesis.create_stream(StreamName="orders", ShardCount=2)
    town.until(lambda report: not report.ok)
    assert "was deleted and created again" in (town.reports[-1].stage("sync").error or "")  # type: ignore[union-attr]
    assert {key: lease.checkpoint for key, lease in town.scan().items()} == before


def test_no_lease_is_made_for_a_stream_that_was_made_anew_between_two_audits(town: Town) -> None:
    worker = running(town)
    before = set(town.scan())
    town.kinesis.delete_stream(StreamName="orders")
    town.clock.advance(5.0)
    town.kinesis.create_stream(StreamName="orders", ShardCount=6)
    worker.finish(shard_id(0))  # its hash range has no lease now, so the leader lists the shards at once
    town.until(lambda report: not report.ok or set(town.scan()) != before)
    assert "was deleted and created again" in (town.reports[-1].stage("sync").error or "")  # type: ignore[union-attr]
    assert set(town.scan()) == before


@pytest.mark.parametrize(("policy", "deleted"), [("stop", False), ("continue", True)])
def test_records_that_left_the_stream_unread_are_told(policy: str, deleted: bool) -> None:
    batch = BatchSettings.model_validate({"on_data_loss": policy})
    town = Town(Application(name="slow-app", streams="orders", fleet=FLEET, batch=batch), shards=1)
    running(town)
    town.split(shard_id(0))
    town.clock.advance(25 * 3600.0)
    town.until(lambda report: bool(report.data_loss))
    [loss] = town.reports[-1].data_loss
    assert loss.lease == shard_id(0)
    assert "has left the stream" in loss.what
    assert {shard_id(1), shard_id(2)} <= set(town.scan())
    assert {town.lease(shard_id(number)).checkpoint for number in (1, 2)} == {TRIM_HORIZON}
    town.step(3)
    assert (LeaseKey(shard_id(0)) not in town.scan()) is deleted


# --- several streams ----------------------------------------------------------------------------------------------


def many(*streams: str) -> Application:
    return Application(name="many-app", streams=streams, multi_stream=True, fleet=FLEET)


def by_stream(town: Town) -> dict[str, int]:
    found: dict[str, int] = {}
    for lease in town.scan().values():
        assert lease.stream is not None
        found[lease.stream.name] = found.get(lease.stream.name, 0) + 1
    return found


def test_all_streams_of_an_application_are_served() -> None:
    town = Town(many("orders", "clicks"), shards={"orders": 2, "clicks": 3})
    worker = running(town)
    assert by_stream(town) == {"orders": 2, "clicks": 3}
    assert len(worker.shards()) == 5
    assert all(lease.key == f"{lease.stream}:{lease.shard_id}" for lease in town.scan().values())


def test_one_stream_that_fails_does_not_hold_up_the_others() -> None:
    town = Town(many("orders", "missing"), shards={"orders": 2})
    report = town.tick()
    assert by_stream(town) == {"orders": 2}
    assert "stream missing" in (report.stage("sync").error or "")  # type: ignore[union-attr]


def test_a_stream_that_is_added_is_read_and_one_that_is_taken_out_keeps_its_checkpoints() -> None:
    town = Town(many("orders", "clicks"), shards={"orders": 2, "clicks": 2})
    worker = running(town)
    town.application = many("orders", "payments")
    town.kinesis.create_stream(StreamName="payments", ShardCount=3)
    town.restart_leader()
    town.step(60)
    assert by_stream(town) == {"orders": 2, "clicks": 2, "payments": 3}
    assert sorted(worker.shards()) == sorted([shard_id(n) for n in (0, 1)] + [shard_id(n) for n in (0, 1, 2)])
    assert all(lease.owner is None for lease in town.scan().values() if lease.stream.name == "clicks")  # type: ignore[union-attr]
    town.application = many("orders", "payments", "clicks")
    town.restart_leader()
    town.step(3)
    assert len(worker.shards()) == 7


def test_leases_of_a_stream_that_is_gone_are_kept() -> None:
    """Where the leader asks in the wrong region, a stream is gone, too."""
    town = Town(many("orders", "clicks"), shards={"orders": 2, "clicks": 2})
    running(town)
    town.application = many("orders")
    town.restart_leader()
    town.kinesis.delete_stream(StreamName="clicks")
    town.step(40)
    assert by_stream(town) == {"orders": 2, "clicks": 2}
    assert all(lease.owner is None for lease in town.scan().values() if lease.stream.name == "clicks")  # type: ignore[union-attr]


def test_a_stream_that_was_made_anew_is_another_stream() -> None:
    town = Town(many("orders"), shards={"orders": 2})
    worker = running(town)
    town.kinesis.delete_stream(StreamName="orders")
    town.clock.advance(5.0)
    town.kinesis.create_stream(StreamName="orders", ShardCount=1)
    old = {lease.stream for lease in town.scan().values()}
    town.until(lambda report: len(town.scan()) == 3)
    [lease] = [lease for lease in town.scan().values() if lease.stream not in old]
    assert lease.stream is not None
    assert lease.stream.creation_epoch == int(
        town.kinesis.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"][
            "StreamCreationTimestamp"
        ].timestamp()
    )
    town.step(3)
    assert worker.shards() == [shard_id(0)]
    assert held_by(worker) == [lease.key]


@pytest.mark.parametrize("position", [Position.TRIM_HORIZON, Position.LATEST])
def test_numbers_of_the_window_in_which_a_stream_was_made_anew_are_not_known(position: Position) -> None:
    """What the former stream had in it is counted by leases that are not read any more."""
    orders = StreamSettings(name="orders", start=StartAt(position=position))
    application = Application(name="many-app", streams=(orders,), multi_stream=True, fleet=FLEET)
    town = Town(application, shards={"orders": 2})
    running(town)
    assert window_counts(town.tick().leases, 0).is_known, "there is no former stream"
    town.kinesis.delete_stream(StreamName="orders")
    town.clock.advance(5.0)
    town.kinesis.create_stream(StreamName="orders", ShardCount=1)
    created = int(town.clock.now())
    town.until(lambda report: len(town.scan()) == 3)
    began = int(town.clock.now())
    for leases in (town.tick().leases, list(town.scan().values())):
        known = [window_counts(leases, start).is_known for start in (created - 60, created, began + 1)]
        assert known == [False, False, True]


def test_a_leader_that_asks_the_wrong_region_loses_no_checkpoint() -> None:
    """A younger stream has the same name there, as in a copy for tests."""
    town = Town(many("orders"), shards={"orders": 3})
    worker = running(town)
    for number in range(3):
        worker.progress(shard_id(number), str(100 + number))
    checkpoints = {key: lease.checkpoint for key, lease in town.scan().items()}
    here, elsewhere = town.kinesis, Client(FakeKinesis(town.clock), town.clock)
    town.clock.advance(5.0)
    elsewhere.create_stream(StreamName="orders", ShardCount=2)
    town.kinesis = elsewhere
    town.restart_leader()
    notes = [note for _ in range(60) for note in town.step().notes]
    [told] = [note for note in notes if "another stream has the name" in note]
    assert "all 3 keep their checkpoints" in told
    assert {key: lease.checkpoint for key, lease in town.scan().items() if key in checkpoints} == checkpoints
    assert not set(held_by(worker)) & checkpoints.keys()
    town.kinesis = here
    town.restart_leader()
    town.step(5)
    assert set(held_by(worker)) == checkpoints.keys(), "and the leases of the other one are given back"
    assert {key: lease.checkpoint for key, lease in town.scan().items() if key in checkpoints} == checkpoints


def test_a_leader_that_has_not_heard_of_the_new_stream_leaves_its_leases_alone() -> None:
    """Two processes of one deployment lead in turn; only one has looked at the stream since it was made anew."""
    town = Town(many("orders"), shards={"orders": 2})
    running(town)
    stale = town.leader
    town.kinesis.delete_stream(StreamName="orders")
    town.clock.advance(5.0)
    town.kinesis.create_stream(StreamName="orders", ShardCount=1)
    town.restart_leader()
    town.step(2)
    [new] = [lease for lease in town.scan().values() if lease.actual_owner is not None]
    town.leader = stale
    town.tick()
    assert town.scan()[new.key].actual_owner == new.actual_owner
    town.step(2)  # it looks at once
    assert {lease.stream for lease in town.scan().values() if lease.actual_owner is not None} == {new.stream}


def test_a_stream_that_only_throttles_leaves_the_other_stages_their_time() -> None:
    town = Town(Application(name="orders-app", streams="orders"), shards=2)
    town.tick()
    worker = town.start("worker-000")
    town.step()
    town.clock.advance(town.application.timings.shard_audit)

    def throttled(method: str, _: object) -> bool:
        if method in {"list_shards", "describe_stream_summary"}:
            raise ClientError({"Error": {"Code": "LimitExceededException", "Message": "slow down"}}, method)
        return False

    town.kinesis.fails = throttled
    town.kill(worker, seen=True)
    successor = town.start("worker-001")
    began = town.clock.monotonic()
    report = town.tick()
    assert not report.stage("sync").ok  # type: ignore[union-attr]
    assert town.clock.monotonic() - began < town.application.timings.tick_budget / 2
    assert set(town.owners().values()) == {successor.id}


# --- leases under a creation epoch that somebody chose ------------------------------------------------------------


def with_epoch(epoch: int | None, *more: str) -> Application:
    """The stream `clicks` under a creation epoch of the configuration's choice, and more streams."""
    chosen = StreamSettings(name="clicks", creation_epoch=epoch)
    return Application(name="many-app", streams=(chosen, *more), multi_stream=True, fleet=FLEET)


def java_lease(town: Town, epoch: int) -> Lease:
    """What an application of the KCL leaves behind that made the epoch up."""
    account = town.kinesis.describe_stream_summary(StreamName="clicks")["StreamDescriptionSummary"]["StreamARN"]
    stream = StreamIdentifier("clicks", account.split(":")[4], epoch)
    key = LeaseKey(stream.lease_key(shard_id(0)))
    lease = Lease(key, shard_id(0), checkpoint=Checkpoint("4711"), stream=stream)
    assert town.leases.create(lease)
    return lease


@pytest.mark.audit("A6")
@pytest.mark.parametrize("epoch", [7, 2**40])
def test_leases_of_a_stream_with_a_configured_epoch_are_kept_when_it_is_taken_out(epoch: int) -> None:
    town = Town(with_epoch(epoch, "orders"), shards={"orders": 1, "clicks": 2})
    worker = running(town)
    worker.progress(shard_id(1), "815")
    town.application = many("orders")
    town.restart_leader()
    town.step(40)
    assert by_stream(town) == {"orders": 1, "clicks": 2}
    assert "815" in {str(lease.checkpoint) for lease in town.scan().values()}
    town.kinesis.delete_stream(StreamName="clicks")
    town.step(40)
    assert by_stream(town) == {"orders": 1, "clicks": 2}


@pytest.mark.audit("A6")
@pytest.mark.parametrize("epoch", [7, 2**40])
def test_leases_of_a_java_fleet_with_an_epoch_of_its_own_are_never_deleted(epoch: int) -> None:
    town = Town(many("orders"), shards={"orders": 1})
    town.kinesis.create_stream(StreamName="clicks", ShardCount=1)
    town.tick()
    lease = java_lease(town, epoch)
    town.step(40)
    town.kinesis.delete_stream(StreamName="clicks")
    town.step(40)
    assert town.lease(lease.key).checkpoint == Checkpoint("4711")


@pytest.mark.audit("A6")
@pytest.mark.parametrize("epoch", [7, 2**40])
def test_a_stream_is_not_read_beside_the_leases_that_a_java_fleet_made_for_it(epoch: int) -> None:
    """Leases under the stream's true creation time would read it again, from the configured start."""
    town = Town(with_epoch(None), shards={"clicks": 1})
    lease = java_lease(town, epoch)
    worker = town.start("worker-000")
    for _ in range(30):
        report = town.step()
        assert f"set creation_epoch={epoch}" in (report.stage("sync").error or "")  # type: ignore[union-attr]
    assert list(town.scan()) == [lease.key]
    assert town.lease(lease.key).counter == 0
    town.application = with_epoch(epoch)
    town.restart_leader()
    town.step(3)
    assert worker.shards() == [shard_id(0)]
    assert town.lease(lease.key).checkpoint == Checkpoint("4711")


# --- where an application goes on that began as a Java one --------------------------------------------------------


def idle_java_fleet(town: Town, owner: str | None, reports: dict[str, float]) -> None:
    """Two idle shards at LATEST, and workers that wrote their rows for the last time some seconds ago."""
    for number in range(2):
        lease = Lease(LeaseKey(shard_id(number)), shard_id(number), checkpoint=LATEST)
        town.leases.create(lease)
        if owner is not None:
            assert town.leases.assign(lease, WorkerId(owner))
    end = town.clock.now() + max([0.0, *reports.values()])
    for name, ago in sorted(reports.items(), key=lambda report: -report[1]):
        town.clock.advance(end - max(0.0, ago) - town.clock.now())
        town.workers_table.put(WorkerRow(WorkerId(name), int(end - ago), averages={}))
    town.clock.advance(end - town.clock.now())


@pytest.mark.audit("A10")
@pytest.mark.parametrize(
    ("owner", "reports", "since"),
    [
        pytest.param("java-1", {"java-1": 600.0, "java-2": 500.0}, 600.0, id="its owner's last row"),
        pytest.param(None, {"java-1": 600.0, "java-2": 500.0}, 500.0, id="released: the last row of any"),
        pytest.param("java-3", {"java-1": 600.0}, 600.0, id="the owner has no row"),
        pytest.param("java-1", {"java-1": -50.0}, None, id="a clock that is ahead is not believed"),
        pytest.param(None, {}, None, id="no row at all"),
    ],
)
@pytest.mark.parametrize("position", [Position.LATEST, Position.TRIM_HORIZON])
def test_an_idle_shard_of_a_java_fleet_is_read_from_when_that_was_last_alive(
    position: Position, owner: str | None, reports: dict[str, float], since: float | None
) -> None:
    streams = (StreamSettings(name="orders", start=StartAt(position=position)),)
    town = Town(Application(name="java-app", streams=streams, fleet=FLEET), shards=2)
    town.clock.advance(7200.0)
    create_tables(town.dynamodb, town.application, TableLayout.single(town.application), town.runtime)
    idle_java_fleet(town, owner, reports)
    now = town.clock.now()
    town.tick()
    [start] = town.leader.tables.starts.all().values()
    assert start.position is position
    if since is None and position is Position.TRIM_HORIZON:
        assert start.timestamp_ms is None
        return
    assert start.timestamp_ms is not None
    allowed = (0.0, 0.0) if since is None else (since, since + CLOCK_TOLERANCE + 1)
    assert allowed[0] <= now - start.timestamp_ms / 1000 <= allowed[1] + 1
    assert in_order(town) == [shard_id(0), shard_id(1)]


@pytest.mark.audit("B14")
def test_a_start_that_is_older_than_the_stream_asks_for_its_oldest_shards() -> None:
    """AWS may refuse a timestamp that is older than the retention, or than the stream."""
    began = 1_798_761_600.0
    start = StartAt(position=Position.AT_TIMESTAMP, timestamp=datetime.fromtimestamp(began, UTC))
    streams = (StreamSettings(name="orders", start=start),)
    town = Town(Application(name="past-app", streams=streams, fleet=FLEET), shards=1)
    oldest = town.clock.now()

    def refuses(method: str, request: dict[str, Any]) -> bool:
        moment = request.get("ShardFilter", {}).get("Timestamp")
        return moment is not None and moment.timestamp() < oldest

    town.kinesis.fails = refuses
    town.split(shard_id(0))
    town.clock.advance(26 * 3600.0)
    oldest = town.clock.now() - 24 * 3600.0
    assert town.tick().ok
    assert in_order(town) == [shard_id(1), shard_id(2)]


@pytest.mark.audit("B14")
def test_a_start_that_the_stream_still_has_is_asked_for_by_its_time() -> None:
    start = StartAt(position=Position.AT_TIMESTAMP, timestamp=datetime.fromtimestamp(1_798_761_600 + 30, UTC))
    streams = (StreamSettings(name="orders", start=start),)
    town = Town(Application(name="past-app", streams=streams, fleet=FLEET), shards=1)
    town.split(shard_id(0))
    town.clock.advance(23 * 3600.0)
    assert town.tick().ok
    assert in_order(town) == [shard_id(1), shard_id(2)]


# --- another stream under the same application ---


def pointed_at(town: Town, stream: str) -> None:
    town.application = Application(name=town.application.name, streams=stream, fleet=FLEET)
    town.restart_leader()


def test_leases_of_one_stream_are_not_given_out_for_another() -> None:
    """They name no stream; which one it was is recorded with the start."""
    town = Town(Application(name="one-app", streams="orders", fleet=FLEET), 2)
    worker = running(town)
    worker.progress(shard_id(1), "4959033827")
    town.kill(worker, seen=True)
    town.kinesis.create_stream(StreamName="orders-v2", ShardCount=4)
    pointed_at(town, "orders-v2")
    successor = town.start("worker-001")
    report = town.step(6)
    sync = report.stage("sync")
    assert sync is not None
    assert sync.error is not None
    for part in ("belong to stream orders", "to read orders-v2", "another application name", "multi_stream=True"):
        assert part in sync.error
    assert in_order(town) == [shard_id(0), shard_id(1)]
    assert set(town.owners().values()) <= {worker.id, None}
    assert str(town.lease(shard_id(1)).checkpoint) == "4959033827"

    pointed_at(town, "orders")
    town.step(6)
    assert len(successor.shards()) == 2, "the first stream goes on"


def test_leases_of_which_no_stream_is_recorded_are_adopted() -> None:
    """A Java application's, or those of version 0.1."""
    town = Town(Application(name="one-app", streams="orders", fleet=FLEET), 2)
    running(town)
    table = town.application.lease_table
    [start] = [
        item["leaseKey"]["S"]
        for item in town.dynamodb.scan(TableName=table)["Items"]
        if item.get("entityType", {}).get("S") == START_POSITION
    ]
    key = {"leaseKey": {"S": start}}
    town.dynamodb.delete_item(TableName=table, Key=key)
    town.restart_leader()
    report = town.step(3)
    assert all(stage.ok for stage in report.stages)
    assert town.dynamodb.get_item(TableName=table, Key=key).get("Item") is not None
