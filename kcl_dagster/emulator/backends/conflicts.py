"""Conflicts between transactions: DynamoDB rejects a write of an item while a transaction writes the item.

On AWS, a transaction is under way from the arrival of its request until its response leaves. The emulator serves
requests one after another. Without this module, two requests would never conflict, and tests could not show that
callers retry.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

TRANSACTION = "TransactWriteItems"
SINGLE_WRITES = frozenset({"PutItem", "UpdateItem", "DeleteItem"})
MESSAGE = "Transaction is ongoing for the item"

Key = tuple[str, str]
KeyNames = Callable[[str], Sequence[str]]
"""A function that returns the names of a table's key attributes. The result is empty if there is no such table."""


class Conflicts:
    """The items of all transactions that are under way. Not thread-safe."""

    def __init__(self, key_names: KeyNames) -> None:
        self._key_names = key_names
        self._held: Counter[Key] = Counter()

    @contextmanager
    def during(self, operation: str, body: bytes) -> Iterator[dict[str, Any] | None]:
        """Yield the error with which to respond if a transaction is writing an item of this request; otherwise
        None. If the request is a transaction, its items count as being written while the block lasts."""
        if operation != TRANSACTION and not (self._held and operation in SINGLE_WRITES):
            yield None
            return
        try:
            keys = self._keys(operation, json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
            yield None  # the service itself reports what is wrong with the request
            return
        if any(key in self._held for key in keys):
            yield self._refusal(operation, keys)
            return
        held = keys if operation == TRANSACTION else []
        self._held.update(held)
        try:
            yield None
        finally:
            self._held -= Counter(held)

    def _keys(self, operation: str, parameters: Mapping[str, Any]) -> list[Key]:
        if operation != TRANSACTION:
            return [self._key(parameters)]
        return [self._key(next(iter(part.values()))) for part in parameters["TransactItems"]]

    def _key(self, part: Mapping[str, Any]) -> Key:
        table = part["TableName"]
        item = part.get("Key") or part["Item"]
        return table, json.dumps([item.get(name) for name in self._key_names(table)])

    def _refusal(self, operation: str, keys: Sequence[Key]) -> dict[str, Any]:
        if operation != TRANSACTION:
            return {"__type": _TYPE.format("TransactionConflictException"), "message": MESSAGE}
        codes = ["TransactionConflict" if key in self._held else "None" for key in keys]
        reasons = [{"Code": code, **({"Message": MESSAGE} if code != "None" else {})} for code in codes]
        return {
            "__type": _TYPE.format("TransactionCanceledException"),
            "Message": "Transaction cancelled, please refer cancellation reasons for specific reasons "
            f"[{', '.join(codes)}]",
            "CancellationReasons": reasons,
        }


_TYPE = "com.amazonaws.dynamodb.v20120810#{}"
