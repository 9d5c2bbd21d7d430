"""Limits how deeply Avro values are nested, and how many items they have. Pure.

fastavro reads each level of a value in a further call in C, and the process ends with SIGSEGV when its stack is
used up. If the schema is recursive, each level can take as little as one byte of the payload. If the schema is not
recursive, a value has no more levels than its schema.

A payload of five bytes can be an array of a billion items, if an item takes no bytes. Such items are, for example,
nulls and records without fields.
"""

from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

MOST_LEVELS: Final = 500  # records, arrays and maps; fastavro takes up to 2.5 KB of the stack for each
FEW_ITEMS: Final = 1_000  # of all arrays and maps in a value; this many are allowed even if they take no bytes
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}

CheckNesting = Callable[[bytes, int], None]
"""Checks the value that begins at this place of a payload. Raises an error if the value has more than `MOST_LEVELS`
levels. Also raises an error if the value has more items than the payload has bytes; `FEW_ITEMS` items are allowed
in any case. If the value is cut off, an error is possible, but not certain."""


def nesting_check(schema: Any) -> CheckNesting | None:
    """The check for values of a schema that `fastavro.parse_schema` has returned. None if values need no check.
    This is so if no type of the schema contains itself and each item of an array takes at least one byte.

    Raises RecursionError if the schema itself is nested too deeply.
    """
    types = dict(_types(schema))
    try:
        TopologicalSorter({name: set(_inside(one)) for name, one in types.items()}).prepare()
        if not _has_empty_items(schema, types):
            return None
    except CycleError:
        pass
    return lambda payload, start: _check(schema, types, payload, start)


def _has_empty_items(schema: Any, types: dict[str, Any]) -> bool:
    """Whether a schema that is not recursive has an array whose items can take no bytes."""
    is_array = isinstance(schema, dict) and schema["type"] == "array"
    return (is_array and _can_be_empty(schema["items"], types)) or any(
        _has_empty_items(part, types) for part in _parts(schema)
    )


def _can_be_empty(schema: Any, types: dict[str, Any]) -> bool:
    """Whether a value can take no bytes."""
    one = types.get(schema, {"type": schema}) if isinstance(schema, str) else schema
    if isinstance(one, list):  # the number of the branch takes a byte
        return False
    if one["type"] in ("record", "error"):
        return all(_can_be_empty(field["type"], types) for field in one["fields"])
    return bool(one["type"] == "null" or (one["type"] == "fixed" and one["size"] == 0))


def _types(schema: Any) -> Iterator[tuple[str, Any]]:
    """The names and definitions of all named types in a schema."""
    if isinstance(schema, dict) and schema["type"] in _NAMED:
        yield schema["name"], schema
    for part in _parts(schema):
        yield from _types(part)


def _parts(schema: Any) -> list[Any]:
    """The schemas that are directly inside of a schema."""
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, dict):
        return []
    match schema["type"]:
        case "record" | "error":
            return [field["type"] for field in schema["fields"]]
        case "array":
            return [schema["items"]]
        case "map":
            return [schema["values"]]
    return []


def _inside(definition: Any) -> Iterator[str]:
    """The names of the types that a definition uses directly. The names that only its inner named types use are
    left out."""
    rest = [*_parts(definition)]
    while rest:
        part = rest.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict) and part["type"] in _NAMED:
            yield part["name"]
        else:
            rest.extend(_parts(part))


def _check(schema: Any, types: dict[str, Any], payload: bytes, place: int) -> None:
    """Walk over a value without recursion."""
    most_items = max(FEW_ITEMS, len(payload))
    # The values that remain to be read: for each of them its schema, its level, and a number of items or None. The
    # number is set only for an array or map that was read up to the middle of a block. It is the number of items
    # that remain in this block.
    rest: list[tuple[Any, int, int | None]] = [(schema, 0, None)]
    while rest:
        part, level, items = rest.pop()
        if level > MOST_LEVELS:
            raise ValueError(f"the Avro value has more than {MOST_LEVELS} levels")
        if isinstance(part, list):
            branch, place = _number(payload, place)
            rest.append((part[branch], level, None))
            continue
        kind = part["type"] if isinstance(part, dict) else part
        if kind in _SIZES:
            place += _SIZES[kind]
        elif kind in ("int", "long", "enum"):
            _, place = _number(payload, place)
        elif kind in ("string", "bytes"):
            place = _after_text(payload, place)
        elif kind == "fixed":
            place += part["size"]
        elif kind in ("record", "error"):
            rest.extend((field["type"], level + 1, None) for field in reversed(part["fields"]))
        elif kind in ("array", "map"):
            if not items:
                items, place = _block(payload, place)
                most_items -= items
                if most_items < 0:
                    raise ValueError("the Avro value has more items than bytes")
            if items:
                rest.append((part, level, items - 1 or None))
                if kind == "map":
                    place = _after_text(payload, place)
                rest.append((part["items" if kind == "array" else "values"], level + 1, None))
        else:
            rest.append((types[kind], level, None))


def _number(payload: bytes, place: int) -> tuple[int, int]:
    """A number in Avro's encoding (zigzag, seven bits in a byte), and the place after it."""
    found = shift = 0
    while True:
        byte = payload[place]
        place += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), place
        shift += 7


def _after_text(payload: bytes, place: int) -> int:
    size, place = _number(payload, place)
    if size < 0:
        raise ValueError("the Avro value has a text of a negative length")
    return place + size


def _block(payload: bytes, place: int) -> tuple[int, int]:
    """The number of items in the next block of an array or map, and the place of the first item."""
    items, place = _number(payload, place)
    if items < 0:  # the size of the block follows
        items = -items
        _, place = _number(payload, place)
    return items, place
