"""Conditional writes to DynamoDB as data, and a builder for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from kcl_dagster.tables.attributes import COORDINATOR_KEY, LEASE_KEY, METRICS_KEY, Item, Value

Operation = Literal["put_item", "update_item", "delete_item", "transact_write_items"]
Returned = Literal["ALL_NEW", "NONE"]


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a DynamoDB client: `getattr(client, operation)(**parameters)`."""

    operation: Operation
    parameters: dict[str, Any]

    @property
    def table(self) -> str:
        return str(self._subject["TableName"])

    @property
    def key(self) -> dict[str, Value]:
        """The key of the item that is written. For a transaction: the key of its first write."""
        if "Key" in self._subject:
            key: dict[str, Value] = self._subject["Key"]
            return key
        item = self._subject["Item"]
        name = next(name for name in (LEASE_KEY, METRICS_KEY, COORDINATOR_KEY) if name in item)
        return {name: item[name]}

    @property
    def _subject(self) -> dict[str, Any]:
        if self.operation != "transact_write_items":
            return self.parameters
        first: dict[str, Any] = next(iter(self.parameters["TransactItems"][0].values()))
        return first


def guarded(write: Request, guard: Request) -> Request:
    """Combine a write with a guard in one transaction: both are applied, or neither. `key` of the returned request
    is the key of `write`.

    The guard is an update and not a ConditionCheck. A ConditionCheck needs a permission of its own, which the IAM
    policies of existing fleets do not grant.
    """
    return together([write, guard])


def together(writes: Sequence[Request]) -> Request:
    """Combine writes in one transaction: all of them are applied, or none."""
    kinds = {"put_item": "Put", "update_item": "Update", "delete_item": "Delete"}
    parts = [
        {kinds[part.operation]: {name: value for name, value in part.parameters.items() if name != "ReturnValues"}}
        for part in writes
    ]
    return Request("transact_write_items", {"TransactItems": parts})


def put(
    table: str, key_attribute: str, item: Item, condition: str | None, values: Mapping[str, Value] | None = None
) -> Request:
    """Write a whole item. `condition` refers to the key as `#key`, because `key` itself is a reserved word."""
    return Request("put_item", _finished(table, condition, values or {}, key_attribute) | {"Item": item})


def delete(
    table: str, key_attribute: str, key: Value, condition: str | None, values: Mapping[str, Value] | None = None
) -> Request:
    parameters = _finished(table, condition, values or {}, key_attribute)
    return Request("delete_item", parameters | {"Key": {key_attribute: key}})


@dataclass(slots=True)
class Update:
    """Builds an UpdateItem request. The placeholder of a value that is set has the name of the attribute. The
    placeholder of a value in a condition has a name of its own, for example `:watched`."""

    table: str
    key_attribute: str
    key: Value
    _sets: list[str] = field(default_factory=list)
    _removes: list[str] = field(default_factory=list)
    _adds: list[str] = field(default_factory=list)
    _conditions: list[str] = field(default_factory=list)
    _values: dict[str, Value] = field(default_factory=dict)

    def set(self, values: Mapping[str, Value]) -> Self:
        for attribute, value in values.items():
            self._sets.append(f"{attribute} = :{attribute}")
            self._values[f":{attribute}"] = value
        return self

    def copy(self, attribute: str, to: str) -> Self:
        """Set `to` to the value that `attribute` has in the row when the update is applied."""
        self._sets.append(f"{to} = {attribute}")
        return self

    def remove(self, *attributes: str) -> Self:
        self._removes.extend(attributes)
        return self

    def add_one(self, attribute: str) -> Self:
        self._adds.append(f"{attribute} :one")
        self._values[":one"] = {"N": "1"}
        return self

    def require(self, condition: str, values: Mapping[str, Value] | None = None) -> Self:
        self._conditions.append(condition)
        self._values |= values or {}
        return self

    def require_equal(self, attribute: str, name: str, value: Value | None) -> Self:
        """Require that the attribute still has this value. If `value` is None, require that it is still absent."""
        if value is None:
            return self.require(f"attribute_not_exists({attribute})")
        return self.require(f"{attribute} = :{name}", {f":{name}": value})

    def request(self, returned: Returned = "ALL_NEW") -> Request:
        clauses = (("SET", self._sets), ("REMOVE", self._removes), ("ADD", self._adds))
        expression = " ".join(f"{verb} {', '.join(parts)}" for verb, parts in clauses if parts)
        condition = " AND ".join(self._conditions) or None
        return Request(
            "update_item",
            _finished(self.table, condition, self._values, self.key_attribute)
            | {"Key": {self.key_attribute: self.key}, "UpdateExpression": expression, "ReturnValues": returned},
        )


def _finished(table: str, condition: str | None, values: Mapping[str, Value], key_attribute: str) -> dict[str, Any]:
    parameters: dict[str, Any] = {"TableName": table}
    if condition is not None:
        # If the condition does not hold, the response contains the row as it is, so it need not be read.
        parameters |= {"ConditionExpression": condition, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        if "#key" in condition:
            parameters["ExpressionAttributeNames"] = {"#key": key_attribute}
    if values:
        parameters["ExpressionAttributeValues"] = dict(values)
    return parameters
