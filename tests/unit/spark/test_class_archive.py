"""Which archive of Spark's classes a JVM is started with."""

import os
from pathlib import Path

import pytest

from kcl_dagster.spark.class_archive import ClassArchive, class_archive, put_whole
from kcl_dagster.spark.java import Java


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    made = ClassArchive(tmp_path / "spark.jsa", tmp_path / "java.jsa")
    put(made.path)
    return made


def put(path: Path) -> None:
    draft = path.with_name("draft")
    draft.write_bytes(b"classes")
    put_whole(draft, path)


def installed(home: Path, text: str = "17") -> Java:
    program = home / "bin/java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(text)
    return Java(home, 17)


def test_without_an_archive_the_options_are_as_they_were(tmp_path: Path) -> None:
    assert ClassArchive(tmp_path / "spark.jsa", tmp_path / "java.jsa").used_by("-XX:+UseG1GC") == "-XX:+UseG1GC"


def test_an_archive_is_used_only_where_it_fits(archive: ClassArchive) -> None:
    """`auto`: the JVM starts without an archive that does not fit; `on` would end it."""
    options = archive.used_by("-XX:+UseG1GC").split()
    assert options[:3] == ["-XX:+UseG1GC", f'"-XX:SharedArchiveFile={archive.path}"', "-Xshare:auto"]


@pytest.mark.parametrize("content", [b"", b"class", b"classes and more"])
def test_an_archive_of_another_size_than_it_had_is_not_used(archive: ClassArchive, content: bytes) -> None:
    """The JVM would crash where it is cut."""
    archive.path.write_bytes(content)
    assert archive.used_by("-XX:+UseG1GC") == "-XX:+UseG1GC"
    put(archive.path)
    assert archive.used_by("-XX:+UseG1GC") != "-XX:+UseG1GC"


def test_an_archive_of_javas_own_classes_comes_first(archive: ClassArchive) -> None:
    put(archive.base)
    assert f"-XX:SharedArchiveFile={archive.base}{os.pathsep}{archive.path}" in archive.used_by("")


@pytest.mark.parametrize("own", ["-Xshare:off", "-XX:SharedArchiveFile=/x.jsa", "-XX:ArchiveClassesAtExit=/x.jsa"])
def test_options_of_the_user_about_archives_are_left_alone(archive: ClassArchive, own: str) -> None:
    assert archive.used_by(own) == own


def test_another_java_has_another_archive(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    one, other = (class_archive(installed(tmp_path / name), {}, cache) for name in ("one", "other"))
    assert one != other
    assert one == class_archive(Java(tmp_path / "one", 17), {}, cache)
    assert one != class_archive(Java(tmp_path / "one", 17, "17.0.16"), {}, cache), "behind the same wrapper"
    assert one != class_archive(installed(tmp_path / "one", "17.0.16"), {}, cache)


def test_another_spark_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = installed(tmp_path / "java")
    jars = tmp_path / "spark/jars"
    jars.mkdir(parents=True)
    monkeypatch.setattr("kcl_dagster.spark.class_archive._find_spark_home", lambda: str(jars.parent))
    none = class_archive(java, {}, tmp_path)
    (jars / "core.jar").write_text("1")
    one = class_archive(java, {}, tmp_path)
    (jars / "core.jar").write_text("12")
    assert len({none, one, class_archive(java, {}, tmp_path)}) == 3


def test_the_archive_is_below_the_cache_of_the_user(tmp_path: Path) -> None:
    found = class_archive(installed(tmp_path), {"XDG_CACHE_HOME": "/srv/cache", "HOME": "/home/worker"})
    assert found.path.parent == found.base.parent == Path("/srv/cache/kcl-dagster")
