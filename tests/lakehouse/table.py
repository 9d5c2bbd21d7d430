"""The table of cells: which operations are run with which sink in which catalog, and what is not run here."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.lakehouse import delta_operations, iceberg_operations, spark_writer_operations
from tests.lakehouse.cell import Operation
from tests.lakehouse.delta_operations import DeltaBench
from tests.lakehouse.iceberg_operations import Bench
from tests.lakehouse.places import (
    delta_by_spark,
    delta_folder,
    delta_s3,
    glue,
    glue_rest,
    hive,
    rest,
    s3_tables,
    sql,
    vended,
)
from tests.lakehouse.spark_writer_operations import SparkWriterBench


@dataclass(frozen=True, slots=True)
class PlaceOfSink:
    """`title`: for the table in the docs. `opened`: starts its servers, in a folder, with the address of S3.
    `only`: names of operations; empty: all that are done in each catalog."""

    sink: str
    name: str
    title: str
    opened: Callable[[Path, str], AbstractContextManager[Any]]
    only: tuple[str, ...] = ()


PLACES: Final = (
    PlaceOfSink("iceberg", "rest", "REST (Apache's), directory", rest),
    PlaceOfSink("iceberg", "vended", "REST with vended credentials, S3", vended),
    PlaceOfSink("iceberg", "s3tables", "REST with SigV4 and the restrictions of S3 Tables, S3", s3_tables),
    PlaceOfSink("iceberg", "gluerest", "REST with SigV4 and the prefix of Glue, S3", glue_rest, ("merge",)),
    PlaceOfSink("iceberg", "glue", "Glue (moto), S3", glue),
    PlaceOfSink("iceberg", "sql", "SQL (SQLite), directory", sql),
    PlaceOfSink("iceberg", "hive", "Hive 2.3, directory", hive),
    PlaceOfSink("delta", "folder", "directory", delta_folder),
    PlaceOfSink("delta", "s3", "S3", delta_s3),
    PlaceOfSink("by-spark", "spark", "session catalog (Spark 4.1), directory", delta_by_spark),
)

OPERATIONS: Final = {
    "iceberg": iceberg_operations.OPERATIONS,
    "delta": delta_operations.OPERATIONS,
    "by-spark": spark_writer_operations.OPERATIONS,
}
BENCHES: Final[dict[str, Callable[..., Any]]] = {
    "iceberg": Bench,
    "delta": DeltaBench,
    "by-spark": SparkWriterBench,
}
CALLS: Final = {"iceberg": "kcl.iceberg", "delta": "kcl.delta", "by-spark": 'kcl.delta(writer="spark")'}

# What is configured in the same way as a cell above, and cannot be had here.
NOT_HERE: Final = (
    (
        "iceberg",
        "AWS Glue's own REST endpoint",
        "by a double with its signatures, its warehouse and its prefix, before Apache's REST catalog",
    ),
    (
        "iceberg",
        "Amazon S3 Tables",
        "by a double that refuses copies, renames, staged creation, lists and deletions",
    ),
    ("iceberg", "Lake Formation", "as `REST with vended credentials`"),
    ("iceberg", "Polaris, Lakekeeper, Nessie, Snowflake, Unity (REST)", "as `REST with vended credentials`"),
    ("iceberg", "SQL in PostgreSQL or MySQL", "as `SQL`"),
    ("iceberg", "Google Cloud Storage, Azure", "written through pyiceberg's FileIO, as vended credentials are"),
    ("delta", "Databricks", "as a table of Spark with the same features"),
    (
        "by-spark",
        "Unity, Databricks, Hive",
        "as the session catalog: all requests are SQL and DataFrames of the session",
    ),
    ("by-spark", "Spark Connect", "the same requests; the server needs the jars"),
    ("by-spark", "S3", "Spark writes it, with the log store of the session"),
)


def cells() -> Iterator[tuple[PlaceOfSink, Operation]]:
    """In the order in which they are run."""
    for place in PLACES:
        for operation in OPERATIONS[place.sink]:
            is_for = not operation.places or place.name in operation.places
            if is_for and (not place.only or operation.name in place.only):
                yield place, operation


def documented() -> str:
    """The table as the docs have it, in Markdown."""
    run = {(place.name, operation.name) for place, operation in cells()}
    parts = []
    for sink, operations in OPERATIONS.items():
        places = [place for place in PLACES if place.sink == sink]
        head = f"| `{CALLS[sink]}` | " + " | ".join(place.title for place in places) + " |"
        lines = [head, "|---|" + "---|" * len(places)]
        for one in operations:
            marks = ("run" if (place.name, one.name) in run else "" for place in places)
            lines.append(f"| {one.what} | " + " | ".join(marks) + " |")
        parts.append("\n".join(lines))
    rest_of_it = ["| not run here | how far it is covered |", "|---|---|"]
    rest_of_it += [f"| `{CALLS[sink]}`: {where} | {why} |" for sink, where, why in NOT_HERE]
    return "\n\n".join([*parts, "\n".join(rest_of_it)])
