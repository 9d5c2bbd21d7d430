"""The specifications and the code name each other, so that neither changes without the other."""

import re
from pathlib import Path

import pytest

from spec.__main__ import OTHER_BOUNDS, SPECIFICATIONS, checks

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "spec"
PACKAGE = ROOT / "kcl_dagster"
MENTION = re.compile(r"spec/(\w+)\.tla(?:[^.]*? as (\w+))?", re.DOTALL)


def header(specification: str) -> str:
    """The comment at its beginning, as running text."""
    lines = re.findall(r"^\(\* (.*?)\s*\*\)$", (SPEC / f"{specification}.tla").read_text(), re.MULTILINE)
    return " ".join(lines)


def code_of(specification: str) -> set[str]:
    _, _, listed = header(specification).partition("The code: kcl_dagster/")
    return set(re.findall(r"\w+/\w+\.py", listed))


def mentions() -> dict[str, set[str]]:
    """The modules that say by which specification they are modelled."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for name, _ in MENTION.findall(path.read_text()):
            found.setdefault(name, set()).add(path.relative_to(PACKAGE).as_posix())
    return found


def test_every_specification_is_checked() -> None:
    assert {path.stem for path in SPEC.glob("*.tla")} == set(SPECIFICATIONS)
    assert {path.stem for path in SPEC.glob("*.cfg")} == set(SPECIFICATIONS)


@pytest.mark.parametrize("specification", SPECIFICATIONS)
def test_specification_and_code_name_each_other(specification: str) -> None:
    assert code_of(specification) == mentions().pop(specification)


def test_the_code_names_specifications_that_exist() -> None:
    assert mentions().keys() <= set(SPECIFICATIONS)


def test_what_the_code_calls_a_part_of_a_specification_is_one() -> None:
    for path in PACKAGE.rglob("*.py"):
        for name, part in MENTION.findall(path.read_text()):
            if part:
                text = (SPEC / f"{name}.tla").read_text()
                assert re.search(rf"\b{part}\b", text), f"{path.name} speaks of {part}, which {name} does not know"


@pytest.mark.parametrize("specification", SPECIFICATIONS)
def test_every_protection_can_be_switched_off(specification: str) -> None:
    text = (SPEC / f"{specification}.tla").read_text()
    _, _, listed = text.partition("What keeps it right. Each can be switched off, to see that it is needed.")
    named = re.findall(r"^\s+(\w+),? +\\\*", listed[: listed.index("\n\n")], re.MULTILINE)
    configured = re.findall(r"^\s+(\w+) = TRUE$", (SPEC / f"{specification}.cfg").read_text(), re.MULTILINE)
    assert named == configured


@pytest.mark.parametrize("specification", OTHER_BOUNDS)
def test_other_bounds_replace_those_of_the_configuration(specification: str) -> None:
    lines = (SPEC / f"{specification}.cfg").read_text().splitlines()
    for bounds in OTHER_BOUNDS[specification]:
        assert all([line.strip() for line in lines].count(usual) == 1 for usual in bounds.instead)


def test_a_protection_that_is_needed_with_other_bounds_only_is_switched_off_with_them() -> None:
    found = {(check.bounds.name, check.without) for check in checks() if check.bounds is not None}
    others = [bounds for of in OTHER_BOUNDS.values() for bounds in of]
    assert found == {(bounds.name, without) for bounds in others for without in (None, *bounds.needed)}
