"""The worker's side of the connection to a host."""

import threading
from contextlib import suppress

from kcl_dagster.errors import BatchError, Unavailable
from kcl_dagster.spark.processor_hosts import messages
from kcl_dagster.spark.processor_hosts.line import Line
from kcl_dagster.spark.processor_hosts.messages import Answer, Close, End, Order, Question
from kcl_dagster.worker.hosted_processor import HostLost, ProcessorFailed
from kcl_dagster.worker.instance import ProcessorContext


class HostConnection:
    """The connection to one host. Calls are made one at a time, on any thread."""

    def __init__(self, host: int, line: Line) -> None:
        self.host = host
        self._line = line
        self._is_lost = False
        self._in_call = threading.Lock()

    @property
    def is_lost(self) -> bool:
        """Whether the host's process is known to have ended. Sends no message to the host, and does not wait for a
        call in progress."""
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

        Raises HostLost if the process of the host has ended, or if the order needs a processor or records that only
        a former process of the host had. If user code raised Unavailable, this error is raised here, too. For any
        other error of user code, raises ProcessorFailed. The methods of `context` must not raise.
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
        with suppress(OSError):  # the thread in `call` detects the lost connection
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
