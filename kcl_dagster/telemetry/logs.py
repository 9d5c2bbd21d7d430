"""Log lines that machines read: one JSON object each, with application, worker and shard.

What a worker tells goes to the logger `kcl_dagster.events`, with its facts as the attribute `kcl` of the record.
`json_lines` writes that, and everything else that `kcl_dagster` logs, to a stream.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from kcl_dagster.worker.events import WorkerEvent

FIELDS: Final = "kcl"
ROOT: Final = "kcl_dagster"
events = logging.getLogger(f"{ROOT}.events")
# Without a handler Python would write warnings to standard error, where a run's log says them already.
events.addHandler(logging.NullHandler())


def log_event(event: WorkerEvent) -> None:
    """One line. Quick, and never raises: a handler that fails is logging's own affair."""
    fields: dict[str, Any] = {"event": event.kind.value, **event.facts}
    if event.lease is not None:
        fields["shard"] = str(event.lease)
    level = logging.WARNING if event.is_trouble else logging.INFO
    events.log(level, "%s: %s", event.kind.value, event.message, extra={FIELDS: fields})


class JsonLines(logging.Formatter):
    """`at`, `level`, `logger`, `message`, the constant fields, then those of the record."""

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
    """Write what `kcl_dagster` logs to a stream, as long as the block lasts. Other handlers stay as they are."""
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
