"""Handoffs that make numbers even, where leases weigh about the same.

Numbers do not jitter, so one lease of difference is even and two are not: no band, no patience, and nothing moves
twice. What fits best into load is chosen among a worker's leases, so that small differences in weight work out too.
"""

import heapq
from typing import TYPE_CHECKING, Final

from kcl_dagster.leader.assignment.assignment_state import Holder
from kcl_dagster.model.counting import counted
from kcl_dagster.model.lease import LeaseKey

if TYPE_CHECKING:
    from kcl_dagster.leader.assignment.placing import AssignmentRound

ALIKE: Final = 1.25  # the heaviest by the lightest lease; jitter of a tenth alone makes 1.22
UNEVEN: Final = 2  # leases; a difference of one cannot be improved

_Entry = tuple[int, float, str, Holder]


def is_alike(round_: "AssignmentRound") -> bool:
    """Whether numbers say as much as loads do: leases weigh alike, and machines are alike."""
    weights = round_.measure.weights.values()
    factors = round_.measure.factors.values()
    return all(max(values, default=1.0) <= min(values, default=1.0) * ALIKE for values in (weights, factors))


def is_uneven(round_: "AssignmentRound") -> bool:
    counts = [holder.count for holder in round_.takers if holder.worker.ready]
    return bool(counts) and max(counts) - min(counts) >= UNEVEN


class Evening:
    """From the fullest to the emptiest until they differ by one at most: no plan gets there with fewer moves."""

    def __init__(self, round_: "AssignmentRound") -> None:
        self.round = round_
        holders = [holder for holder in round_.takers if holder.worker.ready]
        self.full: list[_Entry] = [(-holder.count, -holder.load, holder.id, holder) for holder in holders]
        self.empty: list[_Entry] = [(holder.count, holder.load, holder.id, holder) for holder in holders]
        heapq.heapify(self.full)
        heapq.heapify(self.empty)
        # A handoff of a silent shard silences nothing, so these are not rationed.
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
                heapq.heappop(self.full)  # nothing it has may go there; another donor may have something
            else:
                heapq.heappop(self.empty if donor.movable else self.full)

    def _near(self, donor: Holder, receiver: Holder) -> Holder:
        """As empty as `receiver`, and if possible in the donor's zone."""
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
    """What was pushed before a holder changed is stale and skipped."""
    while heap:
        count, load, _, holder = heap[0]
        if count * sign == holder.count and load * sign == holder.load:
            return holder
        heapq.heappop(heap)
    return None
