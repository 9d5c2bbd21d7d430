"""The control plane: tables and what surrounds them."""

from collections.abc import Mapping
from typing import Any, Final

from kcl_dagster.runtime import Clock
from tests.doubles.dynamodb.failures import client_error, in_use, not_found, validation_error
from tests.doubles.dynamodb.schema import describe, new_index, new_table, table_arn
from tests.doubles.dynamodb.table import Table

Response = dict[str, Any]

OK: Final[Mapping[str, Any]] = {"HTTPStatusCode": 200, "RetryAttempts": 0}


def answer(**members: Any) -> Response:
    members["ResponseMetadata"] = dict(OK)
    return members


class ControlPlane:
    """Table operations of one account in one region."""

    def __init__(self, clock: Clock, *, region: str, creation_seconds: float, is_metered: bool) -> None:
        self.clock = clock
        self.tables: dict[str, Table] = {}
        self._region = region
        self._creation_seconds = creation_seconds
        self._is_metered = is_metered

    def _find(self, name: str) -> Table:
        table = self.tables.get(name.rsplit("/", 1)[-1])
        if table is None:
            raise not_found(name)
        return table

    def _active(self, name: str) -> Table:
        """A table that exists but is still being created serves no data."""
        table = self._find(name)
        if self.clock.now() < table.active_at:
            raise client_error("ResourceNotFoundException", "Requested resource not found")
        return table

    def create_table(self, **request: Any) -> Response:
        name = request["TableName"]
        if name in self.tables:
            raise in_use(f"Table already exists: {name}")
        now = self.clock.now()
        table = new_table(request, now, now + self._creation_seconds)
        table.is_metered = self._is_metered
        self.tables[name] = table
        return answer(TableDescription=describe(table, now, self._region))

    def describe_table(self, *, TableName: str) -> Response:  # noqa: N803  # boto3's name
        return answer(Table=describe(self._find(TableName), self.clock.now(), self._region))

    def list_tables(self, **_: Any) -> Response:
        return answer(TableNames=sorted(self.tables))

    def delete_table(self, *, TableName: str) -> Response:  # noqa: N803
        table = self._find(TableName)
        if table.description["DeletionProtectionEnabled"]:
            raise validation_error(
                f"Resource cannot be deleted as it is currently protected against deletion: {table.name}"
            )
        description = describe(table, self.clock.now(), self._region)
        del self.tables[table.name]
        return answer(TableDescription={**description, "TableStatus": "DELETING"})

    def update_table(self, **request: Any) -> Response:
        table = self._find(request["TableName"])
        now = self.clock.now()
        if now < table.active_at:
            raise in_use(
                f"Attempt to change a resource which is still in use: Table is being created: {table.name}"
            )
        billing = request.get("BillingMode", table.description["BillingMode"])
        for change in request.get("GlobalSecondaryIndexUpdates", ()):
            self._update_index(table, change, request.get("AttributeDefinitions", ()), billing)
        for option in ("BillingMode", "ProvisionedThroughput", "DeletionProtectionEnabled"):
            if option in request:
                table.description[option] = request[option]
        return answer(TableDescription=describe(table, now, self._region))

    def _update_index(self, table: Table, change: Mapping[str, Any], definitions: Any, billing: str) -> None:
        if "Create" in change:
            wanted = change["Create"]
            if wanted["IndexName"] in table.indexes:
                raise validation_error(
                    "One or more parameter values were invalid: Attempting to create an index which already exists"
                )
            index = new_index(wanted, definitions, billing, self.clock.now() + self._creation_seconds)
            table.indexes[index.name] = index
        elif "Delete" in change:
            name = change["Delete"]["IndexName"]
            if name not in table.indexes:
                raise client_error("ResourceNotFoundException", f"Requested resource not found: Index: {name}")
            del table.indexes[name]
        else:
            name = change["Update"]["IndexName"]
            table.indexes[name].throughput = change["Update"]["ProvisionedThroughput"]

    def update_continuous_backups(self, **request: Any) -> Response:
        table = self._active(request["TableName"])
        table.point_in_time_recovery = request["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"]
        return self.describe_continuous_backups(TableName=table.name)

    def describe_continuous_backups(self, *, TableName: str) -> Response:  # noqa: N803
        enabled = self._find(TableName).point_in_time_recovery
        return answer(
            ContinuousBackupsDescription={
                "ContinuousBackupsStatus": "ENABLED",
                "PointInTimeRecoveryDescription": {
                    "PointInTimeRecoveryStatus": "ENABLED" if enabled else "DISABLED"
                },
            }
        )

    def tag_resource(self, *, ResourceArn: str, Tags: list[dict[str, str]]) -> Response:  # noqa: N803
        self._find(ResourceArn).tags.update({tag["Key"]: tag["Value"] for tag in Tags})
        return answer()

    def list_tags_of_resource(self, *, ResourceArn: str, **_: Any) -> Response:  # noqa: N803
        tags = self._find(ResourceArn).tags
        return answer(Tags=[{"Key": key, "Value": value} for key, value in sorted(tags.items())])

    def table_arn(self, name: str) -> str:
        return table_arn(name, self._region)
