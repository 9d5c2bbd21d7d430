"""When the leader tells Dagster what it saw, and in which form.

Dagster keeps every event for ever and evaluates us 17,000 times a day, so events are rolled up: at once when
something changed, often for a while after that, seldom in calm.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dagster import (
    AssetCheckEvaluation,
    AssetMaterialization,
    AssetObservation,
    MetadataValue,
    TableColumn,
    TableRecord,
    TableSchema,
)

from kcl_dagster.model.lease import Lease
from kcl_dagster.orchestration import checks, picture
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.observation import Observation
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role

Event = AssetMaterialization | AssetObservation | AssetCheckEvaluation

LIVELY_SECONDS = 300.0  # after a change somebody is probably looking
LIVELY_PACE_SECONDS = 30.0
CALM_PACE_SECONDS = 60.0  # of lag, four numbers: 4 MB a day
TABLE_PACE_SECONDS = 900.0  # of what is only interesting when it changes
LEAST_PACE_SECONDS = 5.0  # a fleet that changes at every tick is still worth one event a tick
CHECK_PACE_SECONDS = 4 * 3600.0  # of a check whose answer stays the same
# Durations and shares change from tick to tick while what they are part of stays the same.
_PASSING = re.compile(r"\d+(\.\d+)?( ?s\b|%)")
MAX_ROWS = 12  # more than that Dagster hides behind a button


@dataclass
class Reporter:
    """Remembers what it has told. One per application and process; called under the leader's lock."""

    consumer: Consumer
    translator: KclTranslator
    _shape: object = None
    _changed: float = float("-inf")
    _told: dict[Role, float] = field(default_factory=dict)
    _checked: dict[str, tuple[bool, float]] = field(default_factory=dict)
    _wrong_since: dict[str, float] = field(default_factory=dict)
    _answered: set[str] = field(default_factory=set)
    _decided: dict[str, float] = field(default_factory=dict)

    def recall(self, evaluated: Iterable[str]) -> None:
        """Checks that were evaluated before this process; those that must be acknowledged stay as they are."""
        self._answered.update(evaluated)

    def news(self, decisions: Iterable[str], now: float) -> list[str]:
        """Those decisions that were not told lately. A launch is asked for until its run is seen, a problem noted
        for as long as it lasts; only the first time is news."""
        self._decided = {text: at for text, at in self._decided.items() if now - at < TABLE_PACE_SECONDS}
        fresh = []
        for line in decisions:
            text = _PASSING.sub("", line)
            if text not in self._decided:
                fresh.append(line)
            self._decided.setdefault(text, now)
        return fresh

    def events(self, seen: Observation, now: float) -> list[Event]:
        """What is worth telling now; `now` is monotonic."""
        if seen.shape != self._shape:
            self._shape, self._changed = seen.shape, now
            self._told = {role: at for role, at in self._told.items() if now - at < LEAST_PACE_SECONDS}
        lively = now - self._changed < LIVELY_SECONDS
        found: list[Event] = []
        for role, pace in (
            (Role.LEASES, TABLE_PACE_SECONDS),
            (Role.WORKERS, TABLE_PACE_SECONDS),
            (Role.LAG, CALM_PACE_SECONDS),
        ):
            if now - self._told.get(role, float("-inf")) >= (LIVELY_PACE_SECONDS if lively else pace):
                self._told[role] = now
                found.append(AssetMaterialization(self._key(role), metadata=_METADATA[role](seen)))
        found.extend(self._streams(seen, now, lively=lively))
        if seen.decisions:
            found.append(AssetMaterialization(self._key(Role.DECISIONS), metadata=_decisions(seen)))
        found.extend(self._checks(seen, now))
        return found

    def _streams(self, seen: Observation, now: float, *, lively: bool) -> Iterator[AssetObservation]:
        """The streams are observed: nobody here makes them."""
        pace = LIVELY_PACE_SECONDS if lively else TABLE_PACE_SECONDS
        if now - self._told.get(Role.STREAM, float("-inf")) < pace:
            return
        for stream in seen.streams:
            self._told[Role.STREAM] = now
            key = self.translator.get_asset_key(KclAsset(Role.STREAM, self.consumer, stream.name))
            yield AssetObservation(key, metadata={"open shards": stream.open_shards, "hole": stream.hole or "none"})

    def _checks(self, seen: Observation, now: float) -> Iterator[AssetCheckEvaluation]:
        for check, found in checks.evaluate(seen, self.consumer):
            if found is None:
                self._wrong_since.pop(check.name, None)
            if check.acknowledged and found is None and check.name in self._answered:
                continue
            self._answered.add(check.name)
            lasted = now - self._wrong_since.setdefault(check.name, now) if found is not None else 0.0
            problem = found if lasted >= check.patience else None
            passed, at = self._checked.get(check.name, (None, float("-inf")))
            if passed != (problem is None) or now - at >= CHECK_PACE_SECONDS:
                self._checked[check.name] = (problem is None, now)
                yield checks.evaluation(check, problem, self.consumer, self.translator)

    def _key(self, role: Role) -> Any:
        return self.translator.get_asset_key(KclAsset(role, self.consumer))


def _leases(seen: Observation) -> Mapping[str, Any]:
    still_open = seen.open_leases
    slots = {_slot(worker): leases for worker, leases in seen.shares.items()}
    return {
        "open leases": len(still_open),
        "unserved": len(seen.unserved),
        "in handoff": sum(lease.in_handoff for lease in still_open),
        "finished": len(seen.leases) - len(still_open),
        "leader": seen.leader or "nobody",
        "distribution": MetadataValue.md(picture.distribution(slots, len(seen.unserved))),
        "leases": _lease_table(seen),
    }


def _lease_table(seen: Observation) -> MetadataValue[Any]:
    """The worst first: unserved, then in handoff, then those that stood still longest."""
    unserved = set(seen.unserved)

    def badness(lease: Lease) -> tuple[bool, bool, float]:
        return (lease.key in unserved, lease.in_handoff, seen.ages.get(lease.key, 0.0))

    rows = [
        TableRecord(
            {
                "lease": picture.shard(lease.key),
                "owner": _slot(str(lease.actual_owner or "nobody")),
                "state": _state(lease, unserved=lease.key in unserved),
                "KB/s": round(lease.throughput_kbps or 0.0, 1),
                "still (s)": round(seen.ages.get(lease.key, 0.0)),
                "checkpoint": picture.shortened(str(lease.checkpoint or "none")),
            }
        )
        for lease in sorted(seen.open_leases, key=badness, reverse=True)[:MAX_ROWS]
    ]
    kinds = {"KB/s": "float", "still (s)": "int"}
    columns = ("lease", "owner", "state", "KB/s", "still (s)", "checkpoint")
    schema = TableSchema([TableColumn(name, kinds.get(name, "string")) for name in columns])
    return MetadataValue.table(rows, schema)


def _state(lease: Lease, *, unserved: bool) -> str:
    if unserved:
        return "unserved"
    return f"handoff to {_slot(str(lease.owner))}" if lease.in_handoff else "served"


def _workers(seen: Observation) -> Mapping[str, Any]:
    shares = seen.shares
    rows = [
        TableRecord(
            {
                "worker": str(row.id),
                "state": row.state.value,
                "leases": shares.get(str(row.id), 0),
                "behind (s)": round((row.lag_ms or 0) / 1000, 1),
                "run": row.run_id or "",
            }
        )
        for row in sorted(seen.workers, key=lambda row: -(row.lag_ms or 0))[:MAX_ROWS]
    ]
    columns = {"worker": "string", "state": "string", "leases": "int", "behind (s)": "float", "run": "string"}
    schema = TableSchema([TableColumn(name, kind) for name, kind in columns.items()])
    return {
        "workers": len(seen.workers),
        "most leases": max(shares.values(), default=0),
        "fewest leases": min(shares.values(), default=0),
        "runs waiting": len(seen.waiting_runs),
        "table": MetadataValue.table(rows, schema),
    }


def _lag(seen: Observation) -> Mapping[str, Any]:
    # What is not known is left out: zero would be a lie, and a gap in the plot is the truth.
    known = {}
    if seen.lag_seconds is not None:
        known["seconds behind"] = round(seen.lag_seconds, 1)
    if seen.retention_used is not None:
        known["retention used (%)"] = round(100 * seen.retention_used, 2)
    return {
        **known,
        "oldest counter (s)": round(max(seen.ages.values(), default=0.0), 1),
        "KB/s": round(sum(lease.throughput_kbps or 0.0 for lease in seen.open_leases), 1),
    }


def _decisions(seen: Observation) -> Mapping[str, Any]:
    shown = list(seen.decisions[:MAX_ROWS])
    return {"decisions": len(seen.decisions), "what": MetadataValue.md("\n".join(f"- {line}" for line in shown))}


_METADATA = {Role.LEASES: _leases, Role.WORKERS: _workers, Role.LAG: _lag}


def _slot(worker: str) -> str:
    return worker.partition(":")[0]
