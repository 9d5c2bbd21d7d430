"""The KCL's two migrations, decided from what is stored.

A 2.x fleet becomes a 3.x fleet through the item `Migration3.0`; a 3.0-3.4 application moves from three tables into
one through `TableMigration3.5`. Both are carried out by Java workers. We obey what is stored, and these rules say
what a Java worker would do with it: before we touch a table, and when `doctor` explains why a fleet stands still.
Pure; the items themselves are read elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker import WorkerRow

SINGLE_TABLE_SUPPORT: Final = 1  # support code of workers that know the one-table layout
_REPORTER_PERIODS_FRESH = 3  # a support code not repeated for this many reports counts no more
REPORTER_PERIOD_SECONDS: Final = 30.0
_INIT_BAKE_SECONDS = 3600.0  # a fleet must support one table for this long before the move is allowed
DEFAULT_COMPLETE_BAKE_SECONDS: Final = 86_400.0
_COMPLETE_BAKE_LIMITS = (3600.0, 604_800.0)


class ClientVersion(StrEnum):
    """The algorithm a fleet runs: `cv` of `Migration3.0` without its prefix."""

    INIT = "INIT"
    V2 = "2X"
    UPGRADE_FROM_2X = "UPGRADE_FROM_2X"
    V3_WITH_ROLLBACK = "3X_WITH_ROLLBACK"
    V3 = "3X"

    @property
    def leader_assigns(self) -> bool:
        """Otherwise workers take and steal by the rules of 2.x, whatever they are configured to do."""
        return self in (ClientVersion.V3, ClientVersion.V3_WITH_ROLLBACK)


CLIENT_VERSION_PREFIX: Final = "CLIENT_VERSION_"


class ClientVersionConfig(StrEnum):
    """What a Java worker is configured to be."""

    COMPATIBLE_WITH_2X_PHASE1 = "COMPATIBLE_WITH_2X_PHASE1"
    COMPATIBLE_WITH_2X = "COMPATIBLE_WITH_2X"
    V3 = "3X"


_FIRST_VERSION: Final[Mapping[ClientVersionConfig, ClientVersion]] = {
    ClientVersionConfig.COMPATIBLE_WITH_2X_PHASE1: ClientVersion.INIT,
    ClientVersionConfig.COMPATIBLE_WITH_2X: ClientVersion.UPGRADE_FROM_2X,
    ClientVersionConfig.V3: ClientVersion.V3,
}


def starting_version(configured: ClientVersionConfig, stored: ClientVersion | None) -> ClientVersion:
    """What a Java worker starts as. The stored version wins, even 2.x over a configured 3.x."""
    if stored is None or stored is ClientVersion.INIT:
        return _FIRST_VERSION[configured]
    if stored is ClientVersion.V3_WITH_ROLLBACK and configured is ClientVersionConfig.V3:
        return ClientVersion.V3
    return stored


class TableStatus(StrEnum):
    """How far the move into one table has come: `tm` of `TableMigration3.5`."""

    INIT = "INIT"
    DEPLOYED = "DEPLOYED"
    PENDING = "PENDING"
    COMPLETE = "COMPLETE"

    @property
    def reads_legacy(self) -> bool:
        return self is not TableStatus.COMPLETE

    @property
    def writes_legacy(self) -> bool:
        """Worker rows and coordinator items; the lock has its own rule."""
        return self in (TableStatus.INIT, TableStatus.DEPLOYED)

    @property
    def locks_legacy(self) -> bool:
        return self is not TableStatus.COMPLETE


def table_status(*, legacy_exists: bool, stored: TableStatus | None, migrate: bool) -> TableStatus:
    """What a worker takes the status to be at start. `migrate` is the KCL's migrateAllEntitiesToLeaseTable.

    Raises ValueError where a Java worker refuses to start: told to migrate before the fleet is known to be able to.
    """
    if not legacy_exists or stored is TableStatus.COMPLETE:
        return TableStatus.COMPLETE
    if stored is None or stored is TableStatus.INIT:
        if migrate:
            msg = "the fleet is not yet known to support one table; deploy without the migration first"
            raise ValueError(msg)
        return TableStatus.INIT
    return TableStatus.PENDING if migrate else TableStatus.DEPLOYED


def next_stored_status(
    *,
    local: TableStatus,
    stored: TableStatus | None,
    stored_seconds: float = 0.0,
    support_code: int = 0,
    legacy_workers: int = 0,
    bake_seconds: float = DEFAULT_COMPLETE_BAKE_SECONDS,
) -> TableStatus | None:
    """What a Java leader leaves stored after one look; None is no item. Only the leader writes it.

    `stored_seconds` is the age of the stored status, `support_code` the fleet's lowest, `legacy_workers` how many
    live workers still write rows to the legacy table.
    """
    if stored is TableStatus.COMPLETE or local is TableStatus.COMPLETE:
        return stored
    if local is TableStatus.PENDING:
        if legacy_workers:
            return TableStatus.DEPLOYED
        if stored is not TableStatus.PENDING:
            return TableStatus.PENDING
        low, high = _COMPLETE_BAKE_LIMITS
        return TableStatus.COMPLETE if stored_seconds >= min(max(bake_seconds, low), high) else stored
    if local is TableStatus.DEPLOYED:
        return TableStatus.DEPLOYED
    if stored is None or stored is TableStatus.INIT:
        if support_code < SINGLE_TABLE_SUPPORT:
            return None
        baked = stored is TableStatus.INIT and stored_seconds >= _INIT_BAKE_SECONDS
        return TableStatus.DEPLOYED if baked else TableStatus.INIT
    return stored


def lowest_support_code(owners: Iterable[WorkerId], rows: Sequence[WorkerRow], now: float) -> int:
    """What every owner of a lease supports. Owners without a fresh word on it support nothing; so does no owner."""
    codes = {
        row.id: row.support_code or 0
        for row in rows
        if row.support_update is not None
        and now - row.support_update <= _REPORTER_PERIODS_FRESH * REPORTER_PERIOD_SECONDS
    }
    return min((codes.get(owner, 0) for owner in owners), default=0)


def visible_rows(
    status: TableStatus, lease_table: Sequence[WorkerRow], legacy: Sequence[WorkerRow]
) -> list[WorkerRow]:
    """The worker rows a Java leader counts. A worker in both tables counts twice."""
    return [*lease_table, *(legacy if status.reads_legacy else ())]
