"""Detects which tables an application has, before anything is written.

    coordinator table?  no  -> everything is, or will be, in the lease table (KCL 3.5)
                        yes -> three tables (KCL 3.0-3.4), or one if the fleet has finished its migration to one

Two kinds of fleets are refused. The first kind uses the protocol of KCL 2.x, in which every worker takes leases for
itself, against the assignments of a leader. The second kind is migrating from one layout or protocol to another.
"""

from typing import Final

from kcl_dagster import aws
from kcl_dagster.application import Application
from kcl_dagster.errors import LayoutRefused, TableNotFound
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.tables.creation import create_tables
from kcl_dagster.tables.lease_reader import LeaseReader
from kcl_dagster.tables.places import LayoutKind, Place, TableLayout
from kcl_dagster.tables.sending import Sender
from kcl_dagster.tables.state import ClientVersion, StateRows, StoredVersion, TableStatus, known_version

__all__ = [
    "LayoutKind",
    "Place",
    "TableLayout",
    "create_tables",
    "declare_protocol",
    "detect_layout",
    "verify_layout",
]

_TAKE_OVER: Final = "stop its workers, then take it over with take_over_2x=True"


def detect_layout(
    client: aws.Client, application: Application, runtime: Runtime | None = None, *, take_over_2x: bool = False
) -> TableLayout:
    """Return which tables hold this application's rows. Sends a few requests, and writes nothing.

    `take_over_2x`: the operator asserts that no worker of KCL 2.x, or of KCL 3.x in 2.x mode, still runs. Fleets
    with the 2.x protocol are then accepted, and `create_tables` stores that the application uses the 3.x protocol.
    Raises LayoutRefused if the fleet is refused. The error names the obstacle and what to do.
    """
    return _Detection(client, application, runtime or system(), take_over_2x=take_over_2x).layout()


def verify_layout(client: aws.Client, application: Application, layout: TableLayout, runtime: Runtime) -> bool:
    """Check that the detected layout is still valid, with one or two reads. Leaders call this at every tick,
    workers once per minute.

    Returns False if the row that declares the protocol is missing, for example because the table was emptied or
    recreated. Raises LayoutRefused if the fleet has changed its protocol or its tables; a restart detects the new
    layout.
    """
    rows = StateRows(Sender(client, runtime), runtime, layout.coordinator)
    stored = rows.client_version()
    version = None if stored is None else stored.version
    if version not in {None, ClientVersion.THREE}:
        raise LayoutRefused(
            f"the fleet of application {application.name} changed its protocol (Migration3.0 says {version} now)"
        )
    status = rows.table_status() if layout.kind is LayoutKind.LEGACY else None
    if status not in {None, TableStatus.INIT, TableStatus.DEPLOYED}:
        raise LayoutRefused(
            f"the fleet of application {application.name} moves its rows to one table (TableMigration3.5 says "
            f"{status} now): stop, and start again when it says {TableStatus.COMPLETE}"
        )
    return stored is not None


def declare_protocol(client: aws.Client, layout: TableLayout, runtime: Runtime) -> bool:
    """Write the row that declares the protocol of KCL 3.x, if it does not exist. Without this row, leases count as
    leases of KCL 2.x, and no worker would start. Returns False if another process was faster."""
    return StateRows(Sender(client, runtime), runtime, layout.coordinator).create_version(ClientVersion.THREE)


class _Detection:
    def __init__(
        self, client: aws.Client, application: Application, runtime: Runtime, *, take_over_2x: bool
    ) -> None:
        self._client = client
        self._application = application
        self._runtime = runtime
        self._sender = Sender(client, runtime)
        self._take_over = take_over_2x

    def layout(self) -> TableLayout:
        single, legacy = TableLayout.single(self._application), TableLayout.legacy(self._application)
        exists = self._exists(single.leases)
        if not self._exists(legacy.coordinator):
            return self._accepted(single) if exists else single
        status = self._rows(legacy.coordinator).table_status()
        match status:
            case None | TableStatus.INIT | TableStatus.DEPLOYED:
                return self._accepted(legacy, has_lease_table=exists)
            case TableStatus.COMPLETE:
                return self._accepted(single)
            case TableStatus.PENDING:
                raise LayoutRefused(
                    f"application {self._application.name} is moving from three tables to one "
                    f"(TableMigration3.5 says {status}): let its Java workers finish the move, or set their "
                    "migrateAllEntitiesToLeaseTable back to false, and start again"
                )
            case _:
                raise LayoutRefused(
                    f"application {self._application.name}: TableMigration3.5 says {status!r}, which no KCL known "
                    "to this version writes; use a newer kcl_dagster"
                )

    def _accepted(self, layout: TableLayout, *, has_lease_table: bool = True) -> TableLayout:
        """Return the layout if the fleet's protocol allows kcl_dagster to lead the fleet. Otherwise, raise
        LayoutRefused."""
        name = self._application.name
        stored = self._rows(layout.coordinator).client_version()
        if stored is None:
            if not has_lease_table or not self._has_leases(layout):
                return layout  # a new application, or an empty table that another tool created
            if self._take_over:
                return self._versioned(layout, None)
            raise LayoutRefused(
                f"table {layout.leases.table} holds leases of KCL 1.x or 2.x (there is no Migration3.0), whose "
                f"workers take leases by themselves. For {name} to go on with them: {_TAKE_OVER}"
            )
        match known_version(stored.version):
            case ClientVersion.THREE:
                return self._versioned(layout, stored, take_over=False)
            case None:
                raise LayoutRefused(
                    f"application {name}: Migration3.0 says {stored.version!r}, which no KCL known to this version "
                    "writes; use a newer kcl_dagster"
                )
            case _ if self._take_over:
                return self._versioned(layout, stored)
            case ClientVersion.TWO | ClientVersion.UPGRADING:
                raise LayoutRefused(
                    f"the workers of application {name} take leases by themselves (Migration3.0 says "
                    f"{stored.version}). Let them finish the upgrade to KCL 3.x, or {_TAKE_OVER}"
                )
            case ClientVersion.THREE_WITH_ROLLBACK:
                raise LayoutRefused(
                    f"application {name} may still be rolled back to KCL 2.x (Migration3.0 says {stored.version}). "
                    f"Deploy its Java workers with CLIENT_VERSION_CONFIG_3X to finish the upgrade, or {_TAKE_OVER}"
                )

    def _versioned(
        self, layout: TableLayout, stored: StoredVersion | None, *, take_over: bool | None = None
    ) -> TableLayout:
        make = TableLayout.single if layout.kind is LayoutKind.SINGLE else TableLayout.legacy
        version = None if stored is None else stored.version
        return make(self._application, version, take_over=self._take_over if take_over is None else take_over)

    def _rows(self, place: Place) -> StateRows:
        return StateRows(self._sender, self._runtime, place)

    def _has_leases(self, layout: TableLayout) -> bool:
        return LeaseReader(self._client, self._application, layout, self._runtime).has_leases()

    def _exists(self, place: Place) -> bool:
        """Whether the table exists. Returns False only after the error "not found". Other errors are raised, for
        example if the permission is missing, because a guess would not be safe."""
        try:
            table = self._sender.read("describe_table", TableName=place.table)["Table"]
        except TableNotFound:
            return False
        keys = [(k["AttributeName"], k["KeyType"]) for k in table.get("KeySchema", [])]
        if keys != [(place.key, "HASH")]:
            raise LayoutRefused(
                f"table {place.table} has the key {keys}, a table of the KCL has [('{place.key}', 'HASH')]: "
                "give the application or its lease table another name"
            )
        return True
