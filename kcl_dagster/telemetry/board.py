"""Counters and gauges of one process, and how OpenMetrics writes them down."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: what it is called, what it is, what it means. A counter's samples end in `_total`, an info's in
    `_info`; `name` has neither."""

    name: str
    kind: Literal["counter", "gauge", "info"]
    help: str
    unit: str = ""
    """Of the name's last word, where there is one."""

    @property
    def sample(self) -> str:
        return {"counter": f"{self.name}_total", "info": f"{self.name}_info"}.get(self.kind, self.name)


@dataclass
class Board:
    """Written by the threads of a worker, read by whoever scrapes. `common` labels are on every sample."""

    common: Mapping[str, str]
    _values: dict[Family, dict[Labels, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def declare(self, *families: Family) -> None:
        """Show a counter from its zero on: its first step is then seen as one."""
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

    def forget(self, family: Family, **labels: str) -> None:
        """A gauge whose subject is gone must not stand still for ever."""
        with self._lock:
            self._values.get(family, {}).pop(tuple(sorted(labels.items())), None)

    def render(self) -> str:
        with self._lock:
            return "".join(_lines(self._values, tuple(self.common.items())))


def _lines(values: Mapping[Family, Mapping[Labels, float]], common: Labels) -> Iterator[str]:
    for family in sorted(values, key=lambda one: one.name):
        series = values[family]
        if not series:
            continue
        yield f"# TYPE {family.name} {family.kind}\n"
        if family.unit:
            yield f"# UNIT {family.name} {family.unit}\n"
        yield f"# HELP {family.name} {_escaped(family.help)}\n"
        for labels, value in sorted(series.items()):
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in (*common, *labels))
            yield f"{family.sample}{{{shown}}} {_number(value)}\n"
    yield "# EOF\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)


Render = Callable[[], str]
