"""The work of a worker as spans of a trace.

A span has a name, a beginning, an end, and the error with which it ended. A span that begins within another one is
its child. The implementation decides whether spans are kept, and where they are sent: see `telemetry.batch_traces`.
The default, `NO_SPANS`, keeps no span, and costs two calls per span.
"""

from types import TracebackType
from typing import Final, Protocol, Self

BATCH: Final = "batch"
FETCH: Final = "fetch"
TRANSFORM: Final = "transform"
DECIDE: Final = "decide"
PUBLISH: Final = "publish"
TABLE_COMMIT: Final = "commit table"
"""The stages of a batch are spans, too: `fetch`, `prepare`, `write`, `commit`; see
`worker.reading.Reading.timed`."""


class TracedWork(Protocol):
    """A span as a context manager. No method raises or waits."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the span. The span keeps the error without values of records. The error is raised again."""

    def note(self, key: str, value: str | int) -> None:
        """Add a fact to the span. It must not contain values of records."""


class Spans(Protocol):
    """Creates spans. Called on the worker's main thread. Never raises, never waits."""

    def span(self, name: str) -> TracedWork:
        """The span of a block: `with spans.span(FETCH): ...`."""


class NoSpan:
    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing."""

    def note(self, key: str, value: str | int) -> None:
        """Does nothing."""


class NoSpans:
    __slots__ = ()
    _span: Final = NoSpan()

    def span(self, name: str) -> TracedWork:  # noqa: ARG002
        return self._span


NO_SPANS: Final = NoSpans()
