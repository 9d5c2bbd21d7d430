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
