"""docs/reference is what the code says, and the code says everything."""

import inspect
import re
from dataclasses import fields
from typing import Any

import pytest

import kcl_dagster as kcl
from docs import make_reference
from docs.make_reference import COMPONENT_PARTS, PAGES, SETTINGS, attribute_docs, field_rows, pages, topics
from kcl_dagster.orchestration import asset_checks

NAMES = [name for names in topics().values() for name in names]
# What nobody calls or configures: there is nothing to show.
NEEDS_NO_EXAMPLE = {"Position", "KclError"}


@pytest.mark.parametrize("name", pages())
def test_a_page_is_current(name: str) -> None:
    assert (PAGES / name).read_text() == pages()[name], "run: python -m docs.make_reference"


def test_there_is_no_page_that_nobody_makes() -> None:
    assert {page.name for page in PAGES.iterdir()} == set(pages())


def test_every_public_name_has_a_topic() -> None:
    assert sorted(NAMES) == sorted(kcl.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_described(name: str) -> None:
    text = inspect.getdoc(getattr(kcl, name)) or ""
    assert text
    assert "Example:" in text or name in NEEDS_NO_EXAMPLE


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isfunction(getattr(kcl, name))])
def test_the_arguments_of_a_function_are_described(name: str) -> None:
    function: Any = getattr(kcl, name)
    described = make_reference._api().partition(f"### {name}\n")[2].partition("\n### ")[0]
    plain = {"consumer", "translator", "name", "kcl_key", "spark_key"}  # say it all
    missing = [
        parameter
        for parameter in inspect.signature(function).parameters
        if f"- `{parameter}`" not in described and parameter not in plain
    ]
    if len(inspect.signature(function).parameters) > 1:
        assert missing == []


@pytest.mark.parametrize("model", SETTINGS, ids=lambda model: model.__name__)
def test_every_setting_has_a_meaning(model: Any) -> None:
    assert [name for name, _, _, meaning in field_rows(model) if not meaning] == []


@pytest.mark.parametrize(
    "kind", [kcl.KclApplicationComponent, *COMPONENT_PARTS.values(), kcl.Consumer, kcl.KclAsset]
)
def test_every_attribute_has_a_meaning(kind: Any) -> None:
    assert [field.name for field in fields(kind) if field.name not in attribute_docs(kind)] == []


def test_every_verb_says_what_it_does() -> None:
    text = make_reference._cli()
    verbs = text.split("\n## ")[2:]
    assert verbs
    assert all(part.partition("\n")[2].strip() for part in verbs)


def test_each_option_of_the_command_line_has_a_meaning() -> None:
    text = make_reference._cli()
    assert "SUPPRESS" not in text
    assert "%(" not in text
    assert re.findall(r"^\| `(--[^`]*)` \| *\|$", text, re.MULTILINE) == []
    emulator = text.partition("\n## emulator\n")[2]
    assert "| `--seed SEED` | of the randomness of faults (default 0) |" in emulator
    assert len(re.findall(r"^\| `--", emulator, re.MULTILINE)) == 10


def test_the_page_on_alerts_names_every_check_once_and_the_urgent_ones_in_its_code() -> None:
    text = (PAGES.parent / "how-to/alerts.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(check.name for check in asset_checks.CHECKS)
    urgent = text.partition("| look at it tomorrow")[0]
    named = set(re.findall(r"^\| `(\w+)`", urgent, re.MULTILINE))
    assert named == set(re.findall(r'^    "(\w+)",$', text, re.MULTILINE))
