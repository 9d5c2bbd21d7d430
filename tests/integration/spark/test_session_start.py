"""The start of a local session in a process of its own."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from kcl_dagster.spark.session_extensions import PROVIDERS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

# A process has one session, and this one must not be that of other tests.
PROGRAM = """
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.session import SparkSettings, start_session

try:
    start_session(SparkSettings(conf={"spark.network.timeout": "30s"}), "refused")
except ConfigurationError as error:
    print(error)
"""


def test_settings_that_spark_refuses_are_named() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout == (
        "the Spark session (local) could not be started: java.lang.IllegalArgumentException: requirement failed: "
        "spark.network.timeoutInterval should be less than or equal to spark.network.timeout.\n"
    )


EXTENSIONS = """
import sys

from pyspark.sql import functions as F

from kcl_dagster.spark.session import SparkSettings, start_session

session = start_session(SparkSettings(conf=dict(each.split("=") for each in sys.argv[1:])), "extensions")

from pyspark.ml.functions import array_to_vector

print(session.range(1).select(array_to_vector(F.array(F.lit(0.5)))).collect()[0][0])
print(session.sparkContext._jsc.sc().conf().get("spark.sql.extensions.test.loadFromCp", "true"))
"""


def test_a_session_loads_extensions_only_if_spark_has_not_the_only_one(tmp_path: Path) -> None:
    def loads(*conf: str) -> str:
        command = [sys.executable, "-c", EXTENSIONS, *conf]
        vector, loads = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert vector == "[0.5]", "the functions of pyspark.ml are there"
        return loads

    assert loads() == "false"
    with ZipFile(tmp_path / "rights.jar", "w") as archive:
        archive.writestr(PROVIDERS, "com.example.Rights")  # the class is missing, which Spark ignores
    assert loads(f"spark.driver.extraClassPath={tmp_path / 'rights.jar'}") == "true"
    with ZipFile(tmp_path / "other.jar", "w") as archive:
        archive.writestr("com/example/other.txt", "")  # a user's code, which could use the functions of Spark
    assert loads(f"spark.driver.extraClassPath={tmp_path / 'other.jar'}") == "true"
    assert loads("spark.sql.extensions.test.loadFromCp=true") == "true"


CONNECT = """
from kcl_dagster.spark.session import SparkSettings, start_session

session = start_session(SparkSettings(conf={"spark.api.mode": "connect"}), "connect")
print(type(session).__module__, session.range(3).count())
"""


def test_a_local_session_can_be_one_of_spark_connect() -> None:
    done = subprocess.run([sys.executable, "-c", CONNECT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pyspark.sql.connect.session", "3"]


COMPILATIONS = """
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.spark.warm_up import interpreted_if_new, warm_up

session = start_session(SparkSettings(), "compilations")
compilations = session._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
for settings in SparkSettings(), SparkSettings(mode="existing"):
    with interpreted_if_new(start_session(settings, "compilations")):
        warm_up(session)
    print(compilations.getCount())
"""


def test_spark_compiles_nothing_for_the_first_fetch_of_a_new_session_alone() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILATIONS], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert first == 0 < second


OWN_BUILDER = """
import os

from kcl_dagster.emulator import Emulator, Limits
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.engine import SparkEngine
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.worker.batch import Budget, Range

session = start_session(SparkSettings(conf={"spark.api.mode": "connect"}), "connect")
usual = os.environ.pop("SPARK_CONNECT_MODE_ENABLED")  # only the usual builder sets it
lease, shard = LeaseKey("a"), "shardId-000000000000"
try:
    with Emulator(limits=Limits.none()) as aws:
        kinesis = aws.client("kinesis")
        kinesis.create_stream(StreamName="s", ShardCount=1)
        kinesis.put_record(StreamName="s", Data=b"first", PartitionKey="k")
        connection = Connection(endpoint_url=aws.endpoint_url, region="us-east-1", access_key="a", secret_key="s")
        ranges = [Range(lease, StreamIdentifier("s"), shard, TRIM_HORIZON, 1)]
        fetched = SparkEngine(session, connection).fetch(ranges, Budget(records=9, bytes=1 << 26, seconds=1.0))
        print(bytes(fetched.data([lease]).frame.collect()[0].data).decode())
finally:
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = usual
    session.stop()
"""


def test_a_session_of_spark_connects_own_builder_reads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OWN_BUILDER], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["first"]
