"""The leader's passes: expiry, loading, handoffs, clean-up of worker rows, and how often."""

from dataclasses import replace
from typing import Any

from kcl_dagster.leader.assignment.variance import Variance, VarianceSettings
from tests.conformance.agreement import AnyOrder, Observed
from tests.conformance.areas.small_rules import milliseconds
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.fleet import Fleet
from tests.conformance.registry import area
from tests.conformance.rules.assignment_interval import assignment_interval

_LEASE_DURATION = 10.0


def _fleet(given: Given) -> Fleet:
    timings: dict[str, float] = {"lease_duration": milliseconds(given, "lease_duration") or _LEASE_DURATION}
    handoff = milliseconds(given, "handoff_timeout")
    if handoff is not None:
        timings["handoff_timeout"] = handoff
    policy: dict[str, Any] = {"graceful": given.flag("graceful", default=True)}
    fleet = Fleet(policy=policy, timings=timings)
    fleet.put_leases(_objects(given, "leases", "items"))
    fleet.put_workers(_workers(given))
    return fleet


def _objects(given: Given, *names: str) -> list[Given]:
    return given.items_of(*names) if any(name in given for name in names) else []


def _workers(given: Given) -> list[Given]:
    """Worker rows, or bare names of workers with nothing to say but that they live."""
    told = given.sequence("workers", default=[given["worker"]] if "worker" in given else [])
    return [Given({"id": one, "sts": {}, "opr": {}}) if isinstance(one, str) else Given(dict(one)) for one in told]  # type: ignore[call-overload]


@area("lam.expiry")
def expiry(given: Given) -> Observed:
    fleet = _fleet(given)
    began = fleet.scene.clock.monotonic()
    before = fleet.owners()
    after = []
    for one in given.items_of("passes"):
        at = milliseconds(one, "t")
        if at is not None:
            fleet.scene.clock.advance(max(0.0, began + at - fleet.scene.clock.monotonic()))
        for key in _renewed(one, fleet):
            fleet.scene.change(key, leaseCounter=fleet.scene.lease(key).counter + 1)
        fleet.put_workers(_workers(given))
        fleet.lead(leads=one.flag("leader", default=True))
        after.append(fleet.assigned(before))
    return {"after": after}


def _renewed(given: Given, fleet: Fleet) -> list[str]:
    """Leases whose counter moved before this pass: by name, or all that are owned."""
    moved = given.first("renewed", "counter_moved", default=[])
    if moved is True:
        return [key for key, owner in fleet.owners().items() if owner is not None]
    return [str(key) for key in moved] if isinstance(moved, list) else []


@area("lam.load")
def load(given: Given) -> Observed:
    fleet = _fleet(given)
    before = fleet.owners()
    if "scan" in given:
        if not given.text("scan").endswith("throws"):
            raise NotUnderstood(f"scan {given['scan']!r}")
        # An error that no single request repeats, so that what is counted are the passes' own attempts.
        fleet.scene.client.code = "ValidationException"
        fleet.scene.client.failing.add("scan")
    fleet.scene.client.calls.clear()
    report = fleet.lead()
    failed = {stage.name: stage.error for stage in report.stages if not stage.ok}
    return {
        "scan_calls_in_one_pass": fleet.scene.client.count("scan"),
        "assign": fleet.assigned(before),
        "error": failed.get("observe") or failed.get("assign"),
        "unreadable": len(report.unreadable),
    }


@area("lam.schedule")
def schedule(given: Given) -> Observed:
    failover = milliseconds(given, "failover")
    if failover is None:
        raise NotUnderstood("given has no failover_ms")
    asked = given.first("interval_ms", default=None)
    delays = [_delay(failover, one) for one in (asked if isinstance(asked, list) else [asked])]
    return {"initial_delay_ms": 0, "fixed_delay_ms": delays if isinstance(asked, list) else delays[0]}


def _delay(failover: float, interval_ms: object) -> float:
    configured = None if interval_ms is None else float(str(interval_ms)) / 1000
    return assignment_interval(failover, configured) * 1000


@area("lam.handoff")
def handoff(given: Given) -> Observed:
    fleet = _fleet(given)
    # The KCL's own tests of handoffs balance in every pass and take four fifths of the excess at once.
    fleet.leader.balances_every = 0.0
    if isinstance(fleet.leader.policy, Variance):
        fleet.leader.policy = replace(fleet.leader.policy, settings=VarianceSettings(dampening=0.8))
    in_handoff: list[frozenset[str]] = []
    passes = given.first("passes", default=1)
    between = milliseconds(given, "between_passes")
    for _ in range(passes if isinstance(passes, int) else len(given.sequence("passes"))):
        fleet.lead()
        in_handoff.append(frozenset(key for key, owner in fleet.owners("checkpointOwner").items() if owner))
        for key in fleet.owners():
            fleet.scene.change(key, leaseCounter=fleet.scene.lease(key).counter + 1)  # owners live
        fleet.scene.clock.advance(between if between is not None else 1.0)
        fleet.put_workers(_workers(given))
    return {
        "leases_with_checkpoint_owner": [len(leases) for leases in in_handoff],
        "same_lease": len(set(in_handoff)) == 1,
        "owners": fleet.owners(),
    }


@area("lam.metrics_cleanup")
def metrics_cleanup(given: Given) -> Observed:
    fleet = _fleet(given)
    stale = given.number_or_none("stale_after_hours")
    if stale is not None:
        fleet.leader.cleaner.stale_row_seconds = stale * 3600
    fleet.lead()
    rows = [worker.text("id") for worker in _workers(given) if fleet.scene.item(worker.text("id")) is not None]
    return {"rows_left": AnyOrder(rows), "rows_left_count": len(rows)}
