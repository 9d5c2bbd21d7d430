"""Records that were fetched once and cannot change any more, whatever Spark does with them.

`localCheckpoint` keeps the fetched rows in the executors and cuts their origin, so nothing is read twice. Should
Spark end up with rows of another attempt all the same (a lost block, a twin of a task), the evaluation fails: the
rows are sealed, name their attempt, and are opened only where that is the attempt that was counted on the driver.
See `kcl_dagster.spark.sealing`.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster import errors
from kcl_dagster.errors import BatchContentChanged, BatchError, KclError, ServiceError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.shard import ChildShard, HashRange
from kcl_dagster.spark.failures import fetch_failures
from kcl_dagster.spark.fetch import Trailer
from kcl_dagster.spark.schema import LEASE_KEY
from kcl_dagster.spark.sealing import Sealed
from kcl_dagster.worker.batch import PoisonRecord, Progress, Range

log = logging.getLogger(__name__)


class FrozenRanges:
    """The outcome of one fetch job."""

    def __init__(self, ranges: Sequence[Range], frame: DataFrame) -> None:
        """Runs the job: `frame` is fetched, frozen and asked how far it came."""
        self.ranges = tuple(ranges)
        with fetch_failures():
            self._frame = frame.localCheckpoint(eager=False)
            proofs = self._frame.where("trailer is not null").select("lease_key", "attempt", "trailer").collect()
        by_lease = {LeaseKey(proof.lease_key): proof for proof in proofs}
        if len(proofs) != len(ranges) or set(by_lease) != {range_.lease for range_ in ranges}:
            raise BatchContentChanged(f"{len(ranges)} ranges were fetched and {len(proofs)} accounted for")
        self._attempts = {lease: str(proof.attempt) for lease, proof in by_lease.items()}
        trailers = {lease: msgspec.json.decode(proof.trailer, type=Trailer) for lease, proof in by_lease.items()}
        self.trailers: Mapping[LeaseKey, Trailer] = trailers
        self.progress: dict[LeaseKey, Progress] = {}
        self.failures: dict[LeaseKey, Exception] = {}
        for range_ in ranges:
            trailer = trailers[range_.lease]
            if trailer.failure is not None:
                self.failures[range_.lease] = failure_of(*trailer.failure)
            else:
                self.progress[range_.lease] = progress_of(range_, trailer)
            if trailer.misplaced:
                # Normal for a while after a reshard: the producer library sends them again.
                log.info("%s: %d aggregated records belong to other shards", range_.lease, trailer.misplaced)

    def data(self, leases: Collection[LeaseKey]) -> DataFrame:
        """The records of these leases. Evaluating it fails if Spark holds other records than were counted."""
        return self.sealed(leases).records()

    def sealed(self, leases: Collection[LeaseKey]) -> Sealed:
        frame = self._frame
        if set(leases) != set(self._attempts):
            # Whole rows go, their attempt with them: those that stay still say which attempt they are of.
            frame = frame.where(F.col(LEASE_KEY).isin(sorted(leases)))
        return Sealed(frame, {lease: self._attempts[lease] for lease in leases})

    def midpoint(self, lease: LeaseKey) -> Checkpoint | None:
        with fetch_failures():
            rows = self.data([lease]).select("sequence_number", "sub_sequence_number").collect()
        if len(rows) < 2:
            return None
        places = sorted((int(row.sequence_number), row.sub_sequence_number) for row in rows)
        sequence, sub_sequence = places[len(places) // 2 - 1]
        return Checkpoint(str(sequence), sub_sequence)

    def records(self, lease: LeaseKey) -> list[PoisonRecord]:
        with fetch_failures():
            rows = self.data([lease]).withColumn("arrival_ms", F.unix_millis("arrival_timestamp")).collect()
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

    def release(self) -> None:
        """Free the blocks now where that is possible; Spark's cleaner does it later elsewhere."""
        frame: Any = self._frame
        # Private, and absent in Spark Connect: DataFrame.unpersist does not reach checkpointed blocks.
        with suppress(Exception):
            frame._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: SLF001


class Batch:
    """One or several fetch jobs as the worker sees them: `worker.batch.Fetched`."""

    def __init__(self, parts: Sequence[tuple[FrozenRanges, Collection[LeaseKey]]]) -> None:
        """Of each job the leases that are taken from it, and no lease twice: a job may hold more, even another
        range of a lease that is taken from another job."""
        self._parts = tuple(part for part, _ in parts)
        self._part_of = {lease: part for part, leases in parts for lease in leases}
        if len(self._part_of) != sum(len(leases) for _, leases in parts):
            raise BatchError(f"a shard is read twice in one batch: {[sorted(leases) for _, leases in parts]}")
        self.progress: Mapping[LeaseKey, Progress] = {
            lease: part.progress[lease] for lease, part in self._part_of.items() if lease in part.progress
        }
        self.failures: Mapping[LeaseKey, Exception] = {
            lease: part.failures[lease] for lease, part in self._part_of.items() if lease in part.failures
        }

    def data(self, leases: Collection[LeaseKey]) -> DataFrame:
        read = [lease for lease in leases if lease in self.progress]
        sealed = [
            part.sealed(mine)
            for part in self._parts
            if (mine := [lease for lease in read if self._part_of[lease] is part])
        ]
        if not sealed:
            raise BatchError(f"none of {sorted(leases)} was fetched")
        return reduce(Sealed.union, sealed).records()

    def midpoint(self, lease: LeaseKey) -> Checkpoint | None:
        return self._part_of[lease].midpoint(lease)

    def records(self, lease: LeaseKey) -> Sequence[PoisonRecord]:
        return self._part_of[lease].records(lease)

    def release(self) -> None:
        for part in self._parts:
            part.release()


def progress_of(range_: Range, trailer: Trailer) -> Progress:
    return Progress(
        range=range_,
        through=Checkpoint(*trailer.through) if trailer.through else None,
        first=trailer.first,
        records=trailer.records,
        bytes=trailer.bytes,
        millis_behind=trailer.millis_behind,
        ended=trailer.ended,
        children=tuple(
            ChildShard(child.id, HashRange(int(child.start), int(child.end)), child.parents)
            for child in trailer.children
        ),
        gone=trailer.gone,
        start_trimmed=trailer.start_trimmed,
        first_arrival_ms=trailer.first_arrival_ms,
        last_arrival_ms=trailer.last_arrival_ms,
        broken_aggregates=trailer.broken_aggregates,
    )


def failure_of(kind: str, message: str) -> KclError:
    """The executor's error again, by its name; errors of the AWS edge are service errors here."""
    known = getattr(errors, kind, ServiceError)
    error: KclError = known(message)
    return error
