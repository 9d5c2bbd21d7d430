"""Finds out whether a Spark session can still be used.

A session that has lost its JVM or was stopped never works again. Its worker has to end, so that another worker gets
its leases. Otherwise the worker would keep its leases for ever, because renewals need no Spark.
"""

from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from kcl_dagster.spark.session_kind import is_classic

# Error conditions of Spark Connect for a session that is lost for good.
_CLOSED: Final = ("SESSION_CLOSED", "SESSION_NOT_FOUND", "SESSION_CHANGED", "NO_ACTIVE_SESSION")


OUT_OF_MEMORY: Final = 52
"""The code with which Spark ends a JVM that has not enough memory."""

MORE_MEMORY: Final = (
    ": it was out of memory. Give it more (`memory` of KclSparkResource; rows between Spark and Python use memory "
    "of the same size beside the heap), or read less at once (`batch.max_bytes`)"
)


class SessionHealth:
    """The state of a session. `why_lost` can be called on any thread and never blocks; `failed` is called on the
    thread whose job failed."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        # PySpark's gateway (its connection to the JVM) has a `proc` only if PySpark has started the JVM. Under
        # spark-submit, the JVM is the parent process, and this process ends with the JVM.
        gateway: Any = spark.sparkContext._gateway if is_classic(spark) else None  # noqa: SLF001
        self._jvm: Any = getattr(gateway, "proc", None)
        self._why: str | None = None

    def why_lost(self) -> str | None:
        """The reason why the session cannot be used any more; None as long as no reason is known."""
        if self._why is None and self._jvm is not None and self._jvm.poll() is not None:
            code = self._jvm.returncode
            advice = MORE_MEMORY if code == OUT_OF_MEMORY else ""
            self._why = f"Spark's JVM (pid {self._jvm.pid}) ended with {code}{advice}"
        return self._why

    def failed(self, error: BaseException) -> None:
        """Find out whether the session is lost, after a job has failed with `error`. Can block until Spark
        responds."""
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
            return False  # a missing response proves nothing; `why_lost` detects the end of the JVM
