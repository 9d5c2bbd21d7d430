"""What Spark's Python workers send to the JVM for an error."""

import io
import struct
from typing import Any

import pyspark.util
import pytest

from kcl_dagster.spark.python_daemon import sends_every_error

EXCEPTION_THROWN = -2  # of Spark's protocol
HALF = "\ud83d"  # half of a surrogate pair, which has no encoding

send = sends_every_error(pyspark.util.handle_worker_exception)


class OfItsOwn(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def of_wrong_source() -> SyntaxError:
    error = SyntaxError("wrong")
    error.filename, error.lineno = "file", 1
    error.text = 5  # type: ignore[assignment]
    return error


def sent(handler: Any, error: BaseException) -> str:
    connection = io.BytesIO()
    try:
        raise error
    except BaseException as raised:
        handler(raised, connection)
    kind, length = struct.unpack("!ii", connection.getvalue()[:8])
    assert kind == EXCEPTION_THROWN
    assert length == len(connection.getvalue()) - 8
    return connection.getvalue()[8:].decode()


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (ValueError(f"unknown kind {HALF}"), "ValueError: unknown kind \\ud83d"),
        (KeyError(HALF), "KeyError: '\\ud83d'"),
        (SystemExit(HALF), "SystemExit: \\ud83d"),
        (OfItsOwn(), "OfItsOwn: <exception str() failed>"),
        (of_wrong_source(), "SyntaxError: its text could not be made (AttributeError)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_sent_whole_with_its_name_and_place(error: BaseException, last: str) -> None:
    text = sent(send, error)
    assert text.startswith("Traceback (most recent call last):\n")
    assert f'File "{__file__}", line ' in text
    assert text.rstrip().endswith(last)


def test_an_error_that_can_be_sent_is_left_to_spark() -> None:
    told = [
        sent(handler, ValueError("unknown kind 🛒")) for handler in (send, pyspark.util.handle_worker_exception)
    ]
    assert told[0] == told[1]


def test_a_connection_that_is_closed_is_no_error_of_its_own() -> None:
    send(ValueError(HALF), Closed())


class Closed(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, _data: Any) -> int:
        raise BrokenPipeError
