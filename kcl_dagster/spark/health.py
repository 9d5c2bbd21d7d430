"""Whether a Spark session can still be used.

One that lost its JVM or was stopped never works again: its worker has to end, so that its leases go to a worker
whose Spark lives. Renewals do not notice, they need no Spark.
"""

from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from kcl_dagster.spark.session import is_classic

# What Spark Connect says of a session that will not come back.
_CLOSED: Final = ("SESSION_CLOSED", "SESSION_NOT_FOUND", "SESSION_CHANGED", "NO_ACTIVE_SESSION")


class SessionHealth:
    """`why_lost` may be asked on any thread and never blocks; `failed` is told on the thread whose job failed."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        # Present where PySpark started the JVM; under spark-submit the JVM is our parent, and its end is ours.
        gateway: Any = spark.sparkContext._gateway if is_classic(spark) else None  # noqa: SLF001
        self._jvm: Any = getattr(gateway, "proc", None)
        self._why: str | None = None

    def why_lost(self) -> str | None:
        """Why the session cannot be used any more; None while nothing says so."""
        if self._why is None and self._jvm is not None and self._jvm.poll() is not None:
            self._why = f"Spark's JVM (pid {self._jvm.pid}) ended with {self._jvm.returncode}"
        return self._why

    def failed(self, error: BaseException) -> None:
        """A job failed; find out whether any other can succeed. May block for as long as Spark takes to answer."""
        if self.why_lost() is not None:
            return
        if is_classic(self._spark):
            if self._is_stopped():
                self._why = "the Spark session was stopped"
        elif any(sign in str(error) for sign in _CLOSED):
            self._why = f"the Spark Connect session is closed: {error}"

    def _is_stopped(self) -> bool:
        context: Any = self._spark.sparkContext
        try:
            return context._jsc is None or bool(context._jsc.sc().isStopped())  # noqa: SLF001
        except (Py4JError, OSError):
            return False  # no answer is no proof; a JVM that is gone shows in its process
