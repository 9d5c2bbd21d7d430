"""Imports go down only."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import kcl_dagster

pytestmark = pytest.mark.slow

PACKAGE = Path(kcl_dagster.__file__).parent

# A module may import from its own floor only within its own package, and from any lower floor.
FLOORS: list[set[str]] = [
    {"errors", "folder", "integrity", "machine", "runtime", "server_socket", "time_limit"},
    {"application", "aws"},
    {"model", "response_parsing"},
    {"chains", "tables", "streams"},
    {"leader", "worker"},
    {"spark"},
    {"operations", "telemetry"},
    {"orchestration"},
    {"testing", "checks", "decoding", "processors"},
    {"cli"},
]
BESIDE = {"emulator"}  # stands alone: imports nothing of ours but errors
FLOOR_OF = {name: number for number, names in enumerate(FLOORS) for name in names}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        top = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if top != "__init__":
            yield top, path


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The imports of a module, at any depth."""
    return tuple(node for node in ast.walk(tree_of(path)) if isinstance(node, (ast.Import, ast.ImportFrom)))


def imported_nouns(path: Path) -> set[str]:
    """The first component below kcl_dagster of everything `path` imports, at any depth, but the version."""
    found: set[str] = set()
    for node in imports_of(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.module:
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("kcl_dagster.")}
    return found - {"__version__"}


def test_every_module_has_a_floor() -> None:
    assert {top for top, _ in modules()} <= set(FLOOR_OF) | BESIDE


@pytest.mark.parametrize(
    ("top", "path"), [pytest.param(t, p, id=str(p.relative_to(PACKAGE))) for t, p in modules()]
)
def test_imports_go_down_only(top: str, path: Path) -> None:
    for noun in imported_nouns(path) - {top}:
        if top in BESIDE:
            assert noun == "errors", f"{top} stands alone but imports {noun}"
        elif noun in BESIDE:
            assert top in {"testing", "cli"}, f"only tests and demos start the emulator, not {top}"
        else:
            assert FLOOR_OF[noun] < FLOOR_OF[top], f"{top} may not import {noun}"


def test_the_package_imports_nothing_that_the_wheel_does_not_bring() -> None:
    beside = {path.name for path in PACKAGE.parent.iterdir() if path.is_dir()} - {PACKAGE.name}
    assert "tests" in beside
    for _, path in modules():
        for node in imports_of(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            assert beside.isdisjoint(name.partition(".")[0] for name in names), path


def test_only_orchestration_knows_dagster() -> None:
    for top, path in modules():
        if top not in {"orchestration", "operations", "cli"} and path.stem != "consuming":
            nodes = imports_of(path)
            imports = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
            imports |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
            assert not {name for name in imports if name.split(".")[0] == "dagster"}, path


def at_import(node: ast.AST) -> Iterator[str]:
    """Modules, and names in them, that are imported as soon as the module of the tree is."""
    for below in ast.iter_child_nodes(node):
        is_for_types = isinstance(below, ast.If) and ast.unparse(below.test) == "TYPE_CHECKING"
        if isinstance(below, ast.Import):
            yield from (alias.name for alias in below.names)
        elif isinstance(below, ast.ImportFrom):
            yield from (f"{below.module}.{alias.name}" for alias in below.names)
        elif not is_for_types and not isinstance(below, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from at_import(below)


def test_opentelemetry_is_imported_where_it_is_asked_for_only() -> None:
    """And not by the import of any other module."""
    needs_it = {"kcl_dagster.telemetry.batch_traces", "kcl_dagster.telemetry.observed_metrics"}
    needs_it |= {"kcl_dagster.telemetry.counting_exporter", "kcl_dagster.telemetry.tick_traces"}
    for _, path in modules():
        imported = list(at_import(tree_of(path)))
        name = ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts))
        is_needed = any(one.partition(".")[0] == "opentelemetry" for one in imported)
        assert is_needed == (name in needs_it), path
        found = {one for one in imported if one.startswith(tuple(needs_it))}
        assert name in needs_it or not found, f"{path} imports {found} whether it is asked to or not"
