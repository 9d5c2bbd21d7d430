"""What `LeaseTable` promises, whatever DynamoDB is behind it. Suites bring the fixture `tables`."""

import threading
from dataclasses import replace

import pytest

from kcl_dagster.errors import LeaseLost, UnreadableItem, Unsafe
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON
from kcl_dagster.model.claim import ChainId, Claim, ClaimId
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.shard import HashRange
from kcl_dagster.model.standing import Standing
from kcl_dagster.tables.attributes import OWNER_INDEX
from kcl_dagster.tables.leases import CREATED_AT_ONCE
from kcl_dagster.tables.lock import LeaderLock
from tests.unit.tables.kit import ANNA, BERT, CARL, LATER, Tables, at, new_lease

FOREIGN = {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}, "ownerName": {"S": "java"}}
BROKEN = {"leaseKey": {"S": "badLeaseKey"}}


class LeaseTableContract:
    # --- create and read

    def test_a_created_lease_reads_as_it_was_written(self, tables: Tables) -> None:
        lease = new_lease(parents=frozenset({"shardId-000000000008", "shardId-000000000009"}))
        assert tables.leases.create(lease)
        assert tables.leases.get(lease.key) == lease

    def test_a_second_create_changes_nothing(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        assert not tables.leases.create(new_lease())
        assert tables.leases.get(lease.key) == lease

    def test_a_missing_lease_reads_as_none(self, tables: Tables) -> None:
        assert tables.leases.get(LeaseKey("bogusShardId")) is None

    def test_a_create_never_replaces_a_row_of_another_kind(self, tables: Tables) -> None:
        tables.put(FOREIGN)
        assert not tables.leases.create(new_lease("Leader"))
        assert tables.item("Leader") == FOREIGN

    # --- create in a transaction

    def test_a_child_gets_its_lease_with_a_note_on_its_parents(self, tables: Tables) -> None:
        parent = tables.holding(new_lease())
        child = new_lease("low", parents=frozenset({parent.shard_id}))
        assert tables.leases.create_child(parent, child, frozenset({"low", "high"}))
        assert tables.leases.get(child.key) == child
        assert tables.leases.get(parent.key) == replace(parent, children=frozenset({"low", "high"}))
        tables.leases.renew(parent)  # the note is no sign of life, and in nobody's way

    def test_a_child_that_has_a_lease_keeps_it(self, tables: Tables) -> None:
        parent = tables.holding(new_lease())
        child = tables.holding(new_lease("low"))
        assert not tables.leases.create_child(parent, new_lease("low"), frozenset({"low"}))
        tables.leases.checkpoint(parent, SHARD_END)
        assert not tables.leases.create_child(parent, new_lease("low"), frozenset({"low"}))
        assert tables.leases.get(child.key) == child

    def test_a_parent_that_was_finished_by_another_gets_no_children_any_more(self, tables: Tables) -> None:
        parent = tables.holding(new_lease())
        tables.leases.checkpoint(parent, SHARD_END)
        for _ in ("finished", "gone"):
            with pytest.raises(LeaseLost, match="finished by another worker"):
                tables.leases.create_child(parent, new_lease("low"), frozenset({"low"}))
            assert tables.item("low") is None
            tables.remove(parent.key)
        assert tables.item(parent.key) is None

    def test_a_leader_creates_leases_while_it_leads(self, tables: Tables) -> None:
        lock = LeaderLock(tables.client, tables.application, tables.layout, tables.runtime, "us")
        assert lock.hold(Standing()).held
        lease = new_lease()
        assert tables.leases.create(lease, lock.guard())
        assert not tables.leases.create(lease, lock.guard())
        assert tables.leases.get(lease.key) == lease
        assert lock.hold(Standing()).held

    @pytest.mark.audit("C7")
    def test_a_leader_creates_many_leases_in_one_transaction(self, tables: Tables) -> None:
        lock = LeaderLock(tables.client, tables.application, tables.layout, tables.runtime, "us")
        assert lock.hold(Standing()).held
        leases = [new_lease(f"shardId-{number:012d}") for number in range(CREATED_AT_ONCE)]
        assert tables.leases.create_all(leases, lock.guard()) == leases
        assert [lease.key for lease in tables.leases.scan().leases] == [lease.key for lease in leases]
        more = [*leases[:2], new_lease("shardId-000000000777")]
        assert tables.leases.create_all(more, lock.guard()) == more[2:]
        assert tables.leases.create_all([], lock.guard()) == []

    @pytest.mark.audit("C7")
    def test_a_leader_that_does_not_lead_any_more_creates_none_of_them(self, tables: Tables) -> None:
        lock = LeaderLock(tables.client, tables.application, tables.layout, tables.runtime, "us")
        assert lock.hold(Standing()).held
        guard = lock.guard()
        assert lock.hold(Standing()).held
        with pytest.raises(Unsafe, match="another leader was at work"):
            tables.leases.create_all([new_lease(), new_lease("other")], guard)
        assert tables.item(new_lease().key) is None

    def test_a_leader_that_was_followed_by_another_creates_nothing(self, tables: Tables) -> None:
        locks = [
            LeaderLock(tables.client, tables.application, tables.layout, tables.runtime, "us") for _ in range(2)
        ]
        guards = []
        for lock in locks:  # the second process of the same deployment
            assert lock.hold(Standing()).held
            guards.append(lock.guard())
        with pytest.raises(Unsafe, match="another leader was at work"):
            tables.leases.create(new_lease(), guards[0])
        assert tables.item(new_lease().key) is None
        assert tables.leases.create(new_lease(), guards[1])
        locks[1].release()
        with pytest.raises(Unsafe, match="another leader was at work"):
            tables.leases.create(new_lease("other"), guards[1])
        with pytest.raises(Unsafe, match="does not lead"):
            locks[1].guard()

    # --- renew

    def test_a_renewal_adds_one_and_keeps_the_rest(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        renewed = tables.leases.renew(lease, 85.3333334)
        assert renewed == replace(lease, counter=lease.counter + 1, throughput_kbps=85.333333)
        assert tables.leases.get(lease.key) == renewed

    def test_a_renewal_with_a_counter_that_moved_on_is_lost(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        assert tables.leases.take(lease, BERT) is not None
        with pytest.raises(LeaseLost, match=BERT):
            tables.leases.renew(lease)

    def test_an_owner_whose_last_answer_was_lost_catches_up_by_renewing_again(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        tables.leases.renew(lease)
        assert tables.leases.renew(lease).counter == lease.counter + 2

    def test_a_renewal_two_steps_behind_is_lost(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        tables.leases.renew(tables.leases.renew(lease))
        with pytest.raises(LeaseLost, match="another process writes in our name"):
            tables.leases.renew(lease)

    def test_a_renewal_of_a_deleted_lease_is_lost(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        tables.remove(lease.key)
        with pytest.raises(LeaseLost, match="deleted"):
            tables.leases.renew(lease)
        assert tables.item(lease.key) is None

    def test_a_former_owner_writes_nothing_to_a_lease_that_was_made_anew(self, tables: Tables) -> None:
        """Somebody deleted its lease. The new one counts from 0, and comes by the number that it knows."""
        lease = tables.holding(new_lease())
        tables.remove(lease.key)
        anew = tables.holding(new_lease(), BERT)
        assert anew.counter == lease.counter
        with pytest.raises(LeaseLost, match=BERT):
            tables.leases.renew(lease)
        with pytest.raises(LeaseLost, match=BERT):
            tables.leases.prepare(lease, at(), batch=1)
        with pytest.raises(LeaseLost, match=BERT):
            tables.leases.checkpoint(lease, at())
        assert tables.leases.get(lease.key) == anew

    # --- take and assign

    def test_taking_a_lease_counts_a_switch(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        taken = tables.leases.take(lease, BERT)
        assert taken == replace(lease, owner=BERT, counter=lease.counter + 1, owner_switches=1)

    def test_taking_an_unowned_lease_is_no_switch(self, tables: Tables) -> None:
        lease = tables.existing(new_lease())
        taken = tables.leases.take(lease, BERT)
        assert taken is not None
        assert taken.owner_switches == 0

    def test_only_one_of_two_takers_gets_the_lease(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        assert tables.leases.take(lease, BERT) is not None
        assert tables.leases.take(lease, CARL) is None

    def test_taking_ends_a_handoff(self, tables: Tables) -> None:
        lease = tables.leases.initiate_handoff(tables.holding(new_lease()), BERT)
        assert lease is not None
        taken = tables.leases.take(lease, CARL)
        assert taken is not None
        assert (taken.owner, taken.checkpoint_owner) == (CARL, None)

    def test_an_assignment_needs_no_counter(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        tables.leases.renew(lease)
        assigned = tables.leases.assign(lease, BERT)
        assert assigned is not None
        assert (assigned.owner, assigned.counter, assigned.owner_switches) == (BERT, lease.counter + 2, 1)

    def test_an_assignment_with_a_counter_yields_to_a_renewal(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        renewed = tables.leases.renew(lease)
        assert tables.leases.assign(lease, BERT, counter=lease.counter) is None
        assert tables.leases.get(lease.key) == renewed

    @pytest.mark.parametrize("known", [None, BERT])
    def test_an_assignment_yields_to_a_change_of_owner(self, tables: Tables, known: WorkerId | None) -> None:
        lease = tables.holding(new_lease())
        assert tables.leases.assign(replace(lease, owner=known), CARL) is None

    @pytest.mark.parametrize("known", [None, ANNA])
    def test_an_assignment_never_brings_back_a_deleted_lease(self, tables: Tables, known: WorkerId | None) -> None:
        assert tables.leases.assign(new_lease(owner=known), CARL) is None
        assert tables.item(new_lease().key) is None

    def test_assigning_to_the_present_owner_is_no_switch(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        again = tables.leases.assign(lease, ANNA)
        assert again == replace(lease, counter=lease.counter + 1)

    # --- handoff

    def test_a_handoff_names_the_next_owner_and_leaves_the_counter(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        asked = tables.leases.initiate_handoff(lease, BERT)
        assert asked == replace(lease, owner=BERT, checkpoint_owner=ANNA, handoff=lease.counter)

    def test_a_handoff_that_is_asked_for_again_is_told_from_the_first(self, tables: Tables) -> None:
        """Also by a leader that has read the lease before the first one."""
        lease = tables.holding(new_lease())
        first = tables.leases.initiate_handoff(lease, BERT)
        assert first is not None
        kept = tables.leases.assign(first, ANNA)
        assert kept is not None
        again = tables.leases.initiate_handoff(lease, BERT)
        assert again is not None
        assert (first.handoff, again.handoff) == (lease.counter, kept.counter)

    def test_a_handoff_is_not_begun_twice(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        assert tables.leases.initiate_handoff(lease, BERT) is not None
        assert tables.leases.initiate_handoff(lease, CARL) is None

    def test_the_owner_learns_of_a_handoff_by_its_renewal(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        tables.leases.initiate_handoff(lease, BERT)
        renewed = tables.leases.renew(lease)
        begun = replace(lease, owner=BERT, checkpoint_owner=ANNA, handoff=lease.counter)
        assert renewed == replace(begun, counter=lease.counter + 1)

    def test_a_handoff_between_others_is_none_of_our_business(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        moved = tables.leases.assign(lease, BERT)
        assert moved is not None
        assert tables.leases.initiate_handoff(moved, CARL) is not None
        with pytest.raises(LeaseLost):
            tables.leases.renew(lease)

    def test_the_old_owner_works_on_until_it_transfers(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        tables.leases.initiate_handoff(lease, BERT)
        lease = tables.leases.renew(tables.leases.renew(lease))
        lease = tables.leases.checkpoint(lease, at())
        transferred = tables.leases.transfer(lease)
        assert transferred == replace(lease, checkpoint_owner=None, counter=lease.counter + 1)
        with pytest.raises(LeaseLost, match=BERT):
            tables.leases.renew(lease)

    def test_a_completed_handoff_is_no_switch(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        tables.leases.initiate_handoff(lease, BERT)
        transferred = tables.leases.transfer(tables.leases.renew(lease))
        assert transferred is not None
        assert transferred.owner_switches == 0

    def test_a_transfer_after_a_forced_move_does_nothing(self, tables: Tables) -> None:
        asked = tables.leases.initiate_handoff(tables.holding(new_lease()), BERT)
        assert asked is not None
        moved = tables.leases.assign(asked, CARL)
        assert tables.leases.transfer(asked) is None
        assert tables.leases.get(asked.key) == moved

    # --- release

    def test_a_released_lease_is_nobodys(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        released = tables.leases.release(lease)
        assert released == replace(lease, owner=None, counter=lease.counter + 1)

    def test_releasing_in_a_handoff_transfers(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        tables.leases.initiate_handoff(lease, BERT)
        lease = tables.leases.renew(lease)
        assert tables.leases.release(lease) == replace(lease, checkpoint_owner=None, counter=lease.counter + 1)

    def test_nobody_releases_the_lease_of_another(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        assert tables.leases.release(replace(lease, owner=BERT)) is None
        assert tables.leases.get(lease.key) == lease

    @pytest.mark.parametrize("owner", [ANNA, None])
    def test_releasing_a_deleted_lease_does_not_bring_it_back(self, tables: Tables, owner: WorkerId | None) -> None:
        assert tables.leases.release(new_lease(owner=owner)) is None
        assert tables.item(new_lease().key) is None

    # --- progress

    def test_a_checkpoint_records_progress_and_resets_the_switches(self, tables: Tables) -> None:
        lease = tables.leases.take(tables.holding(new_lease()), BERT)
        assert lease is not None
        assert lease.owner_switches == 1
        done = tables.leases.checkpoint(lease, at(sub=3), throughput_kbps=1.0)
        assert done == replace(
            lease, checkpoint=at(sub=3), counter=lease.counter + 1, owner_switches=0, throughput_kbps=1.0
        )

    def test_a_worker_that_lost_its_lease_cannot_checkpoint(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        taken = tables.leases.take(lease, BERT)
        with pytest.raises(LeaseLost):
            tables.leases.checkpoint(lease, at())
        assert tables.leases.get(lease.key) == taken

    def test_progress_never_goes_back(self, tables: Tables) -> None:
        lease = tables.leases.checkpoint(tables.holding(new_lease()), at())
        with pytest.raises(ValueError, match="may not go back"):
            tables.leases.checkpoint(lease, TRIM_HORIZON)
        with pytest.raises(ValueError, match="may not go back"):
            tables.leases.prepare(lease, at("7"))

    def test_a_prepared_batch_is_pending_until_the_checkpoint(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        prepared = tables.leases.prepare(lease, at(), state=b"pin", batch=7)
        assert prepared == replace(
            lease, pending_checkpoint=at(), pending_state=b"pin", batch=7, counter=lease.counter + 1
        )
        assert tables.leases.get(lease.key) == prepared
        done = tables.leases.checkpoint(prepared, at())
        assert done == replace(lease, checkpoint=at(), batch=7, counter=lease.counter + 2)

    def test_preparing_anew_forgets_the_old_state(self, tables: Tables) -> None:
        lease = tables.leases.prepare(tables.holding(new_lease()), at(), state=b"pin", batch=1)
        again = tables.leases.prepare(lease, at(LATER), batch=2)
        assert (again.pending_checkpoint, again.pending_state, again.batch) == (at(LATER), None, 2)

    def test_a_pending_batch_survives_a_change_of_owner(self, tables: Tables) -> None:
        lease = tables.leases.prepare(tables.holding(new_lease()), at(), state=b"pin", batch=3)
        taken = tables.leases.take(lease, BERT)
        assert taken is not None
        assert (taken.pending_checkpoint, taken.pending_state, taken.batch) == (at(), b"pin", 3)

    def test_a_worker_that_lost_its_lease_cannot_prepare(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        taken = tables.leases.take(lease, BERT)
        with pytest.raises(LeaseLost):
            tables.leases.prepare(lease, at(), batch=1)
        assert tables.leases.get(lease.key) == taken

    def test_a_checkpoint_catches_up_with_a_renewal_whose_answer_was_lost(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        tables.leases.renew(lease)
        assert tables.leases.checkpoint(lease, at()).counter == lease.counter + 2

    def test_the_end_of_a_shard_is_recorded_with_its_children(self, tables: Tables) -> None:
        children = frozenset({"shardId-000000000001", "shardId-000000000002"})
        done = tables.leases.checkpoint(tables.holding(new_lease()), SHARD_END, children=children)
        assert done.is_finished
        assert done.children == children

    def test_only_an_unowned_lease_is_rewound(self, tables: Tables) -> None:
        lease = tables.leases.checkpoint(tables.holding(new_lease()), at())
        assert tables.leases.rewind(lease, TRIM_HORIZON) is None
        free = tables.leases.release(tables.leases.prepare(lease, at(LATER), batch=1))
        assert free is not None
        rewound = tables.leases.rewind(free, TRIM_HORIZON)
        assert rewound == replace(free, checkpoint=TRIM_HORIZON, pending_checkpoint=None, counter=free.counter + 1)

    def test_a_claim_remains_until_it_is_ended_or_replaced(self, tables: Tables) -> None:
        claim, next_claim = (Claim(ChainId(name), ClaimId(name)) for name in ("one", "two"))
        claimed = tables.leases.checkpoint(tables.holding(new_lease()), at(), claim=claim)
        assert claimed.claim == claim
        assert tables.leases.renew(claimed).claim == claim
        later = tables.leases.checkpoint(tables.leases.renew(claimed), at(LATER))
        assert later.claim == claim
        taken = tables.leases.take(later, BERT)
        assert taken is not None
        assert taken.claim == claim  # its next owner has to settle the chain
        next_claim = replace(next_claim, at=at(LATER))
        claimed = tables.leases.checkpoint(taken, at(LATER), claim=next_claim)
        assert claimed.claim == next_claim
        read = tables.leases.get(claimed.key)
        assert read is not None
        assert read.claim == next_claim
        assert tables.leases.checkpoint(claimed, at(LATER), ends_claim=True).claim is None

    def test_a_reset_leaves_the_chain_to_be_settled_and_ends_its_claim(self, tables: Tables) -> None:
        claim = Claim(ChainId("one"), ClaimId("one"))
        free = tables.leases.release(tables.leases.checkpoint(tables.holding(new_lease()), at(), claim=claim))
        assert free is not None
        rewound = tables.leases.rewind(free, TRIM_HORIZON)
        assert rewound is not None
        assert rewound.claim == Claim(claim.chain, None)

    # --- metadata and deletion

    def test_metadata_leaves_the_counter_alone(self, tables: Tables) -> None:
        lease = tables.holding(new_lease(hash_range=None))
        assert tables.leases.update_children(lease.key, frozenset({"c"}))
        assert tables.leases.update_hash_range(lease.key, HashRange(1, 2))
        assert tables.leases.get(lease.key) == replace(lease, children=frozenset({"c"}), hash_range=HashRange(1, 2))

    def test_metadata_never_brings_back_a_deleted_lease(self, tables: Tables) -> None:
        assert not tables.leases.update_hash_range(LeaseKey("gone"), HashRange(1, 2))
        assert not tables.leases.update_children(LeaseKey("gone"), frozenset({"c"}))
        assert tables.item("gone") is None

    def test_metadata_is_not_written_to_rows_of_another_kind(self, tables: Tables) -> None:
        tables.put(FOREIGN)
        assert not tables.leases.update_children(LeaseKey("Leader"), frozenset({"c"}))
        assert tables.item("Leader") == FOREIGN

    def test_metadata_is_not_written_to_rows_that_cannot_be_read(self, tables: Tables) -> None:
        tables.put(BROKEN)
        with pytest.raises(UnreadableItem, match="'badLeaseKey': attribute 'leaseCounter' is missing"):
            tables.leases.update_hash_range(LeaseKey("badLeaseKey"), HashRange(1, 2))
        assert tables.item("badLeaseKey") == BROKEN

    def test_a_finished_lease_is_deleted(self, tables: Tables) -> None:
        lease = tables.leases.checkpoint(tables.holding(new_lease()), SHARD_END)
        assert tables.leases.delete(lease)
        assert tables.item(lease.key) is None
        assert tables.leases.delete(lease)  # it is gone, which is what was asked for

    def test_an_unfinished_lease_is_deleted_by_force_only(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        assert not tables.leases.delete(lease)
        moved = tables.leases.assign(lease, BERT)
        assert moved is not None
        assert not tables.leases.delete(lease, forced=True)
        assert tables.leases.delete(moved, forced=True)
        assert tables.item(lease.key) is None

    # --- what others wrote

    def test_unknown_attributes_survive_every_update(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        item = tables.item(lease.key)
        assert item is not None
        tables.put({**item, "color": {"S": "blue"}})
        tables.leases.initiate_handoff(lease, BERT)
        lease = tables.leases.prepare(tables.leases.renew(lease), at(), batch=1)
        lease = tables.leases.checkpoint(lease, at())
        assert tables.leases.release(lease) is not None
        after = tables.item(lease.key)
        assert after is not None
        assert after["color"] == {"S": "blue"}

    def test_a_scan_tells_leases_from_other_rows_and_from_broken_ones(self, tables: Tables) -> None:
        leases = [tables.existing(new_lease(f"shardId-{n}")) for n in range(3)]
        tables.put(FOREIGN)
        tables.put(BROKEN)
        tables.put({"leaseKey": {"S": "new"}, "entityType": {"S": "SOME_FUTURE_TYPE"}})
        worker = {"leaseKey": {"S": "java:1"}, "entityType": {"S": "WORKER_METRIC_STATS"}, "lut": {"N": "5"}}
        tables.put(worker)
        result = tables.leases.scan()
        assert result.leases == tuple(leases)
        assert [row.id for row in result.workers] == ["java:1"]
        assert [(error.key, error.attribute) for error in result.unreadable] == [("badLeaseKey", "leaseCounter")]
        assert result.started <= result.ended

    def test_a_table_with_other_rows_only_has_no_leases(self, tables: Tables) -> None:
        tables.put(FOREIGN)
        assert not tables.leases.has_leases()
        tables.existing(new_lease())
        assert tables.leases.has_leases()

    def test_the_leases_of_a_worker_are_found_by_the_index(self, tables: Tables) -> None:
        mine = [tables.holding(new_lease(f"shardId-{n}"), ANNA).key for n in range(3)]
        tables.holding(new_lease("shardId-8"), BERT)
        tables.existing(new_lease("shardId-9"))
        assert sorted(tables.leases.owned_by(ANNA)) == mine
        assert tables.leases.owned_by(CARL) == []

    def test_the_leases_of_a_worker_are_found_without_the_index(self, tables: Tables) -> None:
        tables.client.update_table(
            TableName=tables.layout.leases.table,
            GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": OWNER_INDEX}}],
        )
        mine = [tables.holding(new_lease(f"shardId-{n}"), ANNA).key for n in range(3)]
        tables.holding(new_lease("shardId-8"), BERT)
        assert sorted(tables.leases.owned_by(ANNA)) == mine


class RacingContract:
    """For DynamoDBs that can be called from several threads."""

    def test_of_many_that_take_one_lease_at_once_one_gets_it(self, tables: Tables) -> None:
        lease = tables.holding(new_lease())
        winners: list[str] = []
        start = threading.Barrier(8)

        def take(number: int) -> None:
            start.wait()
            if tables.leases.take(lease, WorkerId(f"taker-{number}")) is not None:
                winners.append(f"taker-{number}")

        threads = [threading.Thread(target=take, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1
        after = tables.leases.get(lease.key)
        assert after is not None
        assert (after.owner, after.counter) == (winners[0], lease.counter + 1)
