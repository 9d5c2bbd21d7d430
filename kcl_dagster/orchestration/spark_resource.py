"""`KclSparkResource`: the Spark session of a worker run, as a Dagster resource."""

from typing import Any

from dagster import ConfigurableResource, InitResourceContext
from pydantic import Field, PrivateAttr

from kcl_dagster.spark.session import SparkSettings, start_session, stop_session


class KclSparkResource(ConfigurableResource[Any]):
    """A Spark session that starts when it is first asked for and stops with the run.

    Anything with a `spark_session` will do in its place, such as dagster-pyspark's `LazyPySparkResource`; this one
    also finds a Java runtime, and has settings that fit a fetch loop.

    Example:
        .. code-block:: python

            kcl.KclSparkResource(memory="2g", conf={"spark.sql.shuffle.partitions": "8"})
    """

    mode: str = Field(default="local", description="local, existing, connect or cluster.")
    url: str | None = Field(default=None, description="sc://host:port for connect, a master URL for cluster.")
    slots: int | None = Field(default=None, description="Task slots of a local session; twice the cores.")
    memory: str = Field(default="1g", description="Heap of the driver; a batch needs about five times its size.")
    java_options: str = Field(default="-XX:+UseSerialGC", description="Of a local session's JVM.")
    local_root: str | None = Field(
        default=None,
        description="Where a local session makes the folder of its temporary files; the system's temporary folder.",
    )
    conf: dict[str, str] = Field(default={}, description="Spark configuration, on top of ours.")

    _session: Any = PrivateAttr(default=None)

    @property
    def spark_session(self) -> Any:
        if self._session is None:
            settings = SparkSettings.model_validate(
                {
                    "mode": self.mode,
                    "url": self.url,
                    "slots": self.slots,
                    "memory": self.memory,
                    "java_options": self.java_options,
                    "local_root": self.local_root,
                    "conf": dict(self.conf),
                }
            )
            self._session = start_session(settings, "kcl-dagster")
        return self._session

    def teardown_after_execution(self, context: InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        session, self._session = self._session, None
        if session is not None and self.mode != "existing":
            stop_session(session)
