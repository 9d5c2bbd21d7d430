"""KCL 2.x: workers that take and steal leases for themselves."""

from random import Random

from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.lease_taking import Candidate, TakingRules, loads
from kcl_dagster.runtime import Runtime
from kcl_dagster.worker.taking import Taker
from tests.conformance.agreement import AnyOrder, Observed
from tests.conformance.areas.small_rules import milliseconds
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.registry import area
from tests.conformance.scene import Scene, item_of

_LEASE_DURATION = 10.0
# Beyond the lease duration, but not yet very old.
_EXPIRED_AFTER = 1.5


@area("taker")
def taker(given: Given) -> Observed:
    scene = Scene()
    me = WorkerId(given.text("worker", default="me"))
    duration = milliseconds(given, "lease_duration") or _LEASE_DURATION
    leases = given.items_of("leases")
    for lease in leases:
        scene.put(item_of(lease))
    rules = TakingRules(
        lease_duration=duration,
        max_leases=given.integer("max_leases") if given.has("max_leases") else None,
        max_steals=given.integer("max_leases_to_steal", "max_steals", default=1),
        takes_very_old_first=given.flag("priority_assignment", "priority", default=True),
        very_old=given.integer("very_old_multiplier", default=3),
    )
    worker = Taker(scene.table, me, rules, Runtime(clock=scene.clock, random=Random(0)))
    keys = [lease.text("k", "key", "leaseKey") for lease in leases]
    if "scans" in given:
        return {"take_per_scan": [AnyOrder(taken) for taken in _scans(scene, worker, given, keys)]}
    found, plan = worker.look()
    if "expired" in given or "very_old" in given:
        for name, age in (("expired", _EXPIRED_AFTER), ("very_old", rules.very_old + 1)):
            if name not in given:
                continue
            scene.clock.advance(age * duration)
            standing = {*given.texts("expired", default=[]), *given.texts("very_old", default=[])}
            _renew(scene, [key for key in keys if key not in standing])
            found, plan = worker.look()
    stolen_from = {found[key].actual_owner for key in plan.steal}
    free = given.texts("expired") if "expired" in given else [k for k in keys if found[LeaseKey(k)].owner is None]
    counts = loads(
        [Candidate(lease.key, lease.actual_owner, 0.0) for lease in found.values()], me, set(map(LeaseKey, free))
    )
    return {
        "take": AnyOrder([*plan.take, *plan.steal]),
        "take_count": len(plan.take) + len(plan.steal),
        "steal": AnyOrder(list(plan.steal)),
        "steal_count": len(plan.steal),
        "stolen_from": next(iter(stolen_from), None),
        "target": plan.target,
        "spillover": plan.spillover,
        "counts": {"<null>" if owner is None else owner: count for owner, count in counts.items()},
    }


def _scans(scene: Scene, worker: Taker, given: Given, keys: list[str]) -> list[list[LeaseKey]]:
    began = scene.clock.monotonic()
    taken: list[list[LeaseKey]] = []
    for scan in given.items_of("scans"):
        at = milliseconds(scan, "at")
        if at is None:
            raise NotUnderstood("a scan without at_ms")
        scene.clock.advance(began + at - scene.clock.monotonic())
        moved = scan.first("counter_moved", "renewed", default=False)
        if moved is True:
            _renew(scene, keys)
        elif isinstance(moved, list):
            _renew(scene, [str(key) for key in moved])
        _, plan = worker.look()
        taken.append([*plan.take, *plan.steal])
    return taken


def _renew(scene: Scene, keys: list[str]) -> None:
    for key in keys:
        scene.change(key, leaseCounter=scene.lease(key).counter + 1)
