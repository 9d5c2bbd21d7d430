"""What the hosting service reads: workflows and templates are valid, and call targets of the Makefile."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.site.conf import release
from tests.docs.commands import CHECKS
from tests.docs.pages import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
_MAKE = re.compile(r"\bmake (?P<words>[^\n&|]+)")


def commands(workflow: dict[str, Any]) -> list[str]:
    """What its steps run, with every value of a matrix in its place."""
    found = []
    for job in workflow["jobs"].values():
        checks = job.get("strategy", {}).get("matrix", {}).get("check", [""])
        for step in job["steps"]:
            found += [step.get("run", "").replace("${{ matrix.check }}", check) for check in checks]
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_least_rights_and_calls_targets_that_exist(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert "permissions" in workflow
    for command in commands(workflow):
        for found in _MAKE.finditer(command):
            CHECKS["make"](found["words"].split())


def test_every_change_runs_the_same_suite_as_here() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert ".ci/run" in commands(workflow)
    classifiers = (ROOT / "pyproject.toml").read_text()
    for python in workflow["jobs"]["suite"]["strategy"]["matrix"]["python"]:
        assert f"Python :: {python}" in classifiers


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_a_template_is_valid(path: Path) -> None:
    assert yaml.safe_load(path.read_text())


def test_the_version_has_a_section_in_the_changelog() -> None:
    assert f"## {release}" in (ROOT / "CHANGELOG.md").read_text()
