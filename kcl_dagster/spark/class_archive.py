"""An archive of the classes that Spark loads. With it, a JVM needs half of the CPU time to start.

Java's name for such archives is class data sharing. A JVM writes the classes that it has loaded and verified into a
file. Later JVMs map the file instead of unpacking and verifying twenty thousand classes from Spark's jars again.
`kcl-dagster prepare` makes the archive; a local session uses it if it exists.

The JVM itself checks whether an archive was made by the same Java from the same jars (path, size, time). If not,
the JVM ignores the archive and starts normally. The name of the archive's file depends on the same facts. So after
an upgrade of Java or Spark, there is no archive until `kcl-dagster prepare` makes a new one.

An archive can be damaged, for example by a loss of power or an incomplete copy of a cache. A truncated archive
would crash the JVM, so the size of the archive is stored beside it and checked. If the archive is damaged in
another way, the JVM detects a wrong checksum and ignores the archive.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.find_spark_home import _find_spark_home

from kcl_dagster.spark.java import Java, default_cache

OWN_OPTIONS: Final = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")
"""Names of Java options about archives. If the user's options contain one of them, this module adds none."""

CHECKED: Final = "-Xshare:auto -XX:+IgnoreUnrecognizedVMOptions -XX:+VerifySharedSpaces"
QUIET: Final = '"-Xlog:cds*=off"'  # the JVM writes no line if it ignores an archive


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The location of the archive for one Java and one Spark; the archive need not exist. `base`: the location of
    the archive of Java's own classes, which is made only if this Java was delivered without such an archive."""

    path: Path
    base: Path

    @property
    def exists(self) -> bool:
        return is_whole(self.path)

    def used_by(self, java_options: str) -> str:
        """Return `java_options` with the options that make the JVM use the archive. Returns `java_options`
        unchanged if the archive does not exist, or if they already contain an option about archives."""
        if not self.exists or any(own in java_options for own in OWN_OPTIONS):
            return java_options
        archives = os.pathsep.join([*([str(self.base)] if is_whole(self.base) else []), str(self.path)])
        return f'{java_options} "-XX:SharedArchiveFile={archives}" {CHECKED} {QUIET}'.strip()


def class_archive(java: Java, environment: Mapping[str, str], cache: Path | None = None) -> ClassArchive:
    """Return the location of the archive for this Java and the installed Spark. Creates nothing."""
    program = java.program(environment)
    jars = sorted(Path(_find_spark_home(), "jars").glob("*.jar"))
    facts = [java.release, *(_facts(path) for path in (program.resolve(), *jars))]
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    folder = cache or default_cache(environment)
    return ClassArchive(folder / f"spark-classes-{digest}.jsa", folder / f"java-classes-{digest}.jsa")


def put_whole(draft: Path, path: Path) -> None:
    """Move an archive to `path`, and store its size beside it. Both files survive a loss of power."""
    size = draft.with_name("size")
    size.write_text(str(draft.stat().st_size))
    for one, place in ((size, _size_of(path)), (draft, path)):
        with one.open("rb") as file:
            os.fsync(file.fileno())
        one.replace(place)


def is_whole(path: Path) -> bool:
    """Whether an archive exists and has its original size."""
    try:
        return path.stat().st_size == int(_size_of(path).read_text())
    except (OSError, ValueError):
        return False


def _size_of(path: Path) -> Path:
    return path.with_suffix(".size")


def _facts(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), found.st_size, int(found.st_mtime)
