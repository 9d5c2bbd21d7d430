"""Hive's metastore, from the jars that Spark brings, as a process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.lakehouse.parts import CACHE, SOURCES, engine_spark, java, run
from tests.lakehouse.processes import process

_OPENED: Final = ("java.base/java.lang=ALL-UNNAMED", "java.base/java.net=ALL-UNNAMED")


@contextmanager
def hive_server(folder: Path) -> Iterator[str]:
    """Yields its address."""
    folder.mkdir(parents=True, exist_ok=True)
    path = f"{engine_spark()}/*"
    classes, source = CACHE / "classes", SOURCES / "LocalMetastore.java"
    stamp = classes / "LocalMetastore.class"
    if not stamp.exists() or stamp.stat().st_mtime < source.stat().st_mtime:
        run(["javac", "-nowarn", "-cp", path, "-d", str(classes), str(source)])
    ready = folder / "port"
    opened = [word for package in _OPENED for word in ("--add-opens", package)]
    command = [java(), "-Xmx384m", *opened, "-cp", f"{classes}:{path}", "LocalMetastore", str(ready), str(folder)]
    with process(command, folder / "hive-metastore.log", ready) as port:
        yield f"thrift://127.0.0.1:{port}"
