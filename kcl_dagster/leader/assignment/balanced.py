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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kcl_dagster.leader.assignment.board import Board, Queue, Seat, fair_share
from kcl_dagster.leader.assignment.policy import Assignment, LeaseLoad, Limits, Move, MoveKind, WorkerLoad
from kcl_dagster.model.lease import LeaseKey, WorkerId

# Below this mean throughput of a worker, load is noise: a single core reads a hundred times as much.
IDLE_KBPS: Final = 64.0
# What a lease costs beside its bytes (renewals, empty reads), as a part of the mean lease: small enough not to
# distort shares of bytes, large enough that equally loaded workers hold equally many leases.
BASE_WEIGHT: Final = 0.01
# Imbalance this many times the band is acted on at once; less must persist.
URGENT: Final = 2.0
# Where balancing stops, in parts of the band: well inside, so that jitter does not lead back out.
STOP_ABOVE: Final = 0.5
# Where it aims: as close to the share as leases allow.
AIM: Final = 0.25
# Donors looked at to fill one receiver. The heaviest loaded come first; further ones have nothing to spare.
DONORS_TRIED: Final = 64
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
            elif holder is None:
                continue  # its owner is not in sight, and not yet known to be gone
            elif holder.worker.drains and not lease.pinned:
                self.draining.append((lease, holder))
            if lease.unserved or holder is None or holder.worker.accepts or holder.worker.drains:
                shared.append(weight)
            if not lease.unserved and holder is not None:
                self.board.put(lease.key, self.kbps[lease.key], holder, movable=not lease.pinned)
        self.share = fair_share(shared, [seat.factor for seat in self.takers])

    def run(self) -> Assignment:
        self._serve()
        self._drain()
        outside = self._outside(1.0)
        if self._is_worth_it(outside):
            _Balancing(self).run()
        return Assignment(tuple(self.moves), tuple(self.unplaced), frozenset(outside))

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
        for lease in sorted(self.homeless, key=lambda lease: (-self.measure.weights[lease.key], lease.key)):
            weight = self.measure.weights[lease.key]
            to = self._home(lease, weight) or self._first_fit(queue, lease.key)
            if to is None or (most is not None and to.count and to.load + weight > most * (1 + _EPSILON)):
                self.unplaced.append(lease.key)
                continue
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

    def _home(self, lease: LeaseLoad, weight: float) -> Seat | None:
        """The slot that held it last, unless it has enough to do."""
        seat = self.by_slot.get(lease.home) if lease.home is not None else None
        if seat is None or not (seat.worker.accepts and seat.worker.ready) or seat.worker.drains:
            return None
        fits = seat.load + weight * seat.factor <= self.share * (1 + self.limits.imbalance * AIM)
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
        while (seat := queue.least()) is not None:
            if self.may_hold(seat, lease):
                found = seat
                break
            queue.drop()
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

    def _is_worth_it(self, outside: Iterable[WorkerId]) -> bool:
        if self.measure.idle:
            # Load says nothing now, and yesterday's placement may be right again tomorrow. Only a worker that
            # has nothing at all gets its part.
            return any(seat.count == 0 and seat.worker.ready for seat in self.takers)
        return bool(self._outside(URGENT)) or not self.limits.settled.isdisjoint(outside)


class _Balancing:
    """Handoffs that bring every worker well inside of the band."""

    def __init__(self, round_: _Round) -> None:
        self.round = round_
        self.share = round_.share
        band = round_.limits.imbalance
        self.high = 1 + band * STOP_ABOVE
        self.low = 1 - band
        self.aim = band * AIM * self.share
        self.queue = Queue(seat for seat in round_.takers if seat.worker.ready)
        self.budget = round_.limits.moves

    def run(self) -> None:
        self._relieve()
        self._fill()

    def _relieve(self) -> None:
        """Every worker above the band gives the heaviest leases that fit elsewhere, most loaded worker first."""
        donors = [(-seat.load, seat.id) for seat in self.round.takers]
        heapq.heapify(donors)
        while donors and self.budget > 0:
            load, name = heapq.heappop(donors)
            donor = self.round.board.seats[name]
            if -load <= self.round.ideal(donor) * self.high + _EPSILON:
                continue
            if self._relieve_once(donor):
                heapq.heappush(donors, (-donor.load, name))

    def _relieve_once(self, donor: Seat) -> bool:
        receiver = self._receiver(donor)
        if receiver is None or receiver is donor:
            return False
        excess = donor.load - self.round.ideal(donor)
        room = self.share - receiver.load
        for spare_donor, spare_room in (
            (self.aim, self.aim),
            (self.share * (1 - self.low), self.share * (self.high - 1)),
        ):
            lease = self._heaviest(donor, receiver, min(excess + spare_donor, room + spare_room))
            if lease is not None:
                return self._move(lease, donor, receiver)
        # What is heavier than the share belongs on a worker of its own.
        heavy = self._heaviest(donor, receiver, excess + self.aim)
        if heavy is not None and receiver.load + self._on(receiver, heavy) < donor.load * (1 - _EPSILON):
            lonely = self._on(receiver, heavy) > self.share and receiver.load <= self.aim
            return self._move(heavy, donor, receiver) if lonely else False
        return False

    def _receiver(self, donor: Seat) -> Seat | None:
        least = self.queue.least()
        near = self.queue.least(donor.worker.zone) if donor.worker.zone is not None else None
        if near is not None and least is not None and near.load <= least.load + self.aim:
            return near
        return least

    def _fill(self) -> None:
        """Workers below the band get the heaviest leases that the most loaded can spare."""
        while self.budget > 0:
            receiver = self.queue.least()
            if receiver is None:
                return
            hungry = receiver.count == 0 if self.round.measure.idle else receiver.load < self.share * self.low
            if not hungry or not self._fill_once(receiver):
                self.queue.drop()

    def _fill_once(self, receiver: Seat) -> bool:
        room = self.share * self.high - receiver.load
        best: tuple[float, Seat, LeaseKey] | None = None
        for donor in heapq.nlargest(DONORS_TRIED, self.round.takers, key=lambda seat: seat.load):
            if donor is receiver:
                continue
            lease = self._heaviest(donor, receiver, min(room, donor.load - self.share * self.low))
            weight = self._on(receiver, lease) if lease is not None else 0.0
            if lease is not None and (best is None or weight > best[0] + _EPSILON):
                best = (weight, donor, lease)
        return self._move(best[2], best[1], receiver) if best is not None else False

    def _on(self, seat: Seat, lease: LeaseKey) -> float:
        return self.round.measure.weights[lease] * seat.factor

    def _heaviest(self, donor: Seat, receiver: Seat, at_most: float) -> LeaseKey | None:
        """The heaviest lease of the donor within `at_most` load of either side that the receiver may hold."""
        bound = at_most / max(donor.factor, receiver.factor) + _EPSILON
        for weight, lease in reversed(donor.movable):
            if weight <= bound and self.round.may_hold(receiver, lease):
                return lease
        return None

    def _move(self, lease: LeaseKey, donor: Seat, receiver: Seat) -> bool:
        unit, share = self.round.measure.unit, self.share or 1.0
        because = (
            f"{donor.id} is at {donor.load / share:.0%} and {receiver.id} at {receiver.load / share:.0%} "
            f"of an even share of {unit}"
        )
        self.round.give(lease, donor, receiver, "balance", because)
        self.queue.push(receiver)
        self.queue.push(donor)
        self.budget -= 1
        return True
