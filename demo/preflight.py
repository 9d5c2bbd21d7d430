"""Checks before the start of the demo whether it can succeed.

Each check raises one KclError. Its message fits on a line and states what to do. `problems` returns the messages.
"""

import os
import socket
from collections.abc import Callable, Iterable

from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.spark.java import find_java

Check = Callable[[], None]


def problems(checks: Iterable[Check]) -> list[str]:
    """Run the checks. Returns one line for each that fails. A check that makes sense only if another one succeeds
    has to be passed to a later call."""
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
