"""The kind of a session: classic, or of Spark Connect. Executors import this module, so it imports little."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_classic(spark: "SparkSession") -> bool:
    """Whether the session's driver runs in this process. With Spark Connect, the driver runs in the server."""
    return "connect" not in type(spark).__module__
