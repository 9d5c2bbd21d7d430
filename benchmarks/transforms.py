"""What a batch costs by what is done with its records: `make bench-transforms`.

The same records are stored in four ways, in turns, by the worker's steps one after another, from the embedded AWS
to Parquet files. CPU is that of all the consumer's processes (driver, JVM, Python workers) without it.

as read      files for the batch, staged by the fetch
by Spark     the same through Spark, as where the fetch does not know yet what is stored
DataFrame    20 fields of JSON, parsed and projected by Spark
Arrow        the same by a function of Arrow tables

Prints a table and one JSON line for each figure. About two minutes.
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

LEAST_ARROW_OVER_FRAME: Final = 3.0  # times the records per CPU-second
MOST_ARROW_OVER_READ: Final = 2.0  # times the CPU
WARM_UPS: Final = 8
WARM_UP_MEGABYTES: Final = 2.0


def compared(costs: Mapping[str, Cost]) -> list[Figure]:
    """The bars are about records per CPU-second."""
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
        for _ in range(repeat):  # in turns, so that whatever else the machine does meets all
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
