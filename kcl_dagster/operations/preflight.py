"""Checks before a start: whether it can succeed.

Each check raises one KclError. Its message fits on a line and states what to do. `problems` returns the messages.
"""

import os
import socket
from collections.abc import Callable, Iterable
from typing import Any

from kcl_dagster import aws
from kcl_dagster.errors import ConfigurationError, KclError, StreamNotFound
from kcl_dagster.spark.java import find_java

Check = Callable[[], None]


def problems(checks: Iterable[Check]) -> list[str]:
    """Run the checks. Returns one line for each that fails. If a check depends on another, pass it to a later
    call."""
    found = []
    for check in checks:
        try:
            check()
        except KclError as error:
            found.append(" ".join(str(error).split()))
    return found


def java_is_there() -> None:
    """Check that Spark finds a Java runtime: JAVA_HOME, one on the PATH, or the one of the `java` extra."""
    find_java(os.environ)


def port_is_free(port: int, host: str = "127.0.0.1", *, remedy: str = "choose another") -> Check:
    """Check that this process can listen on the port."""

    def check() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise ConfigurationError(f"port {port} cannot be used ({error.strerror}): {remedy}") from None

    return check


def stream_exists(kinesis: Any, stream: str) -> Check:
    """Check that Kinesis responds, accepts the credentials, and has the stream."""

    def check() -> None:
        try:
            aws.call(kinesis, "describe_stream_summary", StreamName=stream)
        except aws.ResourceMissing:
            region = getattr(getattr(kinesis, "meta", None), "region_name", None)
            msg = f"there is no stream {stream} in {region or 'this region'}: create it, or correct name and region"
            raise StreamNotFound(msg) from None

    return check


def tables_answer(dynamodb: Any) -> Check:
    """DynamoDB answers and accepts the credentials."""

    def check() -> None:
        aws.call(dynamodb, "list_tables", Limit=1)

    return check
