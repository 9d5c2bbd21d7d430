"""Sealed records come out as they went in, and only under the attempt that was counted."""

import pyarrow as pa
import pytest

from kcl_dagster.spark.failures import CONTENT_CHANGED
from kcl_dagster.spark.schema import ARROW_SCHEMA, COLUMNS
from kcl_dagster.spark.sealing import Unseal, seal
from tests.unit.spark.fetches import A, B, fetched


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
