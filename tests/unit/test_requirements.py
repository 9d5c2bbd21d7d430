"""What the package needs is declared, bounded where it may break us, and locked for running and for developing."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
DECLARED = [
    Requirement(text)
    for text in [*PROJECT["project"]["dependencies"], *(one for many in EXTRAS.values() for one in many)]
]
LOCKED = re.compile(r"^([a-z0-9][a-z0-9._-]*)(?:\[[^]]*\])?==([^ ;\\]+)", re.MULTILINE)
# Brought by a declared package that does not work without it, or present only where a user has it.
COMES_WITH = {
    "botocore": "boto3",
    "dagster-pipes": "dagster",
    "dagster-shared": "dagster",
    "grpcio": "pyspark",
    "hyperframe": "h2",
    "numpy": "pandas",
    "py4j": "pyspark",
    "sqlalchemy": "pyiceberg",
    "urllib3": "boto3",
    "werkzeug": "moto",
}
OF_THE_USER = {"dagster-pyspark", "dagster-aws", "amazon-kclpy", "fastavro"}


def locked(name: str) -> dict[str, set[str]]:
    versions: dict[str, set[str]] = {}
    for package, version in LOCKED.findall((ROOT / name).read_text()):
        versions.setdefault(canonicalize_name(package), set()).add(version)
    return versions


def imported() -> list[set[str]]:
    """The distributions of each module that the package imports, at any depth: several, if they share its name."""
    modules = set()
    for path in (ROOT / "kcl_dagster").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module.partition(".")[0])
    modules -= {"kcl_dagster", *sys.stdlib_module_names}
    known = packages_distributions()
    return [{canonicalize_name(name) for name in known[module]} for module in sorted(modules) if module in known]


@pytest.mark.audit("D17")
def test_everything_that_is_imported_is_declared() -> None:
    known = {canonicalize_name(requirement.name) for requirement in DECLARED} | OF_THE_USER
    missing = [names for names in imported() if known.isdisjoint(COMES_WITH.get(name, name) for name in names)]
    assert missing == []


@pytest.mark.audit("D17")
@pytest.mark.parametrize("requirement", DECLARED, ids=str)
def test_every_dependency_has_an_upper_bound(requirement: Requirement) -> None:
    assert any(part.operator in {"<", "<=", "==", "~="} for part in requirement.specifier)


@pytest.mark.audit("D17")
def test_the_lock_for_running_holds_nothing_for_developing() -> None:
    running, developing = locked("requirements-runtime.lock"), locked("requirements.lock")
    assert {canonicalize_name(requirement.name) for requirement in DECLARED} <= running.keys()
    assert running.keys().isdisjoint({"pytest", "mypy", "ruff", "hypothesis", "dagster-webserver"})
    assert {name: developing.get(name) for name in running} == running, "what is tested is what runs"


@pytest.mark.audit("D17")
def test_the_locks_fit_what_is_declared() -> None:
    running = locked("requirements-runtime.lock")
    for requirement in DECLARED:
        assert all(requirement.specifier.contains(one) for one in running[canonicalize_name(requirement.name)])


@pytest.mark.audit("F12")
def test_the_lock_for_building_holds_what_the_build_needs_and_nothing_else() -> None:
    building, developing = locked("requirements-build.lock"), locked("requirements.lock")
    groups = PROJECT["dependency-groups"]
    assert groups["build"] == PROJECT["build-system"]["requires"]
    assert {"include-group": "build"} in groups["test"]
    assert {"include-group": "test"} in groups["dev"]
    needed, waiting = set(), [Requirement(text) for text in groups["build"]]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in needed and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            needed.add(name)
            waiting += [Requirement(text) for text in requires(name) or ()]
    assert building.keys() == needed
    assert {name: developing[name] for name in building} == building, "what is tested is what builds"


@pytest.mark.audit("F12")
@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-runtime.lock", "requirements-build.lock"])
def test_everything_that_is_locked_has_a_hash(lock: str) -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / lock).read_text().strip())
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
