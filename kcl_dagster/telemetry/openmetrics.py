"""Counters and gauges of one process, and their page in the OpenMetrics format."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.openmetrics.exposition import generate_latest

__all__ = ["CONTENT_TYPE", "Family", "Labels", "MetricsRegistry", "Render"]

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name, its kind and its meaning. `name` is without the suffix that the names of samples have:
    `_total` for a counter, `_info` for an info."""

    name: str
    kind: Literal["counter", "gauge", "info"]
    help: str
    unit: str = ""
    """The last word of the name, if this word is a unit."""

    @property
    def sample(self) -> str:
        return {"counter": f"{self.name}_total", "info": f"{self.name}_info"}.get(self.kind, self.name)


@dataclass
class MetricsRegistry:
    """The metrics of a process. The threads of a worker write them, and scrapers read them. Every sample has the
    `common` labels."""

    common: Mapping[str, str]
    _values: dict[Family, dict[Labels, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def declare(self, *families: Family) -> None:
        """Add metrics with the value 0. If a metric did not exist before its first increase, an alert could not
        detect the increase."""
        with self._lock:
            for family in families:
                self._values.setdefault(family, {(): 0.0})

    def add(self, family: Family, value: float, **labels: str) -> None:
        with self._lock:
            series = self._values.setdefault(family, {})
            key = tuple(sorted(labels.items()))
            series[key] = series.get(key, 0.0) + value

    def set(self, family: Family, value: float, **labels: str) -> None:
        with self._lock:
            self._values.setdefault(family, {})[tuple(sorted(labels.items()))] = value

    def replace(self, family: Family, label: str, values: Mapping[str, float]) -> None:
        """Replace all values of a gauge that has one label. `label`: the name of the label. `values`: the new
        values of the gauge, by the value of the label."""
        with self._lock:
            self._values[family] = {((label, name),): value for name, value in values.items()}

    def forget(self, family: Family, **labels: str) -> None:
        """Remove the value of a gauge whose subject, such as a lease, no longer exists. Otherwise, the page would
        show its last value for ever."""
        with self._lock:
            self._values.get(family, {}).pop(tuple(sorted(labels.items())), None)

    def samples(self, family: Family) -> list[tuple[dict[str, str], float]]:
        """Return the labels and the current value of each sample of a metric."""
        with self._lock:
            found = list(self._values.get(family, {}).items())
        return [({**self.common, **dict(labels)}, value) for labels, value in found]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics in the form that `prometheus_client` collects. The caller must hold the lock."""
        for family in sorted(self._values, key=lambda one: one.name):
            metric = Metric(family.name, family.help, family.kind, family.unit)
            for labels, value in sorted(self._values[family].items()):
                metric.add_sample(family.sample, {**self.common, **dict(labels)}, value)
            if metric.samples:
                yield metric

    def render(self) -> str:
        with self._lock:
            page: bytes = generate_latest(self)  # type: ignore[no-untyped-call]
        return page.decode()


Render = Callable[[], str]
