"""The version of a consumer's code, which changes with its source, its settings and this package.

The leader compares two versions: that of the code that its process has loaded, and that of the code with which a
run was launched. The source files are read and not imported. Only their paths in the project and their content
count.
"""

import ast
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import kcl_dagster
from kcl_dagster.application import Application

_LENGTH: Final = 16  # hexadecimal digits: a tag that fits on one line of a run's page
MOST_FILES: Final = 500  # of a project; more files are ignored, because every load of the code reads all of them
PACKAGE: Final = Path(kcl_dagster.__file__).resolve().parent
_Import = tuple[int, tuple[str, ...], tuple[str, ...]]  # level (0 if absolute), parts of the module, imported names
_BLOCKS: Final = ("body", "orelse", "handlers", "finalbody", "cases")  # attributes that contain statements


def code_version(transform: Any, application: Application, more: Mapping[str, Any] | None = None) -> str:
    """The version of a consumer's code. It covers the module of the transform, the modules of the same project that
    this module imports, the settings of the application except for the start positions of its streams, and the
    version of this package. Versions of other libraries do not count. `more`: further settings of workers, with
    values that JSON can represent."""
    settings: dict[str, Any] = application.model_dump(mode="json", exclude={"streams": {"__all__": {"start"}}})
    digest = hashlib.sha256(kcl_dagster.__version__.encode())
    digest.update(json.dumps({**settings, **(more or {})}, sort_keys=True).encode())
    written = inspect.unwrap(transform)
    try:
        source = Path(inspect.getsourcefile(written) or "").resolve()
        files = project_files(source, getattr(written, "__module__", ""))
    except (TypeError, OSError):  # built in, or typed into a prompt
        digest.update(getattr(written, "__qualname__", type(written).__name__).encode())
        return digest.hexdigest()[:_LENGTH]
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:_LENGTH]


def project_files(source: Path, module: str) -> dict[str, bytes]:
    """The contents of a module and of the modules of the same project that this module imports, directly or
    indirectly. The keys are their paths in the project.

    If kcl_dagster itself is in the project, as in a checkout, and one of its modules is imported, all its modules
    count. They are not searched for further imports, because parsing these 400 modules would take a second in each
    process that loads the code.
    """
    root = _root(source, module)
    found: dict[str, bytes] = {}
    waiting = [source, *_packages(source, root)]
    has_package = False
    while waiting and len(found) < MOST_FILES:
        path = waiting.pop()
        name = path.relative_to(root).as_posix()
        if name in found:
            continue
        if path.is_relative_to(PACKAGE):
            has_package = True
            continue
        found[name] = path.read_bytes()
        for imported in _imports(found[name], path, root):
            waiting += [imported, *_packages(imported, root)]
    if has_package:
        found |= {path.relative_to(root).as_posix(): path.read_bytes() for path in PACKAGE.rglob("*.py")}
    return found


def _root(source: Path, module: str) -> Path:
    """The directory from which the project's modules are imported."""
    own = source.parent if source.name == "__init__.py" else source.with_suffix("")
    names = tuple(module.split("."))
    if own.parts[-len(names) :] == names:
        return own.parents[len(names) - 1]
    root = source.parent
    while (root / "__init__.py").exists():
        root = root.parent
    return root


def _packages(path: Path, root: Path) -> Iterator[Path]:
    """The `__init__.py` files that an import of the module executes before the module."""
    for parent in path.relative_to(root).parents:
        if (found := root / parent / "__init__.py").is_file() and found != path:
            yield found


def _imports(content: bytes, path: Path, root: Path) -> Iterator[Path]:
    for level, module, names in _import_statements(content):
        base = path.parents[level - 1] if level else root
        base = base.joinpath(*module)
        if base.is_relative_to(root):
            yield from _found(base)
            for name in names:
                yield from _found(base / name)


@lru_cache(MOST_FILES)
def _import_statements(content: bytes) -> tuple[_Import, ...]:
    """The imports of a module. A module that several consumers import is parsed once."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return ()
    found: list[_Import] = []
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            found += [(0, tuple(alias.name.split(".")), ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            found.append((node.level, tuple(node.module.split(".")) if node.module else (), names))
    return tuple(found)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements. Expressions are skipped, because they are the largest part of a module and contain no
    import."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for name in _BLOCKS:
            waiting += getattr(node, name, ())
        yield node


def _found(base: Path) -> Iterator[Path]:
    for candidate in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
        if candidate.is_file():
            yield candidate
