"""One decision of the policies `balanced`, `throughput` and `count`. It places unserved leases and the leases of
draining workers, and decides whether to balance."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import median
from typing import Final

from kcl_dagster.leader.assignment.assignment_state import (
    EPSILON,
    AssignmentState,
    Holder,
    Queue,
    fair_share,
    weight_of,
)
from kcl_dagster.leader.assignment.even_counts import Evening, is_alike, is_uneven
from kcl_dagster.leader.assignment.even_load import STOP_ABOVE, URGENT, Balancing
from kcl_dagster.leader.assignment.measure import Measure
from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, Move, MoveKind, WorkerLoad
from kcl_dagster.model.lease import LeaseKey, WorkerId

# If the caps do not allow the least loaded worker to take a lease, at most this many workers are tried, in the
# order of their load. Workers with more load usually have more throughput, too, so the caps usually do not allow
# them to take the lease either.
HOLDERS_TRIED: Final = 256


class AssignmentRound:
    """One decision. Its state is mutable; its result depends only on its input."""

    def __init__(
        self, leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: AssignmentLimits, measure: Measure
    ) -> None:
        self.limits = limits
        self.measure = measure
        self.kbps = {lease.key: lease.kbps or 0.0 for lease in leases}
        holders = [Holder(worker, measure.factors[worker.id]) for worker in workers]
        self.state = AssignmentState(holders, measure.weights, limits)
        self.by_slot = {holder.worker.slot: holder for holder in holders if holder.worker.slot is not None}
        self.takers = [holder for holder in holders if holder.worker.accepts and not holder.worker.drains]
        self.moves: list[Move] = []
        self.unplaced: list[LeaseKey] = []
        self.homeless: list[LeaseLoad] = []
        self.draining: list[tuple[LeaseLoad, Holder]] = []
        some_read = any(holder.worker.ready for holder in self.takers)
        shared: list[float] = []
        for lease in leases:
            weight = measure.weights[lease.key]
            holder = self.state.holders.get(lease.holder) if lease.holder is not None else None
            if lease.unserved:
                self.homeless.append(lease)
                shared.append(weight)
                continue
            if holder is None:
                continue  # the lease's owner has no row, and is not yet known to have ended
            gives = holder.worker.drains or (holder.worker.starts_slowly and some_read)
            if gives and not lease.pinned:
                self.draining.append((lease, holder))
            if holder.worker.accepts or holder.worker.drains:
                shared.append(weight)
            self.state.put(lease.key, self.kbps[lease.key], holder, movable=not lease.pinned)
        self.share = fair_share(shared, [holder.factor for holder in self.takers])

    def run(self) -> Assignment:
        self._serve()
        self._drain()
        outside = self._outside(1.0)
        if is_alike(self) or self.share <= 0:  # a share of 0 means fewer leases than workers
            if is_uneven(self):
                Evening(self).run()
        elif self._is_worth_it(outside, changed=bool(self.moves)):
            Balancing(self).run()
        return Assignment(tuple(self.moves), tuple(self.unplaced), frozenset(outside))

    def give(self, lease: LeaseKey, source: Holder | None, to: Holder, kind: MoveKind, because: str) -> None:
        if source is not None:
            self.state.take(lease, self.kbps[lease], source)
        self.state.put(lease, self.kbps[lease], to, movable=False)  # a lease moves at most once per round
        self.moves.append(Move(lease, to.id, kind, because))

    def may_hold(self, holder: Holder, lease: LeaseKey) -> bool:
        return self.state.may_hold(holder, self.kbps[lease])

    def _receivers(self) -> list[Holder]:
        """Return the workers that can read at once. If there are none, return the workers that are starting."""
        return [holder for holder in self.takers if holder.worker.ready] or self.takers

    def _serve(self) -> None:
        receivers = self._receivers()
        waiting = self.limits.expected if not any(holder.worker.ready for holder in receivers) else 0
        # If all receivers are still starting, no lease is read yet in any case. Some leases are then left unplaced
        # for workers that were launched and have not reported yet. This avoids handoffs a minute later.
        most = self.share * len(self.takers) / (len(self.takers) + waiting) if waiting and self.takers else None
        queue = Queue(receivers)
        crowded = _Crowded(receivers, self.share * (1 + self.limits.imbalance * STOP_ABOVE))
        crowds = False
        for lease in sorted(self.homeless, key=lambda lease: (-self.measure.weights[lease.key], lease.key)):
            weight = self.measure.weights[lease.key]
            least = queue.least()
            if crowds and least is not None and least.load + weight * least.factor <= crowded.high:
                # This lease and the following ones are so light that they fit on the least loaded worker again.
                # Before they are placed, heavier leases are moved away from workers with too much load.
                crowds = False
                self._relieve()
                queue = Queue(receivers)
            to = self._intended(lease) or self._home(lease, weight) or self._first_fit(queue, lease.key)
            if to is None or (most is not None and to.count and to.load + weight > most * (1 + EPSILON)):
                self.unplaced.append(lease.key)
                continue
            if self.share > 0:
                crowds = crowds or to.load + weight * to.factor > crowded.high
                to = crowded.better(to, weight, lambda holder: self.may_hold(holder, lease.key))  # noqa: B023
            self.give(lease.key, None, to, "unserved", lease.unserved or "")
            queue.push(to)

    def _relieve(self) -> None:
        if not is_alike(self) and self._outside(1.0):
            Balancing(self).relieve()

    def _drain(self) -> None:
        queue = Queue(holder for holder in self._receivers() if holder.worker.ready)
        order = sorted(self.draining, key=lambda pair: (-self.measure.weights[pair[0].key], pair[0].key))
        for lease, source in order:
            to = self._first_fit(queue, lease.key, source.worker.zone)
            if to is not None:
                why = "is draining" if source.worker.drains else "has not started yet"
                self.give(lease.key, source, to, "drain", f"{source.id} {why}")
                queue.push(to)

    def _intended(self, lease: LeaseLoad) -> Holder | None:
        """If the old owner ended during a handoff, return the next owner of this handoff. None if there was no
        handoff, or if the next owner cannot get the lease."""
        holder = self.state.holders.get(lease.next_owner) if lease.next_owner is not None else None
        can = (
            holder is not None
            and holder.worker.ready
            and not holder.worker.drains
            and self.may_hold(holder, lease.key)
        )
        return holder if can else None

    def _home(self, lease: LeaseLoad, weight: float) -> Holder | None:
        """Return the worker of the slot that last held the lease. None if the worker cannot get the lease, or if
        its load would then exceed the fair share by more than half of the band."""
        holder = self.by_slot.get(lease.home) if lease.home is not None else None
        if holder is None or not (holder.worker.accepts and holder.worker.ready) or holder.worker.drains:
            return None
        fits = holder.load + weight * holder.factor <= self.share * (1 + self.limits.imbalance * STOP_ABOVE)
        return holder if fits and self.may_hold(holder, lease.key) else None

    def _first_fit(self, queue: Queue, lease: LeaseKey, zone: str | None = None) -> Holder | None:
        """Return the least loaded worker whose caps allow the lease. A worker in `zone` is preferred if its load is
        about as low."""
        least = queue.least()
        near = queue.least(zone) if zone is not None else None
        if (
            near is not None
            and least is not None
            and near.load <= least.load + self.share * self.limits.imbalance
            and self.may_hold(near, lease)
        ):
            return near
        skipped: list[Holder] = []
        found = None
        while (holder := queue.least()) is not None and len(skipped) < HOLDERS_TRIED:
            if self.may_hold(holder, lease):
                found = holder
                break
            queue.drop()
            if not self.state.is_full(holder):
                skipped.append(holder)
        for holder in skipped:
            queue.push(holder)
        return found

    def ideal(self, holder: Holder) -> float:
        """The load that the worker should have: the share, or its heaviest lease if that is heavier."""
        return max(self.share, holder.heaviest * holder.factor)

    def _outside(self, bands: float) -> list[WorkerId]:
        width = self.limits.imbalance * bands
        return [
            holder.id
            for holder in self.takers
            if holder.worker.ready
            and (holder.load > self.ideal(holder) * (1 + width) or holder.load < self.share * (1 - width) - EPSILON)
        ]

    def _is_worth_it(self, outside: Sequence[WorkerId], *, changed: bool) -> bool:
        """Whether to balance. `changed`: the fleet or its leases changed in this round, so an imbalance is not
        jitter."""
        if changed and outside:
            return True
        if not self.limits.watched:
            return False
        return bool(self._outside(URGENT)) or not self.limits.settled.isdisjoint(outside)


class _Crowded:
    """Chooses a worker for a lease when every worker already has its share of the load: the worker that can make
    room for the lease with the fewest handoffs.

    This is not always the least loaded worker. If all leases of that worker are heavy, no other worker has room for
    one of them, so handoffs cannot bring the worker back into the band.
    """

    def __init__(self, holders: Sequence[Holder], high: float) -> None:
        self.high = high
        self._holders = holders
        self._reliefs: dict[WorkerId, tuple[Holder, list[float]]] | None = None

    def better(self, holder: Holder, weight: float, may_hold: Callable[[Holder], bool]) -> Holder:
        """Return `holder` if it has room for `weight`, or else the worker that makes room with the fewest
        handoffs."""
        if holder.load + weight * holder.factor <= self.high or holder.count == 0:
            return holder
        if self._reliefs is None:
            # At least half of the workers have at least this much room, and few workers have much more.
            room = self.high - median(each.load for each in self._holders)
            self._reliefs = {each.id: (each, _reliefs(each, room)) for each in self._holders}
        best: tuple[int, float, Holder] | None = None
        for other, reliefs in self._reliefs.values():
            handoffs = bisect_left(reliefs, other.load + weight * other.factor - self.high)
            # Among workers that need equally many handoffs, choose the most loaded worker, so that the others
            # remain for lighter leases.
            if handoffs < len(reliefs) and (best is None or (handoffs, -other.load) < best[:2]) and may_hold(other):
                best = handoffs, -other.load, other
        if best is None:
            return holder
        del self._reliefs[best[2].id]
        return best[2]


def _reliefs(holder: Holder, room: float) -> list[float]:
    """Return by how much one, two, three ... handoffs reduce the load of `holder`. Only leases that fit into the
    `room` of other workers can be handed over."""
    end = bisect_right(holder.movable, room, key=weight_of)
    return list(accumulate(weight * holder.factor for weight, _ in reversed(holder.movable[:end])))
