"""What `make lakehouse` needs beside the development environment: jars of Maven Central, and a Spark of its own.

All of it is fetched with the first run, about 800 MB, and kept below `.cache/lakehouse`. Python's package thrift,
which pyiceberg needs for Hive, comes with the development environment.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CACHE: Final = ROOT / ".cache" / "lakehouse"
SOURCES: Final = Path(__file__).parent / "java"
ENGINE: Final = "pyspark==4.1.4"  # the newest one for which both Iceberg and Delta have a runtime
_SECONDS: Final = 900.0


class Unavailable(Exception):
    """A part cannot be had on this machine; the message says why."""


def java() -> str:
    found = shutil.which("java")
    if found is None or shutil.which("javac") is None:
        raise Unavailable("Java, with its compiler, is not installed")
    return found


def engine_python() -> Path:
    """The Python of the environment in which Spark 4.1 is."""
    home = CACHE / "engine"
    python = home / "bin" / "python"
    ready = home / ".ready"
    if not ready.exists() or ready.read_text() != ENGINE:
        shutil.rmtree(home, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(home)])
        run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", ENGINE])
        ready.write_text(ENGINE)
    return python


def engine_spark() -> Path:
    """The folder with Spark's own jars, among them those of Hive's metastore."""
    [found] = (engine_python().parents[1] / "lib").glob("python*/site-packages/pyspark/jars")
    return found


def engine_jars() -> list[Path]:
    """Iceberg's and Delta's runtimes. What Spark has itself is left out."""
    wanted = ("iceberg-", "delta-", "unitycatalog-", "sqlite-", "hadoop-aws-", "s3-transfer-", "apache-client-")
    return [jar for jar in jars("engine") if jar.name.startswith(wanted)]


def jars(name: str) -> list[Path]:
    """What `java/<name>.xml` asks for."""
    pom, folder = SOURCES / f"{name}.xml", CACHE / f"jars-{name}"
    made_for = folder / ".pom"
    if not made_for.exists() or made_for.read_text() != pom.read_text():
        if shutil.which("mvn") is None:
            raise Unavailable("Maven is not installed")
        shutil.rmtree(folder, ignore_errors=True)
        copy = ["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        run([*copy, f"-DoutputDirectory={folder}"])
        made_for.write_text(pom.read_text())
    return sorted(folder.glob("*.jar"))


def catalog_classpath() -> str:
    """With `java/LocalCatalog.java`, compiled."""
    path = ":".join(map(str, jars("catalog")))
    classes, source = CACHE / "classes", SOURCES / "LocalCatalog.java"
    stamp = classes / "org" / "apache" / "iceberg" / "rest" / "LocalCatalog.class"
    if not stamp.exists() or stamp.stat().st_mtime < source.stat().st_mtime:
        run(["javac", "-nowarn", "-cp", path, "-d", str(classes), str(source)])
    return f"{classes}:{path}"


def run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"{' '.join(command[:4])} failed: {said[-1] if said else done.returncode}")
