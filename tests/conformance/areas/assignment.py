"""Which worker gets which lease: by utilization and by number."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from kcl_dagster.leader.assignment import balanced
from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, LeaseLoad, Policy, WorkerLoad
from kcl_dagster.leader.assignment.variance import Variance, VarianceSettings
from kcl_dagster.leader.liveness import LivenessRule, averages_of, ceilings_of
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from tests.conformance.agreement import AnyOrder, AtLeast, Either, Observed, Ongoing
from tests.conformance.areas.coordination import ranges_of, series_of
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.fleet import Fleet
from tests.conformance.registry import area
from tests.conformance.rules.lease_count import lease_count, target_leases

_NOW = 1_800_000_000
_LEASE_DURATION = 10.0
_PASS = 2 * _LEASE_DURATION  # a Java leader assigns after two lease durations


@dataclass(frozen=True)
class _Situation:
    """What a policy is given."""

    leases: list[LeaseLoad]
    workers: list[WorkerLoad]
    limits: AssignmentLimits

    def decide(self, policy: Policy) -> Assignment:
        return policy(self.leases, self.workers, self.limits)

    def owners(self, decided: Assignment) -> dict[str, str | None]:
        owners: dict[str, str | None] = {lease.key: lease.owner for lease in self.leases}
        return owners | {move.lease: move.to for move in decided.moves}

    def counts(self, decided: Assignment) -> dict[str, int]:
        """Leases per worker in sight."""
        held = Counter(self.owners(decided).values())
        return {worker.id: held[worker.id] for worker in self.workers}


def _worker(given: Given) -> WorkerLoad | None:
    """None: the leader does not see this worker."""
    updated = given.number("last_update_epoch_s", "lut", default=_NOW - given.number("age_s", default=0.0))
    row = WorkerRow(
        WorkerId(given.text("id")),
        int(updated),
        averages=series_of(given, "sts"),
        operating_range=ranges_of(given, "opr"),
    )
    rule = LivenessRule(5.0, _NOW, stood=lambda _: 0.0, moved=lambda _: False)
    sight = rule.judge(row, ())
    if not sight.alive:
        return None
    return WorkerLoad(row.id, accepts=sight.accepts, averages=averages_of(row), ceilings=ceilings_of(row))


def _lease(given: Given) -> LeaseLoad:
    owner = given.text_or_none("owner", "leaseOwner", "o")
    processing = given.text_or_none("checkpoint_owner", "checkpointOwner")
    actual = processing or owner
    expired = given.flag("expired", default=False)
    return LeaseLoad(
        key=LeaseKey(given.text("k", "key", "leaseKey")),
        owner=None if actual is None else WorkerId(actual),
        next_owner=WorkerId(owner) if processing is not None and owner is not None else None,
        kbps=given.number_or_none("kbps", "throughputKBps"),
        unserved="expired" if expired else ("no worker owns it" if actual is None else None),
        pinned=given.flag("blocked", default=processing is not None and not expired),
        age=given.number("age_s", default=0.0),
    )


@area("lam.variance")
def variance(given: Given) -> Observed:
    config = given.record("config") if given.has("config") else Given({})
    told = given.items_of("workers")
    workers = [worker for worker in map(_worker, told) if worker is not None]
    limits = AssignmentLimits(
        max_leases=config.integer("max_leases") if config.has("max_leases") else None,
        max_kbps=config.number_or_none(*(name for name in config if name.startswith("max_throughput")), "max_kbps"),
        imbalance=config.number("rebalance_threshold_pct", default=10.0) / 100,
    )
    settings = VarianceSettings(
        dampening=config.number("dampening_pct", default=60.0) / 100,
        overshoot=config.flag("allow_overshoot", default=True),
    )
    situation = _Situation([_lease(lease) for lease in given.items_of("leases")], workers, limits)
    policy = Variance(Random(0).shuffle, settings)
    decided = situation.decide(policy)
    counts = situation.counts(decided)
    assigned = {move.lease: move.to for move in decided.moves if move.kind == "unserved"}
    moved = {move.lease: move.to for move in decided.moves if move.kind == "balance"}
    takes = policy.throughput_to_take(situation.leases, situation.workers, limits)
    passes = _Passes(given, config, told)
    observed: dict[str, Any] = {
        "assign": assigned,
        "assigned_count": len(assigned),
        "spillover": len(decided.unplaced),
        "moved": moved,
        "moved_count": len(moved),
        "moved_to": next(iter(moved.values()), None)
        if len(set(moved.values())) <= 1
        else sorted(set(moved.values())),
        "moved_from": AnyOrder(
            sorted({lease.owner for lease in situation.leases if lease.key in moved and lease.owner})
        ),
        "counts": counts,
        "kcl_counts": counts,
        "desired_counts": lambda: situation.counts(situation.decide(balanced.balanced)),
        "every_worker_has_at_least": _at_least(counts),
        "throughput_to_take": Either([sum(takes.values()), takes]),
        "state_reset_before_every_pass": True,
    }
    for worker in told:
        observed[f"{worker.text('id')}_count_per_pass"] = Ongoing(passes.counts_of(worker.text("id")))
        observed[f"{worker.text('id')}_count"] = counts.get(worker.text("id"), 0)
    return observed


def _only(names: Iterable[str | None]) -> object:
    """The one name there is, None if there is none, all of them if there are several."""
    found = set(names)
    return next(iter(found), None) if len(found) <= 1 else AnyOrder(sorted(map(str, found)))


def _at_least(counts: Mapping[str, int]) -> Either:
    """Everything up to the smallest count is a true answer."""
    return Either(list(range(min(counts.values(), default=0) + 1)))


class _Passes:
    """The leader's own passes, one after the other, the tables put back to what is given before each."""

    def __init__(self, given: Given, config: Given, workers: list[Given]) -> None:
        self._given = given
        self._config = config
        self._workers = workers

    def counts_of(self, worker: str) -> Callable[[int], list[int]]:
        def first(passes: int) -> list[int]:
            return [owners.count(worker) for owners in self._owners(passes)]

        return first

    def _owners(self, passes: int) -> list[list[str | None]]:
        policy: dict[str, Any] = {"graceful": False}
        if self._config.has("rebalance_threshold_pct"):
            policy["imbalance"] = self._config.number("rebalance_threshold_pct") / 100
        fleet = Fleet(policy=policy, timings={"lease_duration": _LEASE_DURATION})
        fleet.leader.balances_every = self._config.integer("balance_every", default=3) * _PASS
        if isinstance(fleet.leader.policy, Variance):
            settings = VarianceSettings(
                dampening=self._config.number("dampening_pct", default=60.0) / 100,
                overshoot=self._config.flag("allow_overshoot", default=True),
            )
            fleet.leader.policy = replace(fleet.leader.policy, settings=settings)
        seen = []
        for _ in range(passes):
            fleet.put_leases([_living(lease, fleet) for lease in self._given.items_of("leases")])
            fleet.put_workers(self._workers)
            fleet.lead()
            seen.append(list(fleet.owners().values()))
            fleet.scene.clock.advance(_PASS)
        return seen


def _living(lease: Given, fleet: Fleet) -> Given:
    """Its owner has renewed it since the last pass."""
    return Given({**lease.raw, "leaseCounter": int(fleet.scene.clock.monotonic())})


@area("lam.lease_count")
def by_number(given: Given) -> Observed:
    leases, workers = _counted(given)
    most = given.integer("max_leases") if given.has("max_leases") else None
    situation = _Situation(leases, workers, AssignmentLimits(max_leases=most))
    decided = situation.decide(lease_count)
    assigned = Counter(move.to for move in decided.moves if move.kind == "unserved")
    moves = [move for move in decided.moves if move.kind == "balance"]
    everybody = {worker.id: assigned[worker.id] for worker in workers}
    ours = situation.decide(balanced.count)
    observed: dict[str, Any] = {
        "assign": {move.lease: move.to for move in decided.moves if move.kind == "unserved"},
        "assigned": Either([everybody, dict(assigned)]),
        "kcl_assigned": Either([everybody, dict(assigned)]),
        "assigned_total": assigned.total(),
        "left": len(decided.unplaced),
        "spillover": len(decided.unplaced),
        "target": target_leases(len(leases), len(workers), most),
        "moves": len(moves),
        "moved": {move.lease: move.to for move in moves},
        "to": _only(move.to for move in moves),
        "counts": situation.counts(decided),
        "would_respect_cap": AtLeast(left=len(ours.unplaced), counts=situation.counts(ours)),
    }
    changed = {move.lease for move in decided.moves}
    for lease in leases:
        observed[f"{lease.key}_moved"] = lease.key in changed
    return observed


def _counted(given: Given) -> tuple[list[LeaseLoad], list[WorkerLoad]]:
    """Workers with what they hold: a number, leases, or rows beside a list of leases."""
    if "leases" in given:
        workers = [worker for worker in map(_worker, given.items_of("workers")) if worker is not None]
        return [_lease(lease) for lease in given.items_of("leases")], workers
    leases: list[LeaseLoad] = []
    held = given.record("workers")
    for worker in held:
        holds = held[worker]
        if isinstance(holds, list):
            leases += [_lease(Given({"owner": worker, **one})) for one in holds if isinstance(one, dict)]
        elif isinstance(holds, int):
            leases += [LeaseLoad(LeaseKey(f"{worker}-{n}"), owner=WorkerId(worker)) for n in range(holds)]
        else:
            raise NotUnderstood(f"worker {worker} holds {holds!r}")
    for number in range(given.integer("unassigned", default=0)):
        leases.append(LeaseLoad(LeaseKey(f"unassigned-{number}"), unserved="no worker owns it"))
    for number in range(given.integer("expired", default=0)):
        leases.append(
            LeaseLoad(LeaseKey(f"expired-{number}"), owner=WorkerId("gone"), unserved="expired", age=99.0)
        )
    for number in range(len(leases), given.integer("total_leases", default=0)):
        leases.append(LeaseLoad(LeaseKey(f"other-{number}"), owner=WorkerId("somebody else")))
    return leases, [WorkerLoad(WorkerId(worker)) for worker in held]
