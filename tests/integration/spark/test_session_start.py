"""A session that Spark does not start is an error of the configuration, in a line."""

import subprocess
import sys

import pytest

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
