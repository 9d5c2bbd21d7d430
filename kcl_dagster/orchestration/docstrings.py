"""The docstrings below the fields of a class. Python does not keep them, so they are read from the source."""

import ast
import inspect
import linecache
from collections.abc import Mapping
from functools import cache
from itertools import pairwise


def field_docstrings(kind: type) -> Mapping[str, str]:
    """The docstrings below the fields of a class and its base classes. Empty if there is no source file."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        found |= _own_docstrings(one)
    return found


def _own_docstrings(kind: type) -> Mapping[str, str]:
    try:
        path = inspect.getsourcefile(kind)
    except (OSError, TypeError):
        return {}
    return _of_file(path).get(kind.__qualname__, {}) if path else {}


@cache
def _of_file(path: str) -> dict[str, dict[str, str]]:
    """The docstrings of the fields of each class of a file, by the class's qualified name. A file is parsed once,
    because Dagster asks for the model of a component many times while it loads YAML."""
    found: dict[str, dict[str, str]] = {}
    waiting: list[tuple[str, ast.AST]] = [("", ast.parse("".join(linecache.getlines(path))))]
    while waiting:
        prefix, node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                name = prefix + child.name
                found[name] = _of_class(child)
                waiting.append((f"{name}.", child))
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                waiting.append((f"{prefix}{child.name}.<locals>.", child))
            elif isinstance(child, ast.stmt):
                waiting.append((prefix, child))
    return found


def _of_class(definition: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for field, below in pairwise(definition.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if (
            isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = inspect.cleandoc(below.value.value)
    return found
