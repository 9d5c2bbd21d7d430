"""One case: what is given, and what the KCL's outcome is."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class NotUnderstood(Exception):
    """The case says something the adapter of its area cannot read. That is a failure, never a pass."""


@dataclass(frozen=True)
class Case:
    area: str
    name: str
    given: "Given"
    expect: Mapping[str, object]


_MISSING = object()


class Given(Mapping[str, object]):
    """The `given` of a case, read by type so that adapters stay plain; remembers what was never looked at."""

    def __init__(self, values: Mapping[str, object], path: str = "given") -> None:
        self._values = values
        self._path = path
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> object:
        self._read.add(key)
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            self._read.add(key)
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def raw(self) -> Mapping[str, object]:
        return self._values

    def unread(self) -> list[str]:
        return sorted(set(self._values) - self._read)

    def has(self, key: str) -> bool:
        """Present and not null."""
        return self.get(key) is not None

    def first(self, *keys: str, default: object = _MISSING) -> object:
        """The value of the first of several names that is present."""
        for key in keys:
            if key in self:
                return self[key]
        if default is _MISSING:
            raise NotUnderstood(f"{self._path} has none of {', '.join(keys)}")
        return default

    def text(self, *keys: str, default: str | None = None) -> str:
        value = self.first(*keys, default=default) if default is not None else self.first(*keys)
        if not isinstance(value, str):
            raise NotUnderstood(f"{self._path}.{keys[0]} = {value!r} is no text")
        return value

    def text_or_none(self, *keys: str) -> str | None:
        value = self.first(*keys, default=None)
        if value is not None and not isinstance(value, str):
            raise NotUnderstood(f"{self._path}.{keys[0]} = {value!r} is no text")
        return value

    def number(self, *keys: str, default: float | None = None) -> float:
        value = self.first(*keys, default=default) if default is not None else self.first(*keys)
        return as_number(value, f"{self._path}.{keys[0]}")

    def number_or_none(self, *keys: str) -> float | None:
        value = self.first(*keys, default=None)
        return None if value is None else as_number(value, f"{self._path}.{keys[0]}")

    def integer(self, *keys: str, default: int | None = None) -> int:
        value = self.number(*keys, default=default)
        if value != int(value):
            raise NotUnderstood(f"{self._path}.{keys[0]} = {value!r} is no whole number")
        return int(value)

    def flag(self, *keys: str, default: bool | None = None) -> bool:
        value = self.first(*keys, default=default) if default is not None else self.first(*keys)
        if not isinstance(value, bool):
            raise NotUnderstood(f"{self._path}.{keys[0]} = {value!r} is neither true nor false")
        return value

    def items_of(self, *keys: str) -> "list[Given]":
        """A list of objects."""
        values = self.sequence(*keys)
        return [given(value, f"{self._path}.{keys[0]}[{number}]") for number, value in enumerate(values)]

    def sequence(self, *keys: str, default: Sequence[object] | None = None) -> list[object]:
        value = self.first(*keys, default=default) if default is not None else self.first(*keys)
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise NotUnderstood(f"{self._path}.{keys[0]} = {value!r} is no list")
        return list(value)

    def texts(self, *keys: str, default: Sequence[str] | None = None) -> list[str]:
        values = self.sequence(*keys, default=default)
        if not all(isinstance(value, str) for value in values):
            raise NotUnderstood(f"{self._path}.{keys[0]} = {values!r} is no list of texts")
        return [str(value) for value in values]

    def record(self, *keys: str) -> "Given":
        """A nested object."""
        return given(self.first(*keys), f"{self._path}.{keys[0]}")


def given(value: object, path: str) -> Given:
    if not isinstance(value, Mapping):
        raise NotUnderstood(f"{path} = {value!r} is no object")
    return Given(value, path)


def as_number(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise NotUnderstood(f"{path} = {value!r} is no number")
    return value


def load(path: Path) -> list[Case]:
    """Read a file of cases. Raises ValueError if it is none."""
    entries = json.loads(path.read_text())
    if not isinstance(entries, list):
        raise ValueError(f"{path} is not a list of cases")
    return [
        Case(area=entry["area"], name=entry["name"], given=Given(entry["given"]), expect=entry["expect"])
        for entry in entries
    ]
