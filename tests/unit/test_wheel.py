"""What `pip install kcl-dagster` brings."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return zipfile.ZipFile(next(target.glob("*.whl")))


def test_the_wheel_contains_only_the_package(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kcl_dagster"}


def test_the_wheel_is_typed_and_brings_no_jar(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "kcl_dagster/py.typed" in names
    assert not [name for name in names if name.endswith((".jar", ".class", ".pyc"))]


@pytest.mark.audit("F12")
def test_building_the_wheel_does_not_set_up_the_development_environment() -> None:
    """All commands of `make wheel` on a fresh checkout, none of them run."""
    command = ["make", "--dry-run", "--always-make", "wheel", f"PYTHON={sys.executable}"]
    commands = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "--require-hashes -r requirements-build.lock" in commands
    assert "requirements.lock" not in commands
    assert ".venv" not in commands.replace(sys.executable, "python")
