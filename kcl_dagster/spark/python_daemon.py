"""Replaces the daemon that makes Spark's Python workers, so that the workers can send the text of every error. The
setting `spark.python.daemon.module` names this module.

Spark's own Python worker announces an error before it encodes the error's text. If the text cannot be made or
encoded, the worker sends nothing more, and Spark waits for the text for ever. An example is a text with half of a
surrogate pair, which the JSON of a record can contain.

The daemon makes its workers by fork, so it must not start threads. It imports pyspark, and the modules that every
fetch needs and that start no thread. Workers then do not have to import these modules. Each worker itself imports
pyarrow, which starts threads, and the modules that import pyarrow. If a user adds another version of a library that
the daemon has imported (`--py-files` or `addPyFile`), the worker imports this version, as with Spark's own daemon.

By default, Spark's Python processes import pyspark from an archive, `pyspark.zip`, and every daemon has to compile
pyspark's modules again. If the archive is part of an installed pyspark, this daemon imports the installed pyspark
instead.
"""

import gc
import struct
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import IO, Any, Final

OWN: Final = "kcl_dagster"
_CLOSED: Final = (BrokenPipeError, ConnectionResetError)  # the errors of a connection that the JVM has closed
ARCHIVE: Final = "pyspark.zip"  # next to the archive of py4j, in pyspark/python/lib

PRELOADED: Final = (
    "boto3",
    "kcl_dagster.aws",
    "kcl_dagster.streams.fanout",
    "kcl_dagster.streams.polling",
    "kcl_dagster.streams.unpacking",
    "kcl_dagster.streams.window",
    "kcl_dagster.worker.batch",
)
"""Modules that every fetch imports. They must not import pyarrow, numpy or pandas, and must not start a thread."""

AddPath = Callable[..., bool]
"""The type of `add_path`, which Spark's worker calls with the path of each folder or archive that a user has
added."""

Serve = Callable[..., int]
"""The type of `worker`, a function that Spark's daemon calls in each Python worker, with the connection to the JVM.
The function returns the exit code of the worker.
"""

Send = Callable[..., None]
"""The type of `handle_worker_exception`, which Spark's worker calls with an error and the connection to the JVM."""


def sends_every_error(spark: Send) -> Send:
    """Wrap `spark`, the function of Spark's Python worker that sends an error to the JVM. If the text of an error
    cannot be made or encoded, the wrapper does not call `spark`, and sends an escaped text itself."""

    from pyspark.serializers import SpecialLengths

    def send(error: BaseException, connection: IO[bytes], *more: Any, **named: Any) -> None:
        try:
            _text(error).encode()
        except Exception:
            with suppress(OSError):  # the JVM has closed the connection
                text = _encoded(error)
                connection.write(struct.pack("!ii", SpecialLengths.PYTHON_EXCEPTION_THROWN, len(text)) + text)
        else:
            spark(error, connection, *more, **named)

    return send


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _encoded(error: BaseException) -> bytes:
    try:
        text = _text(error)
    except Exception as problem:
        places = "".join(traceback.format_tb(error.__traceback__))
        text = (
            f"Traceback (most recent call last):\n{places}"
            f"{type(error).__qualname__}: its text could not be made ({type(problem).__qualname__})\n"
        )
    return text.encode(errors="backslashreplace")


def without_archives(path: Sequence[str]) -> list[str]:
    """Return the import path `path` without the archives of pyspark and py4j. Returns `path` unchanged if pyspark
    or py4j exists only as an archive, or if an archive is not part of the installed pyspark."""
    archives = [Path(entry) for entry in path if Path(entry).name == ARCHIVE]
    rest = [entry for entry in path if Path(entry).parent not in {archive.parent for archive in archives}]
    spark, py4j = (PathFinder.find_spec(name, rest) for name in ("pyspark", "py4j"))
    if spark is None or spark.origin is None or py4j is None:
        return list(path)
    folder = Path(spark.origin).resolve().parent
    is_part = all(archive.resolve().is_relative_to(folder) for archive in archives)
    return rest if is_part else list(path)


def preload() -> frozenset[str]:
    """Import the modules that all workers need. If a module cannot be imported, each worker tries again and reports
    the error. Returns the names of the imported modules of this package, and of libraries of which no module was
    imported before."""
    before = {_library(name) for name in sys.modules} - {OWN}
    for name in PRELOADED:
        with suppress(Exception):
            import_module(name)
    gc.freeze()  # Spark's workers collect garbage after each task, and should not scan these objects
    return frozenset(name for name in sys.modules if _library(name) not in before | sys.stdlib_module_names)


def prefers_added_files(spark: AddPath, preloaded: Collection[str]) -> AddPath:
    """Wrap `spark`, which adds a path to the import path. If the added path contains a library of `preloaded`, the
    worker imports all preloaded modules again, because these libraries use each other. If the worker has already
    imported other modules of these libraries, it keeps all modules instead."""
    libraries = {_library(name) for name in preloaded}

    def add(path: str) -> bool:
        is_new = path not in sys.path
        answer = spark(path)
        if is_new and any(_has(path, library) for library in libraries):
            imported = {name for name in sys.modules if _library(name) in libraries}
            if imported <= set(preloaded):
                for name in imported:
                    del sys.modules[name]
        return answer

    return add


def ends_when_closed(spark: Serve) -> Serve:
    """Wrap `spark`: if the JVM closes the connection of a worker, the worker ends without a traceback. The JVM does
    so when Spark stops or the task has failed."""

    def serve(*given: Any) -> int:
        try:
            return spark(*given)
        except _CLOSED:
            # Python 3.13 and later report that the stream to the JVM cannot be flushed. This report is suppressed.
            sys.unraisablehook = _report_others
            return 1

    return serve


def _report_others(error: "sys.UnraisableHookArgs") -> None:
    """Report an error that cannot be raised, unless the connection was closed."""
    if not isinstance(error.exc_value, _CLOSED):
        sys.__unraisablehook__(error)


def _library(module: str) -> str:
    return module.partition(".")[0]


def _has(path: str, library: str) -> bool:
    spec = PathFinder.find_spec(library, [path])
    return spec is not None and spec.origin is not None  # a folder without modules is no library


def main() -> None:
    """Run the daemon until Spark ends it."""
    sys.path[:] = without_archives(sys.path)
    import pyspark.daemon
    import pyspark.util
    import pyspark.worker_util

    # If a version of Spark lacks one of these functions, the worker behaves as with Spark's own daemon.
    if hasattr(pyspark.util, "handle_worker_exception"):
        pyspark.util.handle_worker_exception = sends_every_error(pyspark.util.handle_worker_exception)
    if hasattr(pyspark.daemon, "worker"):
        pyspark.daemon.worker = ends_when_closed(pyspark.daemon.worker)
    preloaded = preload()
    if hasattr(pyspark.worker_util, "add_path"):
        pyspark.worker_util.add_path = prefers_added_files(pyspark.worker_util.add_path, preloaded)
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
