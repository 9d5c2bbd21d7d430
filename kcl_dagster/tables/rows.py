"""Converts between `WorkerRow` and its item in the table."""

from collections.abc import Mapping
from typing import Any, Final

from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow, WorkerState
from kcl_dagster.tables.attributes import ENTITY_TYPE, LEASE_KEY, WORKER, Item, ItemReader, Value, java_double, n, s

LAST_UPDATE: Final = "lut"
AVERAGES: Final = "sts"
OPERATING_RANGE: Final = "opr"
SUPPORT_CODE: Final = "sup"
SUPPORT_UPDATE: Final = "slu"
PROPERTIES: Final = "properties"
# Attributes of kcl_dagster. The KCL ignores them, and does not remove them.
SLOT: Final = "kdSlot"
RUN_ID: Final = "kdRunId"
STATE: Final = "kdState"
BEAT: Final = "kdBeat"
ZONE: Final = "kdZone"
DRAIN: Final = "kdDrain"
LAG: Final = "kdLagMs"
BEHIND: Final = "kdBehindMs"
STOPPED: Final = "kdStopped"
WHY_STOPPED: Final = "kdWhyStopped"
FAILING: Final = "kdFailing"
WHY_FAILING: Final = "kdWhyFailing"
ATTEMPTS: Final = "kdAttempts"
SLOW_SINCE: Final = "kdSlowSince"
HELD_SINCE: Final = "kdHeldSince"
LEASE_MS: Final = "kdLeaseMs"

# Seconds. If `last_update` is longer ago, the KCL does not write the row, because the worker would count as dead.
OLDEST_REPORT: Final = 60


def worker_row_from_item(item: Mapping[str, Any], *, key: str = LEASE_KEY) -> WorkerRow | None:
    """Return the worker row in an item; None for a row of another kind. `key`: the table's key attribute.

    In the lease table, `entityType` marks worker rows. In the older table for workers, a row need not have this
    attribute.
    """
    reader = ItemReader(item, key)
    kind = reader.text(ENTITY_TYPE)
    if kind != WORKER and not (kind is None and key != LEASE_KEY):
        return None
    state = reader.text(STATE)
    if state is not None and state not in set(WorkerState):
        reader.refuse(STATE, f"should be one of {[str(s) for s in WorkerState]}, is {state!r}")
    return WorkerRow(
        id=WorkerId(reader.key),
        last_update=reader.whole(LAST_UPDATE),
        averages=_series(reader, AVERAGES),
        operating_range=_ranges(reader),
        support_code=reader.whole(SUPPORT_CODE),
        support_update=reader.whole(SUPPORT_UPDATE),
        slot=reader.text(SLOT),
        run_id=reader.text(RUN_ID),
        state=WorkerState(state) if state is not None else WorkerState.RUNNING,
        beat=reader.whole(BEAT) or 0,
        zone=reader.text(ZONE),
        drain_requested=reader.flag(DRAIN) or False,
        lag_ms=reader.whole(LAG),
        behind=_by_lease(reader, BEHIND),
        stopped=_leases(reader, STOPPED),
        why_stopped=_read_texts(reader, WHY_STOPPED),
        failing=_leases(reader, FAILING),
        why_failing=_read_texts(reader, WHY_FAILING),
        attempts=_read_texts(reader, ATTEMPTS),
        slow_since=_by_lease(reader, SLOW_SINCE),
        held_since=_whole_numbers(reader, HELD_SINCE),
        lease_ms=reader.whole(LEASE_MS),
        properties=_properties(reader),
    )


def worker_row_values(row: WorkerRow) -> dict[str, Value]:
    """Return the attributes that one heartbeat writes. As in the KCL, a field that is None leaves its attribute
    unchanged.

    The result does not include the key. It also leaves out two attributes that workers do not write: `kdDrain`,
    which the leader or an operator writes, and `properties`, which no component writes.
    """
    values: dict[str, Value | None] = {
        LAST_UPDATE: None if row.last_update is None else n(row.last_update),
        AVERAGES: None if row.averages is None else _numbers(row.averages, _double),
        OPERATING_RANGE: None if row.operating_range is None else _numbers(row.operating_range, n),
        SUPPORT_CODE: None if row.support_code is None else n(row.support_code),
        SUPPORT_UPDATE: None if row.support_update is None else n(row.support_update),
        SLOT: None if row.slot is None else s(row.slot),
        RUN_ID: None if row.run_id is None else s(row.run_id),
        STATE: None if row.slot is None else s(row.state),
        BEAT: None if row.slot is None else n(row.beat),
        ZONE: None if row.zone is None else s(row.zone),
        LAG: None if row.lag_ms is None else n(row.lag_ms),
        BEHIND: None if row.behind is None else {"M": {lease: n(ms) for lease, ms in row.behind.items()}},
        STOPPED: None if row.stopped is None else {"L": [s(lease) for lease in row.stopped]},
        WHY_STOPPED: None if row.why_stopped is None else {"M": _texts(row.why_stopped)},
        FAILING: None if row.failing is None else {"L": [s(lease) for lease in row.failing]},
        WHY_FAILING: None if row.why_failing is None else {"M": _texts(row.why_failing)},
        ATTEMPTS: None if row.attempts is None else {"M": _texts(row.attempts)},
        SLOW_SINCE: None
        if row.slow_since is None
        else {"M": {lease: n(at) for lease, at in row.slow_since.items()}},
        HELD_SINCE: None
        if row.held_since is None
        else {"M": {thread: n(at) for thread, at in row.held_since.items()}},
        LEASE_MS: None if row.lease_ms is None else n(row.lease_ms),
    }
    return {name: value for name, value in values.items() if value is not None}


def worker_row_to_item(row: WorkerRow, *, key: str = LEASE_KEY) -> Item:
    """Return the whole row as an item, for golden files and for fakes."""
    item: Item = {key: s(row.id)}
    if key == LEASE_KEY:
        item[ENTITY_TYPE] = s(WORKER)
    item |= worker_row_values(row)
    if row.drain_requested:
        item[DRAIN] = {"BOOL": True}
    if row.properties:
        item[PROPERTIES] = {"M": {name: s(value) for name, value in row.properties.items()}}
    return item


def why_not_writable(row: WorkerRow, now: float) -> str | None:
    """Return why the KCL would not write the row; None if it would. If there are several reasons, return the reason
    that the KCL checks first."""
    if row.last_update is None:
        return "has no last_update"
    if now - row.last_update > OLDEST_REPORT:
        return f"was measured {now - row.last_update:.0f} s ago, more than {OLDEST_REPORT} s"
    if row.averages is None:
        return "has no averages (an empty mapping says: judge me by throughput)"
    for metric, series in row.averages.items():
        if not series:
            return f"has an empty series of {metric}"
    return None


def _double(number: float) -> Value:
    return {"N": java_double(float(number))}


def _numbers(series: Mapping[str, tuple[Any, ...]], each: Any) -> Value:
    return {"M": {metric: {"L": [each(v) for v in values]} for metric, values in series.items()}}


def _lists(reader: ItemReader, attribute: str) -> dict[str, list[object]] | None:
    members = reader.mapping(attribute)
    if members is None:
        return None
    found: dict[str, list[object]] = {}
    for metric, value in members.items():
        entries = value.get("L") if isinstance(value, Mapping) and set(value) == {"L"} else None
        if not isinstance(entries, (list, tuple)):
            reader.refuse(attribute, f"should hold a list of numbers under {metric!r}")
        for entry in entries:
            if not isinstance(entry, Mapping) or set(entry) != {"N"}:
                reader.refuse(attribute, f"should hold numbers only under {metric!r}")
        found[metric] = [entry["N"] for entry in entries]
    return found


def _series(reader: ItemReader, attribute: str) -> dict[str, tuple[float, ...]] | None:
    lists = _lists(reader, attribute)
    if lists is None:
        return None
    return {metric: tuple(reader.as_number(attribute, v) for v in values) for metric, values in lists.items()}


def _ranges(reader: ItemReader) -> dict[str, tuple[int, ...]] | None:
    series = _series(reader, OPERATING_RANGE)
    if series is None:
        return None
    for metric, values in series.items():
        if any(v != int(v) for v in values):
            reader.refuse(OPERATING_RANGE, f"should hold whole numbers under {metric!r}")
    return {metric: tuple(int(v) for v in values) for metric, values in series.items()}


def _whole_numbers(reader: ItemReader, attribute: str) -> dict[str, int] | None:
    members = reader.mapping(attribute)
    if members is None:
        return None
    named = ItemReader({**members, LEASE_KEY: s(reader.key)}, LEASE_KEY)
    return {name: named.required_whole(name) for name in members}


def _by_lease(reader: ItemReader, attribute: str) -> dict[LeaseKey, int] | None:
    numbers = _whole_numbers(reader, attribute)
    return None if numbers is None else {LeaseKey(lease): number for lease, number in numbers.items()}


def _leases(reader: ItemReader, attribute: str) -> tuple[LeaseKey, ...] | None:
    entries = reader.raw(attribute, "L")
    if entries is None:
        return None
    texts = [entry.get("S") if isinstance(entry, Mapping) else None for entry in entries]
    if not all(isinstance(text, str) and text for text in texts):
        reader.refuse(attribute, "should hold names of leases only")
    return tuple(LeaseKey(str(text)) for text in texts)


def _texts(values: Mapping[LeaseKey, str]) -> dict[str, Value]:
    return {lease: s(text) for lease, text in values.items() if text}


def _read_texts(reader: ItemReader, attribute: str) -> dict[LeaseKey, str] | None:
    """Return the texts of a map. Values of other types are left out and not refused, because the texts are only
    shown to people."""
    members = reader.mapping(attribute)
    if members is None:
        return None
    texts = {lease: value.get("S") if isinstance(value, Mapping) else None for lease, value in members.items()}
    return {LeaseKey(lease): text for lease, text in texts.items() if isinstance(text, str)}


def _properties(reader: ItemReader) -> dict[str, str]:
    found = {}
    for name, value in (reader.mapping(PROPERTIES) or {}).items():
        text = value.get("S") if isinstance(value, Mapping) else None
        if isinstance(text, str) and text:  # no component uses properties, so values of other types are left out
            found[name] = text
    return found
