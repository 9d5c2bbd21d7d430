"""Workers and leaders that rest for as long as they like while shards are finished, read and cleaned up.

Whatever they do in whatever order, over a connection that loses answers: no shard is read from its beginning twice.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from kcl_dagster.errors import LeaseLost, Unsafe
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.standing import Standing
from kcl_dagster.tables.expressions import Request
from kcl_dagster.tables.lock import LeaderLock
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import (
    ANNA,
    LOST_ON_THE_WAY,
    THROTTLED,
    FaultyClient,
    Tables,
    answer_lost,
    application,
    new_lease,
    runtime,
)

# Shard 0 is split into 1 and 2.
CHILDREN = {"0": ("1", "2")}
PARENT = {child: parent for parent, children in CHILDREN.items() for child in children}
SHARDS = ("0", "1", "2")
faults = st.lists(st.sampled_from([answer_lost, LOST_ON_THE_WAY, THROTTLED]), max_size=2)


def child_of(parent: Lease, shard: str) -> Lease:
    return new_lease(shard, parents=frozenset({parent.shard_id}))


class Resharding(RuleBasedStateMachine):
    rested = Bundle("rested")
    """Parents as workers saw them when they came to their shard's end."""

    decided = Bundle("decided")
    """Guards of leaders that saw an empty table, and mean to create the lease of shard 0."""

    def __init__(self) -> None:
        super().__init__()
        clock = FakeClock()
        self.client = FaultyClient(FakeDynamoDB(clock, strict=False))
        self.tables = Tables(self.client, application(), runtime(clock))
        self.table = self.tables.leases
        parts = (self.client, self.tables.application, self.tables.layout, self.tables.runtime)
        self.locks = [LeaderLock(*parts, "us") for _ in range(2)]
        self.begun: dict[str, int] = {}

    def now(self, shard: str) -> Lease | None:
        return self.table.get(LeaseKey(shard))

    @rule(target=decided, leader=st.sampled_from([0, 1]))
    def look(self, leader: int) -> Request | None:
        """A tick begins: the lock first, then the table."""
        assert self.locks[leader].hold(Standing()).held
        return self.locks[leader].guard() if not self.table.scan().leases and not self.begun else None

    @rule(guard=decided, queued=faults)
    def create_the_first(self, guard: Request | None, queued: list[Any]) -> None:
        if guard is None:
            return
        self.client.fail("transact_write_items", *queued)
        try:
            self.table.create(new_lease("0"), guard)
        except Unsafe:
            pass
        finally:
            self.client.heal()

    @rule(shard=st.sampled_from(SHARDS))
    def go_on(self, shard: str) -> None:
        """Whatever comes next in the life of a lease, by somebody who does not rest."""
        lease = self.now(shard)
        children = CHILDREN.get(shard, ())
        above = self.now(PARENT[shard]) if shard in PARENT else None
        if lease is None:
            return
        if lease.is_finished:
            followers = [self.now(child) for child in children]
            if above is None and all(one is not None and one.checkpoint != TRIM_HORIZON for one in followers):
                assert self.locks[1].hold(Standing()).held  # only leaders clean up, in ticks of their own
                self.table.delete(lease)
        elif lease.checkpoint == TRIM_HORIZON:
            if above is None or above.is_finished:
                self._read(lease)
        else:
            for child in children:
                self.table.create_child(lease, child_of(lease, child), frozenset(children))
            now = self.now(shard)
            assert now is not None
            self.table.checkpoint(now, SHARD_END, children=frozenset(children))

    @rule(times=st.integers(1, 3))
    def go_on_everywhere(self, times: int) -> None:
        for _ in range(times):
            for shard in SHARDS:
                self.go_on(shard)

    def _read(self, lease: Lease) -> None:
        owned = self.table.assign(lease, ANNA)
        assert owned is not None
        self.table.checkpoint(owned, Checkpoint("7"))
        self.begun[lease.shard_id] = self.begun.get(lease.shard_id, 0) + 1

    @rule(target=rested, shard=st.sampled_from(sorted(CHILDREN)))
    def come_to_the_end(self, shard: str) -> Lease | None:
        lease = self.now(shard)
        has_begun = lease is not None and lease.checkpoint == Checkpoint("7")
        return lease if has_begun else None

    @rule(parent=rested, index=st.integers(0, 1), queued=faults)
    def create_a_child(self, parent: Lease | None, index: int, queued: list[Any]) -> None:
        if parent is None:
            return
        names = CHILDREN[parent.shard_id]
        child = names[index % len(names)]
        self.client.fail("transact_write_items", *queued)
        try:
            made = self.table.create_child(parent, child_of(parent, child), frozenset(names))
            assert not made or self.now(child) is not None
        except LeaseLost:
            above = self.now(parent.shard_id)
            assert above is None or above.is_finished
        finally:
            self.client.heal()

    @invariant()
    def nothing_is_begun_twice(self) -> None:
        assert all(times == 1 for times in self.begun.values()), self.begun


TestResharding = Resharding.TestCase
TestResharding.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
