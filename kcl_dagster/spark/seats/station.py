"""The worker's side of the connections to seats."""

import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener, answer_challenge, deliver_challenge
from socket import create_connection
from typing import Any, Final

from kcl_dagster.errors import BatchError, Unavailable
from kcl_dagster.spark.seats import messages
from kcl_dagster.spark.seats.messages import Answer, Close, End, Line, Order, Question
from kcl_dagster.spark.seats.seat import keep_alive
from kcl_dagster.worker.instance import Attendant
from kcl_dagster.worker.seating import ProcessorFailed, SeatLost

GREETING_SECONDS: Final = 10.0  # a connection that sends nothing for longer is closed
CLOSING_SECONDS: Final = 2.0  # a connection to ourselves
BACKLOG: Final = 64  # executors that connect at the same time


class Station:
    """One connected seat. Calls come one at a time, on any thread."""

    def __init__(self, seat: int, line: Line) -> None:
        self.seat = seat
        self._line = line
        self._is_lost = False
        self._in_call = threading.Lock()

    @property
    def is_lost(self) -> bool:
        """Whether the process at the other end is known to be gone. Asks the operating system, not the seat, and
        does not wait for a call that is going on."""
        if not self._is_lost and self._in_call.acquire(blocking=False):
            try:
                # Between calls a seat has nothing to say: what can be read is the end.
                self._is_lost = self._line.poll(0)
            except (EOFError, OSError):
                self._is_lost = True
            finally:
                self._in_call.release()
        return self._is_lost

    def call(self, order: Order, attendant: Attendant | None = None) -> End:
        """Send an order, and answer questions until it is done.

        Raises SeatLost if the process of the seat ended, or if the order needs a processor that a former process
        had. Raises ProcessorFailed if user code raised. An attendant does not raise.
        """
        try:
            with self._in_call:
                end = self._converse(order, attendant)
        except (EOFError, OSError) as error:
            self._is_lost = True
            raise SeatLost(f"the executor process of seat {self.seat} is gone") from error
        except BaseException:
            self.close()  # the seat waits for an answer that will not come
            raise
        match end:
            case messages.Absent():
                raise SeatLost(f"seat {self.seat} has another process by now")
            case messages.Raised(kind=Unavailable.__name__):
                raise Unavailable(end.text)
            case messages.Raised():
                raise ProcessorFailed(end.kind, end.text)
        return end

    def _converse(self, order: Order, attendant: Attendant | None) -> End:
        self._line.send(order)
        while isinstance(told := self._line.recv(), messages.WantsCheckpoint | messages.WantsSetAside):
            self._line.send(_answer(told, attendant))
        end: End = told
        return end

    def close(self) -> None:
        with suppress(OSError):
            self._line.send(Close())
        self._line.close()
        self._is_lost = True


def _answer(question: Question, attendant: Attendant | None) -> Answer:
    if attendant is None:
        raise BatchError(f"{type(question).__name__} came during an order that allows no questions")
    match question:
        case messages.WantsCheckpoint():
            return attendant.checkpoint(question.at, question.delivered)
        case messages.WantsSetAside():
            return attendant.set_aside(question.record, question.error_type, question.error)


class Reception:
    """Accepts connections of seats, on threads of its own. Closes connections of clients without the secret."""

    def __init__(self, host: str, port: int, secret: bytes, welcome: Callable[[Station], None]) -> None:
        """`welcome`: called with each new seat, on a thread of the reception."""
        self._secret = secret
        self._welcome = welcome
        self._listener = Listener((host, port), backlog=BACKLOG)
        self._is_closed = False
        threading.Thread(target=self._accept, name="kcl-seats", daemon=True).start()

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
            threading.Thread(target=self._greet, args=(line,), name="kcl-seat-greeting", daemon=True).start()

    def _greet(self, line: Line) -> None:
        try:
            if not self._is_closed and self._is_one_of_ours(line) and line.poll(GREETING_SECONDS):
                keep_alive(line)
                hello: messages.Hello = line.recv()
                self._welcome(Station(hello.seat, line))
                return
        except (EOFError, OSError, AuthenticationError):
            pass
        line.close()

    def _is_one_of_ours(self, line: Line) -> bool:
        """Run the handshake of `multiprocessing`, which proves to both sides that the other has the secret. Data of
        a client without the secret is never unpickled."""
        closing = threading.Timer(GREETING_SECONDS, line.close)
        closing.daemon = True
        closing.start()
        try:
            deliver_challenge(line, self._secret)
            answer_challenge(line, self._secret)
        finally:
            closing.cancel()
        return True
