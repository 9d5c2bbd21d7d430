"""How much decoding costs: `make bench-decoding`.

The same small records as JSON, decoded by Spark itself, and as Avro, decoded in Python. Both are measured in CPU
seconds of this process's tree (JVM and Python workers), best of some rounds, so that the ratio depends neither on
the machine nor on its other work. A minute, most of it Spark's start.
"""

import argparse
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import fastavro
from pyspark.sql import DataFrame

from benchmarks.machine import cpu_between, cpu_times
from kcl_dagster.spark.payload_decoding import avro, with_decoded, with_json
from kcl_dagster.spark.session import SparkSettings, start_session, stop_session

RECORDS: Final = 100_000
ROUNDS: Final = 4
MOST_TIMES_JSON: Final = 3.0  # the same order of magnitude
COLUMNS: Final = "id long, user string, page string, price double"
SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": "string"},
        {"name": "page", "type": "string"},
        {"name": "price", "type": "double"},
    ],
}


def click(number: int) -> dict[str, Any]:
    return {"id": number, "user": f"user-{number % 1000}", "page": f"/products/{number % 77}", "price": number / 7}


def as_avro(value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, value)
    return out.getvalue()


def cpu_seconds(work: Callable[[], object]) -> float:
    """The least of some rounds; the first one warms up."""
    found = []
    for _ in range(ROUNDS + 1):
        before = cpu_times(os.getpid())
        work()
        found.append(cpu_between(before, cpu_times(os.getpid())))
    return min(found[1:])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoding", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    records = parser.parse_args(arguments).records
    spark = start_session(SparkSettings(slots=1), "bench-decoding")
    with tempfile.TemporaryDirectory() as folder:

        def stored(name: str, encode: Callable[[dict[str, Any]], bytes]) -> DataFrame:
            path = str(Path(folder) / name)
            rows = [(encode(click(number)),) for number in range(records)]
            spark.createDataFrame(rows, "data binary").coalesce(1).write.parquet(path)
            return spark.read.parquet(path)

        def evaluate(frame: DataFrame) -> Callable[[], object]:
            return lambda: frame.write.format("noop").mode("overwrite").save()

        from_json = cpu_seconds(evaluate(with_json(stored("json", lambda v: json.dumps(v).encode()), COLUMNS)))
        from_avro = cpu_seconds(evaluate(with_decoded(stored("avro", as_avro), avro(SCHEMA), COLUMNS)))
    stop_session(spark)
    ratio = from_avro / from_json
    print(
        f"JSON {from_json / records * 1e6:.1f} and Avro {from_avro / records * 1e6:.1f} CPU-microseconds a record"
    )
    figure = {"figure": "CPU of decoding Avro", "value": round(ratio, 2), "unit": "times that of JSON"}
    print(json.dumps({**figure, "bar": MOST_TIMES_JSON, "ok": ratio <= MOST_TIMES_JSON}))
    return 0 if ratio <= MOST_TIMES_JSON else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
