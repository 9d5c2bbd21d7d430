"""The KCL's two migrations, decided from what is stored.

A 2.x fleet becomes a 3.x fleet through the row `Migration3.0`; a 3.0-3.4 application moves from three tables into
one through `TableMigration3.5`. Both are carried out by Java workers. The package obeys what is stored
(`kcl_dagster.tables.state`), and these rules say what a Java worker would do with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.tables.state import ClientVersion, TableStatus

SINGLE_TABLE_SUPPORT: Final = 1  # support code of workers that know the one-table layout
REPORTER_PERIOD_SECONDS: Final = 30.0
_REPORTER_PERIODS_FRESH: Final = 3  # a support code not repeated for this many reports counts no more
_INIT_BAKE_SECONDS: Final = 3600.0  # a fleet must support one table for this long before the move is allowed
COMPLETE_BAKE_SECONDS: Final = 86_400.0
_COMPLETE_BAKE_LIMITS: Final = (3600.0, 604_800.0)


class ClientVersionConfig(StrEnum):
    """What a Java worker is configured to be."""

    COMPATIBLE_WITH_2X_PHASE1 = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"
    COMPATIBLE_WITH_2X = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"
    THREE = "CLIENT_VERSION_CONFIG_3X"


# A first worker in phase 1 stores nothing: the fleet goes on as a 2.x fleet.
_FIRST_VERSION: Final[Mapping[ClientVersionConfig, ClientVersion | None]] = {
    ClientVersionConfig.COMPATIBLE_WITH_2X_PHASE1: None,
    ClientVersionConfig.COMPATIBLE_WITH_2X: ClientVersion.UPGRADING,
    ClientVersionConfig.THREE: ClientVersion.THREE,
}


def starting_version(configured: ClientVersionConfig, stored: ClientVersion | None) -> ClientVersion | None:
    """What a Java worker starts as; None: as 2.x, without storing anything.

    The stored version wins, even 2.x over a configured 3.x.
    """
    if stored is None:
        return _FIRST_VERSION[configured]
    if stored is ClientVersion.THREE_WITH_ROLLBACK and configured is ClientVersionConfig.THREE:
        return ClientVersion.THREE
    return stored


def leader_assigns(version: ClientVersion | None) -> bool:
    """Otherwise workers take and steal by the rules of 2.x, whatever they are configured to do."""
    return version in {ClientVersion.THREE, ClientVersion.THREE_WITH_ROLLBACK}


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


def reads_legacy(status: TableStatus) -> bool:
    """Whether the legacy tables are read besides the lease table."""
    return status is not TableStatus.COMPLETE


def writes_legacy(status: TableStatus) -> bool:
    """Where worker rows and coordinator rows are written; the lock has its own rule."""
    return status in {TableStatus.INIT, TableStatus.DEPLOYED}


def locks_legacy(status: TableStatus) -> bool:
    """Whether the leader lock is the one in the legacy table."""
    return status is not TableStatus.COMPLETE


def next_stored_status(
    *,
    local: TableStatus,
    stored: TableStatus | None,
    stored_seconds: float = 0.0,
    support_code: int = 0,
    legacy_workers: int = 0,
    bake_seconds: float = COMPLETE_BAKE_SECONDS,
) -> TableStatus | None:
    """The status that a Java leader stores at one evaluation. None: no row. Only the leader writes it.

    `local` is its own status from `table_status`, `stored_seconds` the age of the stored one, `support_code` the
    fleet's lowest, `legacy_workers` how many live workers still write their rows to the legacy table.
    """
    if stored is TableStatus.COMPLETE or local is TableStatus.COMPLETE:
        return stored
    if local is TableStatus.DEPLOYED:
        return TableStatus.DEPLOYED
    if local is TableStatus.PENDING:
        return _pending(stored, stored_seconds, legacy_workers, bake_seconds)
    if support_code < SINGLE_TABLE_SUPPORT:
        return None
    is_baked = stored is TableStatus.INIT and stored_seconds >= _INIT_BAKE_SECONDS
    return TableStatus.DEPLOYED if is_baked else TableStatus.INIT


def _pending(
    stored: TableStatus | None, stored_seconds: float, legacy_workers: int, bake_seconds: float
) -> TableStatus:
    """The status of a leader that is configured to migrate. If no live worker writes its row to the legacy table
    any more, the leader moves the rows and waits."""
    if legacy_workers:
        return TableStatus.DEPLOYED
    shortest, longest = _COMPLETE_BAKE_LIMITS
    is_baked = stored_seconds >= min(max(bake_seconds, shortest), longest)
    return TableStatus.COMPLETE if stored is TableStatus.PENDING and is_baked else TableStatus.PENDING


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
    return [*lease_table, *(legacy if reads_legacy(status) else ())]
