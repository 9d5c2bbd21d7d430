"""Handoffs that make load even. The band is the range around the fair share within which a worker's load counts
as balanced."""

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kcl_dagster.leader.assignment.assignment_state import EPSILON, Holder, Queue, weight_of
from kcl_dagster.model.lease import LeaseKey

if TYPE_CHECKING:
    from kcl_dagster.leader.assignment.placing import AssignmentRound

# An imbalance of this many bands is corrected at once; a smaller one only if it persists.
URGENT: Final = 2.0
# Balancing moves leases away from a worker until its load exceeds the share by at most this part of the band. The
# load is then well inside the band, so that jitter does not restart balancing.
STOP_ABOVE: Final = 0.5
# To fill one receiver, this many donors are considered, the most loaded ones first. Donors after these have nothing
# to spare.
DONORS_TRIED: Final = 64
# For one donor, this many receivers are considered. The least loaded receivers come first. A receiver may be
# unsuitable because of a cap.
RECEIVERS_TRIED: Final = 16


class Balancing:
    """Handoffs that bring every worker well inside the band."""

    def __init__(self, round_: "AssignmentRound") -> None:
        self.round = round_
        self.share = round_.share
        band = round_.limits.imbalance
        self.high = self.share * (1 + band * STOP_ABOVE)
        self.low = self.share * (1 - band)
        self.band = self.share * band
        self.queue = Queue(holder for holder in round_.takers if holder.worker.ready)
        self.budget = round_.limits.moves - sum(move.kind == "balance" for move in round_.moves)

    def run(self) -> None:
        self.relieve()
        self._fill([holder for holder in self.round.takers if holder.worker.ready and holder.load < self.low])
        self._seed([holder for holder in self.round.takers if holder.worker.ready and holder.count == 0])

    def relieve(self) -> None:
        """Move leases away from every worker above the band, the most loaded one first."""
        donors = [(-holder.load, holder.id) for holder in self.round.takers]
        heapq.heapify(donors)
        while donors and self.budget > 0:
            _, name = heapq.heappop(donors)
            donor = self.round.state.holders[name]
            allowed = self.round.ideal(donor) * self.high / self.share
            if donor.load > allowed + EPSILON and self._relieve_once(donor):
                heapq.heappush(donors, (-donor.load, name))

    def _relieve_once(self, donor: Holder) -> bool:
        """Move one lease of `donor` to one of the least loaded workers that can take it. Returns whether a lease
        was moved."""
        tried: list[Holder] = []
        found: tuple[LeaseKey, Holder] | None = None
        while found is None and len(tried) < RECEIVERS_TRIED:
            receiver = self._receiver(donor) if not tried else self.queue.least()
            if receiver is None or receiver is donor:
                break
            lease = self._pick(donor, receiver)
            if lease is not None:
                found = lease, receiver
            elif receiver is self.queue.least():
                self.queue.drop()
                tried.append(receiver)
            else:
                tried.append(donor)  # no lease fits the worker in the donor's zone: try the other workers
        for holder in tried:
            self.queue.push(holder)
        return found is not None and self._move(found[0], donor, found[1])

    def _receiver(self, donor: Holder) -> Holder | None:
        """Return the least loaded worker, or a worker in the donor's zone whose load is about as low."""
        least = self.queue.least()
        near = self.queue.least(donor.worker.zone) if donor.worker.zone is not None else None
        if near is not None and near is not donor and least is not None:
            return near if near.load <= least.load + (self.high - self.share) else least
        return least

    def _pick(self, donor: Holder, receiver: Holder) -> LeaseKey | None:
        """Return the lease of `donor` that moves to `receiver`; None if no lease should move.

        A lease fits if its move brings neither worker out of the band. The first possible choice is taken:

        - a lease that fits and whose move alone suffices; if there are several, the lease that brings `donor`
          closest to its share
        - the heaviest lease that fits
        - a lease that is heavier than the share, if `receiver` has no leases and `donor` has other leases
        - a lease whose move considerably reduces the higher of the two loads
        """
        ideal = self.round.ideal(donor)
        excess = donor.load - ideal
        enough = donor.load - ideal * self.high / self.share
        spare = min(
            max(excess, donor.load - self.low) / donor.factor, (self.high - receiver.load) / receiver.factor
        )
        lease = self._nearest(donor, receiver, enough / donor.factor, excess / donor.factor, spare)
        if lease is None and donor.count > 1 and receiver.count == 0:
            weight, heaviest = donor.movable[-1] if donor.movable else (0.0, None)
            if weight * receiver.factor > self.share and self._may_hold(receiver, heaviest):
                return heaviest
        return lease if lease is not None else self._coarse(donor, receiver)

    def _coarse(self, donor: Holder, receiver: Holder) -> LeaseKey | None:
        """Return the lease whose move best evens the two loads; None if it would not reduce the higher load by more
        than jitter could explain."""
        between = donor.load - receiver.load
        factor = max(donor.factor, receiver.factor)
        lease = self._nearest(donor, receiver, 0.0, between / 2 / factor, (between - self.band * URGENT) / factor)
        worth = lease is not None and self.round.measure.weights[lease] * donor.factor >= self.band
        return lease if worth else None

    def _nearest(
        self, donor: Holder, receiver: Holder, enough: float, best: float, at_most: float
    ) -> LeaseKey | None:
        """Return a movable lease of `donor` that the caps allow the receiver; None if there is none. First,
        the two leases are tried whose weights are nearest to `best` and between `enough` and `at_most`. Then all
        leases with a weight of at most `at_most` are tried, the heaviest first."""
        movable = donor.movable
        end = bisect_right(movable, at_most + EPSILON, key=weight_of)
        start = bisect_left(movable, enough - EPSILON, hi=end, key=weight_of)
        middle = bisect_left(movable, best, lo=start, hi=end, key=weight_of)
        near = sorted(movable[max(start, middle - 1) : min(end, middle + 1)], key=lambda one: abs(one[0] - best))
        for weight, lease in (*near, *reversed(movable[:end])):
            if weight > 0 and self._may_hold(receiver, lease):
                return lease
        return None

    def _fill(self, hungry: Sequence[Holder]) -> None:
        """Give the workers in `hungry` the heaviest leases that the most loaded workers can spare."""
        for receiver in sorted(hungry, key=lambda holder: (holder.load, holder.id)):
            while self.budget > 0 and receiver.load < self.low and self._fill_once(receiver):
                pass

    def _fill_once(self, receiver: Holder) -> bool:
        room = (self.high - receiver.load) / receiver.factor
        best: tuple[float, Holder, LeaseKey] | None = None
        for donor in heapq.nlargest(DONORS_TRIED, self.round.takers, key=lambda holder: holder.load):
            spare = (donor.load - self.low) / donor.factor
            if donor is receiver or spare <= 0:
                continue
            lease = self._nearest(donor, receiver, math.inf, math.inf, min(room, spare))
            if lease is not None and (best is None or self.round.measure.weights[lease] > best[0] + EPSILON):
                best = self.round.measure.weights[lease], donor, lease
        return best is not None and self._move(best[2], best[1], receiver)

    def _seed(self, empty: Sequence[Holder]) -> None:
        """Give each worker without leases the lease that best evens the loads. The worker's load may then be
        outside the band. A worker with a single lease never counts as overloaded, because a lease cannot be
        divided."""
        for receiver in sorted(empty, key=lambda holder: holder.id):
            donors = [holder for holder in self.round.takers if holder.count > 1 and holder.movable]
            for donor in heapq.nlargest(DONORS_TRIED, donors, key=lambda holder: holder.load):
                lease = self._nearest(donor, receiver, 0.0, donor.load / 2 / donor.factor, math.inf)
                if self.budget > 0 and lease is not None:
                    self._move(lease, donor, receiver)
                    break

    def _may_hold(self, receiver: Holder, lease: LeaseKey | None) -> bool:
        return lease is not None and self.round.may_hold(receiver, lease)

    def _move(self, lease: LeaseKey, donor: Holder, receiver: Holder) -> bool:
        unit = self.round.measure.unit
        because = (
            f"{donor.id} is at {donor.load / self.share:.0%} and {receiver.id} at {receiver.load / self.share:.0%} "
            f"of an even share of {unit}"
        )
        self.round.give(lease, donor, receiver, "balance", because)
        self.queue.push(receiver)
        self.queue.push(donor)
        self.budget -= 1
        return True
