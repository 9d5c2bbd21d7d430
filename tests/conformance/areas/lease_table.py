"""The transitions of a lease and how items are read."""

import re
from collections.abc import Callable
from dataclasses import replace

from kcl_dagster.errors import LeaseLost
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import HashRange
from kcl_dagster.tables.items import lease_from_item
from tests.conformance.agreement import AtLeast, Observed
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.lease_steps import LeaseSteps
from tests.conformance.registry import area
from tests.conformance.scene import Scene, item_of, memory_of, plain, remembered, unread_lease


def _set_up(given: Given) -> tuple[Scene, str]:
    """The table a case begins with, and the key of the lease it is about."""
    scene = Scene()
    items = [given.record("item")] if "item" in given else []
    if "items" in given or "table" in given:
        items += given.items_of("items", "table")
    for item in items:
        scene.put(item_of(item))
    if items:
        return scene, str(item_of(items[0])["leaseKey"]["S"])
    for name in ("in_memory_lease", "renewer_memory"):
        if name in given and "leaseKey" in given.record(name):
            return scene, given.record(name).text("leaseKey")
    return scene, given.text("key", default="1")


def _known(scene: Scene, key: str, given: Given) -> list[Lease]:
    """The lease as the acting process remembers it; several if the case tries several memories."""
    lease = scene.lease(key) if scene.item(key) is not None else unread_lease(key)
    memories = [lease]
    for name in ("in_memory_lease", "renewer_memory", "memory"):
        if name in given:
            memory = given.record(name)
            # A memory is told completely: an owner of whom it does not speak is not known.
            memories = [memory_of(replace(lease, checkpoint_owner=None), memory)]
            if "owners_tried" in memory:
                memories = [
                    memory_of(lease, Given({"leaseOwner": owner})) for owner in memory.sequence("owners_tried")
                ]
    for name, attribute in (("in_memory_owner", "leaseOwner"), ("in_memory_checkpoint_owner", "checkpointOwner")):
        if name in given:
            value = given[name]
            values = value if isinstance(value, list) else [value]
            memories = [memory_of(memory, Given({attribute: one})) for memory in memories for one in values]
    if "in_memory_counter" in given:
        memories = [memory_of(memory, Given({"leaseCounter": given["in_memory_counter"]})) for memory in memories]
    return memories


def _afterwards(scene: Scene, key: str) -> dict[str, object]:
    return {
        **plain(scene.item(key)),
        "table": [AtLeast(plain(item)) for item in scene.lease_items()],
        "exists": scene.item(key) is not None,
    }


def _told(scene: Scene, key: str, given: Given) -> Observed:
    """What a case with steps may ask about."""
    lease_steps = LeaseSteps(scene, key if scene.item(key) is not None else None)
    lease_steps.carry_out(given.texts("steps"))
    observed: dict[str, object] = {
        **_afterwards(scene, lease_steps.key or key),
        "results": lease_steps.results,
        "ok": lease_steps.results[-1],
    }
    for kind in ("renew", "take", "assign", "evict", "handoff", "create", "delete", "transfer"):
        done = lease_steps.of_kind(kind)
        if done:
            observed[f"{kind}_ok"] = done[-1]
            observed |= {
                f"{name}_{kind}_ok": ok for name, ok in zip(("first", "second", "third"), done, strict=False)
            }
    for kind in ("assign", "transfer"):
        if kind in lease_steps.kinds:
            before, after = lease_steps.counter_around(kind)
            observed |= {"counter_before_transfer": before, "counter_after_transfer": after}
    return observed


def _one_answer(answers: list[bool]) -> object:
    return answers[0] if len(set(answers)) == 1 else answers


def _transition(given: Given, act: Callable[[Scene, Lease], Lease | None]) -> Observed:
    scene, key = _set_up(given)
    if "steps" in given:
        return _told(scene, key, given)
    outcomes = [_tried(scene, memory, act) for memory in _known(scene, key, given)]
    observed = {**_afterwards(scene, key), "ok": _one_answer([outcome is not None for outcome in outcomes])}
    if outcomes[-1] is not None:
        observed["memory_after"] = AtLeast(remembered(outcomes[-1]))
    return observed


def _tried(scene: Scene, lease: Lease, act: Callable[[Scene, Lease], Lease | None]) -> Lease | None:
    """None: it was refused, by the table or because what is known of the lease already rules it out."""
    try:
        return act(scene, lease)
    except ValueError:
        return None


def _next_owner(given: Given) -> WorkerId:
    return WorkerId(given.text("new_owner", "next_owner", "to", default="new owner"))


@area("lease_table.renew")
def renew(given: Given) -> Observed:
    scene, key = _set_up(given)
    if "steps" in given:
        return _told(scene, key, given)
    return _renewed(scene, key, given)


def _renewed(scene: Scene, key: str, given: Given) -> Observed:
    (memory,) = _known(scene, key, given)
    after: Lease | None = None
    try:
        after = scene.table.renew(memory, given.number_or_none("throughput_kbps"))
    except LeaseLost:
        ok = False
    else:
        ok = True
    observed = {
        **_afterwards(scene, key),
        "ok": ok,
        "renew_ok": ok,
        "renew_attempts": scene.client.count("update_item"),
    }
    observed["memory_after"] = AtLeast(remembered(after or memory))
    return observed


@area("lease_table.take")
def take(given: Given) -> Observed:
    return _transition(given, lambda scene, lease: scene.table.take(lease, _next_owner(given)))


@area("lease_table.assign")
def assign(given: Given) -> Observed:
    return _transition(given, lambda scene, lease: scene.table.assign(lease, _next_owner(given)))


@area("lease_table.evict")
def evict(given: Given) -> Observed:
    return _transition(given, lambda scene, lease: scene.table.release(lease))


@area("lease_table.handoff")
def handoff(given: Given) -> Observed:
    if "renewer_memory" in given:
        scene, key = _set_up(given)
        return _renewed(scene, key, given)
    if "call" in given:
        return _called(given)
    return _transition(given, lambda scene, lease: scene.table.initiate_handoff(lease, _next_owner(given)))


def _called(given: Given) -> Observed:
    """`assign(lease,nxt)` and the like."""
    call = re.fullmatch(r"(\w+)\(lease(?:,\s*([^)]+))?\)", given.text("call"))
    if call is None:
        raise NotUnderstood(f"call {given['call']!r}")
    worker = WorkerId(call[2] or "")
    acts: dict[str, Callable[[Scene, Lease], Lease | None]] = {
        "assign": lambda scene, lease: scene.table.assign(lease, worker),
        "assignLease": lambda scene, lease: scene.table.assign(lease, worker),
        "transfer": lambda scene, lease: scene.table.transfer(lease),
        "take": lambda scene, lease: scene.table.take(lease, worker),
        "takeLease": lambda scene, lease: scene.table.take(lease, worker),
        "evict": lambda scene, lease: scene.table.release(lease),
        "evictLease": lambda scene, lease: scene.table.release(lease),
        "initiate": lambda scene, lease: scene.table.initiate_handoff(lease, worker),
    }
    if call[1] not in acts:
        raise NotUnderstood(f"call {given['call']!r}")
    return _transition(given, acts[call[1]])


@area("lease_table.update_meta")
def update_meta(given: Given) -> Observed:
    scene, key = _set_up(given)
    if "steps" in given:
        return _told(scene, key, given)
    ok = True
    if "hash_range" in given:
        start, end = (int(str(value)) for value in given.sequence("hash_range"))
        ok = scene.table.update_hash_range(LeaseKey(key), HashRange(start, end))
    if "child_shards" in given or "children" in given:
        children = frozenset(given.texts("child_shards", "children"))
        ok = scene.table.update_children(LeaseKey(key), children) and ok
    return {**_afterwards(scene, key), "ok": ok}


@area("lease_table.get")
def get(given: Given) -> Observed:
    scene, _ = _set_up(given)
    lease = scene.table.get(LeaseKey(given.text("key")))
    return {"lease": None if lease is None else AtLeast(plain(scene.item(lease.key)) | remembered(lease))}


@area("lease_table.delete")
def delete(given: Given) -> Observed:
    scene, key = _set_up(given)
    key = given.text("key", default=key)
    lease = scene.lease(key) if scene.item(key) is not None else unread_lease(key)
    ok = scene.table.delete(lease, forced=True)
    return {**_afterwards(scene, key), "ok": ok}


@area("lease_table.entity_type")
def entity_type(given: Given) -> Observed:
    if "operation" in given:
        if given.text("operation") != "create":
            raise NotUnderstood(f"operation {given['operation']!r}")
        scene = Scene()
        scene.table.create(unread_lease("created"))
        return plain(scene.item("created"))
    lease = lease_from_item(item_of(given.record("item")))
    return {"parsed_as": None if lease is None else "lease", "ignored": lease is None}


@area("lease_table.is_empty")
def is_empty(given: Given) -> Observed:
    if "pages" in given:
        pages = [
            [entry for text in page for entry in _described(text, number)]
            for number, page in enumerate(_pages(given))
        ]
    else:
        pages = [[item_of_any(item) for item in given.items_of("items")]]
    scene = Scene(page_items=max(1, min(len(page) for page in pages)) if pages else 1)
    for page in pages:
        for item in page:
            scene.put(item)
    return {"empty": not scene.table.has_leases()}


def _pages(given: Given) -> list[list[str]]:
    pages = given.sequence("pages")
    if not all(isinstance(page, list) for page in pages):
        raise NotUnderstood(f"pages {pages!r}")
    return [[str(entry) for entry in page] for page in pages if isinstance(page, list)]


def _described(text: str, page: int) -> list[dict[str, dict[str, str]]]:
    """`LEADER/WORKER_METRIC_STATS items only`, `one lease item`."""
    kinds = re.findall(r"\b[A-Z][A-Z_]+\b", text)
    items = [{"leaseKey": {"S": f"{page}-{kind}"}, "entityType": {"S": kind}} for kind in kinds if kind != "LEASE"]
    if re.search(r"\blease\b", text) or "LEASE" in kinds:
        items.append(item_of(Given({"leaseKey": f"{page}-lease"})))
    if not items:
        raise NotUnderstood(f"page {text!r}")
    return items


def item_of_any(given: Given) -> dict[str, dict[str, str]]:
    """A lease, or a row of another kind, which has none of a lease's attributes."""
    if given.text_or_none("entityType") not in (None, "LEASE"):
        return {"leaseKey": {"S": given.text("leaseKey", "k")}, "entityType": {"S": given.text("entityType")}}
    return item_of(given)
