"""What `pip install kcl-dagster` brings."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from hashlib import sha256
from pathlib import Path

import pytest

import kcl_dagster
import package_page

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://example.org/owner/kcl-dagster"
CONTENT = (".gitignore", "README.md", "CHANGELOG.md", "LICENSE", "package_page.py", "pyproject.toml", "kcl_dagster")

Build = Callable[..., list[Path]]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds wheel and source archive of a folder, as `make dist` does, and returns them."""

    def run(folder: Path = ROOT, **environment: str) -> list[Path]:
        target = tmp_path_factory.mktemp("dist")
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(target)],
            cwd=folder,
            check=True,
            capture_output=True,
            env={**os.environ, "REPOSITORY_URL": REPOSITORY, "SOURCE_DATE_EPOCH": "1764000000", **environment},
        )
        return sorted(target.iterdir())

    return run


@pytest.fixture(scope="module")
def built(build: Build) -> list[Path]:
    return build()


@pytest.fixture(scope="module")
def wheel(built: list[Path]) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(path for path in built if path.suffix == ".whl"))


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    """As package indexes read it; the README is its payload."""
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


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


def copied(folder: Path) -> Path:
    for name in CONTENT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def digests(paths: list[Path]) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in paths}


def test_two_folders_give_the_same_bytes(build: Build, built: list[Path], tmp_path: Path) -> None:
    """Whatever the folder is called, whenever its files were written and whatever their rights are."""
    elsewhere = copied(tmp_path)
    for path in elsewhere.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(path.stat().st_mode | 0o020)
    again = build(elsewhere)
    assert [path.suffix for path in again] == [".whl", ".gz"]
    assert digests(again) == digests(built)


def test_another_date_gives_other_bytes(build: Build, built: list[Path]) -> None:
    assert digests(build(SOURCE_DATE_EPOCH="1764000002")) != digests(built)


def test_a_package_index_takes_what_is_built(built: list[Path]) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("PASSED") == len(built) == 2


def test_the_page_names_the_project_and_what_it_runs_on(metadata: Message) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (metadata["Name"], metadata["Version"]) == ("kcl-dagster", kcl_dagster.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Classifier", [])) == set(project["classifiers"])
    urls = dict(entry.split(", ") for entry in metadata.get_all("Project-URL", []))
    assert urls == package_page.addresses(REPOSITORY)
    for url in urls.values():
        path = url.removeprefix(REPOSITORY).removeprefix("/blob/main/")
        assert path in ("", "/issues") or (ROOT / path).is_file()


def test_links_of_the_page_lead_to_files_that_the_tag_has(metadata: Message) -> None:
    page = metadata.get_payload()
    assert isinstance(page, str)
    assert page.startswith("# kcl_dagster")
    assert package_page.absolute(page, "https://elsewhere", "0") == page, "no link is relative"
    tag = f"v{kcl_dagster.__version__}"
    linked = [word.partition(")")[0].partition("#")[0] for word in page.split(f"]({REPOSITORY}/")[1:]]
    assert len(linked) > 10
    for link in linked:
        kind, version, path = link.split("/", 2)
        assert kind == ("raw" if path.endswith(".png") else "blob")
        assert version == tag
        assert (ROOT / path).exists(), path


def test_without_an_address_the_page_is_the_readme(build: Build) -> None:
    [path] = [path for path in build(REPOSITORY_URL="") if path.suffix == ".whl"]
    with zipfile.ZipFile(path) as wheel:
        text = wheel.read(f"{path.name.removesuffix('-py3-none-any.whl')}.dist-info/METADATA").decode()
    assert "Project-URL" not in text
    assert text.partition("\n\n")[2] == (ROOT / "README.md").read_text()
