"""`FakeDynamoDB`: boto3's low-level DynamoDB client, in memory."""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, Final

from kcl_dagster.runtime import Clock, SystemClock
from tests.doubles.dynamodb.conditions import Condition, parse_condition
from tests.doubles.dynamodb.control import ControlPlane, Response, answer
from tests.doubles.dynamodb.failures import (
    condition_failed,
    conflict,
    transaction_cancelled,
    transaction_conflict,
    validation_error,
)
from tests.doubles.dynamodb.reads import read_page
from tests.doubles.dynamodb.table import Key, Table
from tests.doubles.dynamodb.updates import Update, parse_projection, parse_update, projected
from tests.doubles.dynamodb.values import Item, Value, canonical_item, copied
from tests.doubles.strictness import check_requests

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
    strict: check parameters against the service's own model, as boto3 does, meter what would be paid for, and
        answer with copies all the way down. Costs about 0.1 ms a call.
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
        self._held: set[tuple[str, Key]] = set()
        # What is stored is never changed in place, so a caller that does not change it either may share it.
        self._copied = copied if strict else dict
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
        self._refuse_conflict(table, key)
        self._store(table, key, item)
        return self._written(request, old, item, ())

    def update_item(self, **request: Any) -> Response:
        table = self._active(request["TableName"])
        key_item = canonical_item(request["Key"])
        key = _exact_key(table, key_item)
        update = self._parse_update(table, request)
        values = self._check(table, key, request, update)
        old = table.items.get(key)
        self._refuse_conflict(table, key)
        before = old if old is not None else key_item
        new = update.applied(before, values) if update else dict(before)
        self._store(table, key, new)
        return self._written(request, old, new, update.written if update else ())

    def delete_item(self, **request: Any) -> Response:
        table = self._active(request["TableName"])
        key = _exact_key(table, canonical_item(request["Key"]))
        self._check(table, key, request)
        old = table.items.get(key)
        self._refuse_conflict(table, key)
        self._store(table, key, None)
        return self._written(request, old, None, ())

    def _parse_update(self, table: Table, request: Mapping[str, Any]) -> Update | None:
        text = request.get("UpdateExpression")
        if text is None:
            return None
        update = parse_update(text, _names(request))
        for name in table.schema.names:
            if name in update.written:
                raise validation_error(
                    f"One or more parameter values were invalid: Cannot update attribute {name}. "
                    "This attribute is part of the key"
                )
        return update

    def _check(
        self, table: Table, key: Key, request: Mapping[str, Any], update: Update | None = None
    ) -> dict[str, Value]:
        """Evaluate the condition; answers the canonical values for the update."""
        values = canonical_item(request.get("ExpressionAttributeValues", {}))
        condition = _condition(request, "ConditionExpression")
        _refuse_unused(request, values, condition, update)
        if condition is not None:
            item = table.items.get(key)
            if not condition.holds(item or {}, values):
                wanted = request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
                raise condition_failed(self._copied(item) if wanted and item is not None else None)
        return values

    def _refuse_conflict(self, table: Table, key: Key) -> None:
        if self._held and (table.name, key) in self._held:
            raise transaction_conflict()

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
        return answer(Attributes=self._copied(source)) if source else answer()

    # -- reads

    def get_item(self, **request: Any) -> Response:
        table = self._active(request["TableName"])
        key = _exact_key(table, canonical_item(request["Key"]))
        consistent = request.get("ConsistentRead", False)
        item = table.at(key, None if consistent else self._moment("get_item"))
        if item is None:
            table.account_read([], consistent=consistent)
            return answer()
        table.account_read([item], consistent=consistent)
        projection = request.get("ProjectionExpression")
        if projection is not None:
            item = projected(item, parse_projection(projection, _names(request))[0])
        return answer(Item=self._copied(item))

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
        return self._page(table, request, "scan")

    def query(self, **request: Any) -> Response:
        table = self._active(request["TableName"])
        return self._page(table, request, "query")

    def _page(self, table: Table, request: Mapping[str, Any], operation: str) -> Response:
        moment = self._read_moment(operation, request)
        return read_page(table, request, self.page_items, moment, self.clock.now(), self._copied)

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

    @contextmanager
    def under_way(self, transaction: Mapping[str, Any]) -> Iterator[None]:
        """As long as the block lasts, writes to the items of this transaction are refused as conflicts with it.

        A call here is over at once, so two transactions never meet by themselves. A network that delays answers
        opens this block from when a transaction took effect to when its sender has the answer.
        """
        held = {
            self._part_key(kind, part) for entry in transaction["TransactItems"] for kind, part in entry.items()
        }
        mine = held - self._held
        self._held |= mine
        try:
            yield
        finally:
            self._held -= mine

    def transact_write_items(self, **request: Any) -> Response:
        parts = [next(iter(part.items())) for part in request["TransactItems"]]
        if len(parts) > _TRANSACTION_LIMIT:
            raise validation_error(f"Member must have length less than or equal to {_TRANSACTION_LIMIT}")
        keys = [self._part_key(kind, part) for kind, part in parts]
        if len(set(keys)) != len(keys):
            raise validation_error("Transaction request cannot include multiple operations on one item")
        if self._held.intersection(keys):
            raise transaction_cancelled([conflict() if key in self._held else {"Code": "None"} for key in keys])
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
    names = request.get("ExpressionAttributeNames")
    return tuple(sorted(names.items())) if names else ()


def _condition(request: Mapping[str, Any], parameter: str) -> Condition | None:
    text = request.get(parameter)
    return None if text is None else parse_condition(parameter, text, _names(request))


def _exact_key(table: Table, key: Item) -> Key:
    if key.keys() != table.schema.types.keys():
        raise validation_error("The provided key element does not match the schema")
    return table.schema.of(key)


_NOTHING: Final[frozenset[str]] = frozenset()


def _refuse_unused(
    request: Mapping[str, Any], values: Mapping[str, Value], condition: Condition | None, update: Update | None
) -> None:
    used_values = condition.used_values if condition is not None else _NOTHING
    if update is not None:
        used_values |= update.used_values
    if values.keys() != used_values:
        if unknown := used_values - values.keys():
            raise validation_error(
                f"An expression attribute value used in expression is not defined; attribute value: {min(unknown)}"
            )
        _refuse(values.keys() - used_values, "ExpressionAttributeValues")
    names = request.get("ExpressionAttributeNames")
    if names:
        used_names = condition.used_names if condition is not None else _NOTHING
        if update is not None:
            used_names |= update.used_names
        _refuse(names.keys() - used_names, "ExpressionAttributeNames")


def _refuse(unused: AbstractSet[str], parameter: str) -> None:
    if unused:
        names = ", ".join(sorted(unused))
        raise validation_error(f"Value provided in {parameter} unused in expressions: keys: {{{names}}}")
