"""Tokens and document paths: what condition, update and projection expressions have in common."""

import re
from collections.abc import Mapping
from typing import Final

from tests.doubles.dynamodb.failures import validation_error
from tests.doubles.dynamodb.reserved import RESERVED
from tests.doubles.dynamodb.values import Item, Value

Path = tuple[str | int, ...]

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<value>:[A-Za-z0-9_]+)|(?P<word>#?[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<index>\[\d+\])|(?P<symbol><>|<=|>=|[=<>(),.+\-]))",
)


class Tokens:
    """A cursor over one expression. Remembers which names and values were used, because unused ones are errors."""

    def __init__(self, kind: str, text: str, names: Mapping[str, str]) -> None:
        self._kind = kind
        self._names = names
        self._tokens = self._split(text)
        self._at = 0
        self.used_names: set[str] = set()
        self.used_values: set[str] = set()

    def _split(self, text: str) -> list[str]:
        tokens, at = [], 0
        text = text.rstrip()
        if not text:
            raise validation_error(f"Invalid {self._kind}: The expression can not be empty;")
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.error(f'Syntax error; token: "{text[at : at + 12].strip()}"')
            tokens.append(match[0].strip())
            at = match.end()
        return tokens

    def error(self, problem: str) -> Exception:
        return validation_error(f"Invalid {self._kind}: {problem}")

    @property
    def done(self) -> bool:
        return self._at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def next(self) -> str:
        token = self.peek()
        if not token:
            raise self.error('Syntax error; token: "<EOF>"')
        self._at += 1
        return token

    def accept(self, *wanted: str) -> str | None:
        """Keywords are case-insensitive."""
        if self.peek().upper() in wanted:
            return self.next().upper()
        return None

    def expect(self, wanted: str) -> None:
        if self.accept(wanted) is None:
            raise self.error(f'Syntax error; token: "{self.peek() or "<EOF>"}", expected {wanted}')

    def finish(self) -> None:
        if not self.done:
            raise self.error(f'Syntax error; token: "{self.peek()}"')

    def path(self) -> Path:
        parts: list[str | int] = [self._name()]
        while True:
            if self.peek() == ".":
                self.next()
                parts.append(self._name())
            elif self.peek().startswith("["):
                parts.append(int(self.next()[1:-1]))
            else:
                return tuple(parts)

    def _name(self) -> str:
        token = self.next()
        if token.startswith("#"):
            if token not in self._names:
                raise self.error(
                    "An expression attribute name used in the document path is not defined; "
                    f"attribute name: {token}"
                )
            self.used_names.add(token)
            return self._names[token]
        if not (token[0].isalpha() or token[0] == "_"):
            raise self.error(f'Syntax error; token: "{token}"')
        if token.upper() in RESERVED:
            raise self.error(f"Attribute name is a reserved keyword; reserved keyword: {token}")
        return token

    def value(self) -> str:
        token = self.next()
        if not token.startswith(":"):
            raise self.error(f'Syntax error; token: "{token}"')
        self.used_values.add(token)
        return token


def fetch(item: Mapping[str, Value], path: Path) -> Value | None:
    """What stands at `path`, or None."""
    value = item.get(str(path[0]))
    for part in path[1:]:
        if value is None:
            return None
        if isinstance(part, int):
            members = value.get("L")
            value = members[part] if members is not None and part < len(members) else None
        else:
            value = value.get("M", {}).get(part)
    return value


def store(item: Item, path: Path, value: Value) -> None:
    """Put `value` at `path` of a copied item. A list index beyond the end appends."""
    if len(path) == 1:
        item[str(path[0])] = value
        return
    parent = _parent(item, path)
    last = path[-1]
    if isinstance(last, int):
        members = parent["L"]
        members[last : last + 1] = [value]
    else:
        parent["M"][last] = value


def discard(item: Item, path: Path) -> None:
    """Remove what stands at `path` of a copied item, if anything."""
    if len(path) == 1:
        item.pop(str(path[0]), None)
        return
    parent = _parent(item, path)
    last = path[-1]
    if isinstance(last, int):
        del parent["L"][last : last + 1]
    else:
        parent["M"].pop(last, None)


def _parent(item: Item, path: Path) -> Value:
    parent = fetch(item, path[:-1])
    wanted = "L" if isinstance(path[-1], int) else "M"
    if parent is None or wanted not in parent:
        raise validation_error("The document path provided in the update expression is invalid for update")
    return parent
