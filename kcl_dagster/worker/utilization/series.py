"""Converts samples to the values in a worker's row: averages over half a minute, of which the last ten are kept."""

from collections import deque
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal

from kcl_dagster.runtime import Clock
from kcl_dagster.worker.utilization.probe import FULL, Probe, Unmeasurable

CAPTURE_SECONDS = 1.0
REPORT_SECONDS = 30.0
FIRST_REPORT_SECONDS = 2.0
MOST_SAMPLES = 300
MOST_AVERAGES = 10  # five minutes: the basis of the leader's moving average
NO_SAMPLE = -1.0  # a worker whose last value is this gets no leases
_STORED_DIGITS = Decimal("0.000001")


class Series:
    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=MOST_SAMPLES)
        self._averages: deque[float] = deque(maxlen=MOST_AVERAGES)

    def add(self, sample: float) -> None:
        """Add a sample. Raises Unmeasurable if it is not a percentage."""
        if not 0 <= sample <= FULL:
            raise Unmeasurable(f"{sample} is not between 0 and 100")
        self._samples.append(sample)

    def report(self) -> tuple[float, ...]:
        """Close the reporting period. Returns the averages, oldest first."""
        if self._samples:
            mean = Decimal(repr(sum(self._samples) / len(self._samples)))
            self._averages.append(float(mean.quantize(_STORED_DIGITS, ROUND_HALF_UP)))
            self._samples.clear()
        else:
            self._averages.append(NO_SAMPLE)
        return self.averages

    @property
    def averages(self) -> tuple[float, ...]:
        return tuple(self._averages)


class Sampler:
    """Takes a sample every second and reports every half minute. `step` never raises.

    Until the first report, the worker publishes no metric. From then on, it publishes all metrics. The value -1
    shows that a metric has failed.
    """

    def __init__(self, probes: Mapping[str, Probe], clock: Clock, highest: int = 100) -> None:
        self._probes = dict(probes)
        self._series = {metric: Series() for metric in probes}
        self._clock = clock
        self._highest = highest
        started = clock.monotonic()
        self._capture_at = started
        self._report_at = started + FIRST_REPORT_SECONDS
        self.failures = 0

    def step(self) -> None:
        now = self._clock.monotonic()
        if now >= self._capture_at:
            self._capture_at = now + CAPTURE_SECONDS
            self._capture()
        if now >= self._report_at:
            self._report_at = now + REPORT_SECONDS
            for series in self._series.values():
                series.report()

    def averages(self) -> dict[str, tuple[float, ...]]:
        return {metric: series.averages for metric, series in self._series.items() if series.averages}

    def operating_range(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self._series, (self._highest,))

    def _capture(self) -> None:
        for metric, probe in self._probes.items():
            try:
                self._series[metric].add(probe.percent())
            except Unmeasurable:
                self.failures += 1
