"""`kcl-dagster prepare`: one archive for each Java and Spark, whole or not at all."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.operations import preparation
from kcl_dagster.operations.preparation import prepare

JAVA = """\
#!/bin/sh
for argument; do
  case "$argument" in
    -Xshare:on) exit {own} ;;
    -XX:SharedArchiveFile=*) echo classes > "${{argument#*=}}" ;;
  esac
done
echo 'openjdk version "17.0.15"' >&2
"""


def installed(home: Path, *, own: bool) -> dict[str, str]:
    """A Java, with an archive of its own classes or without."""
    program = home / "bin/java"
    program.parent.mkdir(parents=True)
    program.write_text(JAVA.format(own=0 if own else 1))
    program.chmod(0o755)
    return {"JAVA_HOME": str(home), "PATH": ""}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The runs of Spark, which do not take place."""
    found: list[list[str]] = []
    run = preparation._run

    def noted(command: list[str], environment: Mapping[str, str]) -> None:
        if command[0] != sys.executable:
            run(command, environment)
            return
        found.append(command)
        Path(command[3]).write_text("classes")

    monkeypatch.setattr(preparation, "_run", noted)
    return found


def test_an_archive_is_made_once(tmp_path: Path, trained: list[list[str]]) -> None:
    environment, cache = installed(tmp_path / "java", own=True), tmp_path / "cache"
    told = prepare(environment, cache)
    [made] = cache.glob("*.jsa")
    assert told.startswith(f"{made} made")
    assert prepare(environment, cache) == f"{made} is there already"
    assert len(trained) == 1


def test_a_java_without_an_archive_of_its_own_gets_one_first(tmp_path: Path, trained: list[list[str]]) -> None:
    """And where it stays: the archive of Spark's classes names it by its path."""
    prepare(installed(tmp_path / "java", own=False), tmp_path / "cache")
    base, _ = sorted((tmp_path / "cache").glob("*.jsa"))
    assert base.name.startswith("java-classes-")
    assert trained[0][4] == str(base)


def test_an_archive_that_was_cut_is_made_again(tmp_path: Path, trained: list[list[str]]) -> None:
    environment, cache = installed(tmp_path / "java", own=True), tmp_path / "cache"
    prepare(environment, cache)
    [made] = cache.glob("*.jsa")
    made.write_text("cl")
    assert prepare(environment, cache).startswith(f"{made} made")
    assert made.read_text() == "classes"
    assert len(trained) == 2


def test_a_run_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "__name__", "no_such_module")
    with pytest.raises(ConfigurationError, match=r"no archive of Spark's classes could be made: .*no_such_module"):
        prepare(installed(tmp_path / "java", own=True), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_jvm_that_writes_no_archive_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_run", lambda *_: None)
    with pytest.raises(ConfigurationError, match="ended without an archive"):
        prepare(installed(tmp_path / "java", own=True), tmp_path / "cache")
