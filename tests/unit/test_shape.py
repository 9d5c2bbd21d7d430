"""The measures of `make shape` see what they are for, and bars that were reached are kept."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

import kcl_dagster
from tests.shape.measures import (
    Module,
    circles,
    documented_imports,
    imports,
    lines_of,
    metaphors,
    modules,
    repeated_basenames,
    repeated_classes,
    twins,
    vague_sentences,
)

pytestmark = pytest.mark.slow


def module(name: str, text: str = "", *, is_package: bool = False) -> Module:
    return Module(name, Path("__init__.py" if is_package else f"{name.rpartition('.')[2]}.py"), text)


def test_a_package_has_the_name_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "shop/tills").mkdir(parents=True)
    for path in ("shop/__init__.py", "shop/tills/__init__.py", "shop/tills/drawer.py"):
        (tmp_path / path).write_text("x = 1\n")
    found = modules(tmp_path / "shop")
    assert [one.name for one in found] == ["shop", "shop.tills", "shop.tills.drawer"]
    assert [one.lines for one in found] == [1, 1, 1]


def test_names_that_occur_more_than_once() -> None:
    found = [
        module("a.rows", "class Row: ..."),
        module("b.rows", "class Row: ...\nclass _Row: ..."),
        module("b.cells"),
    ]
    assert repeated_basenames(found) == ["rows"]
    assert repeated_classes(found) == ["Row"]


def test_twins_are_in_one_package() -> None:
    found = [module("a.sync"), module("a.syncing"), module("b.syncing"), module("a.auditor"), module("a.audit")]
    assert twins(found) == ["a.audit/auditor", "a.sync/syncing"]


def test_a_circle_is_made_of_imports_at_the_top() -> None:
    found = [
        module("a", is_package=True),
        module("a.one", "from a.two import x"),
        module("a.two", "from . import three"),
        module("a.three", "import a.one\nfrom typing import TYPE_CHECKING"),
        module("a.late", "def f():\n    from a import free\n"),
        module("a.free", "from a import late\nif TYPE_CHECKING:\n    from a import one\n"),
    ]
    graph = imports(found)
    assert graph["a.two"] == {"a.three"}
    assert circles(graph) == [["a.one", "a.three", "a.two"]]


def test_a_metaphor_is_a_whole_word_of_a_name() -> None:
    found = [
        module("a.desk", "class FrontDesk: ...\ndef desktop(): ..."),
        module("a.dead_letters", "class DeadLetter: ..."),
    ]
    assert metaphors(found) == ["a.desk: FrontDesk", "a.desk: desk"]


def test_sentences_and_imports_of_pages() -> None:
    assert vague_sentences({"page": "The worker reads.\nNobody reads."}) == ["page:2"]
    assert documented_imports(["from kcl_dagster.spark import x\nimport kcl_dagster as kcl\n"]) == {
        "kcl_dagster": 0,
        "kcl_dagster.spark": 1,
    }


PACKAGE = Path(kcl_dagster.__file__).parent


@cache
def wheel() -> list[Module]:
    return modules(PACKAGE)


def circles_of(found: Sequence[Module]) -> list[list[str]]:
    return circles(imports(found))


@pytest.mark.parametrize("measure", [circles_of, metaphors, repeated_classes, twins], ids=lambda one: one.__name__)
def test_the_wheel_has_none(measure: Callable[[Sequence[Module]], Sequence[object]]) -> None:
    assert measure(wheel()) == []


def test_no_sentence_of_the_wheel_has_a_vague_subject() -> None:
    assert vague_sentences({module.name: module.text for module in wheel()}) == []


def test_what_users_copy_is_short() -> None:
    lines = lines_of(PACKAGE.parent / folder for folder in ("assets", "resources", "jobs"))
    assert lines
    assert sum(lines.values()) <= 300
