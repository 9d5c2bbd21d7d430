"""Checks whether the executors of a session can run this package. The worker checks this before its first batch."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kcl_dagster import __version__
from kcl_dagster.aws import call
from kcl_dagster.errors import ConfigurationError, CredentialsRefused, EndpointUnreachable, KclError
from kcl_dagster.spark.failures import first_line
from kcl_dagster.spark.fetch import Connection, client_of

OLDEST_SPARK: Final = (4, 0)
_SCHEMA: Final = pa.schema([("kcl_dagster", pa.string())])

SHIP_IT: Final = (
    "Executors need the same version of kcl-dagster, with boto3, pandas and pyarrow: install it in their image or "
    "cluster library, or ship an environment with --archives"
)


def check_executors(spark: SparkSession) -> None:
    """Raise ConfigurationError if Spark is too old, or if executors lack this package or have another version.

    Runs one small job. A local session does not need this check, because its executors use this environment.
    """
    release = tuple(int(part) for part in spark.version.split(".")[:2])
    if release < OLDEST_SPARK:
        raise ConfigurationError(f"Spark {spark.version} is too old: kcl-dagster needs 4.0 or newer")
    try:
        (row,) = spark.range(0, 1, 1, 1).mapInArrow(_say_version, "kcl_dagster string").collect()
    except (PySparkException, Py4JError) as error:
        missing = next((line for line in str(error).splitlines() if "ModuleNotFoundError" in line), None)
        raise ConfigurationError(
            f"the executors cannot run our code: {missing or first_line(error)}. {SHIP_IT}"
        ) from error
    if row.kcl_dagster != __version__:
        raise ConfigurationError(
            f"executors have kcl-dagster {row.kcl_dagster} and the driver has {__version__}. {SHIP_IT}"
        )


def check_stream(spark: SparkSession, connection: Connection, stream: str) -> None:
    """Raise ConfigurationError if executors cannot reach Kinesis, or have no credentials.

    Runs one small job. The job also detects platforms that give user code in executors no network access. It does
    not detect missing rights, because any response of Kinesis is sufficient.
    """
    ask = _Ask(connection, stream)
    try:
        (row,) = spark.range(0, 1, 1, 1).mapInArrow(ask, "kcl_dagster string").collect()
    except (PySparkException, Py4JError) as error:
        raise ConfigurationError(f"executors cannot ask for stream {stream}: {first_line(error)}") from error
    if row.kcl_dagster:
        raise ConfigurationError(
            f"executors cannot read stream {stream}: {row.kcl_dagster}. They need a route to Kinesis, and "
            "credentials of their own: an instance profile, a pod's role, or those of the KclResource"
        )


class _Ask:
    """A function for `mapInArrow` that sends one request without side effects to Kinesis. It returns the problem,
    or an empty text."""

    def __init__(self, connection: Connection, stream: str) -> None:
        self._connection = connection
        self._stream = stream

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        problem = ""
        try:
            call(client_of(self._connection), "describe_stream_summary", StreamName=self._stream)
        except (EndpointUnreachable, CredentialsRefused) as error:
            problem = f"{type(error).__name__}: {error}"
        except KclError:
            pass  # any response of the service is sufficient
        for batch in batches:
            yield pa.RecordBatch.from_pylist([{"kcl_dagster": problem}] * batch.num_rows, schema=_SCHEMA)


def _say_version(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import kcl_dagster.spark.fetch  # noqa: F401 - every fetch imports this module

    for batch in batches:
        yield pa.RecordBatch.from_pylist([{"kcl_dagster": __version__}] * batch.num_rows, schema=_SCHEMA)
