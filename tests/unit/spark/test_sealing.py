"""Sealed records come out as they went in, and only under the attempt that was counted."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from kcl_dagster.spark.failures import CONTENT_CHANGED
from kcl_dagster.spark.schema import ARROW_SCHEMA, COLUMNS, LEASE_KEY, PROGRESS
from kcl_dagster.spark.sealing import Unseal, seal


def record(lease: str, number: int) -> dict[str, object]:
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


def proof(lease: str, attempt: str, trailer: str | None) -> dict[str, object]:
    return {PROGRESS: {"lease_key": lease, "attempt": attempt, "trailer": trailer}}


def fetched(attempt: str, *batches: list[dict[str, object]]) -> Iterator[pa.RecordBatch]:
    """What a fetch of two leases yields."""
    leases = ("s:a", "s:b")
    yield pa.RecordBatch.from_pylist([proof(x, attempt, None) for x in leases], schema=ARROW_SCHEMA)
    for batch in batches:
        yield pa.RecordBatch.from_pylist(batch, schema=ARROW_SCHEMA)
    yield pa.RecordBatch.from_pylist([proof(x, attempt, "{}") for x in leases], schema=ARROW_SCHEMA)


A, B = [record("s:a", n) for n in range(9)], [record("s:b", n) for n in range(3)]


def test_records_come_out_as_they_went_in() -> None:
    opened = list(Unseal({"s:a": "one", "s:b": "one"})(seal(fetched("one", A, B, A))))
    assert [batch.to_pylist() for batch in opened] == [A, B, A]
    assert all(tuple(batch.schema.names) == COLUMNS for batch in opened)


def test_a_batch_of_records_is_one_row() -> None:
    sealed = list(seal(fetched("one", A, B)))
    assert [batch.num_rows for batch in sealed] == [2, 1, 1, 2]
    assert [row["trailer"] for batch in sealed for row in batch.to_pylist()] == [None, None, None, None, "{}", "{}"]


def test_slices_and_empty_batches_are_sealed_too() -> None:
    whole = pa.RecordBatch.from_pylist(A, schema=ARROW_SCHEMA)
    head, *_ = fetched("one")
    opened = list(Unseal({"s:a": "one", "s:b": "one"})(seal(iter([head, whole.slice(2, 3), whole.slice(0, 0)]))))
    assert [batch.to_pylist() for batch in opened] == [A[2:5]]


@pytest.mark.parametrize("counted", [{"s:a": "one", "s:b": "one"}, {"s:a": "two"}, {}])
def test_nothing_of_another_attempt_is_opened(counted: dict[str, str]) -> None:
    opened = Unseal(counted)(seal(fetched("two", B, A)))
    with pytest.raises(RuntimeError, match=CONTENT_CHANGED):
        next(opened)


def test_an_attempt_without_records_is_noticed_as_well() -> None:
    with pytest.raises(RuntimeError, match=CONTENT_CHANGED):
        list(Unseal({"s:a": "one", "s:b": "one"})(seal(fetched("two"))))
