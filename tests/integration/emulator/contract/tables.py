"""Lease tables to test with, and the two ways in which lease clients write conditions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from mypy_boto3_dynamodb import DynamoDBClient

from tests.integration.emulator.contract.server import unique

INDEX = "LeaseOwnerToLeaseKeyIndex"
WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class LeaseTable:
    """A table keyed by `leaseKey`, as the KCL makes it."""

    client: DynamoDBClient
    name: str

    @classmethod
    def create(cls, client: DynamoDBClient, **options: Any) -> LeaseTable:
        table = cls(client, unique("leases"))
        client.create_table(
            TableName=table.name,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            **options,
        )
        table.wait()
        return table

    def describe(self) -> Any:
        return self.client.describe_table(TableName=self.name)["Table"]

    def wait(self) -> None:
        """Until the table and its indexes are active."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            described = self.describe()
            parts = [described["TableStatus"]]
            parts += [index["IndexStatus"] for index in described.get("GlobalSecondaryIndexes", [])]
            if set(parts) == {"ACTIVE"}:
                return
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def add_owner_index(self, **projection: Any) -> None:
        """As the KCL does after creating the table; it projects the keys alone."""
        projected: Any = projection or {"ProjectionType": "KEYS_ONLY"}
        self.client.update_table(
            TableName=self.name,
            AttributeDefinitions=[
                {"AttributeName": "leaseKey", "AttributeType": "S"},
                {"AttributeName": "leaseOwner", "AttributeType": "S"},
            ],
            GlobalSecondaryIndexUpdates=[
                {
                    "Create": {
                        "IndexName": INDEX,
                        "KeySchema": [
                            {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                            {"AttributeName": "leaseKey", "KeyType": "RANGE"},
                        ],
                        "Projection": projected,
                    }
                }
            ],
        )
        self.wait()

    def put(self, key: str, **attributes: Any) -> None:
        self.client.put_item(TableName=self.name, Item={"leaseKey": {"S": key}, **attributes})

    def get(self, key: str) -> Any:
        reply = self.client.get_item(TableName=self.name, Key={"leaseKey": {"S": key}}, ConsistentRead=True)
        return reply.get("Item")

    def update(self, key: str, expression: str, **arguments: Any) -> Any:
        return self.client.update_item(
            TableName=self.name, Key={"leaseKey": {"S": key}}, UpdateExpression=expression, **arguments
        )

    def delete(self, key: str, **arguments: Any) -> Any:
        return self.client.delete_item(TableName=self.name, Key={"leaseKey": {"S": key}}, **arguments)

    def owned_by(self, owner: str, **arguments: Any) -> Any:
        return self.client.query(
            TableName=self.name,
            IndexName=INDEX,
            KeyConditionExpression="leaseOwner = :o",
            ExpressionAttributeValues={":o": {"S": owner}},
            **arguments,
        )


def number(value: int) -> dict[str, str]:
    return {"N": str(value)}


def text(value: str) -> dict[str, str]:
    return {"S": value}
