"""Log lines for machines: one JSON object per line, with application, worker and shard.

The events of a worker are logged to `kcl_dagster.events`. The attribute `kcl` of such a log record has the facts of
the event. `json_lines` writes the events, and everything else that `kcl_dagster` logs, to a stream. With
`queued_logs`, a slow stream or handler does not delay the threads of a worker.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TextIO

from kcl_dagster.worker.delivery import DeliveryQueue, DeliveryThread, counted
from kcl_dagster.worker.events import WorkerEvent

FIELDS: Final = "kcl"
ROOT: Final = "kcl_dagster"
# Loggers that the threads of a worker use. Dagster may be configured to write their lines to its storage.
QUEUED: Final = (ROOT, "botocore", "boto3", "urllib3")
events = logging.getLogger(f"{ROOT}.events")
# If there were no handler, Python would write warnings to standard error, although the run's log has them already.
events.addHandler(logging.NullHandler())


def log_event(event: WorkerEvent) -> None:
    """Log one event. Never raises, because `logging` handles the errors of its handlers."""
    fields: dict[str, Any] = {"event": event.kind.value, **event.facts}
    if event.lease is not None:
        fields["shard"] = str(event.lease)
    level = logging.WARNING if event.is_trouble else logging.INFO
    events.log(level, "%s: %s", event.kind.value, event.message, extra={FIELDS: fields})


class JsonLines(logging.Formatter):
    """Formats a log record as JSON: first `at`, `level`, `logger` and `message`, then the constant fields, then the
    fields of the record."""

    def __init__(self, constant: Mapping[str, str]) -> None:
        super().__init__()
        self._constant = dict(constant)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._constant,
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


@contextmanager
def json_lines(stream: TextIO, fields: Mapping[str, str], level: int = logging.INFO) -> Iterator[None]:
    """Write all log records of `kcl_dagster` to a stream, as long as the block lasts. Other handlers remain
    unchanged."""
    root = logging.getLogger(ROOT)
    handler = logging.StreamHandler(stream)
    handler.setLevel(level)
    handler.setFormatter(JsonLines(fields))
    before = root.level
    if root.getEffectiveLevel() > level:
        root.setLevel(level)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


@contextmanager
def queued_logs(names: Sequence[str] = QUEUED) -> Iterator[None]:
    """Call the handlers of these loggers on a separate thread, as long as the block lasts. If the queue is full,
    lines are dropped, and their number is logged."""
    queue = DeliveryQueue(
        on_dropped=lambda dropped: logging.getLogger(ROOT).warning("%s log lines were dropped", counted(dropped))
    )
    with DeliveryThread(queue, "kcl-logs"), ExitStack() as stack:
        for name in names:
            stack.enter_context(_queued(logging.getLogger(name), queue))
        yield


@contextmanager
def _queued(logger: logging.Logger, queue: DeliveryQueue) -> Iterator[None]:
    handlers, propagates = list(logger.handlers), logger.propagate
    logger.handlers, logger.propagate = [_Queued(queue, logger, handlers, propagates=propagates)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagates


class _Queued(logging.Handler):
    """Adds each record to a queue, whose thread passes it to the original handlers."""

    def __init__(
        self, queue: DeliveryQueue, logger: logging.Logger, handlers: Sequence[logging.Handler], *, propagates: bool
    ) -> None:
        super().__init__()
        self._queue = queue
        self._handlers = handlers
        self._above = logger.parent if propagates else None

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None  # the arguments may change before it is written
        self._queue.offer(record.levelname.lower(), partial(self._pass_on, record))

    def _pass_on(self, record: logging.LogRecord) -> None:
        for handler in self._handlers:
            if record.levelno >= handler.level:
                handler.handle(record)
        if self._above is not None:
            self._above.callHandlers(record)
