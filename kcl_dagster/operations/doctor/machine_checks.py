"""Checks of this machine: its clock, its Java, its Spark."""

from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from typing import Any, Final

from kcl_dagster.errors import JavaMissing
from kcl_dagster.operations.doctor.finding import DoctorFinding, fail, ok, warn
from kcl_dagster.spark.java import Java, find_java

SKEW_REFUSED: Final = 240.0  # seconds; AWS rejects signatures that are five minutes off
# Seconds; workers of this package only measure durations, but Java leaders compare clocks.
SKEW_WORTH_A_WARNING: Final = 5.0

FindJava = Callable[[Mapping[str, str]], Java]


def judge_clock(headers: Mapping[str, str], sent: float, answered: float) -> DoctorFinding:
    """Compare the clock of this machine with the `Date` header of a response, which is precise to a second. `sent`
    and `answered`: the times of request and response by the clock of this machine, in epoch seconds."""
    date = headers.get("date")
    if date is None:
        return ok("clock", "the endpoint does not tell the time")
    theirs = parsedate_to_datetime(date).timestamp()
    # The service answered within the second that began at `theirs`, between the request and the response.
    skew = sent - theirs - 1 if sent > theirs + 1 else min(0.0, answered - theirs)
    if abs(skew) >= SKEW_REFUSED:
        return fail("clock", f"this machine's clock is {skew:+.0f} s off AWS's", "switch time synchronisation on")
    if abs(skew) >= SKEW_WORTH_A_WARNING:
        return warn("clock", f"this machine's clock is {skew:+.0f} s off AWS's", "switch time synchronisation on")
    return ok("clock", "this machine's clock agrees with AWS's")


def judge_machine(
    environment: Mapping[str, str], java: FindJava = find_java, has: Callable[[str], Any] = find_spec
) -> Iterator[DoctorFinding]:
    try:
        found = java(environment)
    except JavaMissing as error:
        yield fail("java", str(error), "pip install 'kcl-dagster[java]', or set JAVA_HOME")
    else:
        yield ok("java", f"Java {found.version}, {found.home or 'on the PATH'}")
    if has("pyspark") is None:
        yield fail("spark", "pyspark is not installed here", "pip install pyspark")
    else:
        yield ok("spark", "pyspark is installed")
