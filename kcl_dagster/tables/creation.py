"""Creates the tables of an application."""

from typing import Any, Final

from kcl_dagster import aws
from kcl_dagster.application import Application, Billing
from kcl_dagster.errors import LayoutRefused, ServiceError, TableNotFound
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.attributes import LEASE_KEY, OWNER, OWNER_INDEX
from kcl_dagster.tables.places import Place, TableLayout
from kcl_dagster.tables.sending import Sender
from kcl_dagster.tables.state import ClientVersion, StateRows

ACTIVE_WITHIN: Final = 600.0  # seconds until a new table must be active, as in the KCL
ACTIVE_POLL: Final = 1.0  # seconds
BACKUPS_WITHIN: Final = 60.0  # seconds; a new table may refuse backups for a moment


def create_tables(client: aws.Client, application: Application, layout: TableLayout, runtime: Runtime) -> list[str]:
    """Create missing tables, wait until they can be used, and store that the fleet uses the protocol of KCL 3.x.
    Returns the names of the tables that were created.

    Safe to call repeatedly, and in several processes at once. The protocol of a new application is stored before
    its first lease, so that Java workers that start later find it. Raises TableNotFound if a table is missing and
    `tables.create` is False, and LayoutRefused if the fleet's protocol has changed since it was detected.
    """
    creation = _Creation(client, application, runtime)
    made = [
        place.table
        for place in dict.fromkeys((layout.leases, layout.workers, layout.coordinator))
        if creation.ensure(place, with_index=place == layout.leases)
    ]
    creation.declare_version(layout)
    return made


class _Creation:
    def __init__(self, client: aws.Client, application: Application, runtime: Runtime) -> None:
        self._sender = Sender(client, runtime)
        self._application = application
        self._settings = application.tables
        self._runtime = runtime
        self._clock = runtime.clock

    def ensure(self, place: Place, *, with_index: bool) -> bool:
        """Create the table if it is missing, and wait until it is active. Returns whether this process created
        it."""
        status = self._status(place.table)
        made = False
        if status is None:
            if not self._settings.create:
                raise TableNotFound(
                    f"table {place.table} of application {self._application.name} does not exist and "
                    f"tables.create is false: make it with the hash key {place.key} (string) and no sort key"
                )
            made = self._create(place, with_index=with_index)
        if status != "ACTIVE":
            self._wait(place.table)
        if made and self._settings.point_in_time_recovery:
            self._keep_backups(place.table)
        return made

    def declare_version(self, layout: TableLayout) -> None:
        rows = StateRows(self._sender, self._runtime, layout.coordinator)
        stored = rows.client_version()
        if stored is None:
            if rows.create_version(ClientVersion.THREE):
                return
            stored = rows.client_version()
        if stored is None or stored.version == ClientVersion.THREE:
            return
        name = self._application.name
        if not layout.take_over or stored.version != layout.stored_version:
            raise LayoutRefused(
                f"the protocol of application {name} changed to {stored.version} while its tables were looked at: "
                "another fleet is starting or migrating. Start again when it is done"
            )
        if not rows.change_version(stored, ClientVersion.THREE):
            raise LayoutRefused(
                f"application {name} cannot be taken over: Migration3.0 was changed at the same moment. Make "
                "sure that no Java worker runs and start again"
            )

    def _status(self, table: str) -> str | None:
        try:
            return str(self._sender.read("describe_table", TableName=table)["Table"]["TableStatus"])
        except TableNotFound:
            return None

    def _create(self, place: Place, *, with_index: bool) -> bool:
        try:
            self._sender.read("create_table", **self._definition(place, with_index=with_index))
        except aws.ResourceBusy:
            return False  # another process is creating it
        return True

    def _definition(self, place: Place, *, with_index: bool) -> dict[str, Any]:
        settings = self._settings
        attributes = [place.key]
        throughput: dict[str, Any] = {}
        if settings.billing is Billing.PROVISIONED:
            capacity = {"ReadCapacityUnits": settings.read_capacity, "WriteCapacityUnits": settings.write_capacity}
            throughput = {"ProvisionedThroughput": capacity}
        definition: dict[str, Any] = {
            "TableName": place.table,
            "KeySchema": [{"AttributeName": place.key, "KeyType": "HASH"}],
            "BillingMode": str(settings.billing),
            **throughput,
        }
        if with_index and settings.owner_index:
            attributes.append(OWNER)
            definition["GlobalSecondaryIndexes"] = [
                {
                    "IndexName": OWNER_INDEX,
                    "KeySchema": [
                        {"AttributeName": OWNER, "KeyType": "HASH"},
                        {"AttributeName": LEASE_KEY, "KeyType": "RANGE"},
                    ],
                    "Projection": {"ProjectionType": "KEYS_ONLY"},
                    **throughput,
                }
            ]
        definition["AttributeDefinitions"] = [{"AttributeName": a, "AttributeType": "S"} for a in attributes]
        if settings.deletion_protection:
            definition["DeletionProtectionEnabled"] = True
        if settings.kms_key is not None:
            definition["SSESpecification"] = {
                "Enabled": True,
                "SSEType": "KMS",
                "KMSMasterKeyId": settings.kms_key,
            }
        if settings.tags:
            definition["Tags"] = [{"Key": key, "Value": value} for key, value in sorted(settings.tags.items())]
        return definition

    def _wait(self, table: str) -> None:
        deadline = self._clock.monotonic() + ACTIVE_WITHIN
        while (status := self._status(table)) not in {"ACTIVE", "UPDATING"}:
            if self._clock.monotonic() > deadline:
                raise ServiceError(
                    f"table {table} should be ACTIVE and is {status or 'not there'} after {ACTIVE_WITHIN:.0f} s"
                )
            self._clock.sleep(ACTIVE_POLL)

    def _keep_backups(self, table: str) -> None:
        deadline = self._clock.monotonic() + BACKUPS_WITHIN
        while True:
            try:
                self._sender.read(
                    "update_continuous_backups",
                    TableName=table,
                    PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True},
                )
            except aws.RequestRefused as error:
                if error.code != "ContinuousBackupsUnavailableException" or self._clock.monotonic() > deadline:
                    raise
                self._clock.sleep(ACTIVE_POLL)
            else:
                return
