"""Shortens the start of a local session by a fifth.

Sessions load the extensions that are in the jars of the class path. Spark has an extension of its own, which
registers the functions of `pyspark.ml.functions`. This extension needs Scala's reflection, which takes a second of
CPU time. If there is no other extension, a local session starts without Spark's extension. The functions are
registered later, when `pyspark.ml.functions` is imported. Extensions of the setting `spark.sql.extensions` are
always loaded.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.abc import MetaPathFinder
from typing import Any, Final
from urllib.parse import unquote
from zipfile import BadZipFile, ZipFile

from py4j.protocol import Py4JError
from pyspark import SparkContext

LOADS: Final = "spark.sql.extensions.test.loadFromCp"
"""Spark's setting for loading extensions from the class path."""

ADDS_JARS: Final = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
"""Settings with which users add jars. Code in these jars can use the functions of Spark's extension, too."""

PROVIDERS: Final = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider"
"""The file in which a jar names its extensions."""

OF_SPARK: Final = "org.apache.spark.sql.ml.InternalFunctionRegistration"
FUNCTIONS: Final = "pyspark.ml.functions"


def postpone_functions(context: SparkContext) -> None:
    """Make the first session of `context` start without the functions of `pyspark.ml.functions`. They are
    registered when `pyspark.ml.functions` is imported. Has no effect in any of these cases:

    - `pyspark.ml.functions` is imported already.
    - There are other extensions.
    - The user has added jars, or has set whether extensions are loaded.
    """
    private: Any = context
    conf, jvm = private._jsc.sc().conf(), private._jvm  # noqa: SLF001
    if FUNCTIONS in sys.modules or any(conf.contains(name) for name in (LOADS, *ADDS_JARS)):
        return
    with suppress(OSError, BadZipFile, KeyError):  # Spark then loads what it finds
        if set(_extensions(jvm)) == {OF_SPARK}:
            conf.set(LOADS, "false")
            sys.meta_path.insert(0, _Registration(jvm))


class _Registration(MetaPathFinder):
    """Registers the functions when their module is imported. Finds no module itself."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm

    def find_spec(self, fullname: str, *_: Any) -> None:
        if fullname == FUNCTIONS:
            with suppress(Py4JError, OSError, ValueError):  # the JVM has ended
                getattr(self._jvm, OF_SPARK)().apply(self._jvm.org.apache.spark.sql.SparkSessionExtensions())
            with suppress(ValueError):  # another thread has removed it
                sys.meta_path.remove(self)


def _extensions(jvm: Any) -> Iterator[str]:
    """The names of the extensions in the jars that the JVM's class loader finds."""
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for url in jvm.java.util.Collections.list(loader.getResources(PROVIDERS)):
        yield from extensions_of(url.toString())


def extensions_of(url: str) -> Iterator[str]:
    """Yield the names in one file of extensions. Raises OSError if it is not in a jar of this machine."""
    jar, _, inside = url.partition("!/")
    if not jar.startswith("jar:file:") or inside != PROVIDERS:
        raise OSError(f"not in a jar: {url}")
    with ZipFile(unquote(jar.removeprefix("jar:file:"))) as archive:
        lines = archive.read(PROVIDERS).decode().splitlines()
    yield from (name for line in lines if (name := line.partition("#")[0].strip()))
