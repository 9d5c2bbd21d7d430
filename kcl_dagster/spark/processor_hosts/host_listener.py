"""Accepts the connections of hosts."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from socket import create_connection, socket
from typing import Any, Final

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.server_socket import open_server_socket
from kcl_dagster.spark.processor_hosts import messages
from kcl_dagster.spark.processor_hosts.certificate import Certificate
from kcl_dagster.spark.processor_hosts.handshakes import LEAST_SECONDS, MOST_OPEN, Handshakes
from kcl_dagster.spark.processor_hosts.host_connection import HostConnection
from kcl_dagster.spark.processor_hosts.line import HANDSHAKE_SECONDS, Line

CLOSING_SECONDS: Final = 2.0  # the timeout of the connection that `close` makes to this process
# The pause after a connection could not be accepted, because the process has no file or thread left. An immediate
# second attempt would fail as well.
PAUSE_SECONDS: Final = 0.1


class HostListener:
    """Accepts connections of hosts, on its own threads. Closes connections of clients without the secret.

    Such clients can occupy only a fixed number of threads, and cannot end the listener. Every client has
    `handshake_seconds` to prove its identity, or only `least_seconds` if the maximum number of handshakes is open
    and another client waits.
    """

    def __init__(
        self,
        host: str,
        port: int,
        certificate: Certificate,
        secret: bytes,
        on_host: Callable[[HostConnection], None],
        handshake_seconds: float = HANDSHAKE_SECONDS,
        least_seconds: float = LEAST_SECONDS,
    ) -> None:
        """Start to listen. `on_host`: called with each new host, on a thread of the listener. Raises
        ConfigurationError if this process cannot listen at `host` and `port`."""
        self._context = certificate.context()
        self._secret = secret
        self._on_host = on_host
        self._handshakes = Handshakes(time.monotonic, handshake_seconds, MOST_OPEN, least_seconds)
        try:
            self._socket = open_server_socket(host, port)
        except OSError as error:
            raise ConfigurationError(
                f"the driver cannot listen for record processors at {host}, port {port}: {error.strerror or error}"
            ) from None
        self._socket.setblocking(False)  # `accept` must not block if a client disconnects before it is accepted
        self._is_closed = False
        threading.Thread(target=self._accept, name="kcl-host", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):
            # Closing the socket does not wake the thread that waits for connections, but a connection does.
            create_connection(self._socket.getsockname()[:2], CLOSING_SECONDS).close()
        self._socket.close()

    def _accept(self) -> None:
        while not self._is_closed:
            self._handshakes.wait_for_room()
            try:
                if not wait([self._socket], self._handshakes.disconnect_overdue()):
                    continue
                connection, _ = self._socket.accept()
            except (OSError, ValueError):  # ValueError: the socket was closed
                if not self._is_closed:
                    time.sleep(PAUSE_SECONDS)
                continue
            self._handshakes.begin(connection)
            try:
                threading.Thread(
                    target=self._accept_host, args=(connection,), name="kcl-host-handshake", daemon=True
                ).start()
            except (RuntimeError, MemoryError):  # the process can have no further thread
                self._handshakes.end(connection)
                connection.close()
                time.sleep(PAUSE_SECONDS)

    def _accept_host(self, connection: socket) -> None:
        try:
            found = None if self._is_closed else self._greeted(connection)
        finally:
            self._handshakes.end(connection)
            if self._is_closed:
                connection.close()
        if found is not None:
            self._on_host(found)

    def _greeted(self, connection: socket) -> HostConnection | None:
        """Carry out the handshake. Returns the connection to the host, or None if the peer did not prove its
        identity or did not send its number."""
        with suppress(EOFError, OSError):
            line = Line.accept(connection, self._context, self._secret)
            try:
                hello: Any = line.recv()
            except BaseException:
                line.close()
                raise
            if isinstance(hello, messages.Hello):
                return HostConnection(hello.host, line)
            line.close()
        return None
