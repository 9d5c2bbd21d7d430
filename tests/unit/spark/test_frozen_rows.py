"""The rows in which Spark keeps the records of a fetch have all records, in order, and the attempt of each."""

import pyarrow as pa

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.frozen_rows import attempt_number, frozen_rows
from kcl_dagster.spark.schema import ARROW_SCHEMA, COLUMNS
from tests.unit.spark.fetches import A, B, fetched

LEASES = [LeaseKey("s:b"), LeaseKey("s:a")]
OF_RANGE = ("stream", "shard_id", "lease_key")


def own_columns(records: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{name: record[name] for name in COLUMNS if name not in OF_RANGE} for record in records]


def test_a_row_has_the_columns_of_its_record_and_the_place_of_its_range() -> None:
    head, *batches, last = (batch.to_pylist() for batch in frozen_rows(fetched("one", A, B, A), LEASES))
    assert [own_columns(batch) for batch in batches] == [own_columns(A), own_columns(B), own_columns(A)]
    assert [{row["place"] for row in batch} for batch in batches] == [{1}, {0}, {1}]
    assert {row["attempt"] for batch in (head, *batches, last) for row in batch} == {attempt_number("one")}
    assert {row["trailer"] for batch in batches for row in batch} == {None}


def test_the_first_and_the_last_row_of_a_range_have_no_record() -> None:
    head, _, last = (batch.to_pylist() for batch in frozen_rows(fetched("one", A), LEASES))
    assert {row["place"]: row["trailer"] for row in head} == {0: None, 1: None}
    assert {row["place"]: row["trailer"] for row in last} == {0: "{}", 1: "{}"}
    assert all(row["data"] is None for row in [*head, *last])


def test_slices_and_empty_batches_have_rows_too() -> None:
    whole = pa.RecordBatch.from_pylist(A, schema=ARROW_SCHEMA)
    first, *_ = fetched("one")
    _, *rows = frozen_rows(iter([first, whole.slice(2, 3), whole.slice(0, 0)]), LEASES)
    assert [own_columns(batch.to_pylist()) for batch in rows] == [own_columns(A[2:5])]


def test_attempts_have_different_numbers_that_fit_a_bigint() -> None:
    numbers = {attempt_number(str(number)) for number in range(1000)}
    assert len(numbers) == 1000
    assert all(-(2**63) <= number < 2**63 for number in numbers)
