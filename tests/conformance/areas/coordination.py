"""Worker rows, the leader lock, and waiting for parents."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kcl_dagster.leader.liveness import is_failing, is_valid
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.standing import Standing
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.tables.lock import LeaderLock
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.worker.parents import Parents
from tests.conformance.agreement import AtLeast, Either, Observed
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.registry import area
from tests.conformance.scene import Scene, attempt, item_of, unread_lease


def series_of(given: Given, name: str) -> dict[str, tuple[float, ...]] | None:
    if not given.has(name):
        return None
    values = given.record(name)
    return {metric: tuple(float(str(value)) for value in values.sequence(metric)) for metric in values}


def ranges_of(given: Given, name: str) -> dict[str, tuple[int, ...]] | None:
    series = series_of(given, name)
    return None if series is None else {metric: tuple(int(v) for v in values) for metric, values in series.items()}


def worker_row(given: Given, worker: str, last_update: int | None) -> WorkerRow:
    return WorkerRow(
        WorkerId(worker), last_update, averages=series_of(given, "sts"), operating_range=ranges_of(given, "opr")
    )


@area("worker_metrics.failing")
def failing(given: Given) -> Observed:
    return {"failing": is_failing(worker_row(given, "worker", 1))}


@area("worker_metrics.valid")
def valid(given: Given) -> Observed:
    updated = given.number_or_none("lut", "last_update")
    return {"valid": is_valid(worker_row(given, "worker", None if updated is None else int(updated)))}


@area("worker_metrics.write")
def write(given: Given) -> Observed:
    scene = Scene()
    workers = WorkerTable(scene.client, scene.application, scene.layout, scene.runtime)
    writes = [given.record(name) for name in ("first", "second", "third") if name in given] or [given]
    for one in writes:
        age = one.number("lut_age_s", "age_s", default=0.0)
        updated: int | None = int(scene.clock.now() - age)
        if "lut" in one:
            updated = None if one["lut"] is None else one.integer("lut")
        workers.put(worker_row(one, "worker", updated))
    row = workers.get(WorkerId("worker"))
    assert row is not None
    return {
        "sts": _listed(row.averages),
        "opr": _listed(row.operating_range),
        "entityType": (scene.item("worker") or {}).get("entityType", {}).get("S"),
    }


def _listed(series: Any) -> dict[str, list[float]] | None:
    return None if series is None else {metric: list(values) for metric, values in series.items()}


@area("worker_metrics.delete")
def delete(given: Given) -> Observed:
    scene = Scene()
    workers = WorkerTable(scene.client, scene.application, scene.layout, scene.runtime)
    now = int(scene.clock.now())

    def moment(name: str) -> int:
        value = given[name]
        return now if value == "now" else given.integer(name)

    row = WorkerRow(WorkerId("worker"), now, averages={}, operating_range={})
    if given.has("stored_lut"):
        workers.put(row)
        scene.change("worker", lut=None)
        item = scene.item("worker") or {}
        scene.put({**item, "lut": {"N": str(moment("stored_lut"))}})
    ok = workers.delete(replace(row, last_update=moment("delete_with_lut")))
    return {"ok": ok, "row_still_there": workers.get(WorkerId("worker")) is not None}


@area("leader.lock")
def lock(given: Given) -> Observed:
    scene = Scene()

    def candidate(name: str) -> tuple[LeaderLock, Standing]:
        duration = given.number("duration_ms", "lease_duration_ms", default=120_000.0) / 1000
        made = LeaderLock(scene.client, scene.application, scene.layout, scene.runtime, name, duration)
        return made, Standing()

    if "item" in given:
        item = {name: {"S": str(value)} for name, value in given.record("item").items()}
        scene.put({"entityType": {"S": "LEADER"}, "leaseKey": {"S": "Leader"}, **item})
    observed: dict[str, object] = {}
    if "workers" in given:
        candidates = [candidate(f"worker-{number}") for number in range(given.integer("workers"))]
        observed["leaders"] = sum(one.hold(standing).held for one, standing in candidates)
    mine, standing = candidate(given.text("worker", default="me"))
    if "looks_ms" in given:
        began = scene.clock.monotonic()
        held = []
        for look in given.sequence("looks_ms"):
            scene.clock.advance(began + float(str(look)) / 1000 - scene.clock.monotonic())
            held.append(mine.hold(standing).held)
        observed["is_leader"] = held
    if "steps" in given:
        observed |= _acted(given.texts("steps"), given.text("worker", default="me"), candidate)
    stored = scene.item("Leader")
    observed |= {"item_exists": stored is not None, "owner": stored["ownerName"]["S"] if stored else None}
    observed["item"] = (
        None if stored is None else AtLeast({name: next(iter(v.values())) for name, v in stored.items()})
    )
    return observed


def _acted(
    steps: list[str], default: str, candidate: Callable[[str], tuple[LeaderLock, Standing]]
) -> dict[str, object]:
    """`acquire`, `shutdown`, or the same of somebody by name: `w2 acquire`."""
    locks: dict[str, tuple[LeaderLock, Standing]] = {}
    leads: dict[str, bool] = {}
    each = []
    for step in steps:
        act = re.fullmatch(r"(?:(\S+) )?(acquire|heartbeat|look|shutdown|release|stop)s?", step)
        if act is None:
            raise NotUnderstood(f"step {step!r}")
        who = act[1] or default
        lock, standing = locks.setdefault(who, candidate(who))
        if act[2] in ("acquire", "heartbeat", "look"):
            leads[who] = lock.hold(standing).held
        else:
            lock.release()
            leads[who] = lock.peek() == who
        each.append(leads[who])
    return {"is_leader": Either([leads[next(reversed(leads))], leads, each]), "leaders": sum(leads.values())}


@area("lifecycle.parents")
def parents(given: Given) -> Observed:
    scene = Scene()
    names = _parents(given)
    leases = _parent_leases(given)
    for name in leases:
        state = leases[name]
        if state is not None:
            described = dict(state) if isinstance(state, dict) else {"checkpoint": str(state)}
            scene.put(item_of(Given({"leaseKey": name, **described})))
    child = replace(unread_lease("child"), parents=frozenset(names))
    waiting = Parents(scene.table, scene.clock, poll_seconds=10.0)
    blocked, raised = attempt(lambda: waiting.is_blocked(child))
    if raised is not None:
        raise raised
    return {"blocked": blocked, "blocked_by": next((key for key in names if scene.table.get(LeaseKey(key))), None)}


_PARENT_LEASES = ("parent_leases", "parent_checkpoints", "leases", "checkpoints", "parents")


def _parents(given: Given) -> list[str]:
    if "parent_ids" in given:
        return given.texts("parent_ids")
    told = given.first("parents", "parent_leases")
    if isinstance(told, dict):
        return list(told)
    return [one if isinstance(one, str) else Given(one).text("id", "k") for one in given.sequence("parents")]  # type: ignore[arg-type]


def _parent_leases(given: Given) -> Given:
    """What stands in the table for each parent: a checkpoint, an item, or nothing."""
    for name in _PARENT_LEASES:
        told = given.first(name, default=None)
        if isinstance(told, dict):
            return Given(told)
        if isinstance(told, list) and any(isinstance(one, dict) for one in told):
            rows = given.items_of(name)
            return Given({one.text("id", "k", "leaseKey"): one.first("checkpoint", default=None) for one in rows})
    return Given({})
