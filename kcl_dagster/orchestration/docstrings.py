"""The docstrings below the fields of a class. Python does not keep them, so they are read from the source."""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from itertools import pairwise


def field_docstrings(kind: type) -> Mapping[str, str]:
    """The docstrings below the fields of a class and its base classes. Empty if there is no source file."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        found |= _own_docstrings(one)
    return found


def _own_docstrings(kind: type) -> dict[str, str]:
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):
        return {}
    found: dict[str, str] = {}
    for field, below in pairwise(definition.body if isinstance(definition, ast.ClassDef) else []):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if (
            isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = inspect.cleandoc(below.value.value)
    return found
