"""`FakeDynamoDB`: boto3's low-level DynamoDB client, in memory."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kcl_dagster.runtime import Clock, SystemClock
from kcl_dagster.testing.dynamodb.conditions import Condition, parse_condition
from kcl_dagster.testing.dynamodb.control import ControlPlane, Response, answer
from kcl_dagster.testing.dynamodb.failures import (
    condition_failed,
    transaction_cancelled,
    validation_error,
)
from kcl_dagster.testing.dynamodb.reads import read_page
from kcl_dagster.testing.dynamodb.table import Key, Table
from kcl_dagster.testing.dynamodb.updates import Update, parse_projection, parse_update, projected
from kcl_dagster.testing.dynamodb.values import Item, Value, canonical, canonical_item, copied
from kcl_dagster.testing.strictness import check_requests

# DynamoDB pages by size (1 MiB); counting items is what lets a test see pages at all.
DEFAULT_PAGE_ITEMS: Final = 1000

_TRANSACTION_LIMIT: Final = 100
_BATCH_GET_LIMIT: Final = 100


def _now(_operation: str) -> float:
    return 0.0


class FakeDynamoDB(ControlPlane):
    """One account's tables behind the method names of `boto3.client("dynamodb")`.

    Every call is atomic and answers at once. Not thread-safe. Raises botocore's ClientError with DynamoDB's codes,
    and with `strict` its ParamValidationError, so code under test needs no other error handling than in production.

    clock: decides when tables become active and dates the history for stale reads.
    page_items: items evaluated by one scan or query call before it stops with a LastEvaluatedKey.
    staleness: called with the operation's name for each read that is not consistent; answers how many seconds
        old what is read may be. Reads of an index are never consistent.
    creation_seconds: how long tables and indexes stay CREATING.
    strict: check parameters against the service's own model, as boto3 does, and meter what would be paid for.
        Costs about 0.1 ms a call.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        page_items: int = DEFAULT_PAGE_ITEMS,
        staleness: Callable[[str], float] | None = None,
        creation_seconds: float = 0.0,
        region: str = "us-east-1",
        strict: bool = True,
    ) -> None:
        super().__init__(
            clock or SystemClock(), region=region, creation_seconds=creation_seconds, is_metered=strict
        )
        self.page_items = page_items
        self._staleness = staleness or _now
        self._remember = staleness is not None
        if strict:
            check_requests(self, "dynamodb")

    def close(self) -> None:
        """Clients have it; there is nothing to close."""

    # -- writes

    def put_item(self, **request: Any) -> Response:
        table = self._active(request["TableName"])
        item = canonical_item(request["Item"])
        key = table.schema.of(item)
        self._check(table, key, request)
        old = table.items.get(key)
        self._store(table, key, item)
        return self._written(request, old, item, ())

    def update_item(self, **request: Any) -> Response:
        table = self._active(request["TableName"])
        key_item = canonical_item(request["Key"])
        key = _exact_key(table, key_item)
        update = self._parse_update(table, request)
        values = self._check(table, key, request, update)
        old = table.items.get(key)
        new = {**(update.applied(old if old is not None else key_item, values) if update else old or key_item)}
        self._store(table, key, new)
        return self._written(request, old, new, tuple(str(path[0]) for path in update.touched) if update else ())

    def delete_item(self, **request: Any) -> Response:
        table = self._active(request["TableName"])
        key = _exact_key(table, canonical_item(request["Key"]))
        self._check(table, key, request)
        old = table.items.get(key)
        self._store(table, key, None)
        return self._written(request, old, None, ())

    def _parse_update(self, table: Table, request: Mapping[str, Any]) -> Update | None:
        text = request.get("UpdateExpression")
        if text is None:
            return None
        update = parse_update(text, _names(request))
        for path in update.touched:
            if path[0] in table.schema.names:
                raise validation_error(
                    f"One or more parameter values were invalid: Cannot update attribute {path[0]}. "
                    "This attribute is part of the key"
                )
        return update

    def _check(
        self, table: Table, key: Key, request: Mapping[str, Any], update: Update | None = None
    ) -> dict[str, Value]:
        """Evaluate the condition; answers the canonical values for the update."""
        values = {name: canonical(value) for name, value in request.get("ExpressionAttributeValues", {}).items()}
        condition = _condition(request, "ConditionExpression")
        _refuse_unused(request, values, *(part for part in (condition, update) if part is not None))
        if condition is not None:
            item = table.items.get(key)
            if not condition.holds(item or {}, values):
                wanted = request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
                raise condition_failed(copied(item) if wanted and item is not None else None)
        return values

    def _store(self, table: Table, key: Key, item: Item | None) -> None:
        table.put(key, item, self.clock.now(), remember=self._remember)

    def _written(
        self, request: Mapping[str, Any], old: Item | None, new: Item | None, touched: tuple[str, ...]
    ) -> Response:
        wanted = request.get("ReturnValues", "NONE")
        source = old if wanted.endswith("OLD") else new
        if wanted == "NONE" or source is None:
            return answer()
        if wanted.startswith("UPDATED"):
            source = {name: source[name] for name in touched if name in source}
        return answer(Attributes=copied(source)) if source else answer()

    # -- reads

    def get_item(self, **request: Any) -> Response:
        table = self._active(request["TableName"])
        key = _exact_key(table, canonical_item(request["Key"]))
        consistent = request.get("ConsistentRead", False)
        item = table.at(key, None if consistent else self._moment("get_item"))
        table.account_read([item] if item else [], consistent=consistent)
        if item is None:
            return answer()
        projection = request.get("ProjectionExpression")
        if projection is not None:
            item = projected(item, parse_projection(projection, _names(request))[0])
        return answer(Item=copied(item))

    def batch_get_item(self, **request: Any) -> Response:
        responses: dict[str, list[Item]] = {}
        if sum(len(wanted["Keys"]) for wanted in request["RequestItems"].values()) > _BATCH_GET_LIMIT:
            raise validation_error("Too many items requested for the BatchGetItem call")
        for name, wanted in request["RequestItems"].items():
            options = {k: v for k, v in wanted.items() if k != "Keys"}
            found = (self.get_item(TableName=name, Key=key, **options) for key in wanted["Keys"])
            responses[name] = [one["Item"] for one in found if "Item" in one]
        return answer(Responses=responses, UnprocessedKeys={})

    def scan(self, **request: Any) -> Response:
        table = self._active(request["TableName"])
        return read_page(table, request, self.page_items, self._read_moment("scan", request), self.clock.now())

    def query(self, **request: Any) -> Response:
        table = self._active(request["TableName"])
        return read_page(table, request, self.page_items, self._read_moment("query", request), self.clock.now())

    def _read_moment(self, operation: str, request: Mapping[str, Any]) -> float | None:
        if request.get("ConsistentRead", False):
            if "IndexName" in request:
                raise validation_error("Consistent reads are not supported on global secondary indexes")
            return None
        return self._moment(operation)

    def _moment(self, operation: str) -> float | None:
        behind = self._staleness(operation)
        return self.clock.now() - behind if behind > 0 else None

    # -- transactions

    def transact_write_items(self, **request: Any) -> Response:
        parts = [next(iter(part.items())) for part in request["TransactItems"]]
        if len(parts) > _TRANSACTION_LIMIT:
            raise validation_error(f"Member must have length less than or equal to {_TRANSACTION_LIMIT}")
        keys = [self._part_key(kind, part) for kind, part in parts]
        if len(set(keys)) != len(keys):
            raise validation_error("Transaction request cannot include multiple operations on one item")
        reasons = [self._part_failure(kind, part) for kind, part in parts]
        if any(reason["Code"] != "None" for reason in reasons):
            raise transaction_cancelled(reasons)
        apply = {"Put": self.put_item, "Update": self.update_item, "Delete": self.delete_item}
        for kind, part in parts:
            if kind != "ConditionCheck":
                apply[kind](**part)
        return answer()

    def _part_key(self, kind: str, part: Mapping[str, Any]) -> tuple[str, Key]:
        table = self._active(part["TableName"])
        return table.name, table.schema.of(canonical_item(part["Item" if kind == "Put" else "Key"]))

    def _part_failure(self, kind: str, part: Mapping[str, Any]) -> dict[str, Any]:
        table = self._active(part["TableName"])
        key = self._part_key(kind, part)[1]
        update = self._parse_update(table, part) if kind == "Update" else None
        try:
            self._check(table, key, part, update)
        except Exception as error:
            response = getattr(error, "response", None)
            if response is None or response["Error"]["Code"] != "ConditionalCheckFailedException":
                raise
            reason = {"Code": "ConditionalCheckFailed", "Message": response["Error"]["Message"]}
            return {**reason, "Item": response["Item"]} if "Item" in response else reason
        return {"Code": "None"}


def _names(request: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(request.get("ExpressionAttributeNames", {}).items()))


def _condition(request: Mapping[str, Any], parameter: str) -> Condition | None:
    text = request.get(parameter)
    return None if text is None else parse_condition(parameter, text, _names(request))


def _exact_key(table: Table, key: Item) -> Key:
    if set(key) != set(table.schema.names):
        raise validation_error("The provided key element does not match the schema")
    return table.schema.of(key)


def _refuse_unused(request: Mapping[str, Any], values: Mapping[str, Value], *parts: Condition | Update) -> None:
    used_values = {name for part in parts for name in part.used_values}
    used_names = {name for part in parts for name in part.used_names}
    if unknown := used_values - set(values):
        raise validation_error(
            f"An expression attribute value used in expression is not defined; attribute value: {min(unknown)}"
        )
    _refuse(set(values) - used_values, "ExpressionAttributeValues")
    _refuse(set(request.get("ExpressionAttributeNames", {})) - used_names, "ExpressionAttributeNames")


def _refuse(unused: set[str], parameter: str) -> None:
    if unused:
        names = ", ".join(sorted(unused))
        raise validation_error(f"Value provided in {parameter} unused in expressions: keys: {{{names}}}")
