"""Windows of time as Dagster's partitions: in which window a time is, when the window ends, and the key of its
partition.

In Dagster, a definition of partitions has a start, and can have an end and excluded times. The windows here have
none of these, because records arrive at any time: each time is in exactly one window. A window that the definition
does not cover has no partition.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from heapq import nlargest
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

from dagster import HourlyPartitionsDefinition, TimeWindowPartitionsDefinition

from kcl_dagster.errors import ConfigurationError

DEFAULT_PARTITIONS: Final = HourlyPartitionsDefinition(start_date="2026-11-01-00:00")
"""Hours in UTC, from the month in which kcl_dagster began to partition the records asset by time. No application
has counted earlier windows. The start is fixed because Dagster compares definitions by their start."""

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86_400
YEAR: Final = 366 * DAY
_FIRST_WINDOWS: Final = 32  # at least this many windows are measured to find the longest one

EVERY_MINUTE: Final = "* * * * *"

_REMEMBERED: Final = 10_000  # windows whose bounds are cached; more than a year of hours


@dataclass(frozen=True)
class PartitionWindows:
    """The windows of a partitions definition. `newest` and `oldest_first` are not thread-safe. All other methods
    are: two threads can compute the same window, and get the same result.

    Example:
        .. code-block:: python

            windows = PartitionWindows(dg.DailyPartitionsDefinition("2026-11-01", timezone="Europe/Berlin"))
            assert windows.key_of(windows.start_of(1_795_300_000)) == "2026-11-21"
    """

    partitions: TimeWindowPartitionsDefinition
    _bounds: dict[int, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)
    """Minute -> the window that contains it."""

    _moments: dict[str, int | None] = field(default_factory=dict, compare=False, repr=False)
    """Key -> the time that it names; see `newest`."""

    @property
    def division(self) -> str:
        """A name for this division of time, see `model.windows.Windows`. The definition's start and end are not
        part of it, because they move no window."""
        return f"{self.partitions.cron_schedule} {self.partitions.timezone}"

    def start_of(self, moment: float) -> int:
        """The start of the window that contains a time; both in epoch seconds."""
        return self._window(moment)[0]

    def end_of(self, start: int) -> int:
        """The end of the window that starts at `start`, which is the start of the next window."""
        return self._window(start)[1]

    def next_start(self, moment: int) -> int:
        start = self.start_of(moment)
        return start if start == moment else self.end_of(start)

    def key_of(self, start: int) -> str | None:
        partitions, start = self.partitions, self.start_of(start)
        if start < partitions.start_timestamp:
            return None
        if partitions.end_timestamp is not None and self.end_of(start) > partitions.end_timestamp:
            return None
        local = datetime.fromtimestamp(start, self._zone)
        if partitions.is_window_start_excluded(local):
            return None
        if local.fold:  # the clocks are set back: Dagster distinguishes this hour from the previous one
            return partitions.get_partition_key_for_timestamp(start)
        return local.strftime(partitions.fmt)

    def has_partition(self, start: int) -> bool:
        return self.key_of(start) is not None

    def key_at(self, moment: float) -> str | None:
        return self.key_of(self.start_of(moment))

    def start_of_key(self, key: str) -> int | None:
        """The start of the window that a partition's key names. None for any other text, such as a key of a former
        definition."""
        moment = self._moment_of(key)
        return None if moment is None else self._start_at(moment, key)

    def newest(self, keys: AbstractSet[str], count: int) -> list[int]:
        """The starts of the newest windows that have these keys, oldest first, at most `count`.

        It is fast enough for all keys in Dagster's storage at every tick. A key is parsed only once, in
        microseconds. The window is computed only for the newest keys, because that can take a millisecond. Not
        thread-safe.
        """
        starts = (self._start_at(moment, key) for moment, key in nlargest(count, self._parsed(keys)))
        return sorted(start for start in starts if start is not None)

    def oldest_first(self, keys: AbstractSet[str]) -> Iterator[int]:
        """The starts of all windows that have these keys, oldest first. Each window is computed when it is needed.
        As in `newest`, a key is parsed only once. Not thread-safe."""
        for moment, key in sorted(self._parsed(keys)):
            start = self._start_at(moment, key)
            if start is not None:
                yield start

    def _parsed(self, keys: AbstractSet[str]) -> list[tuple[int, str]]:
        for key in self._moments.keys() - keys:
            del self._moments[key]
        for key in keys - self._moments.keys():
            self._moments[key] = self._moment_of(key)
        return [(moment, key) for key, moment in self._moments.items() if moment is not None]

    def ended(self, first: float, through: float) -> Iterator[int]:
        """The starts of windows that begin at `first` or later and end at `through` or earlier, in order."""
        start = self.start_of(first)
        if start < first:
            start = self.end_of(start)
        while self.end_of(start) <= through:
            yield start
            start = self.end_of(start)

    @cached_property
    def longest(self) -> float:
        """The length of the longest window, in seconds. The time of a freshness policy must be longer.

        If no window is shorter than 20 hours, all windows of the first year are measured, because one day of a year
        can have 25 hours. If windows are shorter, only the first `_FIRST_WINDOWS` are measured, because a year has
        too many of them.
        """
        first = start = self.start_of(self.partitions.start_timestamp)
        lengths: list[int] = []
        while len(lengths) < _FIRST_WINDOWS or (min(lengths) >= 20 * HOUR and start < first + YEAR):
            end = self.end_of(start)
            lengths.append(end - start)
            start = end
        return float(max(lengths))

    def _window(self, at: float) -> tuple[int, int]:
        minute = int(at // MINUTE)
        known = self._bounds.get(minute)
        if known is None:
            if len(self._bounds) >= _REMEMBERED:
                self._bounds.clear()
            known = self._bounds[minute] = self._computed(minute * MINUTE)
        return known

    def _computed(self, at: int) -> tuple[int, int]:
        """The window that contains a time. It is the same for the whole minute, because cron has the granularity of
        minutes."""
        if self.partitions.cron_schedule == EVERY_MINUTE:  # Dagster would take six milliseconds for this schedule
            return at, at + MINUTE
        before = self._endless.get_prev_partition_window(datetime.fromtimestamp(at, UTC), respect_bounds=False)
        if before is None:
            msg = f"{self.partitions} has no window around {at}"
            raise ConfigurationError(msg)
        start = before.end
        after = self._endless.get_next_partition_window(start, respect_bounds=False)
        if after is None:
            msg = f"{self.partitions} has no window after {at}"
            raise ConfigurationError(msg)
        return round(start.timestamp()), round(after.end.timestamp())

    def _start_at(self, moment: int, key: str) -> int | None:
        """The start of the window that has this key. `moment`: the time that the key names."""
        start = self.start_of(moment)
        start = start if start == moment else self.end_of(start)  # a daily key names midnight; days can begin at 7
        if self.key_of(start) != key and self.partitions.exclusions:
            start = round(self.partitions.start_time_for_partition_key(key).timestamp())
        return start if self.key_of(start) == key else None

    def _moment_of(self, key: str) -> int | None:
        """The epoch seconds that a key names by the definition's format, whether or not a window begins then."""
        fmt = self.partitions.fmt
        for one in (fmt, fmt if "%z" in fmt else f"{fmt}%z"):  # `key_of` writes keys of the second format, too
            with suppress(ValueError):
                local = datetime.strptime(key, one)  # noqa: DTZ007 (the next line adds the zone)
                return round((local if local.tzinfo else local.replace(tzinfo=self._zone)).timestamp())
        return None

    @cached_property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.partitions.timezone)

    @cached_property
    def _endless(self) -> TimeWindowPartitionsDefinition:
        """The same windows without a start, an end or exclusions."""
        given = self.partitions
        return TimeWindowPartitionsDefinition(
            start=datetime.fromtimestamp(0, UTC).replace(tzinfo=None),
            fmt=given.fmt,
            timezone=given.timezone,
            cron_schedule=given.cron_schedule,
        )


def refuse(partitions: object, application: str) -> TimeWindowPartitionsDefinition:
    """The definition, if its partitions can be declared complete. Raises ConfigurationError otherwise."""
    if not isinstance(partitions, TimeWindowPartitionsDefinition):
        raise ConfigurationError(
            f"application {application}: partitions must be windows of time, such as "
            f"dagster.HourlyPartitionsDefinition, and is a {type(partitions).__name__}"
        )
    if partitions.end_offset != 0:
        raise ConfigurationError(
            f"application {application}: partitions with end_offset={partitions.end_offset}: a window is "
            "materialized when it is complete, so the latest partition must be the latest window that is over"
        )
    change, longest = _odd_change(partitions), PartitionWindows(partitions).longest
    if change and longest < DAY and change % longest:
        raise ConfigurationError(
            f"application {application}: the clocks of {partitions.timezone} change by {change // 60} minutes, and "
            "there Dagster's partitions of hours overlap and leave gaps: use days, or hours of UTC"
        )
    return partitions


def _odd_change(partitions: TimeWindowPartitionsDefinition) -> int:
    """The seconds by which the clocks of the time zone change, if these are not whole hours. Otherwise 0."""
    zone = ZoneInfo(partitions.timezone)
    first = datetime.fromtimestamp(partitions.start_timestamp, UTC)
    offsets = [(first + timedelta(days=day)).astimezone(zone).utcoffset() or timedelta() for day in range(400)]
    changes = (abs(after - before) // timedelta(seconds=1) for before, after in pairwise(offsets))
    return next((change for change in changes if change % HOUR), 0)
