"""What a Java process asks of DynamoDB, with the SDK's habit of sending again what was not answered."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from tests.doubles.dynamodb.values import Item
from tests.simulation.kernel import Process
from tests.simulation.ledger import LeaseRow, is_lease, read_lease

SENT_AT_MOST: Final = 3
PAUSE_SECONDS: Final = 0.1
OWNER_INDEX: Final = "LeaseOwnerToLeaseKeyIndex"
LEADER_KEY: Final = "Leader"


class Trouble(Exception):
    """A request was refused, or never answered. What it was part of is tried again at its next time."""


@dataclass(frozen=True, slots=True)
class Place:
    """A table and its hash key."""

    table: str
    key: str


@dataclass(slots=True)
class Tables:
    """Raw requests. A condition that fails is an answer: False, or None."""

    process: Process
    dynamodb: Any
    random: Random
    leases: Place
    workers: Place
    locks: Place

    def call(self, client: Any, method: str, **request: Any) -> dict[str, Any] | None:
        """None: the condition failed."""
        for _ in range(SENT_AT_MOST):
            try:
                answer: dict[str, Any] = getattr(client, method)(**request)
            except ClientError as error:
                code = error.response["Error"]["Code"]
                if code == "ConditionalCheckFailedException":
                    return None
                if code in ("InternalServerError", "ProvisionedThroughputExceededException"):
                    self.process.kernel.sleep(PAUSE_SECONDS * self.random.random())
                    continue
                raise Trouble(f"{method}: {code}") from error
            except (BotoCoreError, ResponseParserError):
                continue
            return answer
        raise Trouble(f"{method}: no answer")

    # Leases

    def get(self, key: str) -> LeaseRow | None:
        answer = self.call(self.dynamodb, "get_item", TableName=self.leases.table, Key={"leaseKey": {"S": key}})
        item = (answer or {}).get("Item")
        return read_lease(item) if item else None

    def exact(self, key: str) -> LeaseRow | None:
        """Read after a condition failed, to learn why."""
        answer = self.call(
            self.dynamodb,
            "get_item",
            TableName=self.leases.table,
            Key={"leaseKey": {"S": key}},
            ConsistentRead=True,
        )
        item = (answer or {}).get("Item")
        return read_lease(item) if item else None

    def scan(self, table: str) -> Iterator[Item]:
        return self._pages("scan", TableName=table)

    def _pages(self, method: str, **request: Any) -> Iterator[Item]:
        while True:
            answer = self.call(self.dynamodb, method, **request) or {}
            yield from answer.get("Items", [])
            if "LastEvaluatedKey" not in answer:
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def all_leases(self, items: list[Item]) -> list[LeaseRow]:
        return [read_lease(item) for item in items if is_lease(item) and "leaseCounter" in item]

    def owned(self, worker: str) -> list[str]:
        found = self._pages(
            "query",
            TableName=self.leases.table,
            IndexName=OWNER_INDEX,
            KeyConditionExpression="leaseOwner = :owner",
            ExpressionAttributeValues={":owner": {"S": worker}},
        )
        return sorted(item["leaseKey"]["S"] for item in found)

    def renew(self, lease: LeaseRow) -> bool:
        condition = "leaseCounter = :known"
        if lease.giver is None:
            condition += " AND attribute_not_exists(checkpointOwner)"
        return self._update(
            lease.key,
            "SET leaseCounter = :next",
            condition,
            {":known": _n(lease.counter), ":next": _n(lease.counter + 1)},
        )

    def assign(self, lease: LeaseRow, to: str) -> bool:
        """By the leader, or by the old owner at the end of a handoff."""
        values: dict[str, Any] = {":to": {"S": to}, ":one": _n(1)}
        condition = ["attribute_exists(leaseKey)"]
        for name, value in (("leaseOwner", lease.owner), ("checkpointOwner", lease.giver)):
            if value is None:
                condition.append(f"attribute_not_exists({name})")
            else:
                condition.append(f"{name} = :{name}")
                values[f":{name}"] = {"S": value}
        add = "leaseCounter :one"
        if (lease.owner is not None and lease.owner != to) or lease.giver == to:
            add += ", ownerSwitchesSinceCheckpoint :one"
        return self._update(
            lease.key, f"SET leaseOwner = :to REMOVE checkpointOwner ADD {add}", " AND ".join(condition), values
        )

    def hand_off(self, lease: LeaseRow, to: str) -> bool:
        return self._update(
            lease.key,
            "SET leaseOwner = :to, checkpointOwner = :from",
            "leaseOwner = :from AND attribute_not_exists(checkpointOwner)",
            {":to": {"S": to}, ":from": {"S": lease.owner}},
        )

    def checkpoint(self, lease: LeaseRow, sequence: str, children: frozenset[str] = frozenset()) -> bool:
        """The KCL's updateLease: whatever was pending is cleared."""
        values: dict[str, Any] = {
            ":known": _n(lease.counter),
            ":next": _n(lease.counter + 1),
            ":at": {"S": sequence},
            ":zero": _n(0),
        }
        sets = "leaseCounter = :next, checkpoint = :at, checkpointSubSequenceNumber = :zero"
        sets += ", ownerSwitchesSinceCheckpoint = :zero"
        if children:
            sets += ", childShardIds = :children"
            values[":children"] = {"SS": sorted(children)}
        pending = "pendingCheckpoint, pendingCheckpointSubSequenceNumber, pendingCheckpointState"
        return self._update(lease.key, f"SET {sets} REMOVE {pending}", "leaseCounter = :known", values)

    def note_children(self, key: str, children: frozenset[str]) -> bool:
        return self._update(
            key, "SET childShardIds = :names", "attribute_exists(leaseKey)", {":names": {"SS": sorted(children)}}
        )

    def create_child(self, child: dict[str, Any]) -> bool:
        """From GetRecords' ChildShards."""
        item: Item = {
            "leaseKey": {"S": child["ShardId"]},
            "entityType": {"S": "LEASE"},
            "leaseCounter": _n(0),
            "ownerSwitchesSinceCheckpoint": _n(0),
            "checkpoint": {"S": "TRIM_HORIZON"},
            "checkpointSubSequenceNumber": _n(0),
            "parentShardId": {"SS": sorted(child["ParentShards"])},
            "startingHashKey": {"S": child["HashKeyRange"]["StartingHashKey"]},
            "endingHashKey": {"S": child["HashKeyRange"]["EndingHashKey"]},
        }
        answer = self.call(
            self.dynamodb,
            "put_item",
            TableName=self.leases.table,
            Item=item,
            ConditionExpression="attribute_not_exists(leaseKey)",
        )
        return answer is not None

    def delete(self, place: Place, key: str) -> None:
        self.call(self.dynamodb, "delete_item", TableName=place.table, Key={place.key: {"S": key}})

    def _update(self, key: str, update: str, condition: str, values: dict[str, Any]) -> bool:
        answer = self.call(
            self.dynamodb,
            "update_item",
            TableName=self.leases.table,
            Key={"leaseKey": {"S": key}},
            UpdateExpression=update,
            ConditionExpression=condition,
            ExpressionAttributeValues=values,
        )
        return answer is not None

    # Worker rows

    def report(self, worker: str, at: float) -> None:
        """A worker without metrics: both maps are empty."""
        values: dict[str, Any] = {":at": _n(int(at)), ":none": {"M": {}}}
        update = "SET lut = :at, sts = :none, opr = :none"
        if self.workers.key == "leaseKey":
            update += ", entityType = :kind"
            values[":kind"] = {"S": "WORKER_METRIC_STATS"}
        self.call(
            self.dynamodb,
            "update_item",
            TableName=self.workers.table,
            Key={self.workers.key: {"S": worker}},
            UpdateExpression=update,
            ExpressionAttributeValues=values,
        )

    # The lock

    def lock(self) -> Item | None:
        answer = self.call(
            self.dynamodb,
            "get_item",
            TableName=self.locks.table,
            Key={self.locks.key: {"S": LEADER_KEY}},
            ConsistentRead=True,
        )
        item: Item | None = (answer or {}).get("Item")
        return item or None

    def put_lock(self, owner: str, seconds: float, version: str, watched: str | None) -> bool:
        """In place of the version `watched`, or of nothing."""
        item: Item = {
            self.locks.key: {"S": LEADER_KEY},
            "ownerName": {"S": owner},
            "leaseDuration": {"S": str(round(seconds * 1000))},
            "recordVersionNumber": {"S": version},
            "entityType": {"S": "LEADER"},
        }
        request: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(#key)"}
        if watched is not None:
            request = {
                "ConditionExpression": "attribute_exists(#key) AND recordVersionNumber = :watched",
                "ExpressionAttributeValues": {":watched": {"S": watched}},
            }
        request["ExpressionAttributeNames"] = {"#key": self.locks.key}
        return self.call(self.dynamodb, "put_item", TableName=self.locks.table, Item=item, **request) is not None

    def beat(self, owner: str, version: str, held: str) -> bool:
        answer = self.call(
            self.dynamodb,
            "update_item",
            TableName=self.locks.table,
            Key={self.locks.key: {"S": LEADER_KEY}},
            UpdateExpression="SET recordVersionNumber = :next",
            ConditionExpression="recordVersionNumber = :held AND ownerName = :owner",
            ExpressionAttributeValues={":next": {"S": version}, ":held": {"S": held}, ":owner": {"S": owner}},
        )
        return answer is not None


def _n(value: int) -> dict[str, str]:
    return {"N": str(value)}
