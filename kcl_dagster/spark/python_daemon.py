"""Spark's Python daemon, with workers that can send every error: the value of `spark.python.daemon.module`.

Spark's Python worker announces an error and then encodes its text. If the text cannot be made or encoded, as with
half of a surrogate pair from a record's JSON, nothing follows, and Spark waits for the text without end.

The daemon makes its workers by fork, and must not have threads before: so this module imports nothing but pyspark.
"""

import struct
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

import pyspark.daemon
import pyspark.util
from pyspark.serializers import SpecialLengths

Send = Callable[..., None]
"""What Spark's worker calls with an error and the connection to the JVM, as `handle_worker_exception`."""


def sends_every_error(spark: Send) -> Send:
    """`spark`, but for an error whose text it could not send. Such an error is sent with escapes in its text."""

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


def main() -> None:
    """Run the daemon until Spark ends it."""
    # A version of Spark that has no such function works as it does with its own daemon.
    if hasattr(pyspark.util, "handle_worker_exception"):
        pyspark.util.handle_worker_exception = sends_every_error(pyspark.util.handle_worker_exception)
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
