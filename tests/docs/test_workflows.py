"""What the hosting service reads: workflows and templates are valid, and call targets of the Makefile."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from docs.site.conf import release
from tests.docs.commands import CHECKS
from tests.docs.pages import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
CHECK_RELEASE = ROOT / ".ci/check_release.py"
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


NOTES = """# Changelog

## Unreleased

### Added

## 0.2.0

### Added
- Something.

## 0.1.0

The first version.
"""


def released(folder: Path, tag: str, version: str = "0.2.0", changelog: str = NOTES) -> str:
    """What the check of the workflow says about a tag of this commit; empty: the tag is accepted."""
    for name in (".ci", "kcl_dagster"):
        (folder / name).mkdir()
    shutil.copy(CHECK_RELEASE, folder / ".ci")
    (folder / "kcl_dagster/__init__.py").write_text(f'"""A package."""\n\n__version__ = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(changelog)
    command = [sys.executable, ".ci/check_release.py", tag]
    checked = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (checked.returncode == 0) == (not checked.stderr)
    return checked.stderr


@pytest.mark.parametrize("changelog", [NOTES, NOTES.replace("## Unreleased\n\n### Added\n\n", "")])
def test_a_tag_of_the_newest_section_is_released(changelog: str, tmp_path: Path) -> None:
    assert released(tmp_path, "v0.2.0", changelog=changelog) == ""


@pytest.mark.parametrize(
    ("tag", "given", "message"),
    [
        ("v0.1.0", {"version": "0.1.0"}, "the newest section of CHANGELOG.md is 0.2.0, and the tag is v0.1.0"),
        ("v0.2.0", {"version": "0.2.0.dev0"}, "has version 0.2.0.dev0, and the tag is v0.2.0"),
        ("v0.2.0", {"changelog": NOTES.replace("### Added\n\n##", "### Added\n- More.\n\n##")}, "under Unreleased"),
        ("v0.3.0", {"version": "0.3.0"}, "the newest section of CHANGELOG.md is 0.2.0"),
        ("v0.2.0.dev0", {"version": "0.2.0.dev0"}, "not of the form v1.2.3"),
        ("0.2.0", {}, "not of the form v1.2.3"),
        ("v0.2.0", {"changelog": "# Changelog\n"}, "section of CHANGELOG.md is None"),
    ],
)
def test_a_tag_of_anything_else_is_refused(tag: str, given: dict[str, str], message: str, tmp_path: Path) -> None:
    assert message in released(tmp_path, tag, **given)


def test_the_release_is_checked_before_anything_is_built() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    runs = [step["run"] for step in workflow["jobs"]["build"]["steps"] if "run" in step]
    assert runs[0] == 'python .ci/check_release.py "$GITHUB_REF_NAME"'
    assert all("needs" in job for name, job in workflow["jobs"].items() if name != "build")


def test_what_is_changed_is_in_the_section_of_its_version() -> None:
    """Between releases, entries are under "Unreleased", and the version is that of the release to come."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    titles = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    if Version(release).is_devrelease:
        assert titles[0] == "Unreleased"
        assert Version(release) > Version(titles[1])
    else:
        assert release in titles[:2]


def test_entries_of_the_changelog_are_whole() -> None:
    """An entry that ends in a comma is half of a merge."""
    entries = re.split(r"^(?:- |\n|#)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert not [entry for entry in entries if entry.rstrip().endswith(",")]


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_a_wheel_that_is_named_is_the_one_that_is_built(path: Path) -> None:
    named = re.findall(r"kcl_dagster-([0-9][^-\s]*)-py3-none-any\.whl", path.read_text())
    assert set(named) <= {release}
