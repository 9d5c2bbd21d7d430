"""Workers and leaders with old views, racing for a few leases over a connection that loses answers.

Whatever they do in whatever order: counters only grow, progress never goes back, and of all who think that they
own a lease the table agrees with the one whose last write went through.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from kcl_dagster.errors import LeaseLost, OutcomeUnknown
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
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
    answer_lost,
    application,
    new_lease,
    runtime,
)

WORKERS = (ANNA, BERT, CARL)
KEYS = tuple(LeaseKey(f"shardId-{n}") for n in range(2))
workers = st.sampled_from(WORKERS)
keys = st.sampled_from(KEYS)
faults = st.lists(st.sampled_from([answer_lost, LOST_ON_THE_WAY, THROTTLED]), max_size=2)
UNREADABLE = [LOST_ON_THE_WAY] * 200  # until the deadline


def _is_where(asked: Lease, call: str, now: Lease, *arguments: Any) -> bool:
    """Whether a lease is where `call` was to bring it."""
    if call == "release" and not asked.in_handoff:
        return now.actual_owner is None
    to = asked.owner if call in {"release", "transfer"} else arguments[0]
    return now.owner == to and now.counter >= asked.counter


class Fleet(RuleBasedStateMachine):
    views = Bundle("views")  # leases as somebody saw them at some time

    def __init__(self) -> None:
        super().__init__()
        clock = FakeClock()
        self.client = FaultyClient(FakeDynamoDB(clock, strict=False))
        self.tables = Tables(self.client, application(), runtime(clock))
        self.table = self.tables.leases
        for key in KEYS:
            self.tables.existing(new_lease(key))
        self.highest: dict[LeaseKey, tuple[int, Checkpoint]] = {}
        self.held: dict[LeaseKey, tuple[WorkerId, Lease]] = {}  # who was last told by a write that it owns a lease
        self.sequence = 0

    def now(self, key: LeaseKey) -> Lease:
        found = self.tables.item(key)
        assert found is not None
        lease = self.table._lease(found)
        assert lease is not None
        return lease

    # --- looking

    @rule(target=views, key=keys)
    def look(self, key: LeaseKey) -> Lease:
        return self.now(key)

    # --- moving leases

    def moved(self, lease: Lease, call: str, queued: list[Any], *arguments: Any, **options: Any) -> None:
        """One attempt to move a lease: told to have worked exactly if the table has changed by exactly it.

        One exception: when a refusal is lost and the lease already is where it was to go, that is success.
        """
        before = self.now(lease.key)
        self.client.fail("update_item", *queued)
        result = getattr(self.table, call)(lease, *arguments, **options)
        self.client.heal()
        after = self.now(lease.key)
        if result is None:
            assert after == before
        else:
            assert result == after
            assert after != before or (queued and _is_where(lease, call, after, *arguments))

    @rule(lease=views, to=workers, queued=faults)
    def take(self, lease: Lease, to: WorkerId, queued: list[Any]) -> None:
        self.moved(lease, "take", queued, to)

    @rule(lease=views, to=workers, queued=faults, expecting=st.booleans())
    def assign(self, lease: Lease, to: WorkerId, queued: list[Any], expecting: bool) -> None:
        before = self.now(lease.key)
        self.moved(lease, "assign", queued, to, counter=lease.counter if expecting else None)
        if expecting and lease.counter != before.counter:
            assert self.now(lease.key) == before

    @rule(lease=views, to=workers, queued=faults)
    def initiate_handoff(self, lease: Lease, to: WorkerId, queued: list[Any]) -> None:
        if lease.owner not in {None, to} and not lease.in_handoff:
            self.moved(lease, "initiate_handoff", queued, to)

    @rule(lease=views, queued=faults)
    def transfer(self, lease: Lease, queued: list[Any]) -> None:
        if lease.in_handoff and lease.owner is not None:
            self.moved(lease, "transfer", queued)

    @rule(lease=views, queued=faults)
    def release(self, lease: Lease, queued: list[Any]) -> None:
        if lease.actual_owner is not None:
            self.moved(lease, "release", queued)

    # --- owning leases

    @rule(key=keys, worker=workers)
    def begin_to_hold(self, key: LeaseKey, worker: WorkerId) -> None:
        lease = self.now(key)
        if lease.owner == worker and not lease.in_handoff:
            self.held[key] = (worker, lease)

    def written(self, key: LeaseKey, queued: list[Any], call: str, *arguments: Any, **options: Any) -> None:
        """One write of an owner: it works if the table says that the lease is still its own, and else is lost."""
        if key not in self.held:
            return
        worker, lease = self.held[key]
        before = self.now(key)
        self.client.fail("update_item", *queued)
        try:
            lease = getattr(self.table, call)(lease, *arguments, **options)
        except LeaseLost:
            assert before.counter != lease.counter or before.actual_owner != worker
            assert self.now(key) == before
            del self.held[key]
        else:
            assert before.actual_owner == worker
            assert self.now(key) == lease
            assert lease.counter > before.counter
            self.held[key] = (worker, lease)
        finally:
            self.client.heal()

    @rule(key=keys, queued=faults)
    def renew(self, key: LeaseKey, queued: list[Any]) -> None:
        self.written(key, queued, "renew")

    @rule(key=keys, queued=faults, batch=st.integers(1, 3))
    def prepare(self, key: LeaseKey, queued: list[Any], batch: int) -> None:
        self.sequence += 1
        self.written(key, queued, "prepare", Checkpoint(str(self.sequence)), batch=batch)

    @rule(key=keys, queued=faults)
    def checkpoint(self, key: LeaseKey, queued: list[Any]) -> None:
        self.sequence += 1
        self.written(key, queued, "checkpoint", Checkpoint(str(self.sequence)))

    @rule(key=keys)
    def renew_without_ever_learning_the_outcome(self, key: LeaseKey) -> None:
        if key not in self.held:
            return
        lease = self.held[key][1]
        self.client.fail("update_item", answer_lost)
        self.client.fail("get_item", *UNREADABLE)
        try:
            self.table.renew(lease)
        except OutcomeUnknown:
            pass  # the owner still believes in the lease it knew
        except LeaseLost:
            del self.held[key]
        finally:
            self.client.heal()

    # --- what always holds

    @invariant()
    def nothing_goes_back(self) -> None:
        for key in KEYS:
            lease = self.now(key)
            assert lease.checkpoint is not None
            counter, checkpoint = self.highest.get(key, (0, lease.checkpoint))
            assert lease.counter >= counter
            assert lease.checkpoint >= checkpoint
            self.highest[key] = (lease.counter, lease.checkpoint)

    @invariant()
    def everything_can_be_read(self) -> None:
        assert self.table.scan().unreadable == ()


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
