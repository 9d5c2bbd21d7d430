"""The judges of the simulator find what they are there for. A judge that is always content proves nothing."""

from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import pytest

from kcl_dagster.errors import RecordRefused, SinkError
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.worker.batch import Part
from tests.doubles.engine import Row
from tests.simulation.consumer import FIRST_VERSION, Change
from tests.simulation.files import LONG, TEXTS, check_values
from tests.simulation.kernel import Kernel, Process
from tests.simulation.lake import Lake
from tests.simulation.ledger import Ledger
from tests.simulation.properties import Violations
from tests.simulation.rows import unreadable_for_the_kcl

Item = dict[str, Any]
FULL = {"startingHashKey": {"S": "0"}, "endingHashKey": {"S": str(2**128 - 1)}}
LEASE_DURATION, HANDOFF_TIMEOUT = 30.0, 60.0


def lease(counter: int = 5, owner: str | None = "a", giver: str | None = None, **more: dict[str, Any]) -> Item:
    item: Item = {
        "leaseKey": {"S": "shard-0"},
        "entityType": {"S": "LEASE"},
        "leaseCounter": {"N": str(counter)},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "100"},
        "checkpointSubSequenceNumber": {"N": "0"},
        **FULL,
        **more,
    }
    if owner is not None:
        item["leaseOwner"] = {"S": owner}
    if giver is not None:
        item["checkpointOwner"] = {"S": giver}
    return item


@dataclass
class Court:
    """A ledger, workers a and b, and a daemon."""

    now: float = 0.0
    over: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        kernel = Kernel()
        self.processes = {name: Process(kernel, name) for name in ("a", "b", "daemon")}
        self.violations = Violations(lambda: self.now)
        self.ledger = Ledger(
            self.violations,
            lambda: self.now,
            lambda _worker: LEASE_DURATION,
            HANDOFF_TIMEOUT,
            lambda _actor, worker: worker in self.over,
            lambda actor: actor.name if actor is not None and actor.name != "daemon" else None,
            lambda _lease: None,
        )

    def change(self, old: Item | None, new: Item | None, by: str, after: float = 0.0) -> list[str]:
        """The names of the properties this change violates."""
        self.now += after
        before = len(self.violations.found)
        self.ledger.changed(old, new, self.processes[by])
        return [violation.name for violation in self.violations.found[before:]]


@pytest.fixture
def court() -> Court:
    court = Court()
    court.ledger.by_hand = True
    court.change(None, lease(), "daemon")
    court.ledger.by_hand = False
    return court


def test_the_owner_may_renew_and_move_its_checkpoint(court: Court) -> None:
    assert court.change(lease(), lease(6), "a") == []
    assert court.change(lease(6), lease(7, checkpoint={"S": "200"}), "a") == []


@pytest.mark.parametrize(
    ("new", "by", "names"),
    [
        pytest.param(lease(4), "a", ["S5"], id="counter goes back"),
        pytest.param(lease(6, checkpoint={"S": "99"}), "a", ["S4"], id="checkpoint goes back"),
        pytest.param(lease(6, checkpoint={"S": "200"}), "b", ["S3"], id="another worker checkpoints"),
        pytest.param(lease(5, checkpoint={"S": "200"}), "a", ["S5"], id="checkpoint without counting"),
        pytest.param(lease(6, owner="b"), "b", ["S8"], id="taken at once"),
        pytest.param(lease(5, owner="b"), "daemon", ["S5", "S8"], id="moved without counting"),
        pytest.param(lease(6), "b", ["S8"], id="renewed by another worker"),
        pytest.param(None, "daemon", ["S1"], id="deleted with records left"),
        pytest.param({**lease(6), "checkpoint": {"S": "abc"}}, "a", ["S11"], id="no number"),
    ],
)
def test_what_must_not_happen_to_a_lease_is_noticed(
    court: Court, new: Item | None, by: str, names: list[str]
) -> None:
    assert court.change(lease(), new, by) == names


def test_a_lease_may_be_taken_when_it_stood_for_its_duration(court: Court) -> None:
    assert court.change(lease(), lease(6, owner="b"), "daemon", after=LEASE_DURATION) == []


def test_a_lease_may_be_taken_when_the_run_of_its_owner_is_over(court: Court) -> None:
    court.over.add("a")
    assert court.change(lease(), lease(6, owner="b"), "daemon") == []


def test_the_owner_may_let_go_and_a_handoff_may_be_forced_only_after_its_time(court: Court) -> None:
    handed = lease(owner="b", giver="a")
    assert court.change(lease(), handed, "daemon") == []
    assert court.change(handed, lease(6, owner="b"), "a") == []
    assert court.change(lease(6, owner="b"), lease(6, owner="a", giver="b"), "daemon") == []
    early = court.change(lease(6, owner="a", giver="b"), lease(7, owner="a"), "daemon", after=HANDOFF_TIMEOUT / 3)
    assert early == ["S8"]


def test_a_handoff_that_took_too_long_may_be_forced(court: Court) -> None:
    handed = lease(owner="b", giver="a")
    court.change(lease(), handed, "daemon")
    for counter in range(6, 20):  # the old owner lives
        court.change(lease(counter - 1, "b", "a"), lease(counter, "b", "a"), "a", after=HANDOFF_TIMEOUT / 10)
    assert court.change(lease(19, "b", "a"), lease(20, "b"), "daemon") == []


def test_a_worker_that_writes_the_sink_without_having_renewed_is_noticed(court: Court) -> None:
    process = court.processes["a"]
    court.change(lease(), lease(6), "a", after=5.0)
    court.now += LEASE_DURATION - 0.1
    court.ledger.writes_sink(process, "a", "shard-0")
    assert court.violations.found == []
    court.now += 0.1
    court.ledger.writes_sink(process, "a", "shard-0")
    assert [violation.name for violation in court.violations.found] == ["S3"]


def lock(owner: str, version: str, **more: dict[str, str]) -> Item:
    return {
        "entityType": {"S": "LEADER"},
        "ownerName": {"S": owner},
        "recordVersionNumber": {"S": version},
        "leaseDuration": {"S": "20000"},
        **more,
    }


LONG_DURATION: Item = {"leaseDuration": {"S": "7200000"}}
LONG_LOCK = lock("x", "1") | LONG_DURATION


@pytest.mark.parametrize(
    ("old", "new", "after", "names"),
    [
        pytest.param(lock("x", "1"), lock("y", "2"), 19.9, ["S8"], id="too early"),
        pytest.param(lock("x", "1"), lock("y", "2"), 20.0, [], id="in time"),
        pytest.param(LONG_LOCK, lock("y", "2"), 3599.0, ["S8"], id="too early for an hour"),
        pytest.param(LONG_LOCK, lock("y", "2"), 3600.0, [], id="more than an hour is not believed"),
        pytest.param(LONG_LOCK, lock("y", "2") | LONG_DURATION, 3600.0, ["S8"], id="its own is longer"),
        pytest.param(lock("x", "1"), lock("x", "2"), 0.0, [], id="a heartbeat"),
        pytest.param(lock("x", "1", isReleased={"S": "1"}), lock("y", "2"), 0.0, [], id="released"),
        pytest.param(lock("standby:x", "1"), lock("y", "2"), 0.0, [], id="from a standby"),
        pytest.param(lock("standby:x", "1"), lock("standby:y", "2"), 0.0, ["S8"], id="between standbys"),
        pytest.param(None, lock("y", "2"), 0.0, [], id="nobody held it"),
    ],
)
def test_a_leader_lock_that_is_taken_too_early_is_noticed(
    court: Court, old: Item | None, new: Item, after: float, names: list[str]
) -> None:
    court.now = 100.0
    if old is not None:
        beat = {**old, "recordVersionNumber": {"S": "0"}}
        court.ledger.lock_changed(beat, old, court.processes["daemon"])
    court.now += after
    court.ledger.lock_changed(old, new, court.processes["daemon"])
    assert [violation.name for violation in court.violations.found] == names


@pytest.mark.parametrize(
    ("old", "leader", "names"),
    [
        pytest.param(lock("x", "1"), "x", [], id="its owner resigns"),
        pytest.param(lock("x", "1"), "y", ["S8"], id="another leader deletes it"),
        pytest.param(lock("x", "1"), None, ["S8"], id="a worker deletes it"),
        pytest.param(lock("x", "1", isReleased={"S": "1"}), "y", [], id="it was released"),
    ],
)
def test_a_leader_lock_that_is_deleted_by_another_than_its_owner_is_noticed(
    court: Court, old: Item, leader: str | None, names: list[str]
) -> None:
    court.ledger.leader_of = lambda _actor: leader
    court.ledger.lock_changed(old, None, court.processes["daemon"])
    assert [violation.name for violation in court.violations.found] == names


def test_an_operator_may_put_back_and_delete_leases_that_no_worker_owns(court: Court) -> None:
    court.ledger.is_operator = lambda actor: actor is not None and actor.name == "daemon"
    back: Item = {"checkpoint": {"S": "TRIM_HORIZON"}}
    assert court.change(lease(), lease(6, "a", None, **back), "daemon") == ["S4", "S3"]
    court.ledger.by_hand = True
    court.change(lease(6, "a", None, **back), lease(7, owner=None), "daemon")
    court.ledger.by_hand = False
    assert court.change(lease(7, owner=None), lease(8, None, None, **back), "daemon") == []
    assert court.change(lease(8, None, None, **back), None, "daemon") == []


def test_rows_of_others_are_not_to_be_touched(court: Court) -> None:
    guest = {"leaseKey": {"S": "x"}, "entityType": {"S": "STREAM"}}
    assert court.change(guest, None, "daemon") == ["S11"]
    assert court.change(lease(), {**lease(6), "entityType": {"S": "LEADER"}}, "a")[0] == "S11"


def test_two_processes_of_one_name_are_noticed(court: Court) -> None:
    court.change(lease(), lease(6), "a")
    twin = Process(Kernel(), "a")
    court.ledger.changed(lease(6), lease(7), twin)
    assert [violation.name for violation in court.violations.found] == ["S10"]


@pytest.mark.parametrize(
    "problem",
    [
        {"leaseCounter": {"S": "5"}},
        {"leaseCounter": {"N": "1.5"}},
        {"checkpoint": {"S": "LATER"}},
        {"checkpoint": {"S": ""}},
        {"parentShardId": {"L": []}},
        {"streamName": {"S": "1:s:2"}},
        {"startingHashKey": {"N": "0"}},
    ],
)
def test_a_lease_that_a_java_worker_could_not_read_is_noticed(problem: Item) -> None:
    assert list(unreadable_for_the_kcl(lease() | problem))


@pytest.mark.parametrize("name", ["leaseCounter", "ownerSwitchesSinceCheckpoint", "checkpoint", "endingHashKey"])
def test_a_lease_without_what_a_java_worker_needs_is_noticed(name: str) -> None:
    item = lease()
    del item[name]
    assert list(unreadable_for_the_kcl(item))


def test_rows_that_the_kcl_reads_are_fine() -> None:
    assert list(unreadable_for_the_kcl(lease())) == []
    worker: Item = {
        "leaseKey": {"S": "w"},
        "entityType": {"S": "WORKER_METRIC_STATS"},
        "lut": {"N": "1"},
        "sts": {"M": {}},
        "opr": {"M": {}},
    }
    assert list(unreadable_for_the_kcl(worker)) == []
    assert list(unreadable_for_the_kcl(worker | {"sts": {"M": {"C": {"L": []}}}}))
    assert list(unreadable_for_the_kcl({"entityType": {"S": "LEADER"}, "ownerName": {"S": "x"}}))


# The lake


@pytest.fixture
def lake() -> Lake:
    """Shard 0 with records 1 to 4, and its child 1 with record 5."""
    lake = Lake(Violations(lambda: 0.0))
    lake.opened("clicks", "s0", [])
    lake.opened("clicks", "s1", ["s0"])
    for number in range(1, 5):
        lake.put("clicks", "s0", str(number), f"record {number}".encode())
    lake.put("clicks", "s1", "5", b"record 5")
    return lake


def part(after: Checkpoint, through: int, number: int, shard: str = "s0") -> Part:
    key = LeaseKey(shard)
    return Part("app", key, StreamIdentifier.single("clicks"), shard, after, Checkpoint(str(through)), number, 1, 1)


def rows(*numbers: int, shard: str = "s0") -> tuple[Row, ...]:
    return tuple(Row(LeaseKey(shard), str(n), 0, "k", f"record {n}".encode()) for n in numbers)


def found(lake: Lake) -> list[str]:
    return [violation.name for violation in lake.violations.found]


def test_parts_that_follow_each_other_are_fine_and_may_come_again(lake: Lake) -> None:
    lake.store(part(TRIM_HORIZON, 2, 1), rows(1, 2))
    lake.store(part(Checkpoint("2"), 4, 2), rows(3, 4))
    lake.store(part(TRIM_HORIZON, 2, 1), rows(1, 2))
    lake.store(part(TRIM_HORIZON, 5, 1, "s1"), rows(5, shard="s1"))
    assert found(lake) == []
    assert lake.missing() == []


def test_a_record_that_is_left_out_of_a_part_is_noticed(lake: Lake) -> None:
    lake.store(part(TRIM_HORIZON, 3, 1), rows(1, 3))
    assert found(lake) == ["S1"]


def test_records_in_the_wrong_order_are_noticed(lake: Lake) -> None:
    lake.store(part(TRIM_HORIZON, 2, 1), rows(2, 1))
    assert found(lake) == ["S2"]


def test_the_table_is_made_for_the_first_code_whichever_code_stores_first(lake: Lake) -> None:
    """Otherwise all code after the one that the table was not made for would be refused."""
    with pytest.raises(SinkError):
        lake.store(part(TRIM_HORIZON, 2, 1), rows(1, 2), code=FIRST_VERSION.changed(Change.TYPE_CHANGED))
    lake.store(part(TRIM_HORIZON, 2, 1), rows(1, 2), code=FIRST_VERSION.changed(Change.COLUMN_ADDED))
    assert found(lake) == []


def test_a_batch_that_was_given_up_is_refused_when_its_worker_stores_it_late(lake: Lake) -> None:
    lake.goes_on = True
    lake.expired = lambda _stream, shard, _numbers: 2 if shard == "s0" else 0
    lake.told(lake.truth("clicks", "s0"), "3")
    lake.store(part(Checkpoint("2"), 4, 2), rows(3, 4))
    with pytest.raises(SinkError):
        lake.store(part(TRIM_HORIZON, 2, 1), rows(1, 2))
    assert found(lake) == []


def test_a_batch_that_was_not_given_up_does_not_come_late(lake: Lake) -> None:
    lake.goes_on = True
    lake.store(part(TRIM_HORIZON, 2, 1), rows(1, 2))
    lake.store(part(Checkpoint("2"), 4, 3), rows(3, 4))
    lake.store(part(Checkpoint("2"), 3, 2), rows(3))
    assert found(lake)[0] == "S12"


def test_a_part_takes_the_place_of_the_one_that_it_was_cut_out_of(lake: Lake) -> None:
    """The whole was stored by a worker that ended before its checkpoint, and was cut in two after three losses."""
    lake.store(part(TRIM_HORIZON, 4, 1), rows(1, 2, 3, 4))
    lake.store(replace(part(TRIM_HORIZON, 2, 3), instead_of=1), rows(1, 2))
    assert lake.missing() == ["clicks/s0: 2 of 4", "clicks/s1: 1 of 1"], "the other half has to come again"
    lake.store(part(Checkpoint("2"), 4, 4), rows(3, 4))
    assert (found(lake), lake.records) == ([], 4)
    lake.store(replace(part(Checkpoint("2"), 3, 6), instead_of=5), rows(3))
    assert found(lake) == ["S12"], "it takes the place of no part that is stored"


def test_a_gap_between_two_parts_is_noticed(lake: Lake) -> None:
    lake.store(part(TRIM_HORIZON, 1, 1), rows(1))
    lake.store(part(Checkpoint("2"), 3, 2), rows(3))
    assert found(lake) == ["S1"]
    assert lake.missing() == ["clicks/s0: 1 of 4", "clicks/s1: 1 of 1"]


def test_a_record_in_two_parts_is_noticed(lake: Lake) -> None:
    lake.store(part(TRIM_HORIZON, 2, 1), rows(1, 2))
    lake.store(part(Checkpoint("1"), 3, 2), rows(2, 3))
    assert found(lake) == ["S12"]


def test_a_part_that_comes_again_with_other_records_is_noticed(lake: Lake) -> None:
    lake.store(part(TRIM_HORIZON, 2, 1), rows(1, 2))
    lake.store(part(TRIM_HORIZON, 2, 1), rows(1))
    assert found(lake) == ["S12"]


def test_a_batch_number_that_does_not_grow_is_noticed(lake: Lake) -> None:
    lake.store(part(TRIM_HORIZON, 2, 1), rows(1, 2))
    lake.store(part(Checkpoint("2"), 4, 1), rows(3, 4))
    assert found(lake) == ["S13", "S12"]


def test_a_number_or_a_file_name_that_is_used_again_after_a_reset_is_noticed(lake: Lake) -> None:
    lake.store(part(TRIM_HORIZON, 2, 7), rows(1, 2))
    lake.repeats("clicks", "s0")
    lake.store(part(TRIM_HORIZON, 4, 7), rows(1, 2, 3, 4))
    assert found(lake) == ["S13"]


def test_a_number_that_falls_after_a_reset_is_refused_as_a_table_does(lake: Lake) -> None:
    lake.store(part(TRIM_HORIZON, 2, 7), rows(1, 2))
    lake.repeats("clicks", "s0")
    with pytest.raises(SinkError, match="after number 7"):
        lake.store(part(TRIM_HORIZON, 4, 1), rows(1, 2, 3, 4), "worker")
    assert [worker for worker, _ in lake.refused.values()] == ["worker"]
    lake.store(part(TRIM_HORIZON, 4, 8), rows(1, 2, 3, 4))
    assert (found(lake), lake.refused) == ([], {})


def test_a_table_takes_more_columns_and_refuses_another_type_until_it_is_mended(lake: Lake) -> None:
    more = FIRST_VERSION.changed(Change.COLUMN_ADDED)
    broken = more.changed(Change.TYPE_CHANGED)
    lake.store(part(TRIM_HORIZON, 1, 1), rows(1))
    lake.store(part(Checkpoint("1"), 2, 2), rows(2), code=more)
    with pytest.raises(SinkError, match="column amount of the table is bigint"):
        lake.store(part(Checkpoint("2"), 4, 3), rows(3, 4), code=broken)
    lake.store(part(Checkpoint("2"), 4, 3), rows(3, 4), code=broken.changed(Change.VALUES))
    assert (found(lake), sorted(lake.columns)) == ([], ["added 1", "amount"])


def test_a_value_that_no_folder_can_be_named_by_is_a_failure_of_the_record() -> None:
    long = [n for n in range(200) if crc32(f"record {n}".encode()) % 16 == TEXTS.index(LONG)]
    code = FIRST_VERSION.changed(Change.VALUES_TOO_LONG)
    check_values(rows(long[0]))
    with pytest.raises(RecordRefused):
        check_values(rows(long[0]), code)


def test_a_child_that_is_read_before_its_parent_is_noticed(lake: Lake) -> None:
    lake.store(part(TRIM_HORIZON, 2, 1), rows(1, 2))
    lake.store(part(TRIM_HORIZON, 5, 1, "s1"), rows(5, shard="s1"))
    assert found(lake) == ["S6"]


# Records that left the stream


@dataclass
class Loss:
    """Records 2 and 3 of shard 0 left the stream after record 1 was stored."""

    lake: Lake

    def __post_init__(self) -> None:
        self.lake.expired = lambda _stream, shard, _numbers: 3 if shard == "s0" else 0
        self.lake.truth("clicks", "s0").is_leased = True
        self.lake.store(part(TRIM_HORIZON, 1, 1), rows(1))

    def go_on(self) -> list[str]:
        """The next part holds record 4."""
        self.lake.store(part(Checkpoint("1"), 4, 2), rows(4))
        return found(self.lake)


@pytest.mark.parametrize(
    ("goes_on", "told", "violated"),
    [
        pytest.param(True, "4", [], id="told, and the policy is to go on"),
        pytest.param(True, None, ["S1"], id="without a word"),
        pytest.param(True, "3", ["S1"], id="told of one of two"),
        pytest.param(False, "4", ["S1"], id="the policy is to stop"),
    ],
)
def test_going_on_after_a_loss(lake: Lake, goes_on: bool, told: str | None, violated: list[str]) -> None:
    loss = Loss(lake)
    lake.goes_on = goes_on
    if told is not None:
        lake.told(lake.truth("clicks", "s0"), told)
    assert loss.go_on()[:1] == violated


@pytest.mark.parametrize(
    ("told", "was_deleted", "violated"),
    [
        pytest.param(True, None, [], id="told"),
        pytest.param(False, None, ["S1"], id="without a word"),
        pytest.param(False, "s1", [], id="its lease was deleted"),
        pytest.param(False, "s0", [], id="its parent's lease was deleted"),
    ],
)
def test_a_loss_before_the_first_reading_below_a_shard_that_was_read(
    lake: Lake, told: bool, was_deleted: str | None, violated: list[str]
) -> None:
    lake.goes_on = True
    lake.put("clicks", "s1", "6", b"record 6")
    lake.store(part(TRIM_HORIZON, 4, 1), rows(1, 2, 3, 4))
    lake.expired = lambda _stream, shard, _numbers: 1 if shard == "s1" else 0
    if was_deleted is not None:
        lake.truth("clicks", was_deleted).is_repeated = True
    if told:
        lake.told(lake.truth("clicks", "s1"), "6")
    lake.store(part(TRIM_HORIZON, 6, 1, "s1"), rows(6, shard="s1"))
    assert found(lake)[:1] == violated


def test_a_reader_that_has_to_read_again_is_behind_by_that(lake: Lake) -> None:
    lake.store(part(TRIM_HORIZON, 2, 1), rows(1, 2))
    lake.store(part(Checkpoint("2"), 3, 2), rows(3))
    assert lake.behind() == 2
    lake.repeats("clicks", "s0")
    lake.store(part(TRIM_HORIZON, 2, 3), rows(1, 2))
    assert lake.behind() == 3
    lake.store(part(Checkpoint("2"), 3, 4), rows(3))
    lake.store(part(TRIM_HORIZON, 2, 1), rows(1, 2))  # a former owner, late
    assert lake.behind() == 2


def test_records_that_are_still_there_may_not_be_told_lost(lake: Lake) -> None:
    loss = Loss(lake)
    lake.goes_on = True
    lake.expired = lambda *_: 1
    lake.told(lake.truth("clicks", "s0"), "4")
    assert loss.go_on()[:1] == ["S1"]


@pytest.mark.parametrize(
    ("expired", "violated"), [pytest.param(1, [], id="gone"), pytest.param(0, ["S1"], id="still there")]
)
def test_a_batch_that_was_begun_after_a_reset_may_be_given_up_once_its_first_record_is_gone(
    lake: Lake, expired: int, violated: list[str]
) -> None:
    """It begins with records that were stored before the reset, and ends with one that never was."""
    lake.goes_on = True
    lake.expired = lambda _stream, shard, _numbers: expired if shard == "s0" else 0
    lake.store(part(TRIM_HORIZON, 2, 1), rows(1, 2))
    lake.repeats("clicks", "s0")
    truth = lake.truth("clicks", "s0")
    lake.told(truth, "4")
    lake.gave_up(truth, "1", "4")
    lake.store(part(Checkpoint("3"), 4, 3), rows(4))
    assert found(lake)[:1] == violated


def test_records_that_are_dated_before_the_start_are_not_waited_for() -> None:
    lake = Lake(Violations(lambda: 0.0))
    lake.opened("clicks", "s0", [])
    truth = lake.truth("clicks", "s0")
    truth.start_limit, truth.start_moment = 0, 100.0
    lake.put("clicks", "s0", "1", b"record 1", arrival=98.0)
    lake.is_said_complete(200)
    assert found(lake) == []
    assert lake.missing() == []
    lake.put("clicks", "s0", "2", b"record 2", arrival=101.0)
    lake.put("clicks", "s0", "3", b"record 3", arrival=99.0)  # read after the one before, whatever its date
    lake.is_said_complete(100)
    assert found(lake) == ["S16"]
    assert lake.missing() == ["clicks/s0: 3 of 3"]


@pytest.mark.parametrize(("goes_on", "violated"), [(True, []), (False, ["S16"])])
def test_records_of_a_batch_that_was_given_up_are_not_expected(goes_on: bool, violated: list[str]) -> None:
    """Only the first one has left the stream, and a later record has come since."""
    lake = Lake(Violations(lambda: 0.0))
    lake.goes_on = goes_on
    lake.expired = lambda *_: 1
    lake.opened("clicks", "s0", [])
    truth = lake.truth("clicks", "s0")
    for number in ("1", "2", "3"):
        lake.put("clicks", "s0", number, b"record", arrival=float(number))
    lake.gave_up(truth, "1", "4")
    lake.put("clicks", "s0", "4", b"record", arrival=100.0)
    lake.is_said_complete(50)
    assert found(lake) == violated


def test_a_shard_that_a_loss_stopped_is_not_behind_and_neither_are_its_children(lake: Lake) -> None:
    Loss(lake)
    assert lake.missing() == ["clicks/s0: 3 of 4", "clicks/s1: 1 of 1"]
    lake.told(lake.truth("clicks", "s0"), "4")
    assert lake.missing() == []
    lake.goes_on = True
    assert lake.behind() == 4


@pytest.mark.parametrize(
    ("goes_on", "told", "excused"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_shard_of_which_nothing_is_left_may_be_finished_when_that_was_told(
    lake: Lake, goes_on: bool, told: bool, excused: bool
) -> None:
    Loss(lake)
    lake.goes_on = goes_on
    lake.expired = lambda *_: 4
    truth = lake.truth("clicks", "s0")
    if told:
        lake.told(truth, None)
    assert lake.is_excused(truth) is excused


def test_a_part_with_another_streams_records_is_noticed(lake: Lake) -> None:
    lake.forget("clicks", 17)
    lake.opened("clicks", "s0", [])
    lake.put("clicks", "s0", "9", b"record 9")
    old = StreamIdentifier("clicks", "123456789012", 17)
    lake.store(Part("app", LeaseKey("old"), old, "s0", Checkpoint("2"), Checkpoint("9"), 1, 1, 1), rows(9))
    assert found(lake)[:1] == ["S1"]
