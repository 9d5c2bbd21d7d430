"""A worker's leases: acquiring, renewing, checkpointing, discovering."""

from typing import Any

from kcl_dagster.errors import KclError
from kcl_dagster.model.checkpoint import Checkpoint, is_sequence_number
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.worker.discovery import Discoverer
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.renewal import Renewer
from tests.conformance.agreement import AnyOrder, AtLeast, Observed
from tests.conformance.areas.small_rules import milliseconds
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.javanames import java_names
from tests.conformance.lease_steps import LeaseSteps
from tests.conformance.registry import area
from tests.conformance.scene import Scene, attempt, item_of, remembered

_LEASE_DURATION = 10.0
_SENTINELS = ("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "SHARD_END")


def _items(given: Given, *names: str) -> list[Given]:
    """Leases as objects or as bare keys."""
    return [_lease(value) for value in given.sequence(*names)]


def _lease(value: object) -> Given:
    if isinstance(value, str):
        return Given({"k": value})
    if isinstance(value, dict):
        return Given(value)
    raise NotUnderstood(f"lease {value!r}")


def _hold(scene: Scene, holdings: Holdings, worker: str, lease: Given) -> None:
    """Put a lease of `worker` into the table and into its memory, then let the table become what is given."""
    item = item_of(lease)
    key = LeaseKey(item["leaseKey"]["S"])
    counter = int(item["leaseCounter"]["N"])
    plain = {
        **item,
        "leaseOwner": {"S": worker},
        "leaseCounter": {"N": str(max(0, counter - 1))},
    }  # acquiring renews
    plain.pop("checkpointOwner", None)
    scene.put(plain)
    found = scene.table.get(key)
    if found is None or holdings.acquire(found) is None:
        raise NotUnderstood(f"lease {key} cannot be held")
    if "checkpointOwner" in lease or lease.text_or_none("o", "leaseOwner", "owner") not in (None, worker):
        owner = lease.text_or_none("o", "leaseOwner", "owner") or worker
        scene.change(key, leaseOwner=owner, checkpointOwner=lease.text_or_none("checkpointOwner"))


def _renew_all(scene: Scene, holdings: Holdings) -> Renewer:
    renewer = Renewer(holdings, interval=0.0, handoff_timeout=30.0, clock=scene.clock)
    renewer.step()
    return renewer


@area("renewer.initialize")
def initialize(given: Given) -> Observed:
    scene = Scene()
    worker = given.text("worker", default="W")
    for item in _items(given, "items", "leases"):
        scene.put(item_of(item))
    holdings = scene.holdings(worker, _LEASE_DURATION)
    Discoverer(scene.table, WorkerId(worker), holdings).step()
    return {"held": AnyOrder(sorted(holdings.keys())), "held_count": len(holdings.keys())}


@area("renewer.renew")
def renew(given: Given) -> Observed:
    scene = Scene()
    worker = given.text("worker", default="W")
    holdings = scene.holdings(worker, _LEASE_DURATION)
    if "steps" in given:
        return _renewed_in_steps(scene, holdings, worker, given.texts("steps"))
    for lease in _items(given, "held", "leases"):
        _hold(scene, holdings, worker, lease)
    if "event" in given:
        LeaseSteps(scene).carry_out([given.text("event")])
    if "events" in given:
        LeaseSteps(scene).carry_out(given.texts("events"))
    _renew_all(scene, holdings)
    return {"held_after": AnyOrder(sorted(holdings.keys())), "held": AnyOrder(sorted(holdings.keys()))}


def _renewed_in_steps(scene: Scene, holdings: Holdings, worker: str, steps: list[str]) -> Observed:
    """After each renewal: how often has the worker been shown that it should hand the lease over?"""
    _hold(scene, holdings, worker, Given({"k": "lease"}))
    lease_steps = LeaseSteps(scene, "lease")
    shown = 0
    counts = []
    for step in steps:
        if step != "renew":
            lease_steps.carry_out([step])
            continue
        attempt(lambda: holdings.renew(LeaseKey("lease")))
        shown += "lease" in holdings.in_handoff()
        counts.append(shown)
    return {"callback_counts": counts, "held_after": AnyOrder(sorted(holdings.keys()))}


@area("renewer.add")
def add(given: Given) -> Observed:
    """A lease is held from its first renewal on: one that was never renewed may not be trusted for any time."""
    scene = Scene()
    lease = given.record("lease")
    worker = given.text("worker", default=lease.text_or_none("o", "owner", "leaseOwner") or "W")
    scene.put(item_of(lease))
    if not lease.has("last_counter_increment_ns"):
        scene.client.failing.add("update_item")
    holdings = scene.holdings(worker, _LEASE_DURATION)
    Discoverer(scene.table, WorkerId(worker), holdings).step()
    return {"held": AnyOrder(sorted(holdings.keys()))}


@area("renewer.update")
def update(given: Given) -> Observed:
    scene = Scene()
    held = given.record("held")
    worker = held.text_or_none("o", "owner", "leaseOwner") or given.text("worker", default="W")
    # Far beyond the deadline of a single write: a failing table must not look like an expired lease.
    holdings = scene.holdings(worker, lease_duration=3600.0)
    _hold(scene, holdings, worker, held)
    key = LeaseKey(held.text("k", "leaseKey"))
    holding = holdings.get(key)
    assert holding is not None
    if "event" in given:
        LeaseSteps(scene, key).carry_out([given.text("event")])
    if "token" in given and given["token"] in ("wrong", "stale", "another"):
        holding_token = holding.token - 1
    else:
        holding_token = holding.token
    if "table" in given:
        if not given.text("table").startswith("throws"):
            raise NotUnderstood(f"table {given['table']!r}")
        scene.client.failing.add("update_item")
    wanted = _checkpoint(given.record("update").text("checkpoint"))
    _, raised = attempt(lambda: holdings.checkpoint(key, holding_token, wanted))
    scene.client.failing.clear()
    after = holdings.get(key)
    item = scene.item(key) or {}
    observed: dict[str, Any] = {
        "update_ok": raised is None,
        "still_held": after is not None,
        "leaseCounter_after_update": None if after is None else after.lease.counter,
        "checkpoint": item.get("checkpoint", {}).get("S"),
        "memory": AtLeast(remembered(after.lease if after is not None else holding.lease)),
        "error": None,
    }
    if isinstance(raised, KclError) and after is not None:  # a lost lease is an answer, not an error
        observed["error"] = java_names(raised)

    def after_renewal() -> int | None:
        holdings.renew(key)
        renewed = holdings.get(key)
        return None if renewed is None else renewed.lease.counter

    observed["leaseCounter_after_renewal"] = after_renewal
    return observed


def _checkpoint(text: str) -> Checkpoint:
    """Cases use any text for a sequence number; the protocol knows numbers only."""
    if text in _SENTINELS or is_sequence_number(text):
        return Checkpoint(text)
    return Checkpoint(str(int.from_bytes(text.encode(), "big")))


@area("renewer.local_expiry")
def local_expiry(given: Given) -> Observed:
    duration = milliseconds(given, "lease_duration")
    age = milliseconds(given, "last_successful_renewal_age", "age")
    if duration is None or age is None:
        raise NotUnderstood("given has no lease_duration_ms or last_successful_renewal_age_ms")
    scene = Scene()
    holdings = scene.holdings("W", duration)
    _hold(scene, holdings, "W", Given({"k": given.text("key", default="lease")}))
    scene.clock.advance(age)
    return {
        "held": AnyOrder([holding.key for holding in holdings.holdings()]),
        "held_count": len(holdings.holdings()),
    }


@area("discoverer")
def discoverer(given: Given) -> Observed:
    scene = Scene()
    worker = given.text("worker", default="W")
    holdings = scene.holdings(worker, _LEASE_DURATION)
    for lease in _items(given, "held") if "held" in given else []:
        _hold(scene, holdings, worker, lease)
    before = holdings.keys()
    listed = given.texts("index")
    rows = given.record("items") if "items" in given else Given({})
    for key in listed:
        if key not in before and ("items" not in given or key in rows):
            described = dict(rows.record(key)) if key in rows else {"leaseOwner": worker}
            scene.put(item_of(Given({"leaseKey": key, **described})))
    # The index is late by nature, so it says what the case says and not what the table holds.
    scene.client.answers["query"] = lambda **_: {"Items": [{"leaseKey": {"S": key}} for key in listed]}
    if "get_item" in given:
        scene.client.failing.add("get_item")
    Discoverer(scene.table, WorkerId(worker), holdings).step()
    return {
        "new": AnyOrder(sorted(holdings.keys() - before)),
        "held": AnyOrder(sorted(holdings.keys())),
        "new_count": len(holdings.keys() - before),
    }
