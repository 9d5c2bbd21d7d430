"""Network traffic of one interface against what it is good for, from /proc/net/dev."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from kcl_dagster.worker.utilization.probe import FULL, ReadText, Unmeasurable, read_file

PATH = "/proc/net/dev"
BYTES_PER_MB = 1024 * 1024
_RECEIVED, _SENT = 0, 8  # columns


class Direction(Enum):
    IN = _RECEIVED
    OUT = _SENT


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes since the interface came up."""

    received: int
    sent: int

    def of(self, direction: Direction) -> int:
        return self.received if direction is Direction.IN else self.sent


def parse(text: str, interface: str) -> Traffic:
    """Raises Unmeasurable when there is no such interface."""
    for line in text.splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() == interface:
            columns = counters.split()
            try:
                return Traffic(int(columns[_RECEIVED]), int(columns[_SENT]))
            except (IndexError, ValueError) as error:
                raise Unmeasurable(f"{PATH}: {line.strip()!r}") from error
    raise Unmeasurable(f"{PATH} has no interface {interface}")


def percent(before: int, now: int, elapsed: float, megabytes_per_second: float) -> float:
    """Raises Unmeasurable when no time has passed."""
    if elapsed <= 0:
        raise Unmeasurable("no time has passed since the last sample")
    return min(FULL, max(0, now - before) / elapsed / (megabytes_per_second * BYTES_PER_MB) * FULL)


class NetworkProbe:
    """`megabytes_per_second`: what the interface is good for; the machine does not tell."""

    def __init__(
        self,
        direction: Direction,
        megabytes_per_second: float,
        monotonic: Callable[[], float],
        interface: str = "eth0",
        read: ReadText = read_file,
    ) -> None:
        self._direction = direction
        self._limit = megabytes_per_second
        self._monotonic = monotonic
        self._interface = interface
        self._read = read
        self._last: tuple[int, float] | None = None

    def percent(self) -> float:
        try:
            traffic = parse(self._read(PATH), self._interface)
        except OSError as error:
            raise Unmeasurable(str(error)) from error
        now, at = traffic.of(self._direction), self._monotonic()
        before, self._last = self._last, (now, at)
        return 0.0 if before is None else percent(before[0], now, at - before[1], self._limit)
