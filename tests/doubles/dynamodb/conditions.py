"""Condition, filter and key-condition expressions, compiled to predicates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tests.doubles.dynamodb.grammar import Path, Tokens, fetch
from tests.doubles.dynamodb.values import Item, Value, ordering, size_of

Values = Mapping[str, Value]
Predicate = Callable[[Item, Values], bool]
Operand = Callable[[Item, Values], Value | None]

_COMPARATORS: Final = ("=", "<>", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class Condition:
    """A predicate over an item, and which placeholders it uses. A missing item is the empty one."""

    holds: Predicate
    used_names: frozenset[str]
    used_values: frozenset[str]


@lru_cache(maxsize=4096)
def parse_condition(kind: str, text: str, names: tuple[tuple[str, str], ...] = ()) -> Condition:
    """`kind` is how DynamoDB calls the parameter; it stands in error messages. Raises ValidationException."""
    tokens = Tokens(kind, text, dict(names))
    predicate = _either(tokens)
    tokens.finish()
    return Condition(predicate, frozenset(tokens.used_names), frozenset(tokens.used_values))


def _either(tokens: Tokens) -> Predicate:
    terms = [_both(tokens)]
    while tokens.accept("OR"):
        terms.append(_both(tokens))
    return terms[0] if len(terms) == 1 else lambda item, values: any(t(item, values) for t in terms)


def _both(tokens: Tokens) -> Predicate:
    terms = [_negated(tokens)]
    while tokens.accept("AND"):
        terms.append(_negated(tokens))
    if len(terms) == 1:
        return terms[0]

    def holds(item: Item, values: Values) -> bool:
        for term in terms:  # as `all`, without a generator for each item  # noqa: SIM110
            if not term(item, values):
                return False
        return True

    return holds


def _negated(tokens: Tokens) -> Predicate:
    if tokens.accept("NOT"):
        term = _negated(tokens)
        return lambda item, values: not term(item, values)
    if tokens.accept("("):
        inside = _either(tokens)
        tokens.expect(")")
        return inside
    if tokens.peek(1) == "(" and tokens.peek().lower() != "size":
        return _function(tokens)
    return _comparison(tokens)


def _function(tokens: Tokens) -> Predicate:
    name = tokens.next()
    tokens.expect("(")
    path = tokens.path()
    attribute = _whole_attribute(path)
    if name == "attribute_exists":
        tokens.expect(")")
        if attribute is not None:
            return lambda item, _values: attribute in item
        return lambda item, _values: fetch(item, path) is not None
    if name == "attribute_not_exists":
        tokens.expect(")")
        if attribute is not None:
            return lambda item, _values: attribute not in item
        return lambda item, _values: fetch(item, path) is None
    tokens.expect(",")
    argument = _operand(tokens)
    tokens.expect(")")
    test = {"begins_with": _begins_with, "contains": _contains, "attribute_type": _is_of_type}.get(name)
    if test is None:
        raise tokens.error(f"Invalid function name; function: {name}")
    return lambda item, values: _on_both(test, fetch(item, path), argument(item, values))


def _whole_attribute(path: Path) -> str | None:
    """The attribute, where a path names one and no part of it: nearly all do."""
    return str(path[0]) if len(path) == 1 else None


def _on_both(test: Callable[[Value, Value], bool], left: Value | None, right: Value | None) -> bool:
    return left is not None and right is not None and test(left, right)


def _begins_with(value: Value, prefix: Value) -> bool:
    return any(kind in value and kind in prefix and value[kind].startswith(prefix[kind]) for kind in ("S", "B"))


def _contains(value: Value, member: Value) -> bool:
    ((kind, content),) = value.items()
    if kind in ("S", "B"):
        return kind in member and member[kind] in content
    if kind in ("SS", "NS", "BS"):
        return kind[0] in member and member[kind[0]] in content
    return kind == "L" and member in content


def _is_of_type(value: Value, name: Value) -> bool:
    return name.get("S") in value


def _operand(tokens: Tokens) -> Operand:
    if tokens.peek().startswith(":"):
        name = tokens.value()
        return lambda _item, values: values[name]
    if tokens.peek().lower() == "size" and tokens.peek(1) == "(":
        tokens.next()
        tokens.expect("(")
        measured = tokens.path()
        tokens.expect(")")
        return lambda item, _values: _size(fetch(item, measured))
    path = tokens.path()
    return lambda item, _values: fetch(item, path)


def _size(value: Value | None) -> Value | None:
    if value is None:
        return None
    ((kind, content),) = value.items()
    if kind in ("S", "B"):
        return {"N": str(size_of(value))}
    return {"N": str(len(content))} if kind in ("SS", "NS", "BS", "L", "M") else None


def _comparison(tokens: Tokens) -> Predicate:
    if tokens.peek(1) == "=" and tokens.peek(2).startswith(":") and tokens.peek()[0] not in ":(":
        return _attribute_equals(tokens)
    left = _operand(tokens)
    if tokens.accept("BETWEEN"):
        low = _operand(tokens)
        tokens.expect("AND")
        high = _operand(tokens)
        return lambda item, values: (
            _ordered("<=", low(item, values), left(item, values))
            and _ordered("<=", left(item, values), high(item, values))
        )
    if tokens.accept("IN"):
        tokens.expect("(")
        members = [_operand(tokens)]
        while tokens.accept(","):
            members.append(_operand(tokens))
        tokens.expect(")")
        return lambda item, values: _is_member(left(item, values), [m(item, values) for m in members])
    comparator = tokens.accept(*_COMPARATORS)
    if comparator is None:
        raise tokens.error(f'Syntax error; token: "{tokens.peek() or "<EOF>"}"')
    right = _operand(tokens)
    if comparator == "=":
        return lambda item, values: _equal(left(item, values), right(item, values))
    if comparator == "<>":
        # An absent attribute differs from everything, as DynamoDB documents for NE.
        return lambda item, values: not _equal(left(item, values), right(item, values))
    return lambda item, values: _ordered(comparator, left(item, values), right(item, values))


def _attribute_equals(tokens: Tokens) -> Predicate:
    """`attribute = :value`: what most conditions are made of, in as few calls as possible."""
    attribute = str(tokens.path()[0])
    tokens.next()
    name = tokens.value()

    def holds(item: Item, values: Values) -> bool:
        found = item.get(attribute)
        return found is not None and found == values[name]

    return holds


def _is_member(value: Value | None, members: list[Value | None]) -> bool:
    return value is not None and value in members


def _equal(left: Value | None, right: Value | None) -> bool:
    return left is not None and left == right


def _ordered(comparator: str, left: Value | None, right: Value | None) -> bool:
    first = ordering(left) if left is not None else None
    second = ordering(right) if right is not None else None
    if first is None or second is None or first[0] != second[0]:
        return False
    a, b = first[1], second[1]
    return bool({"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[comparator])
