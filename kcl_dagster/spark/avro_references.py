"""Makes one self-contained Avro schema from a schema that refers to types of other schemas. Pure."""

from collections.abc import Iterable
from typing import Any, Final

_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_PRIMITIVE: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def self_contained(schema: Any, referenced: Iterable[Any]) -> Any:
    """Return `schema` with the definitions from the `referenced` schemas, each at its first use.

    All schemas are parsed JSON. Raises KeyError or TypeError if one of them is no Avro schema. A name without a
    definition remains unchanged.
    """
    definitions: dict[str, Any] = {}
    for one in referenced:
        _collect(one, "", definitions)
    inlining = _Inlining(definitions, frozenset())
    found = inlining.of(schema, "")
    return _Inlining(definitions, inlining.missed).of(schema, "") if inlining.missed else found


def _collect(schema: Any, namespace: str, found: dict[str, Any]) -> None:
    """Add the named types in a schema to `found` by their full names, each with an explicit namespace."""
    if isinstance(schema, list):
        for one in schema:
            _collect(one, namespace, found)
    if not isinstance(schema, dict):
        return
    kind = schema["type"]
    if isinstance(kind, str) and kind in _NAMED:
        inside, name = _names(schema, namespace)
        full = f"{inside}.{name}" if inside else name
        found[full] = {**schema, "name": name, "namespace": inside}
        for field in schema.get("fields", ()):
            _collect(field["type"], inside, found)
    else:
        for part in (kind, schema.get("items"), schema.get("values")):
            _collect(part, namespace, found)


def _names(schema: dict[str, Any], namespace: str) -> tuple[str, str]:
    """The namespace of a named type, and its name within it."""
    said, _, name = schema["name"].rpartition(".")
    return said or schema.get("namespace", namespace) or "", name


class _Inlining:
    """Replaces the first use of each name by its definition. `dotted`: names without a namespace that get a dot
    before them. Without the dot, Avro would look for such a name in the namespace in which it is used."""

    def __init__(self, definitions: dict[str, Any], dotted: frozenset[str]) -> None:
        self._definitions = definitions
        self._dotted = dotted
        self._defined: set[str] = set()
        self._missed: set[str] = set()

    @property
    def missed(self) -> frozenset[str]:
        """The names without a namespace that are used inside of a namespace."""
        return frozenset(self._missed)

    def of(self, schema: Any, namespace: str) -> Any:
        match schema:
            case str():
                return self._named(schema, namespace)
            case list():
                return [self.of(one, namespace) for one in schema]
            case {"type": str(kind)} if kind in _NAMED:
                return self._definition(schema, namespace)
            case {"type": "array", "items": items}:
                return {**schema, "items": self.of(items, namespace)}
            case {"type": "map", "values": values}:
                return {**schema, "values": self.of(values, namespace)}
            case _:
                return {**schema, "type": self.of(schema["type"], namespace)}

    def _named(self, name: str, namespace: str) -> Any:
        if name in _PRIMITIVE:
            return name
        near = f"{namespace}.{name}" if namespace and "." not in name else name.removeprefix(".")
        for full in (near, name):  # Avro for Java searches in the same order
            if full in self._defined:
                return self._reference(full, namespace)
            if full in self._definitions:
                return self.of(self._definitions[full], "")
        return name

    def _definition(self, schema: dict[str, Any], namespace: str) -> Any:
        inside, name = _names(schema, namespace)
        full = f"{inside}.{name}" if inside else name
        if full in self._defined:
            return self._reference(full, namespace)
        self._defined.add(full)
        if full in self._dotted:
            schema = {**schema, "name": f".{full}"}
        if "fields" not in schema:
            return schema
        fields = [{**field, "type": self.of(field["type"], inside)} for field in schema["fields"]]
        return {**schema, "fields": fields}

    def _reference(self, full: str, namespace: str) -> str:
        if namespace and "." not in full:
            self._missed.add(full)
        return f".{full}" if full in self._dotted else full
