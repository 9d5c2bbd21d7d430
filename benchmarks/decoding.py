"""Measures what decoding costs: `make bench-decoding`.

The same records are decoded twice: as JSON by Spark itself, and as Avro in Python. There are small records, wide
records, and records with optional fields. Each decoding is measured in CPU seconds of this process and its child
processes (the JVM and the Python workers). The lowest of some rounds counts, so that the ratio depends neither on
the machine nor on its other work. Takes two minutes.
"""

import argparse
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fastavro
from pyspark.sql import DataFrame, SparkSession

from benchmarks.machine import cpu_between, cpu_times
from kcl_dagster.spark.avro_decoding import avro
from kcl_dagster.spark.payload_decoding import with_decoded, with_json
from kcl_dagster.spark.session import SparkSettings, start_session, stop_session

RECORDS: Final = 100_000
ROUNDS: Final = 4
MOST_TIMES_JSON: Final = 1.0
_SPARK: Final = {"long": "bigint", "string": "string", "double": "double", "boolean": "boolean"}


@dataclass(frozen=True, slots=True)
class Shape:
    """Records of one form."""

    name: str
    fields: Mapping[str, str]
    """The type of each field in Avro."""

    value: Callable[[int], dict[str, Any]]
    """The record with this number."""

    is_optional: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        types = {name: ["null", kind] if self.is_optional else kind for name, kind in self.fields.items()}
        fields = [{"name": name, "type": kind} for name, kind in types.items()]
        return {"type": "record", "name": "Record", "fields": fields}

    @property
    def columns(self) -> str:
        return ", ".join(f"{name} {_SPARK[kind]}" for name, kind in self.fields.items())


def click(number: int) -> dict[str, Any]:
    return {"id": number, "user": f"user-{number % 1000}", "page": f"/products/{number % 77}", "price": number / 7}


def sparse_click(number: int) -> dict[str, Any]:
    """A click in which some fields are None. Each field is None in a fifth of the records."""
    fields = enumerate(click(number).items())
    return {name: None if (number + place) % 5 == 0 else value for place, (name, value) in fields}


def order(number: int) -> dict[str, Any]:
    values = {"long": number * 7, "string": f"item {number % 97}", "double": number / 7, "boolean": number % 3 == 0}
    return {name: values[kind] for name, kind in ORDER.items()}


CLICK: Final = {"id": "long", "user": "string", "page": "string", "price": "double"}
ORDER: Final = {f"{kind}_{number}": kind for number in range(5) for kind in _SPARK}
SHAPES: Final = (
    Shape("4 fields", CLICK, click),
    Shape("20 fields", ORDER, order),
    Shape("4 optional fields", CLICK, sparse_click, is_optional=True),
)


def as_avro(schema: Any, value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def cpu_seconds(work: Callable[[], object]) -> float:
    """The CPU seconds of `work`: the lowest of some rounds. The first round only warms up."""
    found = []
    for _ in range(ROUNDS + 1):
        before = cpu_times(os.getpid())
        work()
        found.append(cpu_between(before, cpu_times(os.getpid())))
    return min(found[1:])


def times_json(spark: SparkSession, shape: Shape, records: int, folder: Path) -> float:
    """The CPU time for decoding Avro, divided by the CPU time for decoding JSON."""
    schema = fastavro.parse_schema(shape.schema)

    def stored(name: str, encode: Callable[[dict[str, Any]], bytes]) -> DataFrame:
        path = str(folder / f"{shape.name} {name}")
        rows = [(encode(shape.value(number)),) for number in range(records)]
        spark.createDataFrame(rows, "data binary").coalesce(1).write.parquet(path)
        return spark.read.parquet(path)

    def evaluate(frame: DataFrame) -> Callable[[], object]:
        return lambda: frame.write.format("noop").mode("overwrite").save()

    json_frame = stored("JSON", lambda value: json.dumps(value).encode())
    avro_frame = stored("Avro", lambda value: as_avro(schema, value))
    from_json = cpu_seconds(evaluate(with_json(json_frame, shape.columns)))
    from_avro = cpu_seconds(evaluate(with_decoded(avro_frame, avro(shape.schema), shape.columns)))
    in_micros = [f"{seconds / records * 1e6:.1f}" for seconds in (from_json, from_avro)]
    print(f"{shape.name}: JSON {in_micros[0]} and Avro {in_micros[1]} CPU-microseconds a record")
    return from_avro / from_json


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoding", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    records = parser.parse_args(arguments).records
    spark = start_session(SparkSettings(slots=1), "bench-decoding")
    with tempfile.TemporaryDirectory() as folder:
        ratios = {shape.name: times_json(spark, shape, records, Path(folder)) for shape in SHAPES}
    stop_session(spark)
    for name, ratio in ratios.items():
        figure = {
            "figure": f"CPU of decoding Avro, {name}",
            "value": round(ratio, 2),
            "unit": "times that of JSON",
        }
        print(json.dumps({**figure, "bar": MOST_TIMES_JSON, "ok": ratio <= MOST_TIMES_JSON}))
    return 0 if max(ratios.values()) <= MOST_TIMES_JSON else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
