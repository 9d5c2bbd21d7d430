"""Decide which leases a worker takes for itself if no leader assigns them, by the rules of KCL 2.x.

Pure. Used by workers that have observed no leader for a long time, and by leaders that are configured to imitate a
2.x fleet. All workers apply the same rules to their own observations, so they converge without communication.
"""

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from kcl_dagster.model.lease import LeaseKey, WorkerId

_CLOCK_JUMPED: Final = 365 * 86_400.0  # seconds; the KCL ignores a clock that moved by more than a year
# In lease durations. If a lease was unserved for this long, it is taken even if that unbalances the workers.
VERY_OLD: Final = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A lease as one worker observes it. `unchanged_for`: seconds since the lease's counter last changed.
    `duration`: the lease duration in seconds; if it is None, `TakingRules.lease_duration` applies."""

    key: LeaseKey
    owner: WorkerId | None
    unchanged_for: float
    duration: float | None = None

    @classmethod
    def of(
        cls,
        key: LeaseKey,
        owner: WorkerId | None,
        stood_for: float,
        *,
        is_new: bool,
        duration: float | None = None,
    ) -> "Candidate":
        """Build a candidate. `stood_for`: seconds since the lease's counter last changed. `is_new`: whether the
        lease is observed for the first time. A new lease without an owner counts as never served."""
        return cls(key, owner, math.inf if is_new and owner is None else stood_for, duration)

    def expires_after(self, rules: "TakingRules") -> float:
        return rules.lease_duration if self.duration is None else self.duration


@dataclass(frozen=True, slots=True)
class TakingRules:
    """Limits on taking leases. `lease_duration`: seconds. `takes_very_old_first`: whether leases that were unserved
    for `very_old` lease durations are taken first (the KCL's priority assignment)."""

    lease_duration: float
    max_leases: int | None = None
    max_steals: int = 1
    takes_very_old_first: bool = True
    very_old: int = VERY_OLD


@dataclass(frozen=True, slots=True)
class Taking:
    """The leases that a worker should take. `take`: unserved leases. `steal`: leases of a worker that has too many.
    `target`: the number of leases that this worker should have."""

    take: tuple[LeaseKey, ...] = ()
    steal: tuple[LeaseKey, ...] = ()
    target: int = 0
    spillover: int = 0
    """By how many leases this worker's fair share exceeds `max_leases`."""


def unchanged_for(now: float, last_change: float | None) -> float:
    """Seconds since the last observed change, as the KCL calculates them. Infinite if no change was observed."""
    if last_change is None or abs(now - last_change) > _CLOCK_JUMPED:
        return math.inf
    return now - last_change


def is_available(candidate: Candidate, rules: TakingRules) -> bool:
    return candidate.owner is None or candidate.unchanged_for > candidate.expires_after(rules)


def loads(
    candidates: Sequence[Candidate], me: WorkerId, available: Container[LeaseKey]
) -> dict[WorkerId | None, int]:
    """The number of served leases per owner. This worker always has an entry. If a lease has no owner and is not in
    `available`, it counts for the owner None, as in the KCL."""
    counts: Counter[WorkerId | None] = Counter(c.owner for c in candidates if c.key not in available)
    counts[me] += 0
    return dict(counts)


def plan_taking(candidates: Sequence[Candidate], me: WorkerId, rules: TakingRules, chance: Random) -> Taking:
    """Decide which leases to take now. The leases are drawn with `chance`, so that workers that decide at the same
    moment mostly choose different leases."""
    available = [candidate for candidate in candidates if is_available(candidate, rules)]
    counts = loads(candidates, me, {c.key for c in available})
    fair = 1 if len(counts) >= len(candidates) else math.ceil(len(candidates) / len(counts))
    most = math.inf if rules.max_leases is None else rules.max_leases
    target = int(min(fair, most))
    spillover = fair - target
    very_old = [c for c in available if c.unchanged_for > rules.very_old * c.expires_after(rules)]
    if rules.takes_very_old_first and very_old:
        room = int(min(len(very_old), max(0, most - counts[me])))
        return Taking(take=_some(very_old, room, chance), target=target, spillover=spillover)
    needed = max(0, target - counts[me])
    if available:
        return Taking(take=_some(available, needed, chance), target=target, spillover=spillover)
    steal = _to_steal(candidates, counts, target, needed, rules, me, chance) if needed else ()
    return Taking(steal=steal, target=target, spillover=spillover)


def _to_steal(
    candidates: Sequence[Candidate],
    counts: Mapping[WorkerId | None, int],
    target: int,
    needed: int,
    rules: TakingRules,
    me: WorkerId,
    chance: Random,
) -> tuple[LeaseKey, ...]:
    others = {worker: count for worker, count in counts.items() if worker is not None and worker != me}
    if not others:
        return ()
    victim = max(sorted(others), key=lambda worker: others[worker])
    if others[victim] < target:
        return ()
    number = min(needed, others[victim] - target)
    if number == 0 and needed > 1:
        number = 1  # a worker far below its share can take a lease of a worker that has exactly its share
    theirs = [c for c in candidates if c.owner == victim]
    return _some(theirs, min(number, rules.max_steals), chance)


def _some(candidates: Sequence[Candidate], number: int, chance: Random) -> tuple[LeaseKey, ...]:
    keys = sorted(candidate.key for candidate in candidates)
    chance.shuffle(keys)
    return tuple(keys[:number])
