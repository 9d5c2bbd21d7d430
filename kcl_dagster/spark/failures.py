"""Maps errors of Spark and of table formats to the classes of `kcl_dagster.errors`, which `worker.error_class`
classifies. An error that is not mapped was raised by the consumer's code.
"""

import errno
import json
import re
import secrets
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, PythonException

from kcl_dagster.errors import (
    BatchContentChanged,
    BatchError,
    ConfigurationError,
    ProcessLost,
    RecordRefused,
    SinkError,
    TransformError,
    Unavailable,
)
from kcl_dagster.spark.throwables import chain_of, reasons, says_a_lost_block, says_a_lost_process
from kcl_dagster.worker.error_text import encodable, redacted, text_of

_TOKEN: Final = secrets.token_hex(8)

CONTENT_CHANGED: Final = "KCL_BATCH_CONTENT_CHANGED"
SINK_FAILED: Final = "KCL_SINK_FAILED"
RECORD_REFUSED: Final = "KCL_RECORD_REFUSED"
"""The mark of an error about a value that no file can hold."""

TRANSFORM_FAILED: Final = "KCL_TRANSFORM_FAILED"
"""The mark of an error about an output of the consumer's transform that cannot be stored."""

WRONG_CONFIGURATION: Final = "KCL_WRONG_CONFIGURATION"
"""The mark of an error about an output that does not fit the settings of the sink."""

UNAVAILABLE: Final = "KCL_UNAVAILABLE"
"""The mark of an error about something that the consumer's code needs and cannot reach."""


@contextmanager
def encodable_errors() -> Iterator[None]:
    """A context for the consumer's code in an executor. It replaces errors whose text or traceback cannot be
    encoded. The new error has the same class name and traceback, and an encodable text. This is necessary because
    Spark's Python worker announces an error before it encodes the error's text: if encoding fails, Spark waits for
    the text for ever."""
    try:
        yield
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        if encodable(told) == told:
            raise
        kind = type(error)
        # `Marks.errors` distinguishes errors of this package by their class, so the class is kept. Each of these
        # classes can be called with a text.
        substitute = kind if isinstance(error, BatchError) else type(kind.__name__, (Exception,), {})
        substitute.__module__ = kind.__module__
        raise substitute(text_of(error)).with_traceback(error.__traceback__) from None


@dataclass(frozen=True, slots=True)
class Marks:
    """Adds marks to the texts of errors that this package raises in executors. A mark names the class of the error,
    because Spark passes on the text of an error, but not its class.

    Spark's errors can quote values of records, and a value could contain a mark. So a mark contains a random token,
    which the driver creates and sends with the task, and which producers of records do not know.

    `sink`: the name of the sink for which the task works. Some marks contain this name, because one Spark job can
    work for several sinks.
    """

    token: str = _TOKEN
    sink: str | None = None

    def of(self, kind: str) -> str:
        return f"{kind}:{self.token}"

    def _of_sink(self, kind: str) -> str:
        return self.of(kind) if self.sink is None else f"{self.of(kind)}{json.dumps(self.sink)}"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """A context for all work that an executor does for a sink. It adds marks to errors of this package."""
        try:
            with encodable_errors():
                yield
        except RecordRefused as error:
            raise RecordRefused(f"{self._of_sink(RECORD_REFUSED)}: {error}") from error
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.of(WRONG_CONFIGURATION)}: {error}") from error
        except TransformError as error:
            raise TransformError(f"{self.of(TRANSFORM_FAILED)}: {error}") from error
        except SinkError as error:
            raise SinkError(f"{self._of_sink(SINK_FAILED)}: {error}") from error
        except Unavailable as error:
            raise Unavailable(f"{self.of(UNAVAILABLE)}: {error}") from error


_MINE: Final = Marks()
_DRAWN: Final = re.compile(r"\x1b\[[0-9;]*m|↳")  # codes of colours, and the arrow before a cause

LONGEST_LINE: Final = 500  # characters; operators read it in an event

# Errors of the driver's machine itself: no disk, memory or file handle is left.
_EXHAUSTED: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


def is_content_changed(error: BaseException) -> bool:
    """Whether the fetched records of the batch are lost or were replaced by others, so that the batch has to be
    read again."""
    return _MINE.of(CONTENT_CHANGED) in str(error) or _is_lost_block(error)


def _is_lost_block(error: BaseException) -> bool:
    """Whether Spark itself reports a lost block. The same words in a record or in an error of user code are
    ignored."""
    if isinstance(error, PythonException) or not isinstance(error, PySparkException | Py4JJavaError):
        return False
    chain = chain_of(error)
    return any(one.is_a_lost_block for one in reasons(chain)) if chain else says_a_lost_block(str(error))


@contextmanager
def fetch_failures() -> Iterator[None]:
    """A context for jobs that run only the fetch, and no code of the consumer. It maps every error of Spark to a
    BatchError."""
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:  # OSError: the JVM has ended
        if is_content_changed(error):
            raise BatchContentChanged("Spark lost the fetched records before they were used") from error
        raise BatchError(f"the fetch failed in Spark: {first_line(error)}") from error


@contextmanager
def write_failures(sink: str) -> Iterator[None]:
    """A context for jobs that run the consumer's transform and a sink's writer.

    Maps an error in three cases: the fetched records were lost or replaced; this package marked the error in an
    executor; Spark, one of its processes or its storage failed. Any other error came from user code and remains
    unchanged.
    """
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        if is_content_changed(error):
            raise BatchContentChanged(
                "Spark would have evaluated other records than were pinned; the batch has to be read again"
            ) from error
        if (refused := _marked_line(error, RECORD_REFUSED)) is not None:
            raise RecordRefused(refused.named(sink)) from error
        if (unfit := _marked_line(error, WRONG_CONFIGURATION)) is not None:
            raise ConfigurationError(unfit.text) from error
        if (wrong := _marked_line(error, TRANSFORM_FAILED)) is not None:
            raise TransformError(wrong.text) from error
        if (failed := _marked_line(error, SINK_FAILED)) is not None:
            raise SinkError(f"sink {failed.named(sink)}") from error
        if (away := _marked_line(error, UNAVAILABLE)) is not None:
            raise Unavailable(away.text) from error
        if _is_from_py4j(error):
            raise BatchError(f"Spark went away while {sink} was written: {first_line(error)}") from error
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            raise BatchError(f"the driver has no room left while {sink} is written: {first_line(error)}") from error
        lost = _lost_process(error)
        if lost is not None:
            raise ProcessLost(f"Spark lost a process while {sink} was written: {lost}") from error
        if (broken := _storage_failure(error)) is not None:
            raise BatchError(f"Spark's own storage failed while {sink} was written: {broken}") from error
        raise


def _lost_process(error: BaseException) -> str | None:
    """The line in which Spark reports a lost process, or None. Only errors of the JVM can contain such a line. User
    code on the driver raises other errors. Errors of user code in executors are excluded by their type or
    condition, whatever their text is."""
    if isinstance(error, PythonException) or not isinstance(error, PySparkException | Py4JJavaError):
        return None
    chain = chain_of(error)
    if chain:
        told = next((f"{one.kind}: {one.message}" for one in reasons(chain) if one.is_a_lost_process), None)
    else:
        told = str(error) if says_a_lost_process(str(error)) else None
    return None if told is None else _line(told)


def _storage_failure(error: BaseException) -> str | None:
    """The line in which Spark reports that it could not read or write one of its own files, for example after a
    folder of `spark.local.dir` was removed. None for other errors."""
    if isinstance(error, OSError) and _is_raised_in(error, "pyspark"):
        return first_line(error)
    found = (one for one in reasons(chain_of(error)) if one.is_of_sparks_storage)
    return next((_line(f"{one.kind}: {one.message}") for one in found), None)


def _line(text: str) -> str:
    return redacted(" ".join(text.split("\n\tat ")[0].split()))[:LONGEST_LINE]


def _is_from_py4j(error: BaseException) -> bool:
    """Whether communication with the JVM failed, which no record can cause."""
    if isinstance(error, PySparkException | Py4JJavaError):
        return False
    return isinstance(error, Py4JError) or _is_raised_in(error, "py4j")


def _is_raised_in(error: BaseException, package: str) -> bool:
    """Whether code of `package` raised the error, or code of the standard library called by it."""
    names = [
        str(frame.f_globals.get("__name__")).partition(".")[0]
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    return next((name for name in reversed(names) if name not in sys.stdlib_module_names), None) == package


def of_table(table: str, error: Exception) -> BatchError:
    """Map an error that the library of a table format raised. No code of the consumer runs in such a library. So
    the result is a SinkError, or RecordRefused if a value could not be converted. The tree of causes that delta-rs
    draws for a terminal becomes one line of text."""
    said = " ".join(_DRAWN.sub(" ", str(error)).split())
    text = f"{table}: {type(error).__name__}: {redacted(said)}"
    return RecordRefused(text) if isinstance(error, UnicodeError | ArithmeticError) else SinkError(text)


def first_line(error: BaseException) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return redacted(line)


def line_of_java(error: BaseException) -> str:
    """The JVM's text of the error in one line, without the text that Py4J adds."""
    chain = chain_of(error)
    return _line(f"{chain[0].kind}: {chain[0].message}") if chain else first_line(error)


@dataclass(frozen=True, slots=True)
class _MarkedLine:
    text: str
    sink: str | None

    def named(self, sink: str) -> str:
        """The text with a sink's name before it: the name in the mark, or `sink` if the mark names no sink. Returns
        the text unchanged if it already begins with this name."""
        name = f"{self.sink or sink}: "
        return self.text if self.text.startswith(name) else f"{name}{self.text}"


def _marked_line(error: BaseException, kind: str) -> _MarkedLine | None:
    _, found, rest = str(error).partition(_MINE.of(kind))
    lines = rest.splitlines()
    if not found or not lines:
        return None
    line, sink = lines[0], None
    if line.startswith('"'):
        with suppress(ValueError):  # Spark may have cut the text
            sink, end = json.JSONDecoder().raw_decode(line)
            line = line[end:]
    return _MarkedLine(line.lstrip(": ").strip(), sink)
