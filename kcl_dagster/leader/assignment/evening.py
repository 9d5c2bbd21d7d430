"""Handoffs that make numbers even, where leases weigh about the same.

Numbers do not jitter, so one lease of difference is even and two are not: no band, no patience, and nothing moves
twice. What fits best into load is chosen among a worker's leases, so that small differences in weight work out too.
"""

import heapq
from typing import TYPE_CHECKING, Final

from kcl_dagster.leader.assignment.board import Seat
from kcl_dagster.model.counting import counted
from kcl_dagster.model.lease import LeaseKey

if TYPE_CHECKING:
    from kcl_dagster.leader.assignment.placing import Round

ALIKE: Final = 1.25  # the heaviest by the lightest lease; jitter of a tenth alone makes 1.22
UNEVEN: Final = 2  # leases; a difference of one cannot be improved

_Entry = tuple[int, float, str, Seat]


def is_alike(round_: "Round") -> bool:
    """Whether numbers say as much as loads do: leases weigh alike, and machines are alike."""
    weights = round_.measure.weights.values()
    factors = round_.measure.factors.values()
    return all(max(values, default=1.0) <= min(values, default=1.0) * ALIKE for values in (weights, factors))


def is_uneven(round_: "Round") -> bool:
    counts = [seat.count for seat in round_.takers if seat.worker.ready]
    return bool(counts) and max(counts) - min(counts) >= UNEVEN


class Evening:
    """From the fullest to the emptiest until they differ by one at most: no plan gets there with fewer moves."""

    def __init__(self, round_: "Round") -> None:
        self.round = round_
        seats = [seat for seat in round_.takers if seat.worker.ready]
        self.full: list[_Entry] = [(-seat.count, -seat.load, seat.id, seat) for seat in seats]
        self.empty: list[_Entry] = [(seat.count, seat.load, seat.id, seat) for seat in seats]
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
            elif donor.movable and not self.round.board.is_full(receiver):
                heapq.heappop(self.full)  # nothing it has may go there; another donor may have something
            else:
                heapq.heappop(self.empty if donor.movable else self.full)

    def _near(self, donor: Seat, receiver: Seat) -> Seat:
        """As empty as `receiver`, and if possible in the donor's zone."""
        if donor.worker.zone in {None, receiver.worker.zone}:
            return receiver
        return next(
            (
                seat
                for count, load, _, seat in self.empty
                if count == seat.count == receiver.count
                and load == seat.load
                and seat.worker.zone == donor.worker.zone
            ),
            receiver,
        )

    def _pick(self, donor: Seat, receiver: Seat) -> LeaseKey | None:
        wanted = (donor.load - receiver.load) / 2
        for _, lease in sorted(donor.movable, key=lambda one: (abs(one[0] - wanted), one[1])):
            if self.round.may_hold(receiver, lease):
                return lease
        return None

    def _move(self, lease: LeaseKey, donor: Seat, receiver: Seat) -> None:
        because = f"{donor.id} has {counted(donor.count, 'lease')}, and {receiver.id} has {receiver.count}"
        self.round.give(lease, donor, receiver, "balance", because)
        self.budget -= 1
        for seat in (donor, receiver):
            heapq.heappush(self.full, (-seat.count, -seat.load, seat.id, seat))
            heapq.heappush(self.empty, (seat.count, seat.load, seat.id, seat))


def _top(heap: list[_Entry], *, sign: int) -> Seat | None:
    """What was pushed before a seat changed is stale and skipped."""
    while heap:
        count, load, _, seat = heap[0]
        if count * sign == seat.count and load * sign == seat.load:
            return seat
        heapq.heappop(heap)
    return None
