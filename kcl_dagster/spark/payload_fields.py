"""Checks that the schema of the payloads has a field for each column into which the payloads are decoded.

A column without a field would be null for each record. Usually its name is misspelled.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import types as kinds

from kcl_dagster.errors import ConfigurationError

KEPT_CHECKS: Final = 16


class Shape(Protocol):
    """The type of a value in the schema of payloads."""

    def members(self) -> "Mapping[str, Shape] | None":
        """The fields of a struct; None for other types."""

    def items(self) -> "Shape | None":
        """The type of the items of a list, or of the values of a map; None for other types."""


def check_columns(make_decoder: Callable[[], Any], kind: pa.DataType) -> None:
    """Raise ConfigurationError if `kind` has a column for which the decoder has no field. Decoders whose fields are
    not known are not checked."""
    if callable(getattr(make_decoder, "payload_shape", None)):
        _check(make_decoder, kind)


@lru_cache(KEPT_CHECKS)  # this is called for each batch
def _check(make_decoder: Any, kind: pa.DataType) -> None:
    shape = make_decoder.payload_shape()
    if shape is not None:
        _compare(shape, kind, "")


def _compare(shape: Shape, kind: pa.DataType, path: str) -> None:
    if kinds.is_struct(kind):
        members = shape.members()
        if members is None:
            return
        for column in kind:
            name = f"{path}{column.name}"
            if column.name not in members:
                raise ConfigurationError(
                    f"the column {name} has no field in the schema of the payloads, so it would be null for each "
                    f"record: the fields there are {', '.join(members)}"
                )
            _compare(members[column.name], column.type, f"{name}.")
    elif (items := shape.items()) is not None:
        inner = kind.item_type if kinds.is_map(kind) else getattr(kind, "value_type", None)
        if isinstance(inner, pa.DataType):
            _compare(items, inner, path)


@dataclass(frozen=True, slots=True)
class AvroShape:
    """A type of Avro: one type, or the types of a union."""

    types: tuple[Any, ...]
    named: Mapping[str, Any]
    """The definitions of named types by their full names."""

    def members(self) -> Mapping[str, Shape] | None:
        records = [one for one in self._each() if one["type"] in ("record", "error")]
        found: dict[str, tuple[Any, ...]] = {}
        for field in (field for record in records for field in record["fields"]):
            found[field["name"]] = (*found.get(field["name"], ()), field["type"])
        return {name: AvroShape(types, self.named) for name, types in found.items()} if records else None

    def items(self) -> Shape | None:
        inner = [one[key] for one in self._each() for key in ("items", "values") if key in one]
        return AvroShape(tuple(inner), self.named) if inner else None

    def _each(self) -> list[dict[str, Any]]:
        left, found = list(self.types), []
        while left:
            one = left.pop(0)
            given = self.named.get(one) if isinstance(one, str) else one
            if isinstance(given, list):
                left += given
            elif isinstance(given, dict):
                found.append(given)
        return found


def avro_shape(schema: Any) -> AvroShape | None:
    """The shape of a schema of Avro (parsed JSON). None if the package fastavro is missing. In that case, decoding
    raises the error later."""
    fastavro: Any = None
    with suppress(ImportError):
        fastavro = import_module("fastavro")
    if fastavro is None:
        return None
    named: dict[str, Any] = {}
    try:
        parsed = fastavro.parse_schema(schema, named)
    except Exception as error:  # fastavro raises various errors if a part of the schema has the wrong type
        raise ConfigurationError(f"the schema is no Avro schema: {type(error).__name__}: {error}") from error
    return AvroShape((parsed,), named)


@dataclass(frozen=True, slots=True)
class ProtobufShape:
    """A message of Protobuf, or the type of a field."""

    message: Any
    """The descriptor of the message; None for the type of a field that is no message."""

    def members(self) -> Mapping[str, Shape] | None:
        if self.message is None:
            return None
        return {field.name: ProtobufShape(field.message_type) for field in self.message.fields}

    def items(self) -> Shape | None:
        """The type of the values of a map. For other types it is the type itself, because in Protobuf the type of a
        repeated field is that of its items."""
        if self.message is not None and self.message.GetOptions().map_entry:
            return ProtobufShape(self.message.fields_by_name["value"].message_type)
        return self
