"""Counts the DynamoDB units that a process consumes, as DynamoDB's responses report them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from kcl_dagster import aws
from kcl_dagster.telemetry.openmetrics import Family, MetricsRegistry

UNITS: Final = Family("kcl_dynamodb_units", "counter", "Units of DynamoDB that were used, by operation.")

_ASKED: Final = "ReturnConsumedCapacity"
_READS: Final = frozenset({"GetItem", "Query", "Scan", "BatchGetItem", "TransactGetItems"})
_BEFORE, _AFTER = "provide-client-params.dynamodb", "after-call.dynamodb"


@contextmanager
def counted_units(client: aws.Client, registry: MetricsRegistry) -> Iterator[None]:
    """Count the units that a boto3 client consumes, as long as the block lasts. Other clients are not changed."""
    events = getattr(getattr(client, "meta", None), "events", None)
    if events is None:
        yield
        return

    def ask(params: Mapping[str, Any], model: Any, **_: Any) -> dict[str, Any]:
        asks = _ASKED in model.input_shape.members and _ASKED not in params
        return {**params, **({_ASKED: "TOTAL"} if asks else {})}

    def count(parsed: Mapping[str, Any], model: Any, **_: Any) -> None:
        found = parsed.get("ConsumedCapacity") or ()
        kind = "read" if model.name in _READS else "write"
        for one in [found] if isinstance(found, Mapping) else found:
            registry.add(UNITS, one.get("CapacityUnits", 0.0), operation=model.name, kind=kind)

    events.register(_BEFORE, ask)
    events.register(_AFTER, count)
    try:
        yield
    finally:
        events.unregister(_BEFORE, ask)
        events.unregister(_AFTER, count)
