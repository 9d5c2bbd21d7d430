"""`python spark_connector_consumer.py STREAM ENDPOINT JAR FOLDER [json]`: a Kinesis source of Structured Streaming.

It runs in a virtual environment of its own, with a release of Spark in which the connector's archive works. Each
batch writes Parquet files and Spark's own checkpoint. The number of stored records is in `$COUNTS/all`.
"""

# mypy: ignore-errors
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQueryListener

DRIVER = "-XX:+UseSerialGC -Dcom.amazonaws.sdk.disableCbor=true"


class Counter(StreamingQueryListener):
    def __init__(self):
        self._count = 0

    def onQueryStarted(self, event):  # noqa: N802
        pass

    def onQueryIdle(self, event):  # noqa: N802
        pass

    def onQueryProgress(self, event):  # noqa: N802
        """Called when a batch is committed."""
        self._count += event.progress.numInputRows
        Path(os.environ["COUNTS"], "all").write_text(str(self._count))

    def onQueryTerminated(self, event):  # noqa: N802
        pass


def consume(stream, endpoint, jar, folder, is_json):
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jar)
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", DRIVER)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.streams.addListener(Counter())
    records = (
        spark.readStream.format("kinesis")
        .option("streamName", stream)
        .option("endpointUrl", endpoint)
        .option("regionName", "us-east-1")
        .option("startingPosition", "TRIM_HORIZON")
        .option("awsAccessKeyId", os.environ["AWS_ACCESS_KEY_ID"])
        .option("awsSecretKey", os.environ["AWS_SECRET_ACCESS_KEY"])
        .load()
    )
    if is_json:
        from json_fields import DDL

        value = F.from_json(F.col("data").cast("string"), DDL).alias("value")
        records = records.select("approximateArrivalTimestamp", value).select(
            "approximateArrivalTimestamp", "value.*"
        )
    (
        records.writeStream.format("parquet")
        .option("path", os.environ["STORE"])
        .option("checkpointLocation", f"{folder}/checkpoint")
        .option("compression", "zstd")
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    consume(*sys.argv[1:5], "json" in sys.argv[5:])
