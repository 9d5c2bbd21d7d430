"""`KclSparkResource`: the Spark session of a worker run, as a Dagster resource."""

import re
from typing import Any, Final

from dagster import InitResourceContext
from pydantic import Field, PrivateAttr

from kcl_dagster.orchestration.secret_options import SecretsResource, refuse_literals, resolved
from kcl_dagster.spark.session import SparkSettings, start_session, stop_session

OWNER: Final = "KclSparkResource"
# Options that name a secret of Kubernetes, or the lifetime of a token, and contain no secret.
_REFERENCES: Final = re.compile(
    r"spark\.kubernetes\.(driver|executor)\.secret(s|KeyRef)\.|spark\.kubernetes\.kerberos\.tokenSecret\."
    r"|spark\.security\.credentials\."
)


class KclSparkResource(SecretsResource):
    """A Spark session that starts when it is first used, and stops with the run.

    Any resource with a `spark_session` can replace it, such as dagster-pyspark's `LazyPySparkResource`.
    `KclSparkResource` also finds a Java runtime, and has settings that suit the many short jobs of a worker.

    Secrets, such as the token of Spark Connect or `spark.hadoop.fs.s3a.secret.key`, must be a `dagster.EnvVar`: the
    whole `url`, the whole `java_options`, or a value of `conf`. A literal raises ConfigurationError.

    Example:
        .. code-block:: python

            kcl.KclSparkResource(memory="2g", conf={"spark.sql.shuffle.partitions": "8"})
    """

    mode: str = Field(
        default="local", description="Which Spark session to use: local, existing, connect or cluster."
    )
    url: str | None = Field(
        default=None, description="sc://host:port for mode connect, a master URL for mode cluster."
    )
    slots: int | None = Field(default=None, description="Task slots of a local session. Default: twice the cores.")
    memory: str = Field(default="1g", description="Heap of the driver; a batch needs about five times its size.")
    java_options: str = Field(default="-XX:+UseSerialGC", description="Options of the JVM of a local session.")
    local_root: str | None = Field(
        default=None,
        description="Folder for the temporary files of a local session. Default: the system's temporary folder.",
    )
    conf: dict[str, str] = Field(
        default={}, description="Spark settings. They take precedence over those that kcl_dagster sets."
    )

    _session: Any = PrivateAttr(default=None)

    def __init__(self, **values: Any) -> None:
        # Checked here and not in a validator, because the message of pydantic would contain the secret.
        given = {name: values.get(name) or "" for name in ("url", "java_options")}
        conf = {name: value for name, value in (values.get("conf") or {}).items() if not _REFERENCES.match(name)}
        refuse_literals(given | conf, OWNER, "leave it out and let the cluster's own configuration provide it")
        super().__init__(**values)

    @property
    def spark_session(self) -> Any:
        if self._session is None:
            settings = SparkSettings.model_validate(
                {
                    "mode": self.mode,
                    "url": None if self.url is None else resolved({"url": self.url}, OWNER)["url"],
                    "slots": self.slots,
                    "memory": self.memory,
                    "java_options": resolved({"java_options": self.java_options}, OWNER)["java_options"],
                    "local_root": self.local_root,
                    "conf": resolved(self.conf, OWNER),
                }
            )
            self._session = start_session(settings, "kcl-dagster")
        return self._session

    def teardown_after_execution(self, context: InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        session, self._session = self._session, None
        if session is not None and self.mode != "existing":
            stop_session(session)
