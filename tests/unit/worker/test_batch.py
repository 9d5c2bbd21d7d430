"""What identifies a batch, and what does not."""

import dataclasses

from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.worker.batch import Batch, Part, Range

STREAM = StreamIdentifier.single("orders")


def part(records: int = 3) -> Part:
    return Part("app", LeaseKey("s-1"), STREAM, "s-1", TRIM_HORIZON, Checkpoint("9"), 4, records, records * 10)


def test_a_replayed_part_equals_the_first_one() -> None:
    assert part() == dataclasses.replace(part(), records=0, bytes=0)
    assert part() != dataclasses.replace(part(), number=5)


def test_a_batch_sums_its_parts() -> None:
    batch = Batch("app", WorkerId("w"), (part(3), part(4)))
    assert (batch.records, batch.bytes) == (7, 70)


def test_a_range_is_pinned_when_it_says_where_it_ends() -> None:
    open_range = Range(LeaseKey("s-1"), STREAM, "s-1", TRIM_HORIZON, 1)
    assert not open_range.is_pinned
    assert dataclasses.replace(open_range, through=Checkpoint("9")).is_pinned
