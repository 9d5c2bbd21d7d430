"""An archive of the classes that Spark loads: with it, a JVM needs half of the CPU to start.

Java calls it class data sharing. A JVM writes the classes that it has loaded and verified into a file, and later
ones map the file, instead of unpacking and verifying twenty thousand classes from Spark's jars again. `kcl-dagster
prepare` makes the archive; a local session uses it if it is there.

The JVM itself decides whether an archive fits: it has to be of this very Java and of these jars (path, size, time).
It ignores another one, and starts as without. The name of the file follows the same facts, so after an upgrade of
Java or of Spark there is none until it is made again.

An archive may be damaged, as by a machine that lost power or a cache that was copied in part. One that is too short
would crash the JVM, so its size is kept beside it. Of any other the JVM compares checksums, and ignores it.
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
"""Parts of Java's options with which the user decides about archives."""

CHECKED: Final = "-Xshare:auto -XX:+IgnoreUnrecognizedVMOptions -XX:+VerifySharedSpaces"
QUIET: Final = '"-Xlog:cds*=off"'  # an archive that does not fit is worth no line in a worker's output


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Where the archive of one Java and one Spark is, whether or not it was made. `base`: of Java's own classes,
    made only where this Java came without."""

    path: Path
    base: Path

    @property
    def exists(self) -> bool:
        return is_whole(self.path)

    def used_by(self, java_options: str) -> str:
        """The options with the archive, if there is one and they do not choose one themselves."""
        if not self.exists or any(own in java_options for own in OWN_OPTIONS):
            return java_options
        archives = os.pathsep.join([*([str(self.base)] if is_whole(self.base) else []), str(self.path)])
        return f'{java_options} "-XX:SharedArchiveFile={archives}" {CHECKED} {QUIET}'.strip()


def class_archive(java: Java, environment: Mapping[str, str], cache: Path | None = None) -> ClassArchive:
    """Of this Java and of the Spark that is installed."""
    program = java.program(environment)
    jars = sorted(Path(_find_spark_home(), "jars").glob("*.jar"))
    facts = [java.release, *(_facts(path) for path in (program.resolve(), *jars))]
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    folder = cache or default_cache(environment)
    return ClassArchive(folder / f"spark-classes-{digest}.jsa", folder / f"java-classes-{digest}.jsa")


def put_whole(draft: Path, path: Path) -> None:
    """Move an archive to its place, with its size beside it, so that both survive the machine's loss of power."""
    size = draft.with_name("size")
    size.write_text(str(draft.stat().st_size))
    for one, place in ((size, _size_of(path)), (draft, path)):
        with one.open("rb") as file:
            os.fsync(file.fileno())
        one.replace(place)


def is_whole(path: Path) -> bool:
    """Whether an archive is there, and as large as it was when it was made."""
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
