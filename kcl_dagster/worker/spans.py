"""What a worker does, as spans of a trace.

A span has a name, a beginning, an end, and the error with which it ended. A span that begins within another one is
its child. Whether spans are kept, and where they go, is up to the implementation: see `telemetry.batch_traces`. The
default keeps none, and costs two calls for each span.
"""

from types import TracebackType
from typing import Final, Protocol, Self

BATCH: Final = "batch"
FETCH: Final = "fetch"
TRANSFORM: Final = "transform"
DECIDE: Final = "decide"
PUBLISH: Final = "publish"
TABLE_COMMIT: Final = "commit table"
"""Stages of a batch are spans, too: `fetch`, `prepare`, `write`, `commit`; see `worker.reading.Reading.timed`."""


class TracedWork(Protocol):
    """A piece of work, from the beginning of its block to the end. No method raises or waits."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """An error is kept without values of records, and goes on."""

    def note(self, key: str, value: str | int) -> None:
        """Add a fact to the span. It must hold no value of a record."""


class Spans(Protocol):
    """Called on the worker's main thread. Never raises, never waits."""

    def span(self, name: str) -> TracedWork:
        """The span of a block: `with spans.span(FETCH): ...`."""


class NoSpan:
    """A span that is not kept."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep nothing."""

    def note(self, key: str, value: str | int) -> None:
        """Keep nothing."""


class NoSpans:
    """Of a worker that is not traced. Makes no object for a span."""

    __slots__ = ()
    _span: Final = NoSpan()

    def span(self, name: str) -> TracedWork:  # noqa: ARG002
        return self._span


NO_SPANS: Final = NoSpans()
