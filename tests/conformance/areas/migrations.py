"""The KCL's two migrations."""

from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.tables.state import ClientVersion, TableStatus
from tests.conformance.agreement import AnyOf, Observed
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.registry import area
from tests.conformance.rules.migration_states import (
    ClientVersionConfig,
    leader_assigns,
    locks_legacy,
    lowest_support_code,
    next_stored_status,
    reads_legacy,
    starting_version,
    table_status,
    visible_rows,
    writes_legacy,
)

_NOW = 1_800_000_000


_VERSION = "CLIENT_VERSION_"
_CONFIG = "CLIENT_VERSION_CONFIG_"
_STATUS = "TABLE_MIGRATION_STATUS_"


@area("migration.client_version")
def client_version(given: Given) -> Observed:
    configured = _CONFIG + given.text("configured", "config").removeprefix(_CONFIG)
    stored = given.text_or_none("stored_cv", "stored")
    version = starting_version(ClientVersionConfig(configured), None if stored is None else _version(stored))
    name = "INIT" if version is None else version.removeprefix(_VERSION)
    return {"start_as": AnyOf.of(name, _VERSION + name), "leader_assigns": leader_assigns(version)}


def _version(text: str) -> ClientVersion | None:
    """INIT is what the KCL calls a fleet for which nothing is stored."""
    name = text.removeprefix(_VERSION)
    return None if name == "INIT" else ClientVersion(_VERSION + name)


@area("migration.table")
def table(given: Given) -> Observed:
    stored = _status(given.text_or_none("stored_tm", "stored"))
    migrate = given.flag("migrate_all_entities", "config", default=False)
    legacy_exists = given.flag("legacy_coordinator_table_exists", default=True)
    try:
        local = table_status(legacy_exists=legacy_exists, stored=stored, migrate=migrate)
    except ValueError:
        return {
            "local_status": AnyOf.of("error", "IllegalArgument", "IllegalStateException"),
            "error": AnyOf.of("IllegalArgument", "error"),
            "item_written": False,
        }
    after = stored
    if given.flag("is_leader", default=False):
        after = next_stored_status(
            local=local,
            stored=stored,
            stored_seconds=_seconds(given, "stored_age", "status_age", "age", "baked", default=0.0),
            support_code=given.integer("min_support_code", "support_code", default=0),
            legacy_workers=given.integer("workers_in_legacy_metrics", "legacy_workers", default=0),
            bake_seconds=_seconds(given, "bake", "bake_time", default=86_400.0),
        )
    return {
        "local_status": _names(local),
        "stored_tm": _names(after),
        "item_written": after is not stored,
        "reads_legacy": reads_legacy(local),
        "writes_legacy": writes_legacy(local),
        "locks_legacy": locks_legacy(local),
    }


def _status(text: str | None) -> TableStatus | None:
    return None if text is None else TableStatus(_STATUS + text.removeprefix(_STATUS))


def _names(status: TableStatus | None) -> AnyOf:
    return AnyOf.of(None) if status is None else AnyOf.of(status.value, status.removeprefix(_STATUS))


def _seconds(given: Given, *names: str, default: float) -> float:
    for name in names:
        for unit, factor in (("s", 1), ("seconds", 1), ("ms", 0.001), ("min", 60), ("h", 3600), ("hours", 3600)):
            if given.has(f"{name}_{unit}"):
                return given.number(f"{name}_{unit}") * factor
    return default


@area("migration.summary")
def summary(given: Given) -> Observed:
    observed: dict[str, object] = {}
    if "metrics" in given:
        rows = [_row(given.record("metrics").record(worker), worker) for worker in given.record("metrics")]
        owners = [WorkerId(owner) for owner in given.texts("lease_owners")]
        observed["min_support_code"] = lowest_support_code(owners, rows, _NOW)
    if given.has("status"):
        status = _status(given.text("status"))
        assert status is not None
        in_leases = [WorkerRow(WorkerId(worker), _NOW) for worker in given.texts("lease_table", default=[])]
        in_legacy = [WorkerRow(WorkerId(worker), _NOW) for worker in given.texts("legacy_table", default=[])]
        visible = visible_rows(status, in_leases, in_legacy)
        observed["worker_rows"] = len(visible)
        observed["workers"] = [row.id for row in visible]
        observed["legacy_scans"] = 1 if reads_legacy(status) else 0
        observed["lock_table"] = "legacy" if locks_legacy(status) else "lease"
    if not observed:
        raise NotUnderstood("neither metrics nor a status")
    return observed


def _row(given: Given, worker: str) -> WorkerRow:
    age = _seconds(given, "age", "slu_age", default=0.0)
    if not given.flag("fresh", default=True):
        age = 10_000.0
    support = given.number_or_none("sup")
    return WorkerRow(
        WorkerId(worker),
        _NOW,
        support_code=None if support is None else int(support),
        support_update=None if support is None else int(_NOW - age),
    )
