"""Records that were fetched once and cannot change any more, whatever Spark does with them.

`localCheckpoint` keeps the fetched rows in the executors and removes their lineage, so nothing is read twice. If a
block was lost or a task was run twice, Spark might nevertheless use rows of another attempt of the task. The use of
such rows has to fail. So every row has the number of its attempt. A row is used only if the driver has received the
result of this attempt. See `kcl_dagster.spark.opened_rows`.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame

from kcl_dagster.errors import BatchContentChanged
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.failures import fetch_failures
from kcl_dagster.spark.frozen_rows import ATTEMPT, PLACE, TRAILER
from kcl_dagster.spark.opened_rows import records_of
from kcl_dagster.spark.outcome import FetchOutcome
from kcl_dagster.worker.batch import PoisonRecord, Range


class FrozenRanges:
    """The result of one fetch job whose records remain in the executors."""

    def __init__(self, ranges: Sequence[Range], frame: DataFrame) -> None:
        """Run the job: fetch `frame`, freeze it, and collect how far each range was read. `ranges`: in the order of
        the plan of the fetch."""
        self.ranges = tuple(ranges)
        self.slices: Callable[[], int] = lambda: 1
        """Returns in how many slices each partition of the records is divided, see `spark.task_slices`."""
        with fetch_failures():
            self._frame = frame.localCheckpoint(eager=False)
            proofs = self._frame.where(self._frame[TRAILER].isNotNull()).collect()
        by_place = {proof[PLACE]: proof for proof in proofs}
        if len(proofs) != len(ranges) or set(by_place) != set(range(len(ranges))):
            raise BatchContentChanged(f"{len(ranges)} ranges were fetched and {len(proofs)} accounted for")
        by_lease = {range_.lease: by_place[place] for place, range_ in enumerate(ranges)}
        self._attempts = {lease: int(proof[ATTEMPT]) for lease, proof in by_lease.items()}
        self.outcome = FetchOutcome.of(ranges, {lease: proof[TRAILER] for lease, proof in by_lease.items()})

    def form(self, leases: Collection[LeaseKey]) -> DataFrame:
        attempts = {lease: self._attempts[lease] for lease in leases}
        counts = {lease: progress.records for lease, progress in self.outcome.progress.items()}
        return records_of(self._frame, self.ranges, attempts, counts, self.slices())

    def midpoint(self, lease: LeaseKey) -> Checkpoint | None:
        return midpoint_of(self.form([lease]))

    def records(self, lease: LeaseKey) -> list[PoisonRecord]:
        return poison_records_of(self.form([lease]))

    def release(self) -> None:
        """Free the blocks of the records now if possible; otherwise Spark's cleaner frees them later."""
        frame: Any = self._frame
        # DataFrame.unpersist does not free checkpointed blocks. These attributes are private, and Spark Connect
        # does not have them.
        with suppress(Exception):
            frame._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: SLF001


def midpoint_of(records: DataFrame) -> Checkpoint | None:
    """The checkpoint of the last record in the first half of one lease's records. None if there are fewer than two
    records."""
    with fetch_failures():
        rows = records.select("sequence_number", "sub_sequence_number").collect()
    if len(rows) < 2:
        return None
    places = sorted((int(row.sequence_number), row.sub_sequence_number) for row in rows)
    sequence, sub_sequence = places[len(places) // 2 - 1]
    return Checkpoint(str(sequence), sub_sequence)


def poison_records_of(records: DataFrame) -> list[PoisonRecord]:
    """Collect the records of one lease on the driver, in order."""
    with fetch_failures():
        rows = records.selectExpr("*", "unix_millis(arrival_timestamp) AS arrival_ms").collect()
    return [
        PoisonRecord(
            data=bytes(row.data),
            partition_key=row.partition_key,
            sequence_number=row.sequence_number,
            sub_sequence_number=row.sub_sequence_number,
            explicit_hash_key=row.explicit_hash_key,
            arrival_ms=row.arrival_ms,
        )
        for row in sorted(rows, key=lambda row: (int(row.sequence_number), row.sub_sequence_number))
    ]
