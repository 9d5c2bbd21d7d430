"""A write whose answer is lost was applied, or it was not; callers are told which, or that nobody can tell."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError

from kcl_dagster.errors import EndpointUnreachable, LeaseLost, OutcomeUnknown, TableNotFound, Throttled
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON
from kcl_dagster.model.claim import ChainId, Claim, ClaimId
from kcl_dagster.model.lease import Lease
from kcl_dagster.model.shard import HashRange
from kcl_dagster.tables.coordination import acquire_lock, still_leads
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.places import TableLayout
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import (
    ANNA,
    BERT,
    CARL,
    LOST_ON_THE_WAY,
    THROTTLED,
    FaultyClient,
    Tables,
    after,
    answer_lost,
    application,
    at,
    client_error,
    new_lease,
    passed_on,
    raising,
    runtime,
)


@dataclass(frozen=True)
class Transition:
    operation: str
    begin: Callable[[Tables], Lease]
    act: Callable[[LeaseTable, Lease], Any]
    looks_first: bool = False
    leaves_no_mark: bool = False
    """Whether it was applied can never be seen for certain, so a lost answer costs a further step."""


def owned(tables: Tables) -> Lease:
    return tables.holding(new_lease())


def free(tables: Tables) -> Lease:
    return tables.existing(new_lease())


def handing_over(tables: Tables) -> Lease:
    tables.leases.initiate_handoff(owned(tables), BERT)
    lease = tables.leases.get(new_lease().key)
    assert lease is not None
    return lease


def finished(tables: Tables) -> Lease:
    return tables.leases.checkpoint(owned(tables), SHARD_END)


PARENT = new_lease("shardId-000000000099")
CHILDREN = frozenset({new_lease().shard_id})
STILL_LEADS = still_leads(TableLayout.single(application()).coordinator, "us", 60_000, "v1")


def below_a_parent(tables: Tables) -> Lease:
    tables.holding(PARENT)
    return new_lease()


def leading(tables: Tables) -> Lease:
    tables.client.put_item(**acquire_lock(tables.layout.coordinator, "us", 60_000, "v1").parameters)
    return new_lease()


def reassign(table: LeaseTable, lease: Lease) -> Lease | None:
    return table.assign(lease, ANNA)


CLAIM = Claim(ChainId("clicks-72b40fb1~worker-000-1"), ClaimId("claim"))

TRANSITIONS = {
    "create": Transition("put_item", lambda _: new_lease(), lambda t, x: t.create(x)),
    "create as a leader": Transition("transact_write_items", leading, lambda t, x: t.create(x, STILL_LEADS)),
    "create a child": Transition(
        "transact_write_items", below_a_parent, lambda t, x: t.create_child(PARENT, x, CHILDREN)
    ),
    "renew": Transition("update_item", owned, lambda t, x: t.renew(x, 1.5), leaves_no_mark=True),
    "renew in a handoff": Transition("update_item", handing_over, lambda t, x: t.renew(x), leaves_no_mark=True),
    "take": Transition("update_item", owned, lambda t, x: t.take(x, BERT)),
    "assign": Transition("update_item", owned, lambda t, x: t.assign(x, BERT)),
    "assign unowned": Transition("update_item", free, lambda t, x: t.assign(x, BERT, counter=0)),
    "assign to its owner": Transition("update_item", owned, reassign, leaves_no_mark=True),
    "initiate handoff": Transition("update_item", owned, lambda t, x: t.initiate_handoff(x, BERT)),
    "transfer": Transition("update_item", handing_over, lambda t, x: t.transfer(x)),
    "release": Transition("update_item", owned, lambda t, x: t.release(x)),
    "release in a handoff": Transition("update_item", handing_over, lambda t, x: t.release(x)),
    "checkpoint": Transition("update_item", owned, lambda t, x: t.checkpoint(x, at(), batch=3)),
    "claim": Transition("update_item", owned, lambda t, x: t.checkpoint(x, x.checkpoint or at(), claim=CLAIM)),
    "prepare": Transition("update_item", owned, lambda t, x: t.prepare(x, at(), state=b"pin", batch=3)),
    "rewind": Transition("update_item", free, lambda t, x: t.rewind(x, at())),
    "update children": Transition(
        "update_item", owned, lambda t, x: t.update_children(x.key, frozenset("c")), looks_first=True
    ),
    "update hash range": Transition(
        "update_item", owned, lambda t, x: t.update_hash_range(x.key, HashRange(1, 2)), looks_first=True
    ),
    "delete": Transition("delete_item", finished, lambda t, x: t.delete(x)),
    "delete by force": Transition("delete_item", owned, lambda t, x: t.delete(x, forced=True)),
}
each = pytest.mark.parametrize("transition", TRANSITIONS.values(), ids=TRANSITIONS)


class Scene(Tables):
    """Tables on a client that fails as told once the lease is in place."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.faulty = FaultyClient(FakeDynamoDB(self.clock))
        super().__init__(self.faulty, application(), runtime(self.clock))

    def begin(self, transition: Transition) -> Lease:
        lease = transition.begin(self)
        self.faulty.calls.clear()
        return lease


@pytest.fixture
def scene() -> Scene:
    return Scene()


def undisturbed(transition: Transition, further_steps: int = 0) -> tuple[Any, dict[str, Any] | None]:
    """What the transition returns and leaves behind when nothing goes wrong."""
    scene = Scene()
    result = transition.act(scene.leases, scene.begin(transition))
    item = scene.item(new_lease().key)
    if further_steps and item is not None:
        result = replace(result, counter=result.counter + further_steps)
        item = {**item, "leaseCounter": {"N": str(result.counter)}}
    return result, item


@each
@pytest.mark.parametrize(
    ("fault", "writes"),
    [
        pytest.param(answer_lost, 1, id="applied, answer lost"),
        pytest.param(LOST_ON_THE_WAY, 2, id="lost on the way"),
        pytest.param(client_error("InternalServerError", 500), 2, id="failed inside AWS"),
        pytest.param(THROTTLED, 2, id="throttled"),
        pytest.param(raising(ConnectTimeoutError(endpoint_url="http://dynamodb")), 2, id="not connected"),
    ],
)
def test_one_fault_makes_no_difference(scene: Scene, transition: Transition, fault: Any, writes: int) -> None:
    lease = scene.begin(transition)
    scene.faulty.fail(transition.operation, fault)
    result = transition.act(scene.leases, lease)
    further_steps = int(fault is answer_lost and transition.act is not reassign and transition.leaves_no_mark)
    assert (result, scene.item(lease.key)) == undisturbed(transition, further_steps)
    assert scene.faulty.count(transition.operation) == writes + further_steps


@each
def test_an_answer_lost_twice_is_still_one_write(scene: Scene, transition: Transition) -> None:
    """The first attempt arrives late: after it was read back as missing, and before the second."""
    lease = scene.begin(transition)

    def late(client: FaultyClient, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        passed_on(client, operation, parameters)
        return passed_on(client, operation, parameters)

    scene.faulty.fail(transition.operation, LOST_ON_THE_WAY, late)
    result = transition.act(scene.leases, lease)
    further_steps = int(transition.leaves_no_mark)
    assert (result, scene.item(lease.key)) == undisturbed(transition, further_steps)


@each
def test_doubt_that_is_not_resolved_in_time_is_said_to_be(scene: Scene, transition: Transition) -> None:
    lease = scene.begin(transition)
    before = scene.item(lease.key)
    scene.faulty.fail(transition.operation, *[LOST_ON_THE_WAY] * 1000)
    with pytest.raises(OutcomeUnknown, match="not applied yet when last read"):
        transition.act(scene.leases, lease)
    assert scene.item(lease.key) == before


@each
def test_doubt_that_cannot_be_read_back_is_said_to_be(scene: Scene, transition: Transition) -> None:
    lease = scene.begin(transition)
    if transition.looks_first:
        scene.faulty.fail("get_item", passed_on)
    scene.faulty.fail(transition.operation, answer_lost)
    scene.faulty.fail("get_item", *[LOST_ON_THE_WAY] * 1000)
    with pytest.raises(OutcomeUnknown, match="reading back failed too"):
        transition.act(scene.leases, lease)


@each
def test_throttling_that_does_not_end_is_reported_as_such(scene: Scene, transition: Transition) -> None:
    lease = scene.begin(transition)
    scene.faulty.fail(transition.operation, *[THROTTLED] * 1000)
    began = scene.clock.monotonic()
    with pytest.raises(Throttled):
        transition.act(scene.leases, lease)
    assert 7.0 < scene.clock.monotonic() - began <= 10.0
    assert len(set(scene.clock.slept)) == len(scene.clock.slept)  # jitter


def test_a_lease_taken_after_a_lost_renewal_is_lost(scene: Scene) -> None:
    lease = owned(scene)

    def taken() -> None:
        now = scene.leases.get(lease.key)
        assert now is not None
        assert scene.leases.take(now, BERT) is not None

    scene.faulty.fail("update_item", after(answer_lost, taken))
    with pytest.raises(LeaseLost, match=BERT):
        scene.leases.renew(lease)


def test_a_lease_taken_instead_of_a_lost_checkpoint_is_lost(scene: Scene) -> None:
    lease = owned(scene)
    scene.faulty.fail("update_item", after(LOST_ON_THE_WAY, lambda: scene.leases.take(lease, BERT)))
    with pytest.raises(LeaseLost, match=BERT):
        scene.leases.checkpoint(lease, at())
    after_all = scene.leases.get(lease.key)
    assert after_all is not None
    assert after_all.checkpoint == TRIM_HORIZON


def test_a_handoff_that_begins_behind_a_lost_renewal_is_learnt(scene: Scene) -> None:
    lease = owned(scene)
    scene.faulty.fail("update_item", after(answer_lost, lambda: scene.leases.initiate_handoff(lease, BERT)))
    renewed = scene.leases.renew(lease)
    assert (renewed.owner, renewed.checkpoint_owner, renewed.counter) == (BERT, ANNA, lease.counter + 2)


def test_a_handoff_that_begins_before_a_lost_renewal_is_repeated_is_learnt(scene: Scene) -> None:
    lease = owned(scene)
    scene.faulty.fail("update_item", after(LOST_ON_THE_WAY, lambda: scene.leases.initiate_handoff(lease, BERT)))
    renewed = scene.leases.renew(lease)
    assert (renewed.owner, renewed.checkpoint_owner, renewed.counter) == (BERT, ANNA, lease.counter + 1)


def test_an_owner_given_its_own_lease_anew_behind_a_lost_refusal_writes_before_it_trusts(scene: Scene) -> None:
    lease = owned(scene)
    assert scene.leases.assign(lease, ANNA) is not None
    scene.faulty.calls.clear()
    scene.faulty.fail("update_item", answer_lost)
    assert scene.leases.renew(lease).counter == lease.counter + 2
    assert scene.faulty.count("update_item") == 2


def test_an_owner_that_never_hears_anything_gives_up_and_goes_on_later(scene: Scene) -> None:
    lease = owned(scene)
    scene.faulty.fail("update_item", *[answer_lost] * 100)
    with pytest.raises(OutcomeUnknown, match="5 answers in a row were lost"):
        scene.leases.renew(lease)
    scene.faulty.heal()
    with pytest.raises(LeaseLost):
        scene.leases.renew(lease)  # too far behind to be sure: it has to read the lease first
    now = scene.leases.get(lease.key)
    assert now is not None
    assert scene.leases.renew(now).counter == now.counter + 1


def test_an_assignment_counts_as_made_when_its_owner_works_already(scene: Scene) -> None:
    lease = owned(scene)

    def renewed() -> None:
        now = scene.leases.get(lease.key)
        assert now is not None
        scene.leases.renew(now)

    scene.faulty.fail("update_item", after(answer_lost, renewed))
    assigned = scene.leases.assign(lease, BERT)
    assert assigned is not None
    assert (assigned.owner, assigned.counter) == (BERT, lease.counter + 2)


def test_a_handoff_counts_as_begun_when_it_is_already_over(scene: Scene) -> None:
    lease = owned(scene)

    def transferred() -> None:
        assert scene.leases.transfer(replace(lease, owner=BERT, checkpoint_owner=ANNA)) is not None

    scene.faulty.fail("update_item", after(answer_lost, transferred))
    begun = scene.leases.initiate_handoff(lease, BERT)
    assert begun is not None
    assert (begun.owner, begun.checkpoint_owner) == (BERT, None)


@pytest.mark.parametrize("name", ["take", "assign", "initiate handoff", "transfer", "release", "rewind"])
def test_a_refusal_whose_answer_is_lost_is_a_refusal(scene: Scene, name: str) -> None:
    transition = TRANSITIONS[name]
    lease = scene.begin(transition)
    moved = scene.leases.assign(lease, CARL)
    scene.faulty.fail("update_item", answer_lost)
    assert transition.act(scene.leases, lease) is None
    assert scene.leases.get(lease.key) == moved


@pytest.mark.parametrize("name", ["renew", "checkpoint", "prepare"])
def test_an_owners_refusal_whose_answer_is_lost_is_a_lost_lease(scene: Scene, name: str) -> None:
    transition = TRANSITIONS[name]
    lease = scene.begin(transition)
    scene.leases.assign(lease, CARL)
    scene.faulty.fail("update_item", answer_lost)
    with pytest.raises(LeaseLost, match=CARL):
        transition.act(scene.leases, lease)


@pytest.mark.parametrize("name", ["renew", "checkpoint", "prepare"])
def test_a_lease_deleted_behind_a_lost_answer_is_lost(scene: Scene, name: str) -> None:
    transition = TRANSITIONS[name]
    lease = scene.begin(transition)
    scene.faulty.fail("update_item", after(answer_lost, lambda: scene.remove(lease.key)))
    with pytest.raises(LeaseLost, match="deleted"):
        transition.act(scene.leases, lease)


def test_a_create_that_meets_another_lease_behind_a_lost_answer_has_failed(scene: Scene) -> None:
    other = new_lease(checkpoint=at())
    scene.faulty.fail("put_item", after(LOST_ON_THE_WAY, lambda: scene.leases.create(other)))
    assert not scene.leases.create(new_lease())
    assert scene.leases.get(other.key) == other


def test_a_table_that_vanishes_behind_a_lost_answer_leaves_doubt(scene: Scene) -> None:
    lease = owned(scene)
    scene.faulty.fail("update_item", LOST_ON_THE_WAY, client_error("ResourceNotFoundException"))
    with pytest.raises(OutcomeUnknown, match="trying again failed too"):
        scene.leases.renew(lease)
    scene.faulty.fail("update_item", client_error("ResourceNotFoundException"))
    with pytest.raises(TableNotFound):
        scene.leases.renew(lease)


def test_an_endpoint_that_does_not_say_what_stands_there_is_asked(scene: Scene) -> None:
    lease = owned(scene)
    scene.leases.initiate_handoff(lease, BERT)
    scene.faulty.fail("update_item", client_error("ConditionalCheckFailedException"))
    assert scene.leases.renew(lease).checkpoint_owner == ANNA


def test_reads_are_repeated_and_then_given_up(scene: Scene) -> None:
    scene.faulty.fail("get_item", LOST_ON_THE_WAY, THROTTLED)
    assert scene.leases.get(new_lease().key) is None
    scene.faulty.fail("get_item", *[LOST_ON_THE_WAY] * 1000)
    with pytest.raises(EndpointUnreachable, match="given up at the deadline"):
        scene.leases.get(new_lease().key)
