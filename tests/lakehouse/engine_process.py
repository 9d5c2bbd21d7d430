"""Spark with the runtimes of Iceberg and Delta, as another engine beside the sink.

A program of its own, in an environment of its own: it imports nothing of this project. Requests are lines of JSON
on standard input, and each has one answer, a line of JSON on standard output.

python engine_process.py FOLDER JAR...
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def session(folder: Path, jars: list[str]) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("engine")  # type: ignore[attr-defined, unused-ignore]
    for name, value in {
        "spark.driver.extraClassPath": ":".join(jars),  # where JDBC finds its drivers
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # tasks of a VACUUM: 10,000 by default
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "false",  # its plans do not say which files were read
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,"
        "io.delta.sql.DeltaSparkSessionExtension",
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dderby.system.home={folder}",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def answer(spark: SparkSession, request: dict[str, Any]) -> Any:
    match request["kind"]:
        case "conf":
            for name, value in request["values"].items():
                spark.conf.set(name, value)
            return None
        case "sql":
            return [row.asDict(recursive=True) for row in spark.sql(request["text"]).collect()]
        case "files":
            # How many files a query reads, after it was planned with all that the table knows of its files.
            frame = spark.sql(request["text"])
            frame.collect()
            leaf = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
            metrics = leaf.metrics()
            name = "numFiles" if metrics.contains("numFiles") else "resultDataFiles"
            return metrics.apply(name).value()
    raise ValueError(request["kind"])


def main(folder: str, *jars: str) -> None:
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Java prints is no answer
        spark = session(Path(folder), list(jars))
        spark.sparkContext.setLogLevel("ERROR")
        print(json.dumps({"value": spark.version}), file=answers, flush=True)
        for line in sys.stdin:
            try:
                said = {"value": answer(spark, json.loads(line))}
            except Exception as error:
                said = {"error": " | ".join(str(error).strip().splitlines()[:3]), "type": type(error).__name__}
            print(json.dumps(said, default=str), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
