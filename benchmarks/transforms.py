"""Measures the cost of a batch for each way of processing its records: `make bench-transforms`.

The same records are read from the embedded AWS and stored as Parquet files, in four ways in turns. The steps of the
worker run one after another. CPU is that of all processes of the consumer (driver, JVM, Python workers), without
the embedded AWS.

as read      the fetch stages the files of the batch
by Spark     the same records go through Spark, as in a batch for which the fetch cannot stage files
DataFrame    Spark parses and projects 20 fields of JSON
Arrow        a function of Arrow tables parses and projects the same fields

Prints a table and one JSON line for each figure. Takes about two minutes.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.json_transforms import JSON, Transforms
from benchmarks.rivals.json_fields import FIELDS
from benchmarks.run_time import Cost, typical
from benchmarks.source import Source, emulator
from benchmarks.worker import Figure
from kcl_dagster.spark.session import SparkSettings, start_session, stop_session

LEAST_ARROW_OVER_FRAME: Final = 3.0  # ratio of the records per CPU-second
MOST_ARROW_OVER_READ: Final = 2.0  # ratio of the CPU time
WARM_UPS: Final = 8
WARM_UP_MEGABYTES: Final = 2.0


def compared(costs: Mapping[str, Cost]) -> list[Figure]:
    """The figures of all ways. The bars apply to ratios of records per CPU-second."""
    per_cpu = {name: cost.records_per_cpu for name, cost in costs.items()}
    arrow, read = per_cpu["Arrow"], per_cpu["as read"]
    return [
        *(Figure(f"{name}: CPU", cost.cpu_per_gb, "CPU-s/GB") for name, cost in costs.items()),
        *(Figure(f"{name}: records", per_cpu[name], "1/CPU-s") for name in costs),
        Figure("as read: CPU by Spark over staging in the fetch", read / per_cpu["by Spark"], "x"),
        Figure(
            f"{FIELDS} fields of JSON: records per CPU-second of Arrow over a DataFrame",
            arrow / per_cpu["DataFrame"],
            "x",
            LEAST_ARROW_OVER_FRAME,
        ),
        Figure(
            f"{FIELDS} fields of JSON: CPU of Arrow over storing as read",
            read / arrow,
            "x",
            MOST_ARROW_OVER_READ,
            at_most=True,
        ),
    ]


def measure(spark: SparkSession, megabytes: float, repeat: int) -> dict[str, Cost]:
    with emulator() as (endpoint, pid), tempfile.TemporaryDirectory() as folder:
        small = Transforms(Source.fill(JSON, WARM_UP_MEGABYTES, endpoint, "warm-up"), spark, pid, folder)
        for _ in range(WARM_UPS):
            for run in small.ways().values():
                run()
        whole = Transforms(Source.fill(JSON, megabytes, endpoint, "records"), spark, pid, folder)
        runs: dict[str, list[Cost]] = {name: [] for name in whole.ways()}
        for _ in range(repeat):  # in turns, so that other work of the machine slows all ways down equally
            for name, run in whole.ways().items():
                runs[name].append(run())
    return {name: typical(found) for name, found in runs.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=48.0)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args(arguments)
    spark = start_session(SparkSettings(memory="1g"), "bench-transforms")
    try:
        costs = measure(spark, options.megabytes, options.repeat)
    finally:
        stop_session(spark)
    for name, cost in costs.items():
        print(f"{name:<20}{cost.cpu_per_gb:8.1f} CPU-s/GB {cost.records_per_cpu:11,.0f} rec/CPU-s")
    for figure in compared(costs):
        print(figure.as_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
