"""What a fetch of two leases yields, without a stream."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa

from kcl_dagster.spark.schema import ARROW_SCHEMA, LEASE_KEY, PROGRESS

Row = dict[str, object]


def record(lease: str, number: int) -> Row:
    return {
        "data": f"{lease} {number}".encode(),
        "partition_key": f"key-{number}",
        "explicit_hash_key": None if number % 2 else str(number),
        "sequence_number": str(number),
        "sub_sequence_number": number % 3,
        "arrival_timestamp": datetime(2026, 1, 1, 0, 0, number, tzinfo=UTC),
        "stream": "clicks",
        "shard_id": lease.partition(":")[2],
        LEASE_KEY: lease,
        "aggregate_problem": "broken" if number == 7 else None,
    }


def proof(lease: str, attempt: str, trailer: str | None) -> Row:
    return {PROGRESS: {"lease_key": lease, "attempt": attempt, "trailer": trailer}}


A, B = [record("s:a", n) for n in range(9)], [record("s:b", n) for n in range(3)]


def fetched(attempt: str, *batches: list[Row], a: str = "{}", b: str = "{}") -> Iterator[pa.RecordBatch]:
    """`a` and `b` are the trailers of the two."""
    said = {"s:a": a, "s:b": b}
    yield pa.RecordBatch.from_pylist([proof(x, attempt, None) for x in said], schema=ARROW_SCHEMA)
    for batch in batches:
        yield pa.RecordBatch.from_pylist(batch, schema=ARROW_SCHEMA)
    yield pa.RecordBatch.from_pylist([proof(x, attempt, text) for x, text in said.items()], schema=ARROW_SCHEMA)
