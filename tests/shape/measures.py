"""Measures of the structure of the package: pure functions of its sources."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

# Words of names that mean nothing to a Spark, Dagster or KCL engineer.
METAPHORS: Final = frozenset(
    {
        "attendant",
        "board",
        "desk",
        "diary",
        "drafts",
        "hands",
        "heirs",
        "letters",
        "patient",
        "seat",
        "seats",
        "station",
        "story",
        "turn",
        "weather",
        "worktop",
    }
)
# Subjects that are no component.
VAGUE_SUBJECTS: Final = re.compile(r"\b(nobody|somebody|whoever|whomever)\b", re.IGNORECASE)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_DEAD_LETTER = re.compile(r"dead_?letters?", re.IGNORECASE)  # the field's own term
_DOCUMENTED_IMPORT = re.compile(r"^\s*(?:from|import) (kcl_dagster(?:\.\w+)*)", re.MULTILINE)


@dataclass(frozen=True)
class Module:
    """A source file of the package. `name` is dotted."""

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def basename(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())


def modules(package: Path) -> list[Module]:
    """All modules below a package's folder; a package's `__init__` has the package's name."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found.append(Module(".".join(parts).removesuffix(".__init__"), path, path.read_text()))
    return found


def lines_of(folders: Iterable[Path]) -> dict[Path, int]:
    """The lines of each source file below the folders."""
    return {path: len(path.read_text().splitlines()) for folder in folders for path in sorted(folder.rglob("*.py"))}


def repeated_basenames(found: Iterable[Module]) -> list[str]:
    """Names that more than one module has. Packages count; `__main__` is Python's word."""
    counts = Counter(module.basename for module in found if module.basename != "__main__")
    return sorted(name for name, count in counts.items() if count > 1)


def repeated_classes(found: Iterable[Module]) -> list[str]:
    """Names of public classes that are defined more than once."""
    counts = Counter(
        node.name
        for module in found
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in counts.items() if count > 1)


def twins(found: Iterable[Module]) -> list[str]:
    """Pairs of modules of one package whose names differ by their ending only."""
    by_package: defaultdict[str, list[str]] = defaultdict(list)
    for module in found:
        package, _, name = module.name.rpartition(".")
        by_package[package].append(name)
    return sorted(
        f"{package}.{one}/{other}"
        for package, names in by_package.items()
        for one in names
        for other in names
        if one < other and _stem(one) == _stem(other)
    )


def _stem(name: str) -> str:
    """`syncing` and `sync`, `auditor` and `audit`, `cleanup`, `cleaning` and `clean` have one stem."""
    return re.sub(r"(ing|ion|or|er|ed|s|e|up)$", "", name) if len(name) > 4 else name


def imports(found: Iterable[Module]) -> Mapping[str, frozenset[str]]:
    """Which module imports which when it is imported itself: not inside of functions, not for types alone."""
    found = list(found)
    names = {module.name for module in found}
    graph = {}
    for module in found:
        package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
        targets = {_target(name, names) for name in _imported(module.tree.body, package)}
        graph[module.name] = frozenset(target for target in targets if target and target != module.name)
    return graph


def _imported(body: Iterable[ast.stmt], package: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            source = ".".join(filter(None, (base if node.level else "", node.module or "")))
            yield from (f"{source}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Try):
            yield from _imported(node.body, package)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from _imported([*node.body, *node.orelse], package)


def _target(name: str, modules: set[str]) -> str | None:
    if name in modules:
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in modules else None


def circles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Groups of modules each of which can be reached from every other (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return groups


def metaphors(found: Iterable[Module]) -> list[str]:
    """Modules, classes and functions whose names have a banned word."""
    return sorted(
        f"{module.name}: {name}"
        for module in found
        for name in {module.basename, *_defined(module.tree)}
        if METAPHORS & {word.lower() for word in _WORDS.findall(_DEAD_LETTER.sub("", name))}
    )


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def vague_sentences(texts: Mapping[str, str]) -> list[str]:
    """Places, as `name:line`, where a sentence has a subject that is no component."""
    return [
        f"{name}:{number}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if VAGUE_SUBJECTS.search(line)
    ]


def documented_imports(pages: Iterable[str]) -> dict[str, int]:
    """What pages import from the package, and how many levels below it that is."""
    found = {name for page in pages for name in _DOCUMENTED_IMPORT.findall(page)}
    return {name: name.count(".") for name in sorted(found)}
