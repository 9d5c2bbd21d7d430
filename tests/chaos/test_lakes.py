"""What a reader of the files of `foreach_batch` counts."""

from pathlib import Path

import pyarrow as pa

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.worker.batch import Batch, Part
from tests.chaos.lakes import conflicts, file_by_identity, rows

SHARD = "shardId-000000000000"


class Records:
    """Records of a shard, as far as user code looks at them."""

    def __init__(self, first: int, last: int) -> None:
        self._numbers = range(first, last + 1)

    def toArrow(self) -> pa.Table:  # noqa: N802, as PySpark names it
        columns = ["lease_key", "shard_id", "sequence_number", "sub_sequence_number", "key", "number"]
        values = [(SHARD, SHARD, str(number), 0, "a", number) for number in self._numbers]
        return pa.table({name: [row[i] for row in values] for i, name in enumerate(columns)})


def store(lake: Path, number: int, first: int, last: int, instead_of: int | None = None) -> None:
    ends = Checkpoint(str(first)), Checkpoint(str(last))
    stream = StreamIdentifier("clicks")
    part = Part("app", LeaseKey(SHARD), stream, SHARD, *ends, number, last - first + 1, 1, instead_of)
    file_by_identity(lake / "foreach")(Records(first, last), Batch("app", WorkerId("w"), (part,)))


def numbers(lake: Path) -> list[int]:
    return sorted(row.number for row in rows("foreach", lake))


def test_a_batch_that_was_stored_twice_counts_once(tmp_path: Path) -> None:
    for _ in range(2):
        store(tmp_path, 1, 1, 4)
    assert numbers(tmp_path) == [1, 2, 3, 4]
    assert not conflicts(tmp_path)


def test_a_batch_does_not_count_if_pieces_came_instead_of_it(tmp_path: Path) -> None:
    store(tmp_path, 1, 1, 4)
    store(tmp_path, 2, 1, 2, instead_of=1)
    store(tmp_path, 3, 3, 4, instead_of=1)
    store(tmp_path, 4, 5, 6)
    assert numbers(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_batch_that_came_again_with_other_records_is_told(tmp_path: Path) -> None:
    store(tmp_path, 1, 1, 4)
    store(tmp_path, 1, 1, 5)
    assert conflicts(tmp_path) == [f"foreach: batch {SHARD}.1 came again with other records"]
