"""Conflicts between transactions: DynamoDB refuses a write of an item that a transaction is just writing.

A transaction is under way from when its request arrives to when its answer leaves. Here requests are served one
after another, so without this no two would ever meet, and callers would never learn that they have to try again.
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
"""The key attributes of a table; empty for one that does not exist."""


class Conflicts:
    """The items of all transactions that are under way. For one thread."""

    def __init__(self, key_names: KeyNames) -> None:
        self._key_names = key_names
        self._held: Counter[Key] = Counter()

    @contextmanager
    def during(self, operation: str, body: bytes) -> Iterator[dict[str, Any] | None]:
        """The error to answer with, if a transaction is writing an item of this request. Otherwise None, and a
        transaction holds its items as long as the block lasts."""
        if operation != TRANSACTION and not (self._held and operation in SINGLE_WRITES):
            yield None
            return
        try:
            keys = self._keys(operation, json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
            yield None  # its own service says what is wrong with it
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
