"""Rows of a fetch become records again, and rows of another attempt raise an error: the way for Spark Connect."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.failures import is_content_changed
from kcl_dagster.spark.frozen_rows import attempt_number, frozen_rows
from kcl_dagster.spark.opened_rows import OpenRows
from kcl_dagster.spark.schema import COLUMNS
from kcl_dagster.worker.batch import Range
from tests.unit.spark.fetches import A, B, fetched

LEASES = [LeaseKey("s:a"), LeaseKey("s:b")]
RANGES = [Range(lease, StreamIdentifier("stream"), f"shard-{lease}", TRIM_HORIZON, 1) for lease in LEASES]


def frozen(attempt: str) -> Iterator[pa.RecordBatch]:
    return frozen_rows(fetched(attempt, A, B), LEASES)


def opened(attempt: str, counted: dict[LeaseKey, int]) -> list[dict[str, object]]:
    return [row for batch in OpenRows.of(RANGES, counted)(frozen(attempt)) for row in batch.to_pylist()]


def test_the_records_are_those_that_were_fetched() -> None:
    records = opened("one", dict.fromkeys(LEASES, attempt_number("one")))
    assert len(records) == len(A) + len(B)
    for record, before in zip(records, [*A, *B], strict=True):
        lease = before["lease_key"]
        assert record == {name: before[name] for name in COLUMNS} | {
            "stream": "stream",
            "shard_id": f"shard-{lease}",
        }


def test_records_of_leases_that_were_lost_are_left_out() -> None:
    records = opened("one", {LEASES[1]: attempt_number("one")})
    assert [record["sequence_number"] for record in records] == [before["sequence_number"] for before in B]


@pytest.mark.parametrize("counted", [LEASES, LEASES[:1], LEASES[1:]])
def test_rows_of_another_attempt_raise_an_error(counted: list[LeaseKey]) -> None:
    with pytest.raises(ValueError, match="was read again") as caught:
        opened("two", dict.fromkeys(counted, attempt_number("one")))
    assert is_content_changed(caught.value)
