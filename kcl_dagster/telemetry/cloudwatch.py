"""Metrics for CloudWatch. They are aggregated in memory, and a separate thread sends them. If this thread is stuck,
at most `MOST_SERIES` series remain in memory, and values of further series are dropped.
"""

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

from kcl_dagster import aws
from kcl_dagster.runtime import Runtime
from kcl_dagster.telemetry.datum import Datum, Dimensions, Unit

log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 10.0  # as in the KCL
MOST_SERIES: Final = 10_000  # series that wait, as in the KCL; values of further series are dropped and counted
DATA_PER_REQUEST: Final = 500  # CloudWatch accepts at most 1000, and at most 1 MB
REQUEST_SECONDS: Final = 5.0  # after this time, the values of a request are dropped: newer values are more useful
LAST_FLUSH_SECONDS: Final = 6.0  # the time for the last flush when a worker ends
COMPLAINT_SECONDS: Final = 300.0  # the time between two warnings that CloudWatch does not respond


@dataclass(slots=True)
class Statistics:
    """The statistics of the values of one series, in the form in which CloudWatch stores them."""

    unit: Unit
    count: float = 0.0
    sum: float = 0.0
    minimum: float = float("inf")
    maximum: float = float("-inf")

    def add(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)

    def to_document(self) -> dict[str, float]:
        return {"SampleCount": self.count, "Sum": self.sum, "Minimum": self.minimum, "Maximum": self.maximum}


Series = dict[tuple[str, Dimensions], Statistics]


@dataclass
class CloudWatchMetrics:
    """Collects and sends metrics. Any thread can call `put`, which takes microseconds and never waits for the
    network. `flush` must be called from one thread only."""

    client: aws.Client
    namespace: str
    runtime: Runtime
    is_detailed: bool = False
    most_series: int = MOST_SERIES
    dropped: int = 0
    """Values that were dropped because too many series waited, or because their request failed."""

    _series: Series = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _complained: float = float("-inf")

    def put(self, data: Iterable[Datum]) -> None:
        with self._lock:
            for datum in data:
                if datum.is_detail and not self.is_detailed:
                    continue
                key = (datum.name, datum.dimensions)
                found = self._series.get(key)
                if found is None:
                    if len(self._series) >= self.most_series:
                        self.dropped += 1
                        continue
                    found = self._series[key] = Statistics(datum.unit)
                found.add(float(datum.value))

    def flush(self) -> None:
        """Send the values collected so far. Raises nothing, because an error would end the thread that flushes. If
        a request fails, its values are lost."""
        with self._lock:
            series, self._series = self._series, {}
        for request in self._requests(series):
            try:
                self._send(request)
            except Exception as error:
                self.dropped += len(request)
                self._complain(error)

    def _send(self, data: list[dict[str, Any]]) -> None:
        deadline = self.runtime.clock.monotonic() + REQUEST_SECONDS
        aws.retried(
            lambda: aws.call(self.client, "put_metric_data", Namespace=self.namespace, MetricData=data),
            self.runtime,
            deadline,
        )

    def _requests(self, series: Series) -> Iterator[list[dict[str, Any]]]:
        now = datetime.fromtimestamp(self.runtime.clock.now(), UTC)
        data = [
            {
                "MetricName": name,
                "Dimensions": [{"Name": dimension, "Value": value} for dimension, value in dimensions],
                "Timestamp": now,
                "StatisticValues": statistics.to_document(),
                "Unit": statistics.unit,
            }
            for (name, dimensions), statistics in series.items()
        ]
        for start in range(0, len(data), DATA_PER_REQUEST):
            yield data[start : start + DATA_PER_REQUEST]

    def _complain(self, error: Exception) -> None:
        now = self.runtime.clock.monotonic()
        if now - self._complained >= COMPLAINT_SECONDS:
            self._complained = now
            log.warning(
                "metrics do not reach CloudWatch, %s dropped so far: %s: %s",
                self.dropped,
                type(error).__name__,
                error,
            )


class Flusher:
    """Calls `flush` in the background as long as the `with` block lasts, and once more at its end."""

    def __init__(self, metrics: CloudWatchMetrics, every: float = FLUSH_SECONDS) -> None:
        self._metrics = metrics
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kcl-cloudwatch", daemon=True)

    def _run(self) -> None:
        while not self._over.wait(self._every):
            self._metrics.flush()
        self._metrics.flush()

    def start(self) -> None:
        """Flush in the background for the rest of the process. Values after the last flush are lost when the
        process ends."""
        self._thread.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(LAST_FLUSH_SECONDS)
