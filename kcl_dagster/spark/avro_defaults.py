"""Decodes the defaults of a reader's Avro schema. Pure.

fastavro itself does not decode a default: it returns the value in the JSON of the schema. For bytes, this is a
text. For moments and decimals, it is a value without the logical type.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final

from kcl_dagster.errors import ConfigurationError

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
}  # the types of defaults in parsed JSON; a default of any other type of Avro is a text


def with_decoded_defaults(schema: Any, named: Mapping[str, Any], logical: Mapping[str, Callable[..., Any]]) -> Any:
    """A copy of a schema in which each default is replaced by the value that fastavro would decode from a payload.

    `schema` was returned by `fastavro.parse_schema`. `named`: the definitions of its named types. `logical`: the
    functions of fastavro that decode logical types. Raises ConfigurationError if a default has not the type of its
    field.
    """
    schema, copies = deepcopy((schema, dict(named)))  # in one call, so that the copies share their fields
    for name, one in copies.items():
        for field in one.get("fields", ()):
            if "default" not in field:
                continue
            try:
                field["default"] = _value(field["default"], field["type"], named, logical)
            except Exception as error:  # the functions of fastavro raise various errors
                raise ConfigurationError(
                    f"the default of the field {field['name']} of {name} is no value of its type: {error}"
                ) from error
    # With these entries, fastavro does not check the defaults of the schema. The check would fail for decoded
    # defaults. fastavro itself adds the entries to records only.
    for one in schema if isinstance(schema, list) else [schema]:
        if isinstance(one, dict):
            one |= {"__fastavro_parsed": True, "__named_schemas": copies}
    return schema


def _value(given: Any, schema: Any, named: Mapping[str, Any], logical: Mapping[str, Callable[..., Any]]) -> Any:
    def inner(given: Any, part: Any) -> Any:
        return _value(given, part, named, logical)

    if isinstance(schema, list):
        return inner(given, next((part for part in schema if _is_of(given, part, named)), schema[0]))
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    match schema["type"]:
        case "record" | "error":
            fields = {one["name"]: one for one in schema["fields"]}
            given = {name: one["default"] for name, one in fields.items() if "default" in one} | given
            return {name: inner(item, fields[name]["type"]) for name, item in given.items() if name in fields}
        case "array":
            return [inner(item, schema["items"]) for item in given]
        case "map":
            return {name: inner(item, schema["values"]) for name, item in given.items()}
        case "bytes" | "fixed":
            given = given.encode("latin-1")
            if schema["type"] == "fixed" and len(given) != schema["size"]:
                raise ValueError(f"it has {len(given)} bytes")
    decode = logical.get(f"{schema['type']}-{schema.get('logicalType')}")
    return given if decode is None else decode(given, schema, None)


def _is_of(given: Any, schema: Any, named: Mapping[str, Any]) -> bool:
    """Whether the JSON value `given` is a value of the type `schema`. This type must not be a union."""
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    return type(given) in _TYPES.get(schema["type"], (str,))
