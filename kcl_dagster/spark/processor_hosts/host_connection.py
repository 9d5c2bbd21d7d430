"""The worker's side of the connections to hosts."""

import threading
from collections.abc import Callable
from contextlib import suppress
from socket import create_connection, create_server, socket
from typing import Any, Final

from kcl_dagster.errors import BatchError, Unavailable
from kcl_dagster.spark.processor_hosts import messages
from kcl_dagster.spark.processor_hosts.certificate import Certificate
from kcl_dagster.spark.processor_hosts.line import HANDSHAKE_SECONDS, Line
from kcl_dagster.spark.processor_hosts.messages import Answer, Close, End, Order, Question
from kcl_dagster.worker.hosted_processor import HostLost, ProcessorFailed
from kcl_dagster.worker.instance import ProcessorContext

CLOSING_SECONDS: Final = 2.0  # for a connection to this process itself
BACKLOG: Final = 64  # executors that connect at the same time


class HostConnection:
    """The connection to one host. Calls are made one at a time, on any thread."""

    def __init__(self, host: int, line: Line) -> None:
        self.host = host
        self._line = line
        self._is_lost = False
        self._in_call = threading.Lock()

    @property
    def is_lost(self) -> bool:
        """Whether the host's process is known to have ended. Asks the operating system instead of the host, and
        does not wait for a call in progress."""
        if not self._is_lost and self._in_call.acquire(blocking=False):
            try:
                # A host sends nothing between calls: if something can be read, it is the end of the connection.
                if self._line.poll(0):
                    self._lose()
            except OSError:
                self._lose()
            finally:
                self._in_call.release()
        return self._is_lost

    def call(self, order: Order, context: ProcessorContext | None = None) -> End:
        """Send an order, and answer the host's questions until the order is done.

        Raises HostLost if the process of the host has ended, or if the order needs a processor of a former process.
        Raises ProcessorFailed if user code raised. `context` does not raise.
        """
        try:
            with self._in_call:
                end = self._exchange(order, context)
        except (EOFError, OSError) as error:
            self._lose()
            raise HostLost(f"the executor process of host {self.host} is gone") from error
        except BaseException:
            self.close()  # otherwise the host would wait for an answer for ever
            raise
        match end:
            case messages.Absent():
                raise HostLost(f"host {self.host} has another process by now")
            case messages.Raised(kind=Unavailable.__name__):
                raise Unavailable(end.text)
            case messages.Raised():
                raise ProcessorFailed(end.kind, end.text)
        return end

    def end_read(self) -> None:
        """End the fetch that another thread has requested, if it is still running."""
        with suppress(OSError):  # the call detects it
            self._line.send(messages.EndRead())

    def _exchange(self, order: Order, context: ProcessorContext | None) -> End:
        self._line.send(order)
        while isinstance(message := self._line.recv(), messages.WantsCheckpoint | messages.WantsSetAside):
            self._line.send(_answer(message, context))
        end: End = message
        return end

    def close(self) -> None:
        with suppress(OSError):
            self._line.send(Close())
        self._lose()

    def _lose(self) -> None:
        self._is_lost = True
        self._line.close()


def _answer(question: Question, context: ProcessorContext | None) -> Answer:
    if context is None:
        raise BatchError(f"{type(question).__name__} came during an order that allows no questions")
    match question:
        case messages.WantsCheckpoint():
            return context.checkpoint(question.at, question.delivered)
        case messages.WantsSetAside():
            return context.set_aside(question.record, question.error_type, question.error)


class HostListener:
    """Accepts connections of hosts, on its own threads. Closes connections of clients without the secret."""

    def __init__(
        self,
        host: str,
        port: int,
        certificate: Certificate,
        secret: bytes,
        on_host: Callable[[HostConnection], None],
    ) -> None:
        """Start to listen. `on_host`: called with each new host, on a thread of the listener."""
        self._context = certificate.context()
        self._secret = secret
        self._on_host = on_host
        self._socket = create_server((host, port), backlog=BACKLOG)
        self._is_closed = False
        threading.Thread(target=self._accept, name="kcl-host", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):
            # Closing a socket does not end an `accept` that is waiting on it, but a connection does.
            create_connection(self._socket.getsockname()[:2], CLOSING_SECONDS).close()
        self._socket.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                continue
            threading.Thread(
                target=self._accept_host, args=(connection,), name="kcl-host-handshake", daemon=True
            ).start()

    def _accept_host(self, connection: socket) -> None:
        if self._is_closed:
            connection.close()
            return
        with suppress(EOFError, OSError):
            line = Line.accept(connection, self._context, self._secret)
            try:
                hello: Any = None
                if line.poll(HANDSHAKE_SECONDS):
                    hello = line.recv()
            except BaseException:
                line.close()
                raise
            if isinstance(hello, messages.Hello):
                self._on_host(HostConnection(hello.host, line))
            else:
                line.close()
