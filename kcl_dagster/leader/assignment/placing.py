"""One decision of our policies: where unserved leases and those of draining workers go, and whether to balance."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import median
from typing import Final

from kcl_dagster.leader.assignment.balancing import STOP_ABOVE, URGENT, Balancing
from kcl_dagster.leader.assignment.board import EPSILON, Board, Queue, Seat, fair_share, weight_of
from kcl_dagster.leader.assignment.evening import Evening, is_alike, is_uneven
from kcl_dagster.leader.assignment.measure import Measure
from kcl_dagster.leader.assignment.policy import Assignment, LeaseLoad, Limits, Move, MoveKind, WorkerLoad
from kcl_dagster.model.lease import LeaseKey, WorkerId

# Most workers that are tried for a lease that the least loaded worker may not hold because of the caps. Load grows
# with throughput, so such a lease rarely fits another worker.
SEATS_TRIED: Final = 256


class Round:
    """One decision. Its state is mutable; its result depends on its input alone."""

    def __init__(
        self, leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: Limits, measure: Measure
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
        some_read = any(seat.worker.ready for seat in self.takers)
        shared: list[float] = []
        for lease in leases:
            weight = measure.weights[lease.key]
            holder = self.board.seats.get(lease.holder) if lease.holder is not None else None
            if lease.unserved:
                self.homeless.append(lease)
                shared.append(weight)
                continue
            if holder is None:
                continue  # its owner has no row, and is not yet known to have ended
            gives = holder.worker.drains or (holder.worker.starts_slowly and some_read)
            if gives and not lease.pinned:
                self.draining.append((lease, holder))
            if holder.worker.accepts or holder.worker.drains:
                shared.append(weight)
            self.board.put(lease.key, self.kbps[lease.key], holder, movable=not lease.pinned)
        self.share = fair_share(shared, [seat.factor for seat in self.takers])

    def run(self) -> Assignment:
        self._serve()
        self._drain()
        outside = self._outside(1.0)
        if is_alike(self) or self.share <= 0:  # no share: fewer leases than workers
            if is_uneven(self):
                Evening(self).run()
        elif self._is_worth_it(outside, changed=bool(self.moves)):
            Balancing(self).run()
        return Assignment(tuple(self.moves), tuple(self.unplaced), frozenset(outside))

    def give(self, lease: LeaseKey, source: Seat | None, to: Seat, kind: MoveKind, because: str) -> None:
        if source is not None:
            self.board.take(lease, self.kbps[lease], source)
        self.board.put(lease, self.kbps[lease], to, movable=False)  # a lease moves at most once a round
        self.moves.append(Move(lease, to.id, kind, because))

    def may_hold(self, seat: Seat, lease: LeaseKey) -> bool:
        return self.board.may_hold(seat, self.kbps[lease])

    def _receivers(self) -> list[Seat]:
        """Workers that can read at once. If there are none: workers that are starting."""
        return [seat for seat in self.takers if seat.worker.ready] or self.takers

    def _serve(self) -> None:
        receivers = self._receivers()
        waiting = self.limits.expected if not any(seat.worker.ready for seat in receivers) else 0
        # Workers that are starting cannot read yet. So it costs nothing to leave a share for those that were
        # launched with them, and it avoids handoffs a minute later.
        most = self.share * len(self.takers) / (len(self.takers) + waiting) if waiting and self.takers else None
        queue = Queue(receivers)
        crowded = _Crowded(receivers, self.share * (1 + self.limits.imbalance * STOP_ABOVE))
        crowds = False
        for lease in sorted(self.homeless, key=lambda lease: (-self.measure.weights[lease.key], lease.key)):
            weight = self.measure.weights[lease.key]
            least = queue.least()
            if crowds and least is not None and least.load + weight * least.factor <= crowded.high:
                # From here on leases fit. Those that have to leave a full worker are heavier and are placed first.
                crowds = False
                self._relieve()
                queue = Queue(receivers)
            to = self._intended(lease) or self._home(lease, weight) or self._first_fit(queue, lease.key)
            if to is None or (most is not None and to.count and to.load + weight > most * (1 + EPSILON)):
                self.unplaced.append(lease.key)
                continue
            if self.share > 0:
                crowds = crowds or to.load + weight * to.factor > crowded.high
                to = crowded.better(to, weight, lambda seat: self.may_hold(seat, lease.key))  # noqa: B023
            self.give(lease.key, None, to, "unserved", lease.unserved or "")
            queue.push(to)

    def _relieve(self) -> None:
        if not is_alike(self) and self._outside(1.0):
            Balancing(self).relieve()

    def _drain(self) -> None:
        queue = Queue(seat for seat in self._receivers() if seat.worker.ready)
        order = sorted(self.draining, key=lambda pair: (-self.measure.weights[pair[0].key], pair[0].key))
        for lease, source in order:
            to = self._first_fit(queue, lease.key, source.worker.zone)
            if to is not None:
                why = "is draining" if source.worker.drains else "has not started yet"
                self.give(lease.key, source, to, "drain", f"{source.id} {why}")
                queue.push(to)

    def _intended(self, lease: LeaseLoad) -> Seat | None:
        """The next owner of a handoff whose old owner has ended."""
        seat = self.board.seats.get(lease.next_owner) if lease.next_owner is not None else None
        can = seat is not None and seat.worker.ready and not seat.worker.drains and self.may_hold(seat, lease.key)
        return seat if can else None

    def _home(self, lease: LeaseLoad, weight: float) -> Seat | None:
        """The worker in the slot that held the lease last, unless its load would be above the band."""
        seat = self.by_slot.get(lease.home) if lease.home is not None else None
        if seat is None or not (seat.worker.accepts and seat.worker.ready) or seat.worker.drains:
            return None
        fits = seat.load + weight * seat.factor <= self.share * (1 + self.limits.imbalance * STOP_ABOVE)
        return seat if fits and self.may_hold(seat, lease.key) else None

    def _first_fit(self, queue: Queue, lease: LeaseKey, zone: str | None = None) -> Seat | None:
        """The least loaded worker whose caps allow the lease. One in `zone` is preferred if it is about as idle."""
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
        """The load that the worker should have: the share, or its heaviest lease if that is heavier."""
        return max(self.share, seat.heaviest * seat.factor)

    def _outside(self, bands: float) -> list[WorkerId]:
        width = self.limits.imbalance * bands
        return [
            seat.id
            for seat in self.takers
            if seat.worker.ready
            and (seat.load > self.ideal(seat) * (1 + width) or seat.load < self.share * (1 - width) - EPSILON)
        ]

    def _is_worth_it(self, outside: Sequence[WorkerId], *, changed: bool) -> bool:
        """`changed`: the fleet or its leases changed in this round, so an imbalance is not jitter."""
        if changed and outside:
            return True
        if not self.limits.watched:
            return False
        return bool(self._outside(URGENT)) or not self.limits.settled.isdisjoint(outside)


class _Crowded:
    """Chooses a worker if every worker has its share already: one that needs few handoffs to make room.

    If all leases of the least loaded worker are heavy, it is not suitable: no handoff could bring it back into the
    band.
    """

    def __init__(self, seats: Sequence[Seat], high: float) -> None:
        self.high = high
        self._seats = seats
        self._reliefs: dict[WorkerId, tuple[Seat, list[float]]] | None = None

    def better(self, seat: Seat, weight: float, may_hold: Callable[[Seat], bool]) -> Seat:
        """`seat`, or a worker that makes room for `weight` with the fewest handoffs."""
        if seat.load + weight * seat.factor <= self.high or seat.count == 0:
            return seat
        if self._reliefs is None:
            # At least half of the workers have this much room; few have much more.
            room = self.high - median(each.load for each in self._seats)
            self._reliefs = {each.id: (each, _reliefs(each, room)) for each in self._seats}
        best: tuple[int, float, Seat] | None = None
        for other, reliefs in self._reliefs.values():
            handoffs = bisect_left(reliefs, other.load + weight * other.factor - self.high)
            # Of equal workers choose the fullest, so that the others remain for lighter leases.
            if handoffs < len(reliefs) and (best is None or (handoffs, -other.load) < best[:2]) and may_hold(other):
                best = handoffs, -other.load, other
        if best is None:
            return seat
        del self._reliefs[best[2].id]
        return best[2]


def _reliefs(seat: Seat, room: float) -> list[float]:
    """By how much one, two, three ... handoffs reduce the load, counting leases that fit into the `room` of
    others."""
    end = bisect_right(seat.movable, room, key=weight_of)
    return list(accumulate(weight * seat.factor for weight, _ in reversed(seat.movable[:end])))
