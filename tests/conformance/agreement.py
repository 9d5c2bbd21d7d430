"""Whether what production code did is what a case expects."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.conformance.case import NotUnderstood

# Keys of `expect` that explain an outcome and are none.
EXPLANATIONS = frozenset({
    "rule", "why", "formula", "note", "notes", "comment", "because", "explanation", "reason_text", "hint",
    "test_asserts", "source", "doc", "remark",
})  # fmt: skip

# Vectors round to six decimals.
_RELATIVE = 1e-6
_ABSOLUTE = 1e-6


@dataclass(frozen=True)
class AnyOrder:
    """A list whose order means nothing."""

    values: Sequence[object]


@dataclass(frozen=True)
class AnyOf:
    """Several names for one outcome; None among them means that saying nothing is right, too."""

    names: frozenset[str | None]

    @classmethod
    def of(cls, *names: str | None) -> "AnyOf":
        return cls(frozenset(names))


@dataclass(frozen=True)
class Either:
    """One outcome that cases write in several forms."""

    forms: Sequence[object]


@dataclass(frozen=True)
class Ongoing:
    """What goes on for as long as a case cares to look: the first values are compared."""

    first: Callable[[int], Sequence[object]]


class AtLeast(dict[str, object]):
    """More is known than a case may ask for: only the expected keys are compared."""


Observed = Mapping[str, object | Callable[[], object]]


def disagreements(expect: Mapping[str, object], observed: Observed) -> list[str]:
    """One line for each expected key that production code does not meet."""
    found: list[str] = []
    for key, expected in expect.items():
        if key in EXPLANATIONS:
            continue
        if key not in observed:
            found.append(f"expect.{key} = {expected!r} is not understood in this area")
            continue
        value = observed[key]
        try:
            seen = value() if callable(value) else value
        except NotUnderstood as problem:
            found.append(f"expect.{key}: {problem}")
            continue
        if not same(expected, seen):
            found.append(f"{key} is {_show(seen)}, expected {expected!r}")
    return found


def same(expected: object, seen: object) -> bool:
    if isinstance(seen, AnyOf):
        return (expected is None or isinstance(expected, str)) and expected in seen.names
    if isinstance(seen, Either):
        return any(same(expected, form) for form in seen.forms)
    if isinstance(seen, Ongoing):
        return isinstance(expected, Sequence) and same(expected, seen.first(len(expected)))
    if isinstance(expected, bool) or isinstance(seen, bool):
        return expected is seen
    if isinstance(expected, (int, float)) and isinstance(seen, (int, float)):
        return math.isclose(expected, seen, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    if isinstance(expected, Mapping) and isinstance(seen, Mapping):
        if not isinstance(seen, AtLeast) and set(expected) != set(seen):
            return False
        return all(key in seen and same(value, seen[key]) for key, value in expected.items())
    if isinstance(seen, AnyOrder):
        return _same_in_any_order(expected, seen.values)
    if _is_list(expected) and _is_list(seen):
        assert isinstance(expected, Sequence)
        assert isinstance(seen, Sequence)
        return len(expected) == len(seen) and all(map(same, expected, seen))
    if isinstance(expected, str) and isinstance(seen, str):
        return expected == str(seen)
    return type(expected) is type(seen) and expected == seen


def _same_in_any_order(expected: object, seen: Sequence[object]) -> bool:
    if not _is_list(expected):
        return False
    assert isinstance(expected, Sequence)
    left = list(seen)
    for wanted in expected:
        match = next((value for value in left if same(wanted, value)), _NOTHING)
        if match is _NOTHING:
            return False
        left.remove(match)
    return not left


_NOTHING = object()


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _show(seen: object) -> str:
    if isinstance(seen, AnyOf):
        return " or ".join(sorted(str(name) for name in seen.names))
    if isinstance(seen, AnyOrder):
        return repr(list(seen.values))
    if isinstance(seen, Either):
        return _show(seen.forms[-1])
    if isinstance(seen, Ongoing):
        return repr([*seen.first(6), "..."])
    return repr(seen)
