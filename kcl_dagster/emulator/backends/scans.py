"""A faster scan of whole lease tables. It serves a scan if the scan uses neither a filter nor an index, and the key
of the table is one text attribute. moto serves all other scans.

moto copies and measures every item, and for each page it goes through all earlier pages again. This takes seconds
for ten thousand leases. This module keeps the order of the keys from one page to the next.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, cast
from weakref import WeakKeyDictionary

from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType, Item
from moto.dynamodb.models.table import Table

from kcl_dagster.emulator.backends.rendering import render

# DynamoDB limits a page by the bytes of names and values. The emulator counts the bytes of their JSON, which is
# somewhat longer, so its pages are slightly smaller than those of AWS.
PAGE_BYTES = 1_000_000

_SIMPLE = frozenset(
    {
        "ConsistentRead",
        "ExclusiveStartKey",
        "Limit",
        "ReturnConsumedCapacity",
        "Segment",
        "TableName",
        "TotalSegments",
    }
)


def scan(backend: DynamoDBBackend, request: Mapping[str, Any]) -> bytes | None:
    """Return the reply as JSON; None if moto has to serve this scan. The caller must hold the lock of
    `DynamoDb`."""
    if not _SIMPLE.issuperset(request) or request.get("ReturnConsumedCapacity", "NONE") != "NONE":
        return None
    segment, segments = request.get("Segment"), request.get("TotalSegments")
    if (segment is None) != (segments is None) or (segment is not None and segment >= segments):
        return None
    table = backend.get_table(request["TableName"])
    if table.range_key_attr is not None:
        return None
    keys = _in_order(table)
    if keys is None:
        return None
    # If a table has no range key, moto stores the items directly. moto's type annotations say that this is a nested
    # dict.
    stored = cast("Mapping[DynamoType, Item]", table.items)
    begin = 0
    if (start := request.get("ExclusiveStartKey")) is not None:
        begin = bisect_right(keys, start[table.hash_key_attr]["S"], key=lambda key: key.value)
    limit = request.get("Limit", len(keys) + 1)
    within = (segment, segments)
    rendered: list[str] = []
    size = 0
    last = None
    for key in keys[begin:]:
        item = stored[key]
        if not item.is_within_segment(within):
            continue
        text = render(item.to_json()["Attributes"])
        size += len(text)
        if rendered and (len(rendered) == limit or size > PAGE_BYTES):
            return _reply(rendered, {table.hash_key_attr: {"S": last}})
        rendered.append(text)
        last = item.hash_key.value
    return _reply(rendered, None)


_orders: WeakKeyDictionary[Table, tuple[list[DynamoType], list[DynamoType] | None]] = WeakKeyDictionary()


def _in_order(table: Table) -> list[DynamoType] | None:
    """Return the keys of the table, sorted; None if they are not texts. The keys are sorted again only if they have
    changed."""
    keys = list(table.items)
    known = _orders.get(table)
    if known is None or known[0] != keys:  # a comparison of the same objects is much faster than the sort
        are_texts = all(key.type == "S" for key in keys)
        known = _orders[table] = keys, sorted(keys, key=lambda key: key.value) if are_texts else None
    return known[1]


def _reply(rendered: list[str], last_key: dict[str, Any] | None) -> bytes:
    end = "" if last_key is None else f',"LastEvaluatedKey":{render(last_key)}'
    count = len(rendered)
    return f'{{"Items":[{",".join(rendered)}],"Count":{count},"ScannedCount":{count}{end}}}'.encode()
