"""`integrations/dagster-kinesis`, as Dagster's repository of community integrations checks it."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import kcl_dagster
from tests.docs.pages import ROOT

FOLDER = ROOT / "integrations/dagster-kinesis"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text())


def checked(*command: str) -> str:
    outcome = subprocess.run(
        [sys.executable, *command],
        cwd=FOLDER,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), str(ROOT)])},
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stdout[-4000:] + outcome.stderr[-4000:]
    return outcome.stdout


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.nightly
def test_its_own_tests_pass() -> None:
    assert "4 passed" in checked("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml", ".")


@pytest.mark.parametrize("arguments", [("check",), ("format", "--check")], ids=" ".join)
def test_it_is_formatted_by_its_own_rules(arguments: tuple[str, ...]) -> None:
    checked("-m", "ruff", *arguments, "--no-cache", ".")


def test_it_takes_this_version_and_this_dagster() -> None:
    needed = {one.name: one.specifier for one in map(Requirement, PROJECT["project"]["dependencies"])}
    # Of a version in development, the release that it becomes: the integration is published after it.
    assert needed["kcl-dagster"].contains(Version(kcl_dagster.__version__).base_version)
    assert not needed["kcl-dagster"].contains("0.1.0"), "it has none of the names that the integration uses"
    assert needed["dagster"].contains(version("dagster"))
    [tested] = [one for one in map(Requirement, PROJECT["dependency-groups"]["dev"]) if one.name == "kcl-dagster"]
    assert tested.specifier == needed["kcl-dagster"]


@pytest.mark.parametrize("target", ["test", "ruff", "check"])
def test_it_has_the_targets_that_are_asked_for(target: str) -> None:
    assert f"\n{target}:\n" in (FOLDER / "Makefile").read_text()


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "dagster_kinesis/py.typed"])
def test_it_has_the_files_that_are_asked_for(name: str) -> None:
    assert Path(FOLDER, name).is_file()
