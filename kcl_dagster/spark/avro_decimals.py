"""Decodes decimals in Avro. Pure.

fastavro rounds a decimal that has more digits than its schema allows, and needs minutes for one of 1 MiB. So
`decimal` in a schema is replaced by another logical type, for which fastavro calls the function of this module.
"""

from decimal import Context, Decimal
from typing import Any, Final

DECIMAL: Final = "kcl-decimal"
READERS: Final = (f"bytes-{DECIMAL}", f"fixed-{DECIMAL}")
MOST_DIGITS: Final = 76  # of a column of Arrow
# fastavro adds these entries to a schema that it parses. `with_own_decimals` leaves them out of its copy of the
# schema, so that fastavro parses the copy, too.
_PARSED: Final = ("__fastavro_parsed", "__named_schemas")


def with_own_decimals(schema: Any) -> Any:
    """A copy of a schema (parsed JSON) whose decimals have the logical type `DECIMAL`."""
    if isinstance(schema, list):
        return [with_own_decimals(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        name: part if name == "default" else with_own_decimals(part)
        for name, part in schema.items()
        if name not in _PARSED
    }
    if found.get("logicalType") == "decimal":
        found["logicalType"] = DECIMAL
    return found


def decimal(stored: bytes, schema: Any, _: Any = None) -> Decimal:
    """The decimal in the bytes of a value. Raises ValueError if it has more digits than its schema allows."""
    unscaled = int.from_bytes(stored, "big", signed=True)
    precision = schema["precision"]
    digits = min(precision, MOST_DIGITS)
    if not -(10**digits) < unscaled < 10**digits:
        raise ValueError(f"the decimal has more than {digits} digits")
    return Decimal(unscaled).scaleb(-schema.get("scale", 0), Context(prec=precision))
