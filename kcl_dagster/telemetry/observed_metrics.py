"""Exports the metrics of workers as instruments of OpenTelemetry. Imported only if an application configures this.

A `MetricsRegistry` holds the metrics of a worker. The OpenMetrics page and these instruments show the same values
under the same names, so a dashboard works with either of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

import kcl_dagster
from kcl_dagster.telemetry.openmetrics import Family, MetricsRegistry

UNITS: Final = {"seconds": "s", "bytes": "By", "": ""}  # if a name ends in its unit, Prometheus adds no unit


class ObservedRegistries:
    """The instruments of one meter. They read the registries of this process when an exporter collects."""

    def __init__(self, meter: Meter, families: Sequence[Family]) -> None:
        self._registries: tuple[MetricsRegistry, ...] = ()
        for family in families:
            create = meter.create_observable_counter if family.kind == "counter" else meter.create_observable_gauge
            name = family.name if family.kind == "counter" else family.sample
            create(name, [partial(self._observe, family)], UNITS[family.unit], family.help)

    @contextmanager
    def observing(self, registry: MetricsRegistry) -> Iterator[None]:
        self._registries = (*self._registries, registry)
        try:
            yield
        finally:
            self._registries = tuple(one for one in self._registries if one is not registry)

    def _observe(self, family: Family, _: CallbackOptions) -> Iterable[Observation]:
        for registry in self._registries:
            for labels, value in registry.samples(family):
                yield Observation(value, labels)


_observed: "WeakKeyDictionary[MeterProvider, ObservedRegistries]" = WeakKeyDictionary()


def observed_by(provider: MeterProvider, scope: str, families: Sequence[Family]) -> ObservedRegistries:
    """Return the instruments of a provider. They are made once, and exist as long as the provider."""
    found = _observed.get(provider)
    if found is None:
        meter = provider.get_meter(scope, kcl_dagster.__version__)
        found = _observed[provider] = ObservedRegistries(meter, families)
    return found
