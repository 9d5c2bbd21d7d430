"""DynamoDB's typed values: checked and brought into one canonical form, so that equality is `==`."""

import re
from collections.abc import Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from typing import Any, Final

from tests.doubles.dynamodb.failures import validation_error

Value = dict[str, Any]
Item = dict[str, Value]

# Numbers carry 38 significant digits; more is an error, not a rounding.
_NUMBERS: Final = Context(prec=38, traps=[InvalidOperation, Inexact])

# Whole numbers that are spelt as they should be: nearly all of them.
_PLAIN: Final = re.compile(r"0|-?[1-9][0-9]{0,37}")

# An item, names and values together, may not be larger.
LARGEST_ITEM_BYTES: Final = 400 * 1024


@lru_cache(maxsize=65536)
def canonical_number(text: str) -> str:
    """The one spelling DynamoDB answers with: no exponent, no trailing zeros."""
    try:
        if _PLAIN.fullmatch(text):
            return text
        number = _NUMBERS.create_decimal(text)
    except (InvalidOperation, Inexact, TypeError, ValueError) as error:
        raise validation_error(f"The parameter cannot be converted to a numeric value: {text}") from error
    if not number.is_finite():
        raise validation_error(f"The parameter cannot be converted to a numeric value: {text}")
    if not number:
        return "0"
    return format(number.normalize(_NUMBERS), "f")


def canonical(value: Mapping[str, Any]) -> Value:
    """Check one value and bring it into canonical form. Sets come out sorted."""
    if len(value) != 1:
        raise validation_error("Supplied AttributeValue has more than one datatypes set, must contain exactly one")
    ((kind, content),) = value.items()
    if kind == "S" and isinstance(content, str):
        return {"S": content}
    if kind == "N" and isinstance(content, str):
        return {"N": canonical_number(content)}
    if kind == "BOOL" and isinstance(content, bool):
        return {"BOOL": content}
    if kind == "B":
        return {"B": bytes(content)}
    if kind == "NULL":
        return {"NULL": True}
    if kind in ("SS", "NS", "BS"):
        return {kind: _canonical_set(kind, content)}
    if kind == "L":
        return {"L": [canonical(v) for v in content]}
    if kind == "M":
        return {"M": {name: canonical(v) for name, v in content.items()}}
    raise validation_error(f"Supplied AttributeValue {value!r} is of no known type")


def _canonical_set(kind: str, content: Any) -> list[Any]:
    if not content:
        name = {"SS": "string", "NS": "number", "BS": "binary"}[kind]
        raise validation_error(f"One or more parameter values were invalid: An {name} set  may not be empty")
    members = [canonical_number(v) for v in content] if kind == "NS" else list(content)
    if len(set(members)) != len(members):
        raise validation_error(
            f"One or more parameter values were invalid: Input collection {content} contains duplicates."
        )
    return sorted(members, key=Decimal) if kind == "NS" else sorted(members)


def canonical_item(item: Mapping[str, Mapping[str, Any]]) -> Item:
    found: Item = {}
    for name, value in item.items():
        text = value.get("S")  # most values are texts
        found[name] = {"S": text} if type(text) is str and len(value) == 1 else canonical(value)
    return found


def copied(item: Mapping[str, Value]) -> Item:
    """A copy that shares nothing a caller could change."""
    return {name: _copied_value(value) for name, value in item.items()}


def _copied_value(value: Value) -> Value:
    ((kind, content),) = value.items()
    if kind == "M":
        return {"M": copied(content)}
    if kind == "L":
        return {"L": [_copied_value(v) for v in content]}
    if isinstance(content, list):
        return {kind: list(content)}
    return {kind: content}


def ordering(value: Value) -> tuple[str, Any] | None:
    """A sort key for `<` and BETWEEN, or None for types that have no order."""
    ((kind, content),) = value.items()
    if kind == "N":
        return ("N", Decimal(content))
    if kind == "S":
        return ("S", content.encode())
    if kind == "B":
        return ("B", content)
    return None


def size_of(value: Value) -> int:
    """Bytes DynamoDB accounts for one value."""
    ((kind, content),) = value.items()
    if kind == "S":
        return len(content.encode())
    if kind == "N":
        return len(content) // 2 + 1
    if kind == "B":
        return len(content)
    if kind in ("SS", "NS", "BS"):
        return sum(size_of({kind[0]: member}) for member in content)
    if kind == "L":
        return 3 + sum(1 + size_of(v) for v in content)
    if kind == "M":
        return 3 + sum(len(name.encode()) + 1 + size_of(v) for name, v in content.items())
    return 1


def item_size(item: Mapping[str, Value]) -> int:
    return sum(len(name.encode()) + size_of(value) for name, value in item.items())
