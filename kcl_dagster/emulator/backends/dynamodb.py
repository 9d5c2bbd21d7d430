"""DynamoDB: moto's tables and expressions, made atomic and faster.

moto itself reads, checks and writes without a lock, so two writers can both pass the same condition. This module
holds one lock during each request. For operations on items, it calls moto's methods directly, without moto's HTTP
and model layers, which would take most of the time.
"""

from __future__ import annotations

import json
import threading
from typing import Any

from moto.core.exceptions import ServiceException
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.responses import DynamoHandler
from werkzeug.exceptions import HTTPException

from kcl_dagster.emulator.backends.corrections import correct, keep_types
from kcl_dagster.emulator.backends.moto_request import from_moto, to_moto
from kcl_dagster.emulator.backends.rendering import render
from kcl_dagster.emulator.backends.scans import scan
from kcl_dagster.emulator.backends.tokens import RequestTokens
from kcl_dagster.emulator.backends.updates import DirectUpdates
from kcl_dagster.emulator.http.http_messages import HttpRequest, Response

CONTENT_TYPE = "application/x-amz-json-1.0"

ITEM_OPERATIONS = {
    "BatchGetItem": "batch_get_item",
    "BatchWriteItem": "batch_write_item",
    "DeleteItem": "delete_item",
    "GetItem": "get_item",
    "PutItem": "put_item",
    "Query": "query",
    "Scan": "scan",
    "TransactGetItems": "transact_get_items",
    "TransactWriteItems": "transact_write_items",
    "UpdateItem": "update_item",
}

_REPLY_MEMBERS = frozenset(
    {
        "Attributes",
        "ConsumedCapacity",
        "Count",
        "Item",
        "ItemCollectionMetrics",
        "Items",
        "LastEvaluatedKey",
        "Responses",
        "ScannedCount",
        "UnprocessedItems",
        "UnprocessedKeys",
    }
)


class DynamoDb:
    """The tables of one emulator. Any thread can call `handle`."""

    def __init__(self, account: str, region: str) -> None:
        self._account = account
        self._lock = threading.Lock()
        self._backend = backend = DynamoDBBackend(region, account)
        self._updates = DirectUpdates(backend)
        self._tokens = RequestTokens()

        class Handler(DynamoHandler):
            # Without this property, moto would share one set of tables among all emulators in this process.
            @property
            def dynamodb_backend(self) -> DynamoDBBackend:
                return backend

        self._handler = Handler

    def handle(self, operation: str, request: HttpRequest) -> Response:
        with self._lock:
            try:
                method = ITEM_OPERATIONS.get(operation)
                if method is None:
                    return from_moto(self._handler.dispatch(to_moto(request, self._account)))
                return self._item_operation(operation, method, request.body)
            except ServiceException as error:
                return _refusal(error.code, error.message)
            except HTTPException as error:
                return Response(error.code or 400, (error.description or "").encode(), _headers())
            except (KeyError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
                # moto raises these errors for unexpected input. DynamoDB responds that the request is invalid.
                return _refusal("ValidationException", f"{operation}: {type(error).__name__}: {error}")

    def key_names(self, table: str) -> list[str]:
        """Return the names of a table's key attributes. The result is empty if there is no such table."""
        found = self._backend.tables.get(table)
        names = () if found is None else (found.hash_key_attr, found.range_key_attr)
        return [name for name in names if name]

    def _item_operation(self, operation: str, method: str, body: bytes) -> Response:
        parameters = json.loads(body)
        correct(operation, parameters, self._backend)
        reply = self._reply(operation, method, parameters)
        if not isinstance(reply, bytes):
            reply = render(reply).encode()
        return Response(200, reply, _headers())

    def _reply(self, operation: str, method: str, parameters: dict[str, Any]) -> dict[str, Any] | bytes:
        """Return the reply to an operation on items. The emulator's own, faster code makes the reply if it supports
        the request. Otherwise, moto makes the reply."""
        match operation:
            case "UpdateItem":
                reply = self._updates.serve(parameters)
                if reply is None:
                    reply = self._ask_moto(method, parameters)
                    keep_types(parameters, self._backend, reply)
                    self._updates.learn(parameters)
                return reply
            case "TransactWriteItems":
                reply = self._tokens.reply(parameters)
                if reply is None:
                    reply = self._ask_moto(method, parameters)
                    self._tokens.remember(parameters, reply)
                return reply
            case "Scan":
                return scan(self._backend, parameters) or self._ask_moto(method, parameters)
            case _:
                return self._ask_moto(method, parameters)

    def _ask_moto(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        handler = self._handler()
        handler.body = handler.params = parameters
        handler.headers = {}
        handler.response_headers = {}
        result: dict[str, Any] = getattr(handler, method)().result or {}
        reply = {name: value for name, value in result.items() if name in _REPLY_MEMBERS}
        if parameters.get("ReturnConsumedCapacity", "NONE") == "NONE":
            reply.pop("ConsumedCapacity", None)  # moto returns it even if the request did not ask for it
        return reply


def _refusal(code: str, message: str) -> Response:
    body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message})
    return Response(400, body.encode(), _headers())


def _headers() -> list[tuple[str, str]]:
    return [("content-type", CONTENT_TYPE)]
