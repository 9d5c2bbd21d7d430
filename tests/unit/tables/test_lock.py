"""The leader lock, alone, among ours, and with Amazon's lock client on the other side."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from kcl_dagster.errors import OutcomeUnknown, UnreadableItem, Unsafe
from kcl_dagster.model.standing import Standing
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.lock import LONGEST_DURATION, LeaderLock, LockProcess, LockView
from kcl_dagster.tables.places import TableLayout
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import (
    LOST_ON_THE_WAY,
    THROTTLED,
    FaultyClient,
    after,
    answer_lost,
    application,
    client_error,
    runtime,
)

JAVA = {
    "ownerName": {"S": "host-a:1f0c"},
    "leaseDuration": {"S": "120000"},
    "recordVersionNumber": {"S": "u1"},
    "entityType": {"S": "LEADER"},
}


@dataclass
class Room:
    """One lock, a clock, and as many candidates as a test wants."""

    layout: TableLayout
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.client = FaultyClient(FakeDynamoDB(self.clock))
        self.runtime: Runtime = runtime(self.clock)
        place = self.layout.coordinator
        self.client.inner.create_table(
            TableName=place.table,
            KeySchema=[{"AttributeName": place.key, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": place.key, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def candidate(self, owner: str, duration: float = 60.0, process: LockProcess | None = None) -> "Candidate":
        lock = LeaderLock(self.client, application(), self.layout, self.runtime, owner, duration, process=process)
        return Candidate(lock, Standing())

    @property
    def key(self) -> dict[str, Any]:
        return {self.layout.coordinator.key: {"S": "Leader"}}

    @property
    def row(self) -> dict[str, Any] | None:
        found = self.client.inner.get_item(TableName=self.layout.coordinator.table, Key=self.key)
        item: dict[str, Any] | None = found.get("Item")
        return item

    def write(self, row: dict[str, Any]) -> None:
        self.client.inner.put_item(TableName=self.layout.coordinator.table, Item={**self.key, **row})


@dataclass
class Candidate:
    lock: LeaderLock
    standing: Standing

    def look(self) -> LockView:
        return self.lock.hold(self.standing)


@pytest.fixture(params=["single", "legacy"])
def room(request: pytest.FixtureRequest) -> Room:
    make = TableLayout.single if request.param == "single" else TableLayout.legacy
    return Room(make(application()))


def test_the_first_candidate_leads_and_the_row_is_amazons(room: Room) -> None:
    before = room.clock.monotonic()
    view = room.candidate("us").look()
    assert view == LockView(held=True, owner="us", trusted_until=before + 60, duration=60)
    assert room.row == {
        **room.key,
        "entityType": {"S": "LEADER"},
        "ownerName": {"S": "us"},
        "leaseDuration": {"S": "60000"},
        "recordVersionNumber": {"S": "id-1"},
    }


def test_of_ten_candidates_one_leads(room: Room) -> None:
    views = [room.candidate(f"candidate-{n}").look() for n in range(10)]
    assert [view.held for view in views] == [True] + [False] * 9
    assert {view.owner for view in views} == {"candidate-0"}


def test_every_look_of_the_leader_changes_the_version(room: Room) -> None:
    us = room.candidate("us")
    versions = set()
    for _ in range(3):
        assert us.look().held
        assert room.row is not None
        versions.add(room.row["recordVersionNumber"]["S"])
    assert len(versions) == 3


def test_prolonging_costs_one_request(room: Room) -> None:
    us = room.candidate("us")
    us.look()
    room.client.calls.clear()
    us.look()
    assert [operation for operation, _ in room.client.calls] == ["update_item"]


def test_a_lock_that_is_prolonged_is_never_taken(room: Room) -> None:
    us, them = room.candidate("us"), room.candidate("them")
    for _ in range(100):
        assert us.look().held
        assert not them.look().held
        room.clock.advance(30)


def test_a_standby_gives_way_to_everybody_of_ours_who_is_none(room: Room) -> None:
    """It launches no workers: a fleet whose standby was faster would have none."""
    standby, other, us = (room.candidate(name) for name in ("standby:a", "standby:b", "us"))
    assert standby.look().held
    assert not other.look().held
    assert us.look().held
    assert not standby.look().held
    for _ in range(10):
        room.clock.advance(30)
        assert us.look().held
        assert not standby.look().held
    room.clock.advance(61)
    assert standby.look().held, "nobody else leads any more"


def test_a_dead_leader_is_followed_once_its_own_duration_has_been_watched(room: Room) -> None:
    room.write(JAVA)
    us = room.candidate("us", duration=5)
    assert us.look() == LockView(held=False, owner="host-a:1f0c", trusted_until=0.0, stood_for=0.0, duration=120.0)
    room.clock.advance(120)
    assert us.look().stood_for == 120.0  # not yet longer
    room.clock.advance(1)
    view = us.look()
    assert view.held
    assert room.row is not None
    assert room.row["ownerName"] == {"S": "us"}
    assert room.row["leaseDuration"] == {"S": "5000"}


@pytest.mark.parametrize("milliseconds", ["3600001", "999999999999999"])
def test_an_absurd_duration_keeps_the_fleet_without_a_leader_for_an_hour_at_most(
    room: Room, milliseconds: str
) -> None:
    room.write(JAVA | {"leaseDuration": {"S": milliseconds}})
    mine = room.candidate("mine")
    assert mine.look().duration == LONGEST_DURATION
    room.clock.advance(LONGEST_DURATION - 1)
    assert not mine.look().held
    room.clock.advance(2)
    assert mine.look().held
    patient = room.candidate("patient", duration=2 * LONGEST_DURATION)
    room.write(JAVA | {"leaseDuration": {"S": "999999999999999"}})
    assert patient.look().duration == 2 * LONGEST_DURATION


def test_a_heartbeat_starts_the_watch_anew(room: Room) -> None:
    room.write(JAVA)
    us = room.candidate("us")
    us.look()
    room.clock.advance(119)
    room.write({**JAVA, "recordVersionNumber": {"S": "u2"}})
    room.clock.advance(2)
    assert us.look().stood_for == 0.0


def test_the_first_look_only_starts_the_watch_however_old_the_row_is(room: Room) -> None:
    room.write({**JAVA, "leaseDuration": {"S": "200"}})
    us = room.candidate("us")
    assert not us.look().held
    room.clock.advance(0.25)
    assert us.look().held


def test_a_candidate_that_is_restarted_all_the_time_still_takes_over(room: Room) -> None:
    """The KCL does not: its watch is in memory, so a fleet that restarts every minute never gets a leader."""
    room.write(JAVA)
    document: dict[str, Any] = {}
    for restarts in range(1, 30):
        standing = Standing.from_document(document, room.clock.monotonic())
        us = Candidate(LeaderLock(room.client, application(), room.layout, room.runtime, "us"), standing)
        for _ in range(2):
            if us.look().held:
                assert restarts <= 15
                return
            room.clock.advance(10)
        document = {key: list(entry) for key, entry in us.standing.to_document(0).items()}
    pytest.fail("nobody leads")


def test_the_same_owner_enters_again_at_once(room: Room) -> None:
    room.candidate("us").look()
    assert room.candidate("us").look().held


def test_two_processes_of_one_owner_take_turns_and_never_stall(room: Room) -> None:
    ours = [room.candidate("us"), room.candidate("us")]
    for turn in range(10):
        assert ours[turn % 2].look().held


def test_a_released_lock_is_free(room: Room) -> None:
    us, them = room.candidate("us"), room.candidate("them")
    us.look()
    assert us.lock.release()
    assert room.row is None
    assert them.look().held


def test_a_row_that_java_left_as_released_is_taken_at_once(room: Room) -> None:
    room.write({**JAVA, "isReleased": {"S": "1"}})
    us = room.candidate("us")
    assert us.lock.peek() is None
    assert us.look().held
    assert room.row is not None
    assert "isReleased" not in room.row


def test_nobody_releases_the_lock_of_another(room: Room) -> None:
    us = room.candidate("us")
    us.look()
    room.write(JAVA)
    assert us.lock.release()  # it is not ours, which is what was asked for
    assert room.row == {**room.key, **JAVA}
    assert us.lock.peek() == "host-a:1f0c"


def test_a_process_that_did_not_lead_releases_nothing_of_its_name(room: Room) -> None:
    room.candidate("us").look()
    before = room.row
    assert not room.candidate("us").lock.release()
    assert room.row == before


def test_releasing_yields_to_another_process_of_the_same_owner(room: Room) -> None:
    first, second = room.candidate("us"), room.candidate("us")
    first.look()
    second.look()
    assert not first.lock.release()
    assert room.row is not None


def test_releasing_nothing_is_fine(room: Room) -> None:
    us = room.candidate("us")
    assert us.lock.release()
    us.look()
    room.client.inner.delete_item(TableName=room.layout.coordinator.table, Key=room.key)
    assert us.lock.release()


def test_a_leader_that_was_overtaken_notices_at_its_next_look(room: Room) -> None:
    us = room.candidate("us")
    us.look()
    room.write(JAVA)
    view = us.look()
    assert (view.held, view.owner) == (False, "host-a:1f0c")


def test_a_faster_candidate_wins_the_race_for_a_dead_lock(room: Room) -> None:
    room.write(JAVA)
    us, them = room.candidate("us"), room.candidate("them")
    us.look()
    them.look()
    room.clock.advance(121)
    room.client.fail("put_item", after(client_error("ConditionalCheckFailedException"), lambda: None))
    assert us.look() == LockView(held=False, owner=None, trusted_until=0.0)
    assert them.look().held


@pytest.mark.parametrize("fault", [answer_lost, LOST_ON_THE_WAY, THROTTLED])
@pytest.mark.parametrize("situation", ["free", "dead", "held"])
def test_one_fault_makes_no_difference(room: Room, situation: str, fault: Any) -> None:
    us = room.candidate("us")
    if situation == "dead":
        room.write(JAVA)
        us.look()
        room.clock.advance(121)
    elif situation == "held":
        us.look()
    room.client.fail("update_item" if situation == "held" else "put_item", fault)
    began = room.clock.monotonic()
    view = us.look()
    assert view.held
    assert view.trusted_until == began + 60  # counted from the first attempt
    assert us.look().held


@pytest.mark.parametrize("fault", [answer_lost, LOST_ON_THE_WAY, THROTTLED])
def test_one_fault_makes_no_difference_to_a_release(room: Room, fault: Any) -> None:
    us = room.candidate("us")
    us.look()
    room.client.fail("delete_item", fault)
    assert us.lock.release()
    assert room.row is None


def test_after_a_heartbeat_of_unknown_outcome_the_leader_leads_on(room: Room) -> None:
    us = room.candidate("us")
    us.look()
    room.client.fail("update_item", answer_lost)
    room.client.fail("get_item", *[LOST_ON_THE_WAY] * 1000)
    with pytest.raises(OutcomeUnknown):
        us.look()
    room.client.heal()
    assert us.look().held


@pytest.mark.parametrize(
    ("change", "attribute"),
    [
        ({"leaseDuration": {"N": "120000"}}, "leaseDuration"),
        ({"leaseDuration": {"S": "two minutes"}}, "leaseDuration"),
        ({"recordVersionNumber": {"S": ""}}, "recordVersionNumber"),
        ({"ownerName": {"SS": ["a"]}}, "ownerName"),
        ({"entityType": {"S": "LEASE"}}, "entityType"),
    ],
)
def test_a_row_no_lock_client_wrote_is_refused_and_left_alone(
    room: Room, change: dict[str, Any], attribute: str
) -> None:
    room.write({**JAVA, **change})
    before = room.row
    with pytest.raises(UnreadableItem, match=f"'Leader': attribute '{attribute}'"):
        room.candidate("us").look()
    assert room.row == before


@dataclass
class Machine:
    """Processes by name, of which some are gone."""

    gone: set[str] = field(default_factory=set)

    def process(self, name: str) -> LockProcess:
        return LockProcess(name, self.gone.__contains__)


@pytest.mark.audit("F8")
def test_the_lock_of_a_process_that_is_known_to_be_gone_is_taken_at_once(room: Room) -> None:
    machine = Machine()
    former = room.candidate("dagster:a", process=machine.process("machine/1@5"))
    latter = room.candidate("dagster:b", process=machine.process("machine/2@9"))
    assert former.look().held
    assert former.look().held
    assert not latter.look().held
    machine.gone.add("machine/1@5")
    assert latter.look().held
    assert room.row is not None
    assert room.row["kdProcess"] == {"S": "machine/2@9"}
    # The former process was not gone after all: it leads no more, and nothing that it guards is written.
    assert not former.look().held
    with pytest.raises(Unsafe):
        former.lock.guard()
    assert latter.look().held


@pytest.mark.audit("F8")
def test_of_two_that_see_the_former_process_gone_one_leads(room: Room) -> None:
    machine = Machine()
    room.candidate("dagster:a", process=machine.process("machine/1@5")).look()
    machine.gone.add("machine/1@5")
    candidates = [room.candidate(f"dagster:{n}", process=machine.process(f"machine/{n}@9")) for n in range(5)]
    assert [candidate.look().held for candidate in candidates] == [True] + [False] * 4


@pytest.mark.audit("F8")
@pytest.mark.parametrize("with_process", [True, False])
def test_a_candidate_waits_for_a_process_that_it_cannot_judge(room: Room, with_process: bool) -> None:
    machine = Machine()
    room.candidate("dagster:a", process=machine.process("elsewhere/1@5") if with_process else None).look()
    machine.gone.add("machine/1@5")
    latter = room.candidate("dagster:b", process=machine.process("machine/2@9"))
    assert not latter.look().held
    room.clock.advance(59)
    assert not latter.look().held
    room.clock.advance(2)
    assert latter.look().held
