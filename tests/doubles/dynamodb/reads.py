"""Scan and Query, one page at a time."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any

from tests.doubles.dynamodb.conditions import parse_condition
from tests.doubles.dynamodb.control import Response, answer
from tests.doubles.dynamodb.failures import client_error, validation_error
from tests.doubles.dynamodb.table import Index, Key, Table
from tests.doubles.dynamodb.updates import parse_projection, projected
from tests.doubles.dynamodb.values import Item, Value, canonical_item, copied, ordering


def read_page(
    table: Table,
    request: Mapping[str, Any],
    page_items: int,
    moment: float | None,
    now: float,
    copy: Callable[[Item], Item] = copied,
) -> Response:
    """One page of a scan, or of a query when the request has a KeyConditionExpression.

    moment: read as it was then; None for now. A page that was cut answers with a LastEvaluatedKey even when
    nothing follows, as DynamoDB does. copy: applied to each item before it is answered.
    """
    index = _index(table, request, now)
    values = canonical_item(request.get("ExpressionAttributeValues", {}))
    names = tuple(sorted(given.items())) if (given := request.get("ExpressionAttributeNames")) else ()
    keep = _predicate("FilterExpression", request, names, values)
    limit = min(request.get("Limit", page_items), page_items)
    evaluated = list(islice(_candidates(table, index, request, names, values, moment), limit))
    table.account_read(evaluated, consistent=bool(request.get("ConsistentRead", False)))
    found = evaluated if keep is None else [item for item in evaluated if keep(item)]
    members: dict[str, Any] = {"Count": len(found), "ScannedCount": len(evaluated)}
    if request.get("Select") != "COUNT":
        shape = _shape(table, index, request, names, copy)
        members["Items"] = [shape(item) for item in found]
    if len(evaluated) == limit:
        members["LastEvaluatedKey"] = _position(table, index, evaluated[-1])
    return answer(**members)


def _index(table: Table, request: Mapping[str, Any], now: float) -> Index | None:
    name = request.get("IndexName")
    if name is None:
        return None
    index = table.indexes.get(name)
    if index is None:
        raise validation_error(f"The table does not have the specified index: {name}")
    if now < index.active_at:
        raise client_error("ValidationException", f"Cannot read from backfilling global secondary index: {name}")
    return index


def _predicate(
    parameter: str, request: Mapping[str, Any], names: tuple[tuple[str, str], ...], values: Mapping[str, Value]
) -> Callable[[Item], bool] | None:
    """None when the request does not have the expression."""
    text = request.get(parameter)
    if text is None:
        return None
    condition = parse_condition(parameter, text, names)
    missing = condition.used_values - set(values)
    if missing:
        raise validation_error(
            f"Invalid {parameter}: An expression attribute value used in expression is not defined; "
            f"attribute value: {min(missing)}"
        )
    holds = condition.holds
    return lambda item: holds(item, values)


def _candidates(
    table: Table,
    index: Index | None,
    request: Mapping[str, Any],
    names: tuple[tuple[str, str], ...],
    values: Mapping[str, Value],
    moment: float | None,
) -> Iterator[Item]:
    view = table.as_of(moment)
    start = request.get("ExclusiveStartKey")
    after = table.schema.of(canonical_item(start)) if start is not None else None
    matches = _predicate("KeyConditionExpression", request, names, values)
    if matches is None:
        segment, total = request.get("Segment", 0), request.get("TotalSegments", 1)
        if not 0 <= segment < total:
            raise validation_error(
                "The Segment parameter is zero-based and must be less than parameter TotalSegments"
            )
        items = table.segment(view, segment, total, after)
        yield from items if index is None else (item for item in items if index.holds(item))
        return
    schema = index.schema if index is not None else table.schema
    in_index = schema.types.keys()
    reverse = not request.get("ScanIndexForward", True)

    def place(key: Key, item: Item) -> tuple[Any, Key]:
        return (ordering(item[schema.range]) if schema.range else None, key)

    found = [
        (place(key, item), item)
        for key, item in view.items()
        if matches(item) and (index is None or in_index <= item.keys())
    ]
    if len(found) > 1:
        found.sort(key=_place, reverse=reverse)
    if after is not None and start is not None:
        last = place(after, canonical_item(start))
        found = [entry for entry in found if (entry[0] < last if reverse else entry[0] > last)]
    for _, item in found:
        yield item


_place = itemgetter(0)


def _shape(
    table: Table,
    index: Index | None,
    request: Mapping[str, Any],
    names: tuple[tuple[str, str], ...],
    copy: Callable[[Item], Item],
) -> Callable[[Item], Item]:
    """What of an item is answered."""
    text = request.get("ProjectionExpression")
    paths = parse_projection(text, names)[0] if text is not None else None
    if index is None or index.projection.get("ProjectionType") == "ALL":
        return copy if paths is None else lambda item: projected(item, paths)
    kept = {*table.schema.names, *index.schema.names, *index.projection.get("NonKeyAttributes", ())}

    def shaped(item: Item) -> Item:
        part = {name: value for name, value in item.items() if name in kept}
        return copy(part) if paths is None else projected(part, paths)

    return shaped


def _position(table: Table, index: Index | None, item: Item) -> Item:
    names = {*table.schema.names, *(index.schema.names if index is not None else ())}
    return copied({name: item[name] for name in sorted(names)})
