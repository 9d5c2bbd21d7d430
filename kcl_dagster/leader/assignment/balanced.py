"""Our policies: even load with few handoffs.

Three ways to weigh a lease (`balanced`: CPU where it is known, else throughput; `throughput`; `count`) and one way
to act on it:

1. Leases nobody serves are placed at once, heaviest first, on the least loaded worker.
2. Workers that drain hand over everything they hold.
3. Balancing starts only when a worker is far outside of the band, or outside for long: measured load always
   jitters, and a handoff silences its shard for about a batch. Once started it goes on until every worker is well
   inside of the band, with the heaviest leases that fit, so that few are needed and none follow.
"""

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kcl_dagster.leader.assignment.board import Board, Queue, Seat, fair_share
from kcl_dagster.leader.assignment.policy import Assignment, LeaseLoad, Limits, Move, MoveKind, WorkerLoad
from kcl_dagster.model.lease import LeaseKey, WorkerId

# Below this mean throughput of a worker, load is noise: a single core reads a hundred times as much.
IDLE_KBPS: Final = 64.0
# What a lease costs beside its bytes (renewals, empty reads), as a part of the mean lease: small enough not to
# distort shares of bytes, large enough that equally loaded workers hold equally many leases.
BASE_WEIGHT: Final = 0.002
# Imbalance this many times the band is acted on at once; less must persist.
URGENT: Final = 2.0
# Where balancing stops, in parts of the band: well inside, so that jitter does not lead back out.
STOP_ABOVE: Final = 0.5
# While there is no load to speak of: a worker with this many times its part of the leases is relieved when another
# one comes. Less is left as it was.
GROSS: Final = 2.0
# Donors looked at to fill one receiver. The most loaded come first; further ones have nothing to spare.
DONORS_TRIED: Final = 64
# Workers looked at for a lease that the caps keep from the least loaded. As load goes with throughput, one that the
# least loaded worker may not hold is rarely for any other.
SEATS_TRIED: Final = 256
# Receivers looked at for one donor. The least loaded come first; caps are why one of them may not do.
RECEIVERS_TRIED: Final = 16
_EPSILON: Final = 1e-9


@dataclass(frozen=True, slots=True)
class _Measure:
    """How leases weigh, what work costs on each worker, and whether there is enough load to speak of."""

    weights: Mapping[LeaseKey, float]
    factors: Mapping[WorkerId, float]
    idle: bool
    unit: str


def balanced(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: Limits) -> Assignment:
    """Even CPU where workers publish it, even throughput elsewhere, even numbers where there is no load."""
    return _assign(leases, workers, limits, _by_cpu)


def throughput(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: Limits) -> Assignment:
    """Even throughput, whatever it costs in CPU."""
    return _assign(leases, workers, limits, _by_throughput)


def count(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: Limits) -> Assignment:
    """Even numbers of leases."""
    return _assign(leases, workers, limits, _by_count)


def _by_count(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad]) -> _Measure:
    return _Measure({lease.key: 1.0 for lease in leases}, {w.id: 1.0 for w in workers}, idle=False, unit="leases")


def _by_throughput(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad]) -> _Measure:
    known = [lease.kbps for lease in leases if lease.kbps is not None]
    total = sum(known)
    if total < IDLE_KBPS * max(1, sum(worker.accepts for worker in workers)):
        return replace(_by_count(leases, workers), idle=True)
    mean = total / len(known)
    weights = {lease.key: (mean if lease.kbps is None else lease.kbps) + mean * BASE_WEIGHT for lease in leases}
    return _Measure(weights, {worker.id: 1.0 for worker in workers}, idle=False, unit="KB/s")


def _by_cpu(leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad]) -> _Measure:
    measure = _by_throughput(leases, workers)
    costs = {worker.id: worker.cost for worker in workers if worker.cost is not None and worker.cost > 0}
    if measure.idle or not costs:
        return measure
    mean = sum(costs.values()) / len(costs)
    factors = {worker.id: costs.get(worker.id, mean) / mean for worker in workers}
    return replace(measure, factors=factors, unit="CPU")


def _assign(
    leases: Sequence[LeaseLoad],
    workers: Sequence[WorkerLoad],
    limits: Limits,
    measured: Callable[[Sequence[LeaseLoad], Sequence[WorkerLoad]], _Measure],
) -> Assignment:
    leases = sorted(leases, key=lambda lease: lease.key)
    workers = sorted(workers, key=lambda worker: worker.id)
    return _Round(leases, workers, limits, measured(leases, workers)).run()


class _Round:
    """One decision. Mutable inside, pure outside."""

    def __init__(
        self, leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: Limits, measure: _Measure
    ) -> None:
        self.limits = limits
        self.measure = measure
        self.kbps = {lease.key: lease.kbps or 0.0 for lease in leases}
        seats = [Seat(worker, measure.factors[worker.id]) for worker in workers]
        self.board = Board(seats, measure.weights, limits)
        self.by_slot = {seat.worker.slot: seat for seat in seats if seat.worker.slot is not None}
        self.takers = [seat for seat in seats if seat.worker.accepts and not seat.worker.drains]
        self.moves: list[Move] = []
        self.unplaced: list[LeaseKey] = []
        self.homeless: list[LeaseLoad] = []
        self.draining: list[tuple[LeaseLoad, Seat]] = []
        shared: list[float] = []
        for lease in leases:
            weight = measure.weights[lease.key]
            holder = self.board.seats.get(lease.holder) if lease.holder is not None else None
            if lease.unserved:
                self.homeless.append(lease)
                shared.append(weight)
                continue
            if holder is None:
                continue  # its owner is not in sight, and not yet known to be gone
            if holder.worker.drains and not lease.pinned:
                self.draining.append((lease, holder))
            if holder.worker.accepts or holder.worker.drains:
                shared.append(weight)
            self.board.put(lease.key, self.kbps[lease.key], holder, movable=not lease.pinned)
        self.share = fair_share(shared, [seat.factor for seat in self.takers])

    def run(self) -> Assignment:
        self._serve()
        self._drain()
        outside = self._outside(1.0)
        if self.share > 0 and self._is_worth_it(outside, changed=bool(self.moves)):
            _Balancing(self).run()
        noticed = frozenset[WorkerId]() if self.measure.idle else frozenset(outside)
        return Assignment(tuple(self.moves), tuple(self.unplaced), noticed)

    def give(self, lease: LeaseKey, source: Seat | None, to: Seat, kind: MoveKind, because: str) -> None:
        if source is not None:
            self.board.take(lease, self.kbps[lease], source)
        self.board.put(lease, self.kbps[lease], to, movable=False)  # once a round is enough
        self.moves.append(Move(lease, to.id, kind, because))

    def may_hold(self, seat: Seat, lease: LeaseKey) -> bool:
        return self.board.may_hold(seat, self.kbps[lease])

    def _receivers(self) -> list[Seat]:
        """Workers that read at once come first; while there are none, those that are starting."""
        return [seat for seat in self.takers if seat.worker.ready] or self.takers

    def _serve(self) -> None:
        receivers = self._receivers()
        waiting = self.limits.expected if not any(seat.worker.ready for seat in receivers) else 0
        # Workers that are starting cannot read yet, so nothing is lost by leaving the share of those that were
        # launched with them: it saves handing it over in a minute.
        most = self.share * len(self.takers) / (len(self.takers) + waiting) if waiting and self.takers else None
        queue = Queue(receivers)
        crowded = _Crowded(receivers, self.share * (1 + self.limits.imbalance * STOP_ABOVE))
        for lease in sorted(self.homeless, key=lambda lease: (-self.measure.weights[lease.key], lease.key)):
            weight = self.measure.weights[lease.key]
            to = self._intended(lease) or self._home(lease, weight) or self._first_fit(queue, lease.key)
            if to is None or (most is not None and to.count and to.load + weight > most * (1 + _EPSILON)):
                self.unplaced.append(lease.key)
                continue
            if self.share > 0:
                to = crowded.better(to, weight, lambda seat: self.may_hold(seat, lease.key))  # noqa: B023
            self.give(lease.key, None, to, "unserved", lease.unserved or "")
            queue.push(to)

    def _drain(self) -> None:
        queue = Queue(seat for seat in self._receivers() if seat.worker.ready)
        order = sorted(self.draining, key=lambda pair: (-self.measure.weights[pair[0].key], pair[0].key))
        for lease, source in order:
            to = self._first_fit(queue, lease.key, source.worker.zone)
            if to is not None:
                self.give(lease.key, source, to, "drain", f"{source.id} is draining")
                queue.push(to)

    def _intended(self, lease: LeaseLoad) -> Seat | None:
        """The next owner of a handoff whose old owner is gone."""
        seat = self.board.seats.get(lease.next_owner) if lease.next_owner is not None else None
        can = seat is not None and seat.worker.ready and not seat.worker.drains and self.may_hold(seat, lease.key)
        return seat if can else None

    def _home(self, lease: LeaseLoad, weight: float) -> Seat | None:
        """The slot that held it last, unless it has enough to do."""
        seat = self.by_slot.get(lease.home) if lease.home is not None else None
        if seat is None or not (seat.worker.accepts and seat.worker.ready) or seat.worker.drains:
            return None
        fits = seat.load + weight * seat.factor <= self.share * (1 + self.limits.imbalance * STOP_ABOVE)
        return seat if fits and self.may_hold(seat, lease.key) else None

    def _first_fit(self, queue: Queue, lease: LeaseKey, zone: str | None = None) -> Seat | None:
        """The least loaded worker whose caps allow it, in its zone if that one is about as idle as any."""
        least = queue.least()
        near = queue.least(zone) if zone is not None else None
        if (
            near is not None
            and least is not None
            and near.load <= least.load + self.share * self.limits.imbalance
            and self.may_hold(near, lease)
        ):
            return near
        skipped: list[Seat] = []
        found = None
        while (seat := queue.least()) is not None and len(skipped) < SEATS_TRIED:
            if self.may_hold(seat, lease):
                found = seat
                break
            queue.drop()
            if not self.board.is_full(seat):
                skipped.append(seat)
        for seat in skipped:
            queue.push(seat)
        return found

    def ideal(self, seat: Seat) -> float:
        """The share, or the one lease that is heavier than the share."""
        return max(self.share, seat.heaviest * seat.factor)

    def _outside(self, bands: float) -> list[WorkerId]:
        width = self.limits.imbalance * bands
        return [
            seat.id
            for seat in self.takers
            if seat.worker.ready
            and (seat.load > self.ideal(seat) * (1 + width) or seat.load < self.share * (1 - width) - _EPSILON)
        ]

    def _is_worth_it(self, outside: Sequence[WorkerId], *, changed: bool) -> bool:
        """`changed`: the fleet or its leases just did, so what is out of balance now is no jitter."""
        if self.measure.idle:
            # Load says nothing now, and yesterday's placement may be right again tomorrow. Only a worker that
            # has nothing at all gets its part.
            return any(seat.count == 0 and seat.worker.ready for seat in self.takers)
        if changed and outside:
            return True
        return bool(self._outside(URGENT)) or not self.limits.settled.isdisjoint(outside)


class _Crowded:
    """Where a lease goes when every worker has its share already: to one that can pass on something small for it.

    The least loaded worker is no good if all it holds is heavy: nothing could bring it back into the band.
    """

    def __init__(self, seats: Sequence[Seat], high: float) -> None:
        self._high = high
        self._seats = seats
        self._spare: list[tuple[float, WorkerId, Seat]] | None = None

    def better(self, seat: Seat, weight: float, may_hold: Callable[[Seat], bool]) -> Seat:
        """`seat`, or a worker that can make more room for `weight`."""
        over = seat.load + weight * seat.factor - self._high
        if over <= 0 or seat.count == 0:
            return seat
        if self._spare is None:
            self._spare = [(-self._small(each), each.id, each) for each in self._seats]
            heapq.heapify(self._spare)
        spare, name, roomiest = self._spare[0]
        needed = roomiest.load + weight * roomiest.factor - self._high
        if -spare < needed or roomiest is seat or not may_hold(roomiest):
            return seat
        heapq.heapreplace(self._spare, (spare + max(0.0, needed), name, roomiest))
        return roomiest

    def _small(self, seat: Seat) -> float:
        """How much of its load fits into the room that others have."""
        room = self._high - min(each.load for each in self._seats[:SEATS_TRIED])
        end = bisect_right(seat.movable, room, key=_weight)
        return sum(weight for weight, _ in seat.movable[:end]) * seat.factor


class _Balancing:
    """Handoffs that bring every worker well inside of the band."""

    def __init__(self, round_: _Round) -> None:
        self.round = round_
        self.share = round_.share
        band = round_.limits.imbalance
        self.high = self.share * (1 + band * STOP_ABOVE)
        self.low = self.share * (1 - band)
        self.band = self.share * band
        self.queue = Queue(seat for seat in round_.takers if seat.worker.ready)
        self.budget = round_.limits.moves

    def run(self) -> None:
        if self.round.measure.idle:
            # A handoff of a silent shard silences nothing, so these are not rationed.
            self.budget = len(self.round.kbps)
            self._fill([seat for seat in self.round.takers if seat.worker.ready and seat.count == 0])
            self._relieve(self.share * GROSS)
        else:
            self._relieve(self.high)
            self._fill([seat for seat in self.round.takers if seat.worker.ready and seat.load < self.low])

    def _relieve(self, most: float) -> None:
        """Every worker with a load above `most` gives leases away, the most loaded one first."""
        donors = [(-seat.load, seat.id) for seat in self.round.takers]
        heapq.heapify(donors)
        while donors and self.budget > 0:
            _, name = heapq.heappop(donors)
            donor = self.round.board.seats[name]
            allowed = self.round.ideal(donor) * most / self.share
            if donor.load > allowed + _EPSILON and self._relieve_once(donor):
                heapq.heappush(donors, (-donor.load, name))

    def _relieve_once(self, donor: Seat) -> bool:
        """One lease of `donor` to one of the least loaded workers that can take it."""
        tried: list[Seat] = []
        found: tuple[LeaseKey, Seat] | None = None
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
                tried.append(donor)  # the near one does not fit; go on with the others
        for seat in tried:
            self.queue.push(seat)
        return found is not None and self._move(found[0], donor, found[1])

    def _receiver(self, donor: Seat) -> Seat | None:
        """The least loaded; or one in the donor's zone that is about as idle."""
        least = self.queue.least()
        near = self.queue.least(donor.worker.zone) if donor.worker.zone is not None else None
        if near is not None and near is not donor and least is not None:
            return near if near.load <= least.load + (self.high - self.share) else least
        return least

    def _pick(self, donor: Seat, receiver: Seat) -> LeaseKey | None:
        """The lease that brings `donor` to its share best: one that suffices alone, or else the heaviest.

        Neither side may end up outside of the band; where leases are too heavy for that, one may move that makes
        the fuller side much better. A lease that is heavier than the share may go to a worker that has nothing
        else, if its present one has.
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

    def _coarse(self, donor: Seat, receiver: Seat) -> LeaseKey | None:
        """The lease that evens the two out best, if that lowers the fuller one by more than jitter can pretend."""
        between = donor.load - receiver.load
        factor = max(donor.factor, receiver.factor)
        lease = self._nearest(donor, receiver, 0.0, between / 2 / factor, (between - self.band * URGENT) / factor)
        worth = lease is not None and self.round.measure.weights[lease] * donor.factor >= self.band
        return lease if worth else None

    def _nearest(self, donor: Seat, receiver: Seat, enough: float, best: float, at_most: float) -> LeaseKey | None:
        """Of the weights in `enough`..`at_most` the one nearest to `best`, or else the heaviest below."""
        movable = donor.movable
        end = bisect_right(movable, at_most + _EPSILON, key=_weight)
        start = bisect_left(movable, enough - _EPSILON, hi=end, key=_weight)
        middle = bisect_left(movable, best, lo=start, hi=end, key=_weight)
        near = sorted(movable[max(start, middle - 1) : min(end, middle + 1)], key=lambda one: abs(one[0] - best))
        for weight, lease in (*near, *reversed(movable[:end])):
            if weight > 0 and self._may_hold(receiver, lease):
                return lease
        return None

    def _fill(self, hungry: Sequence[Seat]) -> None:
        """These workers get the heaviest leases that the most loaded can spare."""
        for receiver in sorted(hungry, key=lambda seat: (seat.load, seat.id)):
            while self.budget > 0 and receiver.load < self.low and self._fill_once(receiver):
                pass

    def _fill_once(self, receiver: Seat) -> bool:
        room = (self.high - receiver.load) / receiver.factor
        best: tuple[float, Seat, LeaseKey] | None = None
        for donor in heapq.nlargest(DONORS_TRIED, self.round.takers, key=lambda seat: seat.load):
            spare = (donor.load - self.low) / donor.factor
            if donor is receiver or spare <= 0:
                continue
            lease = self._nearest(donor, receiver, math.inf, math.inf, min(room, spare))
            if lease is not None and (best is None or self.round.measure.weights[lease] > best[0] + _EPSILON):
                best = self.round.measure.weights[lease], donor, lease
        return best is not None and self._move(best[2], best[1], receiver)

    def _may_hold(self, receiver: Seat, lease: LeaseKey | None) -> bool:
        return lease is not None and self.round.may_hold(receiver, lease)

    def _move(self, lease: LeaseKey, donor: Seat, receiver: Seat) -> bool:
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


def _weight(entry: tuple[float, LeaseKey]) -> float:
    return entry[0]
