"""Executors that cannot do the work are found at start, by asking them."""

import pytest
from pyspark.sql import SparkSession

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.executors import check_executors, check_stream
from kcl_dagster.spark.fetch import Connection
from tests.integration.spark.conftest import Stream
from tests.integration.spark.ports import free_port

pytestmark = pytest.mark.spark


def test_executors_that_reach_the_stream_are_fine(
    spark: SparkSession, connection: Connection, stream: Stream
) -> None:
    check_executors(spark)
    check_stream(spark, connection, stream.name)
    check_stream(spark, connection, "no-such-stream")  # the leader tells that, better


def test_executors_without_a_route_are_found_out(spark: SparkSession) -> None:
    nowhere = Connection(
        endpoint_url=f"http://127.0.0.1:{free_port()}", region="us-east-1", access_key="a", secret_key="b"
    )
    with pytest.raises(ConfigurationError, match="executors cannot read stream clicks: EndpointUnreachable"):
        check_stream(spark, nowhere, "clicks")
