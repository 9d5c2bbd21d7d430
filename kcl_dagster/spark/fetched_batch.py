"""The result of one or several fetch jobs, as the worker uses it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Protocol

from pyspark.sql import DataFrame

from kcl_dagster.errors import BatchError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.outcome import FetchOutcome
from kcl_dagster.spark.staged_ranges import StagedRecords
from kcl_dagster.spark.task_slices import Work
from kcl_dagster.worker.batch import PoisonRecord, Progress, Range


class FetchedRanges(Protocol):
    """The result of one fetch job. `FrozenRanges` and `StagedRanges` implement it."""

    ranges: tuple[Range, ...]
    outcome: FetchOutcome

    def form(self, leases: Collection[LeaseKey]) -> DataFrame | StagedRecords: ...
    def midpoint(self, lease: LeaseKey) -> Checkpoint | None: ...
    def records(self, lease: LeaseKey) -> Sequence[PoisonRecord]: ...
    def release(self) -> None: ...


class FetchedBatch:
    """The fetched records of a batch, see `worker.batch.Fetched`."""

    def __init__(
        self,
        parts: Sequence[tuple[FetchedRanges, Collection[LeaseKey]]],
        ahead: tuple[FetchedRanges, float] | None = None,
        worked: Callable[[Work, int], None] | None = None,
    ) -> None:
        """Combine the results of fetch jobs. `parts`: the result of each job, and the leases whose records are
        taken from it. The records of a lease are taken from only one result. A result can have more records than
        are taken from it. It can even have a range of a lease whose records are taken from another result. `ahead`:
        the result of the job that read ahead, and the time at which this job began. `worked`: called when the batch
        is released, with the time that its records took, and the bytes of these records."""
        self._worked = worked
        self._work = Work(0.0)
        self._bytes = 0  # of the leases whose records were last requested
        self._parts = tuple(part for part, _ in parts)
        self._part_of = {lease: part for part, leases in parts for lease in leases}
        if len(self._part_of) != sum(len(leases) for _, leases in parts):
            raise BatchError(f"a shard is read twice in one batch: {[sorted(leases) for _, leases in parts]}")
        outcomes = {lease: part.outcome for lease, part in self._part_of.items()}
        self.progress: Mapping[LeaseKey, Progress] = {
            lease: outcome.progress[lease] for lease, outcome in outcomes.items() if lease in outcome.progress
        }
        if ahead is not None:
            early, since = ahead
            self.progress = {
                lease: replace(progress, read_since=since) if self._part_of[lease] is early else progress
                for lease, progress in self.progress.items()
            }
        self.failures: Mapping[LeaseKey, Exception] = {
            lease: outcome.failures[lease] for lease, outcome in outcomes.items() if lease in outcome.failures
        }

    def data(self, leases: Collection[LeaseKey]) -> Records:
        read = [lease for lease in leases if lease in self.progress]
        forms = [
            part.form(mine)
            for part in self._parts
            if (mine := [lease for lease in read if self._part_of[lease] is part])
        ]
        if not forms:
            raise BatchError(f"none of {sorted(leases)} was fetched")
        self._bytes = sum(self.progress[lease].bytes for lease in read)
        return _records(forms, self._note_work)

    def _note_work(self, work: Work) -> None:
        self._work += work

    def midpoint(self, lease: LeaseKey) -> Checkpoint | None:
        return self._part_of[lease].midpoint(lease)

    def records(self, lease: LeaseKey) -> Sequence[PoisonRecord]:
        return self._part_of[lease].records(lease)

    def release(self) -> None:
        for part in self._parts:
            part.release()
        if self._worked is not None:
            self._worked(self._work, self._bytes)


def _records(forms: Sequence[DataFrame | StagedRecords], worked: Callable[[Work], None]) -> Records:
    """Combine the records of several jobs."""
    staged = [form for form in forms if isinstance(form, StagedRecords)]
    if len(staged) == len(forms):
        whole = reduce(StagedRecords.union, staged)
        return Records(whole, whole.records, worked)

    def frame() -> DataFrame:
        frames = [form.records() if isinstance(form, StagedRecords) else form for form in forms]
        return reduce(DataFrame.unionAll, frames)

    return Records(None, frame, worked)
