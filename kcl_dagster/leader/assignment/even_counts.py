"""Handoffs that make the numbers of leases even, if leases weigh about the same.

The numbers of leases do not jitter, so they are evened at once, as soon as two workers differ by two leases. A
difference of one lease cannot be improved. No lease moves twice. Among a worker's leases, the lease that best evens
the loads is moved.
"""

import heapq
from typing import TYPE_CHECKING, Final

from kcl_dagster.leader.assignment.assignment_state import Holder
from kcl_dagster.model.counting import counted
from kcl_dagster.model.lease import LeaseKey

if TYPE_CHECKING:
    from kcl_dagster.leader.assignment.placing import AssignmentRound

ALIKE: Final = 1.25  # the heaviest divided by the lightest lease; jitter of 10 % alone gives 1.22
UNEVEN: Final = 2  # leases; a difference of one cannot be improved

_Entry = tuple[int, float, str, Holder]


def is_alike(round_: "AssignmentRound") -> bool:
    """Whether all leases weigh about the same and all machines are about equally fast. If so, even numbers of
    leases give even loads."""
    weights = round_.measure.weights.values()
    factors = round_.measure.factors.values()
    return all(max(values, default=1.0) <= min(values, default=1.0) * ALIKE for values in (weights, factors))


def is_uneven(round_: "AssignmentRound") -> bool:
    counts = [holder.count for holder in round_.takers if holder.worker.ready]
    return bool(counts) and max(counts) - min(counts) >= UNEVEN


class Evening:
    """Moves leases from the worker with the most leases to the worker with the fewest, until these numbers differ
    by one at most. No plan needs fewer moves."""

    def __init__(self, round_: "AssignmentRound") -> None:
        self.round = round_
        holders = [holder for holder in round_.takers if holder.worker.ready]
        self.full: list[_Entry] = [(-holder.count, -holder.load, holder.id, holder) for holder in holders]
        self.empty: list[_Entry] = [(holder.count, holder.load, holder.id, holder) for holder in holders]
        heapq.heapify(self.full)
        heapq.heapify(self.empty)
        # Handoffs of shards without records delay nothing, so their number is not limited.
        self.budget = len(round_.kbps) if round_.measure.idle else round_.limits.moves

    def run(self) -> None:
        while self.budget > 0:
            donor, receiver = _top(self.full, sign=-1), _top(self.empty, sign=1)
            if donor is None or receiver is None or donor.count - receiver.count < UNEVEN:
                return
            near = self._near(donor, receiver)
            lease = self._pick(donor, near)
            if lease is None and near is not receiver:
                near, lease = receiver, self._pick(donor, receiver)
            if lease is not None:
                self._move(lease, donor, near)
            elif donor.movable and not self.round.state.is_full(receiver):
                heapq.heappop(self.full)  # the caps allow the receiver none of the donor's leases; try other donors
            else:
                heapq.heappop(self.empty if donor.movable else self.full)

    def _near(self, donor: Holder, receiver: Holder) -> Holder:
        """A worker with as few leases as `receiver`, in the donor's zone if possible."""
        if donor.worker.zone in {None, receiver.worker.zone}:
            return receiver
        return next(
            (
                holder
                for count, load, _, holder in self.empty
                if count == holder.count == receiver.count
                and load == holder.load
                and holder.worker.zone == donor.worker.zone
            ),
            receiver,
        )

    def _pick(self, donor: Holder, receiver: Holder) -> LeaseKey | None:
        wanted = (donor.load - receiver.load) / 2
        for _, lease in sorted(donor.movable, key=lambda one: (abs(one[0] - wanted), one[1])):
            if self.round.may_hold(receiver, lease):
                return lease
        return None

    def _move(self, lease: LeaseKey, donor: Holder, receiver: Holder) -> None:
        because = f"{donor.id} has {counted(donor.count, 'lease')}, and {receiver.id} has {receiver.count}"
        self.round.give(lease, donor, receiver, "balance", because)
        self.budget -= 1
        for holder in (donor, receiver):
            heapq.heappush(self.full, (-holder.count, -holder.load, holder.id, holder))
            heapq.heappush(self.empty, (holder.count, holder.load, holder.id, holder))


def _top(heap: list[_Entry], *, sign: int) -> Holder | None:
    """The first entry that is not outdated by a later change of its holder."""
    while heap:
        count, load, _, holder = heap[0]
        if count * sign == holder.count and load * sign == holder.load:
            return holder
        heapq.heappop(heap)
    return None
