"""Any order of records, reshards, moves, stalls and kills: every record is stored once, and nothing goes back."""

import contextlib
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey
from tests.unit.worker.kit import Killed, Run, World

pytestmark = pytest.mark.slow

WORKERS = 3
MOST_SHARDS = 7
MOST_ROUNDS = (
    600  # of three seconds: a record that ended three workers is tried after five minutes, later after ten
)
workers = st.integers(0, WORKERS - 1)
picks = st.integers(0, 99)


class Consumption(RuleBasedStateMachine):
    """Leases are moved without rhyme or reason, more rudely than any leader would."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(shards=2)
        self.names = iter(range(10_000))
        self.fleet = [self.new_worker() for _ in range(WORKERS)]
        self.seen: dict[LeaseKey, tuple[int, Checkpoint, int]] = {}
        self.nested = False

    def new_worker(self) -> Run:
        number = next(self.names)
        run = self.world.worker(f"w{number}")
        run.engine.limit = 2 + number % 3  # a replay must not depend on how much is read at a time
        return run

    def pick(self, pick: int) -> str:
        keys = self.world.lease_keys()
        return keys[pick % len(keys)]

    @initialize()
    def somebody_starts(self) -> None:
        for shard in self.world.stream.shards:
            self.world.stream.put(shard, *"abcdefghijkl")
        self.world.assign(self.fleet[0])

    @rule(pick=picks, count=st.integers(1, 7))
    def records_arrive(self, pick: int, count: int) -> None:
        alive = [shard for shard in self.world.stream.shards.values() if not shard.is_closed]
        self.world.stream.put(alive[pick % len(alive)].id, *[str(index) for index in range(count)])

    @rule(pick=picks, early=st.booleans(), owner=workers)
    def a_shard_is_split(self, pick: int, early: bool, owner: int) -> None:
        """`early`: the leader makes a child's lease, and gives it away, while the parent is still being read."""
        alive = [shard.id for shard in self.world.stream.shards.values() if not shard.is_closed]
        if len(self.world.stream.shards) >= MOST_SHARDS:
            return
        parent = alive[pick % len(alive)]
        low, high = self.world.stream.split(parent)
        for child in (low, high):
            self.world.stream.put(child, "first")
        if early and parent in self.world.lease_keys():
            self.world.create(low)
            self.world.assign(self.fleet[owner], low)

    @rule(pick=picks)
    def two_shards_are_merged(self, pick: int) -> None:
        alive = sorted(
            (shard for shard in self.world.stream.shards.values() if not shard.is_closed),
            key=lambda shard: shard.hash_range,
        )
        if len(alive) > 1 and len(self.world.stream.shards) < MOST_SHARDS:
            index = pick % (len(alive) - 1)
            self.world.stream.merge(alive[index].id, alive[index + 1].id)

    @rule(pick=picks)
    def a_lease_exists_early(self, pick: int) -> None:
        """Two parents finish at different times, and somebody else may have made the child's lease."""
        there = set(self.world.lease_keys())
        shards = self.world.stream.shards
        missing = sorted(key for key in set(shards) - there if there.issuperset(shards[key].parents))
        if missing:
            self.world.create(missing[pick % len(missing)])

    @rule(worker=workers, pick=picks)
    def a_lease_is_assigned(self, worker: int, pick: int) -> None:
        self.world.assign(self.fleet[worker], self.pick(pick))

    @rule(worker=workers, pick=picks)
    def a_lease_is_asked_for(self, worker: int, pick: int) -> None:
        lease = self.world.lease(self.pick(pick))
        if lease.owner not in (None, self.fleet[worker].id) and not lease.in_handoff:
            self.world.hand_over(lease.key, self.fleet[worker])

    @rule(worker=workers)
    def a_worker_works(self, worker: int) -> None:
        self.fleet[worker].round()

    @rule(worker=workers)
    def a_worker_renews(self, worker: int) -> None:
        self.fleet[worker].worker.step_renewal()

    @rule(worker=workers, points=st.integers(1, 12), is_writing=st.booleans(), has_all=st.booleans())
    def a_worker_is_killed(self, worker: int, points: int, is_writing: bool, has_all: bool) -> None:
        run = self.fleet[worker]
        if has_all:
            self.world.assign(run)

        def light(*_: object) -> None:
            run.fuse.burns_at = run.fuse.passed + points

        if is_writing:
            run.sink.hooks.append(light)
        else:
            light()
        with contextlib.suppress(Killed):
            for _ in range(3):
                run.round()
            run.fuse.burns_at = None
            run.sink.hooks.clear()
            return
        self.fleet[worker] = self.new_worker()

    @rule(worker=workers)
    def a_worker_stops(self, worker: int) -> None:
        self.fleet[worker].worker.stop.request()
        self.fleet[worker].worker.run()
        self.fleet[worker] = self.new_worker()

    @rule(sleeper=workers, other=workers, seconds=st.sampled_from([1, 29, 31, 300]), in_sink=st.booleans())
    def a_worker_stalls_and_another_goes_on(self, sleeper: int, other: int, seconds: int, in_sink: bool) -> None:
        if sleeper == other:
            return
        run, next_owner = self.fleet[sleeper], self.fleet[other]
        hooks: list[Any] = run.sink.hooks if in_sink else run.engine.hooks

        def stall(*_: object) -> None:
            hooks.clear()
            self.world.clock.advance(seconds)
            self.world.assign(next_owner)
            next_owner.round()
            next_owner.round()

        hooks.append(stall)
        run.round()
        hooks.clear()

    @rule(seconds=st.sampled_from([1, 5, 11, 31]))
    def time_passes(self, seconds: int) -> None:
        self.world.clock.advance(seconds)

    @invariant()
    def nothing_goes_back(self) -> None:
        for lease in self.world.leases.scan().leases:
            assert lease.checkpoint is not None
            counter, checkpoint, batch = self.seen.get(lease.key, (-1, lease.checkpoint, 0))
            assert lease.counter >= counter
            assert not lease.checkpoint < checkpoint
            assert lease.batch >= batch
            self.seen[lease.key] = (lease.counter, lease.checkpoint, lease.batch)

    @invariant()
    def a_part_keeps_its_identity(self) -> None:
        for place, identities in self.world.store.identities.items():
            assert len(set(identities)) == 1, f"{place} was written as {identities}"

    @invariant()
    def children_come_after_their_parents(self) -> None:
        leases = {lease.key: lease for lease in self.world.leases.scan().leases}
        for shard, _ in self.world.store.parts:
            for parent in leases[LeaseKey(shard)].parents:
                assert leases[LeaseKey(parent)].is_finished

    def teardown(self) -> None:
        """At the end one worker finishes everything. A batch that ended several workers has to wait first."""
        last = self.new_worker()
        for _ in range(MOST_ROUNDS):
            for lease in self.leases():
                if lease.actual_owner != last.id or lease.in_handoff:
                    self.world.assign(last, lease.key)
            last.until_idle()
            self.world.clock.advance(3)
            if self.is_settled(last) and len(self.world.store.everything()) >= len(self.world.stream.everything()):
                break
        self.world.check_exactly_once()

    def is_settled(self, last: Run) -> bool:
        done = {lease.shard_id for lease in self.leases() if lease.is_finished or lease.owner == last.id}
        closed = {shard.id for shard in self.world.stream.shards.values() if shard.is_closed}
        return done == set(self.world.stream.shards) and closed == {
            lease.shard_id for lease in self.leases() if lease.is_finished
        }

    def leases(self) -> list[Lease]:
        return list(self.world.leases.scan().leases)


TestConsumption = Consumption.TestCase
TestConsumption.settings = settings(max_examples=80, stateful_step_count=40)
