"""The time by Kinesis' clock, which is the same for all workers."""

from contextlib import suppress
from typing import Final

from kcl_dagster import aws
from kcl_dagster.errors import KclError
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.listing import describe

COMPARE_SECONDS: Final = 600.0  # a machine's clock drifts by less than a millisecond in this time
ASK_AGAIN_SECONDS: Final = 10.0  # while the service's clock is not known
LONGEST_COMPARISON_SECONDS: Final = 5.0  # by so much the time may be wrong
MOST_APART_SECONDS: Final = 1.0  # as far as a clock that is corrected moves unnoticed


class ServiceClock:
    """Asks a stream's service for its time once in a while, and counts on by the monotonic clock.

    The machine's own clock may be ahead. It counts only where the service's answers have no date.
    """

    def __init__(self, kinesis: aws.Client, stream: str, runtime: Runtime) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._runtime = runtime
        self._ahead: float | None = None  # of the monotonic clock, the service's
        self._compared_at = float("-inf")
        self._apart = float("-inf")  # of the machine's two clocks, when they were looked at last

    def now(self) -> float | None:
        """Epoch seconds; None while they are not known."""
        clock = self._runtime.clock
        apart = clock.now() - clock.monotonic()
        if abs(apart - self._apart) > MOST_APART_SECONDS:  # the machine slept, or its clock was set
            self._ahead, self._apart, self._compared_at = None, apart, float("-inf")
        pause = COMPARE_SECONDS if self._ahead is not None else ASK_AGAIN_SECONDS
        if clock.monotonic() - self._compared_at >= pause:
            self._compare()
        return None if self._ahead is None else clock.monotonic() + self._ahead

    def _compare(self) -> None:
        """An answer that was long under way is too old to tell the time by."""
        clock = self._runtime.clock
        began = clock.monotonic()
        with suppress(KclError):
            answered = describe(self._kinesis, self._stream, runtime=self._runtime).answered
            if clock.monotonic() - began <= LONGEST_COMPARISON_SECONDS:
                self._ahead = (clock.now() if answered is None else answered) - clock.monotonic()
        self._compared_at = clock.monotonic()
