"""The time by Kinesis's clock, which is the same for all workers."""

from contextlib import suppress
from typing import Final

from kcl_dagster import aws
from kcl_dagster.errors import KclError
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.listing import describe

COMPARE_SECONDS: Final = 600.0  # a machine's clock drifts by less than a millisecond in this time
ASK_AGAIN_SECONDS: Final = 10.0  # between two requests while the service's time is not known
LONGEST_COMPARISON_SECONDS: Final = 5.0  # a slower response is not used, so this is the largest error
MOST_APART_SECONDS: Final = 1.0  # a smaller change of the machine's clock is not detected


class ServiceClock:
    """Compares the service's clock with the monotonic clock from time to time. In between, it calculates the
    service's time from the monotonic clock.

    The machine's own clock can be wrong. It is used only if the service's responses have no date.
    """

    def __init__(self, kinesis: aws.Client, stream: str, runtime: Runtime) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._runtime = runtime
        self._ahead: float | None = None  # the service's clock minus the monotonic clock
        self._compared_at = float("-inf")
        self._apart = float("-inf")  # the machine's wall clock minus its monotonic clock, when last compared

    def now(self) -> float | None:
        clock = self._runtime.clock
        apart = clock.now() - clock.monotonic()
        if abs(apart - self._apart) > MOST_APART_SECONDS:  # the machine was suspended, or its clock was set
            self._ahead, self._apart, self._compared_at = None, apart, float("-inf")
        pause = COMPARE_SECONDS if self._ahead is not None else ASK_AGAIN_SECONDS
        if clock.monotonic() - self._compared_at >= pause:
            self._compare()
        return None if self._ahead is None else clock.monotonic() + self._ahead

    def _compare(self) -> None:
        """Compare the clocks. The time of a response that took long is too old, so it is not used."""
        clock = self._runtime.clock
        began = clock.monotonic()
        with suppress(KclError):
            answered = describe(self._kinesis, self._stream, runtime=self._runtime).answered
            if clock.monotonic() - began <= LONGEST_COMPARISON_SECONDS:
                self._ahead = (clock.now() if answered is None else answered) - clock.monotonic()
        self._compared_at = clock.monotonic()
