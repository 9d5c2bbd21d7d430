"""Update and projection expressions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from tests.doubles.dynamodb.conditions import Values
from tests.doubles.dynamodb.failures import validation_error
from tests.doubles.dynamodb.grammar import Path, Tokens, discard, fetch, store
from tests.doubles.dynamodb.values import Item, Value, canonical, canonical_number, copied

_WRONG_TYPE = "An operand in the update expression has an incorrect data type"

# A term reads the item as it was before the update: all clauses see the same old item.
Term = Callable[[Item, Values], Value]
Action = Callable[[Item, Item, Values], None]


@dataclass(frozen=True, slots=True)
class Update:
    """What an update expression does. `written` are the attributes it writes, in their order."""

    actions: tuple[Action, ...]
    written: tuple[str, ...]
    used_names: frozenset[str]
    used_values: frozenset[str]
    is_flat: bool
    """It writes whole attributes, no parts of them."""

    def applied(self, item: Mapping[str, Value], values: Values) -> Item:
        """The item after the update. The given one is not changed; what is not touched may be shared with it."""
        old = dict(item)
        new = dict(old) if self.is_flat else copied(old)
        for action in self.actions:
            action(old, new, values)
        return new


@lru_cache(maxsize=4096)
def parse_update(text: str, names: tuple[tuple[str, str], ...] = ()) -> Update:
    tokens = Tokens("UpdateExpression", text, dict(names))
    actions: list[Action] = []
    touched: list[Path] = []
    seen: set[str] = set()
    while not tokens.done:
        clause = tokens.accept("SET", "REMOVE", "ADD", "DELETE")
        if clause is None:
            raise tokens.error(f'Syntax error; token: "{tokens.peek()}"')
        if clause in seen:
            raise tokens.error(f'The "{clause}" section can only be used once in an update expression;')
        seen.add(clause)
        while True:
            path = tokens.path()
            touched.append(path)
            actions.append(_action(tokens, clause, path))
            if not tokens.accept(","):
                break
    _refuse_overlaps(tokens, touched)
    return Update(
        tuple(actions),
        tuple(str(path[0]) for path in touched),
        frozenset(tokens.used_names),
        frozenset(tokens.used_values),
        is_flat=all(len(path) == 1 for path in touched),
    )


def _refuse_overlaps(tokens: Tokens, touched: list[Path]) -> None:
    for index, one in enumerate(touched):
        for other in touched[index + 1 :]:
            shared = min(len(one), len(other))
            if one[:shared] == other[:shared]:
                raise tokens.error(
                    "Two document paths overlap with each other; must remove or rewrite one of these paths; "
                    f"path one: {list(one)}, path two: {list(other)}"
                )


def _action(tokens: Tokens, clause: str, path: Path) -> Action:
    if clause == "REMOVE":
        return lambda _old, new, _values: discard(new, path)
    if clause == "SET":
        tokens.expect("=")
        if len(path) == 1 and tokens.peek().startswith(":") and tokens.peek(1) not in ("+", "-"):
            attribute, value = str(path[0]), tokens.value()

            def put(_old: Item, new: Item, values: Values) -> None:
                new[attribute] = values[value]

            return put
        term = _sum(tokens)
        return lambda old, new, values: store(new, path, term(old, values))
    name = tokens.value()
    combine = _added if clause == "ADD" else _deleted

    def act(old: Item, new: Item, values: Values) -> None:
        result = combine(fetch(old, path), values[name])
        if result is None:
            discard(new, path)
        else:
            store(new, path, result)

    return act


def _added(current: Value | None, given: Value) -> Value | None:
    ((kind, content),) = given.items()
    if kind not in ("N", "NS", "SS", "BS"):
        raise validation_error(f"Invalid UpdateExpression: {_WRONG_TYPE}; operator: ADD, operand type: {kind}")
    if current is None:
        return dict(given)
    if kind not in current:
        raise validation_error(_WRONG_TYPE)
    if kind == "N":
        return {"N": canonical_number(str(Decimal(current["N"]) + Decimal(content)))}
    return canonical({kind: sorted({*current[kind], *content})})


def _deleted(current: Value | None, given: Value) -> Value | None:
    ((kind, content),) = given.items()
    if kind not in ("NS", "SS", "BS"):
        raise validation_error(f"Invalid UpdateExpression: {_WRONG_TYPE}; operator: DELETE, operand type: {kind}")
    if current is None:
        return None
    if kind not in current:
        raise validation_error(_WRONG_TYPE)
    left = [member for member in current[kind] if member not in content]
    return {kind: left} if left else None


def _sum(tokens: Tokens) -> Term:
    left = _term(tokens)
    sign = tokens.accept("+", "-")
    if sign is None:
        return left
    right = _term(tokens)

    def total(item: Item, values: Values) -> Value:
        a, b = left(item, values), right(item, values)
        if "N" not in a or "N" not in b:
            raise validation_error(_WRONG_TYPE)
        first, second = Decimal(a["N"]), Decimal(b["N"])
        return {"N": canonical_number(str(first + second if sign == "+" else first - second))}

    return total


def _term(tokens: Tokens) -> Term:
    if tokens.accept("("):
        inside = _sum(tokens)
        tokens.expect(")")
        return inside
    if tokens.peek(1) == "(":
        return _term_function(tokens)
    if tokens.peek().startswith(":"):
        name = tokens.value()
        return lambda _item, values: values[name]
    path = tokens.path()

    def existing(item: Item, _values: Values) -> Value:
        value = fetch(item, path)
        if value is None:
            raise validation_error("The provided expression refers to an attribute that does not exist in the item")
        return value

    return existing


def _term_function(tokens: Tokens) -> Term:
    name = tokens.next()
    tokens.expect("(")
    if name == "if_not_exists":
        path = tokens.path()
        tokens.expect(",")
        otherwise = _sum(tokens)
        tokens.expect(")")

        def chosen(item: Item, values: Values) -> Value:
            found = fetch(item, path)
            return found if found is not None else otherwise(item, values)

        return chosen
    if name == "list_append":
        first = _term(tokens)
        tokens.expect(",")
        second = _term(tokens)
        tokens.expect(")")

        def appended(item: Item, values: Values) -> Value:
            a, b = first(item, values), second(item, values)
            if "L" not in a or "L" not in b:
                raise validation_error(_WRONG_TYPE)
            return {"L": [*a["L"], *b["L"]]}

        return appended
    raise tokens.error(f"Invalid function name; function: {name}")


@lru_cache(maxsize=4096)
def parse_projection(text: str, names: tuple[tuple[str, str], ...] = ()) -> tuple[tuple[Path, ...], frozenset[str]]:
    """The paths to keep, and the name placeholders used."""
    tokens = Tokens("ProjectionExpression", text, dict(names))
    paths = [tokens.path()]
    while tokens.accept(","):
        paths.append(tokens.path())
    tokens.finish()
    return tuple(paths), frozenset(tokens.used_names)


def projected(item: Item, paths: tuple[Path, ...]) -> Item:
    """Only the top-level attributes that `paths` name; nested paths keep their outer attribute's shape."""
    kept: Item = {}
    for path in paths:
        value = fetch(item, path)
        if value is None:
            continue
        for part in reversed(path[1:]):
            value = {"L": [value]} if isinstance(part, int) else {"M": {part: value}}
        name = str(path[0])
        kept[name] = _merged(kept[name], value) if name in kept else value
    return copied(kept)


def _merged(one: Value, other: Value) -> Value:
    if "M" in one and "M" in other:
        members = dict(one["M"])
        for name, value in other["M"].items():
            members[name] = _merged(members[name], value) if name in members else value
        return {"M": members}
    if "L" in one and "L" in other:
        return {"L": [*one["L"], *other["L"]]}
    return other
