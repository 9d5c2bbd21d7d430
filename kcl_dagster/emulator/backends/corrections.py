"""Makes moto behave like DynamoDB in cases that matter to lease clients. Requests that DynamoDB rejects are
rejected, even if moto would accept them. If moto changes the type of an attribute, the type is restored."""

from __future__ import annotations

from typing import Any

from moto.dynamodb.comparisons import get_expected
from moto.dynamodb.exceptions import ConditionalCheckFailed, MockValidationException
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType

BATCH_WRITE_ITEMS = 25
_TAKEN_FOR_TEXT = {"B", "BS", "BOOL"}  # moto stores these types as text when an `AttributeUpdates` sets them


def correct(operation: str, parameters: dict[str, Any], backend: DynamoDBBackend) -> None:
    """Raise an exception of moto if DynamoDB would reject the request and moto would accept it."""
    if operation == "DeleteItem":
        _check_expected(parameters, backend)
    elif operation == "BatchWriteItem":
        _check_batch(parameters, backend)
    elif operation in ("Query", "Scan") and "IndexName" in parameters:
        _check_index(parameters, backend)


def _check_expected(parameters: dict[str, Any], backend: DynamoDBBackend) -> None:
    """Check the legacy `Expected` of a DeleteItem, which moto ignores."""
    expected = parameters.get("Expected")
    if not expected:
        return
    item = backend.get_item(parameters["TableName"], parameters["Key"])
    if not get_expected(expected).expr(item):
        raise ConditionalCheckFailed


def _check_batch(parameters: dict[str, Any], backend: DynamoDBBackend) -> None:
    """Reject a BatchWriteItem with too many items, or with two requests for the same item. moto accepts both."""
    requests = parameters["RequestItems"]
    if sum(len(of_table) for of_table in requests.values()) > BATCH_WRITE_ITEMS:
        raise MockValidationException("Too many items requested for the BatchWriteItem call")
    for table_name, of_table in requests.items():
        table = backend.get_table(table_name)
        key_names = [name for name in (table.hash_key_attr, table.range_key_attr) if name]
        seen = []
        for request in of_table:
            item = request["PutRequest"]["Item"] if "PutRequest" in request else request["DeleteRequest"]["Key"]
            key = [item.get(name) for name in key_names]
            if key in seen:
                raise MockValidationException("Provided list of item keys contains duplicates")
            seen.append(key)


def _check_index(parameters: dict[str, Any], backend: DynamoDBBackend) -> None:
    """Reject an index that the table does not have. moto would respond that the table is missing, and clients would
    react to this error."""
    name = parameters["IndexName"]
    if name not in {index.name for index in backend.get_table(parameters["TableName"]).all_indexes()}:
        raise MockValidationException(f"The table does not have the specified index: {name}")


def keep_types(parameters: dict[str, Any], backend: DynamoDBBackend, reply: dict[str, Any]) -> None:
    """Restore the types of attributes that moto has just stored as text, because `AttributeUpdates` set them. The
    Java KCL writes the state of a prepared checkpoint with `AttributeUpdates`."""
    for name, update in (parameters.get("AttributeUpdates") or {}).items():
        value = update.get("Value", {})
        if update.get("Action", "PUT") != "PUT" or not set(value) & _TAKEN_FOR_TEXT:
            continue
        item = backend.get_item(parameters["TableName"], parameters["Key"])
        assert item is not None
        item.attrs[name] = DynamoType(value)
        if parameters.get("ReturnValues", "NONE").endswith("_NEW"):
            reply.setdefault("Attributes", {})[name] = value
