"""The command `kcl-dagster prepare`, which runs once on a machine or in an image, so that workers on it start
sooner."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.class_archive import ClassArchive, class_archive, is_whole, put_whole
from kcl_dagster.spark.java import find_java
from kcl_dagster.spark.session import SparkSettings, start_session, stop_session
from kcl_dagster.spark.warm_up import warm_up

MAKE_SECONDS: Final = 300.0  # limit for one command, which takes ten seconds on an idle machine
MEGABYTE: Final = 1_000_000


def prepare(environment: Mapping[str, str], cache: Path | None = None) -> str:
    """Make the archive of Spark's classes for the Java that a worker would use on this machine, unless it exists.
    Returns a description of the result.

    Raises JavaMissing, and ConfigurationError if no archive can be made.
    """
    java = find_java(environment)
    archive = class_archive(java, environment, cache)
    if archive.exists:
        return f"{archive.path} is there already"
    archive.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kcl-prepare-", dir=archive.path.parent) as folder:
        program = str(java.program(environment))
        if not is_whole(archive.base) and not _has_own_archive(program):
            made = Path(folder) / "java.jsa"
            _run([program, "-Xshare:dump", f"-XX:SharedArchiveFile={made}"], environment)
            put_whole(made, archive.base)
        # An archive contains the path of the archive that it builds on. This base archive must therefore already be
        # at its final path.
        draft = ClassArchive(Path(folder) / "spark.jsa", archive.base)
        _run([sys.executable, "-m", __name__, str(draft.path), str(draft.base)], environment)
        if not draft.path.is_file():
            raise ConfigurationError(f"{program} ended without an archive of its classes")
        megabytes = draft.path.stat().st_size / MEGABYTE
        put_whole(draft.path, archive.path)
    return f"{archive.path} made, {megabytes:.0f} MB: Spark's JVM starts from it"


def _has_own_archive(program: str) -> bool:
    """Whether this Java was delivered with an archive of its own classes. The archive of Spark's classes builds on
    it."""
    done = subprocess.run(
        [program, "-Xshare:on", "-version"], capture_output=True, timeout=MAKE_SECONDS, check=False
    )
    return done.returncode == 0


def _run(command: list[str], environment: Mapping[str, str]) -> None:
    try:
        subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=MAKE_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        lines = [line for line in f"{error.stdout}\n{error.stderr}".splitlines() if line.strip()]
        why = lines[-1] if lines else f"exit code {error.returncode}"
        raise ConfigurationError(f"no archive of Spark's classes could be made: {why}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"no archive of Spark's classes could be made: {error}") from error


def _archive_into(draft: ClassArchive) -> None:
    """Start Spark, run the same kinds of queries as workers, and let the JVM write the archive when it exits."""
    base = [f'"-XX:SharedArchiveFile={draft.base}"'] if is_whole(draft.base) else []
    options = ["-XX:+UseSerialGC", *base, f'"-XX:ArchiveClassesAtExit={draft.path}"']
    spark = start_session(SparkSettings(slots=2, memory="512m", java_options=" ".join(options)), "kcl-prepare")
    warm_up(spark)
    kept = spark.range(0, 1, 1, 1).localCheckpoint()
    read = kept.withColumn("made", F.current_timestamp()).select(
        "*", F.from_json(F.lit("{}"), "a int").alias("json")
    )
    read.select("id", "made", "json.*").where("id >= 0").write.parquet(str(draft.path.with_name("table")))
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
    stop_session(spark)
    gateway.proc.stdin.close()  # makes the JVM exit and write the archive
    gateway.proc.wait(MAKE_SECONDS)
    shutil.rmtree(draft.path.with_name("table"))


if __name__ == "__main__":
    _archive_into(ClassArchive(Path(sys.argv[1]), Path(sys.argv[2])))
