"""The worker's side of the connections to hosts."""

import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener, answer_challenge, deliver_challenge
from socket import create_connection
from typing import Any, Final

from kcl_dagster.errors import BatchError, Unavailable
from kcl_dagster.spark.processor_hosts import messages
from kcl_dagster.spark.processor_hosts.host_process import keep_alive
from kcl_dagster.spark.processor_hosts.messages import Answer, Close, End, Line, Order, Question
from kcl_dagster.worker.hosted_processor import HostLost, ProcessorFailed
from kcl_dagster.worker.instance import ProcessorContext

HANDSHAKE_SECONDS: Final = 10.0  # a connection that sends nothing for longer is closed
CLOSING_SECONDS: Final = 2.0  # a connection to ourselves
BACKLOG: Final = 64  # executors that connect at the same time


class HostConnection:
    """One connected host. Calls come one at a time, on any thread."""

    def __init__(self, host: int, line: Line) -> None:
        self.host = host
        self._line = line
        self._is_lost = False
        self._in_call = threading.Lock()
        self._sending = threading.Lock()
        """A long order is written in several pieces, between which no other message may come."""

    @property
    def is_lost(self) -> bool:
        """Whether the process at the other end is known to be gone. Asks the operating system, not the host, and
        does not wait for a call in progress."""
        if not self._is_lost and self._in_call.acquire(blocking=False):
            try:
                # A host sends nothing between calls: if something can be read, it is the end of the connection.
                self._is_lost = self._line.poll(0)
            except (EOFError, OSError):
                self._is_lost = True
            finally:
                self._in_call.release()
        return self._is_lost

    def call(self, order: Order, context: ProcessorContext | None = None) -> End:
        """Send an order, and answer questions until it is done.

        Raises HostLost if the process of the host ended, or if the order needs a processor that a former process
        had. Raises ProcessorFailed if user code raised. `context` does not raise.
        """
        try:
            with self._in_call:
                end = self._exchange(order, context)
        except (EOFError, OSError) as error:
            self._is_lost = True
            raise HostLost(f"the executor process of host {self.host} is gone") from error
        except BaseException:
            self.close()  # the host waits for an answer that will not come
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
        """End the fetch that another thread has called for, if it is still carried out."""
        with suppress(OSError), self._sending:  # the call notices
            self._line.send(messages.EndRead())

    def _exchange(self, order: Order, context: ProcessorContext | None) -> End:
        with self._sending:
            self._line.send(order)
        while isinstance(message := self._line.recv(), messages.WantsCheckpoint | messages.WantsSetAside):
            self._line.send(_answer(message, context))
        end: End = message
        return end

    def close(self) -> None:
        with suppress(OSError):
            self._line.send(Close())
        self._line.close()
        self._is_lost = True


def _answer(question: Question, context: ProcessorContext | None) -> Answer:
    if context is None:
        raise BatchError(f"{type(question).__name__} came during an order that allows no questions")
    match question:
        case messages.WantsCheckpoint():
            return context.checkpoint(question.at, question.delivered)
        case messages.WantsSetAside():
            return context.set_aside(question.record, question.error_type, question.error)


class HostListener:
    """Accepts connections of hosts, on threads of its own. Closes connections of clients without the secret."""

    def __init__(self, host: str, port: int, secret: bytes, on_host: Callable[[HostConnection], None]) -> None:
        """`on_host`: called with each new host, on a thread of the listener."""
        self._secret = secret
        self._on_host = on_host
        self._listener = Listener((host, port), backlog=BACKLOG)
        self._is_closed = False
        threading.Thread(target=self._accept, name="kcl-host", daemon=True).start()

    @property
    def port(self) -> int:
        address: Any = self._listener.address
        return int(address[1])

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):
            # Closing a socket does not end an `accept` that is waiting on it; a connection does.
            create_connection(self._listener.address, CLOSING_SECONDS).close()
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                line = self._listener.accept()
            except (EOFError, OSError):
                continue
            threading.Thread(target=self._accept_host, args=(line,), name="kcl-host-handshake", daemon=True).start()

    def _accept_host(self, line: Line) -> None:
        try:
            if not self._is_closed and self._has_secret(line) and line.poll(HANDSHAKE_SECONDS):
                keep_alive(line)
                hello: messages.Hello = line.recv()
                self._on_host(HostConnection(hello.host, line))
                return
        except (EOFError, OSError, AuthenticationError):
            pass
        line.close()

    def _has_secret(self, line: Line) -> bool:
        """Run the handshake of `multiprocessing`, which proves to both sides that the other has the secret. Data of
        a client without the secret is never unpickled."""
        closing = threading.Timer(HANDSHAKE_SECONDS, line.close)
        closing.daemon = True
        closing.start()
        try:
            deliver_challenge(line, self._secret)
            answer_challenge(line, self._secret)
        finally:
            closing.cancel()
        return True
