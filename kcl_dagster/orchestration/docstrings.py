"""What stands below the fields of a class: Python keeps it nowhere, so the source is read."""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from itertools import pairwise


def field_docstrings(kind: type) -> Mapping[str, str]:
    """The strings below the fields of a class and of those it inherits from. Nothing without the source, as in a
    frozen program."""
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
