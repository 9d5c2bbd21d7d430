"""Records that a fetch stages, that is, writes into the files of the batch, while it still reads. Used for batches
that are committed in chains.

The fetch task writes its rows into staged files and returns a list of these files. So a batch needs no second Spark
job, and no record enters the JVM. The driver receives the list of the attempt whose result Spark has accepted. The
files of other attempts do not belong to any batch.

The files of a fetch are used only if both of these conditions are met:

- The batch stores all records of the fetch, because a file can have rows of several shards.
- The files were staged for the chain (the worker's log of its batches) in which the batch is decided.

If not, the records are read from the stream again. Each range is read up to the same end, and so has the same
records as before.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from kcl_dagster.chains.publication import discard, staged_of_batch
from kcl_dagster.chains.store import FileStore
from kcl_dagster.errors import BatchContentChanged, BatchError, KclError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Clock, system
from kcl_dagster.spark.failures import CONTENT_CHANGED, Marks, fetch_failures
from kcl_dagster.spark.fetch import FetchPlan, Trailer, client_of, fetch
from kcl_dagster.spark.frozen import midpoint_of, poison_records_of
from kcl_dagster.spark.outcome import FetchOutcome
from kcl_dagster.spark.python_worker_tuning import TaskMemory, settle
from kcl_dagster.spark.reader_processes import FetchTasks
from kcl_dagster.spark.row_types import row_type
from kcl_dagster.spark.schema import COLUMNS, LEASE_KEY, PROGRESS
from kcl_dagster.worker.batch import PoisonRecord, Range

log = logging.getLogger(__name__)

Manifest = list[dict[str, Any]]
"""A list of staged files. It has a dict for each file, with values that JSON supports. `path` is the path that the
file gets when the batch is published.
"""

_STAGED: Final = pa.schema(
    [("lease_key", pa.string()), ("trailer", pa.string()), ("files", pa.string()), ("seconds", pa.float64())]
)
STAGED_TYPE: Final = row_type(_STAGED)


class WriteRows(Protocol):
    """Writes rows into staged files. Can be sent to an executor."""

    def write(
        self, rows: Iterator[pa.RecordBatch], task: int, attempt: int, only_lease: LeaseKey | None
    ) -> Manifest:
        """Stage all rows that a task reads. `attempt`: a number that no other attempt of any task has.
        `only_lease`: the lease of all records, if there is only one lease. If this method raises, it leaves no
        files."""


@dataclass(frozen=True, slots=True)
class FetchStaging:
    """How one fetch stages the records that it reads. `batch`: a number that no other fetch or batch of the
    chain has."""

    chain: ChainId
    batch: int
    store: FileStore
    files: WriteRows

    def discard(self, files: Manifest) -> None:
        with suppress(KclError, OSError):  # when the chain is settled, the remaining files are removed
            discard(self.store, self.chain, [str(file["path"]) for file in files])

    def discard_all(self) -> None:
        """Remove the files of all attempts."""
        with suppress(KclError, OSError):
            self.store.delete(staged_of_batch(self.store, self.chain, self.batch))


# In the executors


@dataclass(frozen=True, slots=True)
class StageFetched:
    """A function for `mapInArrow` that reads the shards of a task and stages the records. Yields a row with the
    trailer of each lease, and a row with the list of files."""

    plan: FetchPlan
    staging: FetchStaging

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client = client_of(self.plan.connection)
        settle()
        [task] = [number for batch in batches for number in batch.column(0).to_pylist()]
        context = TaskContext.get()
        attempt = 0 if context is None else context.taskAttemptId()
        leases = [shard.range.lease for shard in self.plan.tasks[task]]
        only_lease = leases[0] if len(leases) == 1 else None
        memory = TaskMemory()
        records = memory.watch(fetch(self.plan, task, client, system()))
        yield pa.RecordBatch.from_pylist(stage_fetched(records, self.staging, task, attempt, only_lease), _STAGED)
        memory.end()


def stage_fetched(
    fetched: Iterator[pa.RecordBatch],
    staging: FetchStaging,
    task: int,
    attempt: int,
    only_lease: LeaseKey | None = None,
    clock: Clock | None = None,
) -> list[dict[str, Any]]:
    """Stage the records of a fetch. Returns rows of `_STAGED`: one with the trailer of each lease, and one with the
    list of files (`files`) and the seconds in which the task did not wait for records or the store (`seconds`).
    `files` is null if the records could not be staged, because the consumer's code or the store has failed. It is
    also null if the files do not have exactly the records that the trailers count, because a shard has failed after
    some of its records were staged."""
    clock = clock or system().clock
    read, began = _Read(fetched, clock), clock.monotonic()
    files: Manifest | None = None
    try:
        files = staging.files.write(read.records(), task, attempt, only_lease)
    except (Exception, SystemExit) as error:
        # A separate job then stages the batch. If that job fails, the batch fails. The text of this error is not
        # logged, because it can quote a record.
        log.warning("what was fetched could not be staged meanwhile: %s", type(error).__name__)
    stored = sum(float(file.get("seconds", 0.0)) for file in files or ())
    seconds = clock.monotonic() - began - read.waited - stored
    read.rest()
    if files is not None and not read.is_complete():
        staging.discard(files)
        files = None
    said = [{"lease_key": lease, "trailer": trailer} for lease, trailer in read.trailers.items()]
    return [*said, {"files": None if files is None else json.dumps(files), "seconds": seconds}]


@dataclass(slots=True)
class _Read:
    """Divides the batches of a fetch into the records, which are yielded, and the trailers of the ranges."""

    fetched: Iterator[pa.RecordBatch]
    clock: Clock
    waited: float = 0.0
    """The seconds in which `records` has waited for the next batch of the fetch."""

    trailers: dict[str, str] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    """The number of records that `records` has yielded, by lease."""

    def records(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._next()) is not None:
            proofs = batch.column(PROGRESS)
            if proofs.null_count == 0:
                self._note(proofs)
            elif batch.num_rows:
                self.rows[batch.column(LEASE_KEY)[0].as_py()] += batch.num_rows
                yield batch.select(COLUMNS)

    def _next(self) -> pa.RecordBatch | None:
        began = self.clock.monotonic()
        try:
            return next(self.fetched, None)
        finally:
            self.waited += self.clock.monotonic() - began

    def rest(self) -> None:
        """Read the fetch to its end and discard the remaining records. This is necessary because the trailers are
        in the last Arrow batch of a fetch."""
        for _ in self.records():
            pass

    def is_complete(self) -> bool:
        said = {lease: msgspec.json.decode(text, type=Trailer) for lease, text in self.trailers.items()}
        return all(
            lease in said and said[lease].failure is None and said[lease].records == rows
            for lease, rows in self.rows.items()
        )

    def _note(self, proofs: pa.Array) -> None:
        for proof in proofs.to_pylist():
            if proof["trailer"] is not None:
                self.trailers[proof["lease_key"]] = proof["trailer"]


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """A function for `mapInArrow` that returns the records of pinned ranges (ranges with a fixed end). Each
    evaluation reads the ranges from the stream. If a range cannot be read up to its end, the evaluation fails, and
    the batch has to be fetched again."""

    plan: FetchPlan
    marks: Marks = field(default_factory=Marks)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client = client_of(self.plan.connection)
        settle()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                read = _Read(fetch(self.plan, task, client, system()), system().clock)
                yield from read.records()
                for shard in self.plan.tasks[task]:
                    self._check(shard.range, read.trailers.get(shard.range.lease))

    def _check(self, pinned: Range, said: str | None) -> None:
        trailer = Trailer() if said is None else msgspec.json.decode(said, type=Trailer)
        through = None if trailer.through is None else Checkpoint(*trailer.through)
        if trailer.failure is not None or through != pinned.through:
            why = f"read through {through}" if trailer.failure is None else ": ".join(trailer.failure)
            raise RuntimeError(f"{self.marks.of(CONTENT_CHANGED)}: {pinned.lease} could not be read again: {why}")


# On the driver

Again = Callable[[Sequence[Range]], DataFrame]
"""A function that returns the records of pinned ranges. The ranges are read when the DataFrame is evaluated."""


class StagedRanges:
    """The result of one fetch job that staged files."""

    def __init__(
        self, ranges: Sequence[Range], tasks: FetchTasks, plan: FetchPlan, staging: FetchStaging, again: Again
    ) -> None:
        """Run the job. `again`: reads ranges again."""
        self.ranges = tuple(ranges)
        self.chain = staging.chain
        self._staging = staging
        self._again = again
        self._is_taken = False
        try:
            with fetch_failures():
                rows = tasks.map(StageFetched(plan, staging), STAGED_TYPE).collect()
            said = {LeaseKey(row.lease_key): str(row.trailer) for row in rows if row.lease_key is not None}
            lists = [row.files for row in rows if row.lease_key is None]
            self.seconds = 0.0 if None in lists else sum(row.seconds for row in rows if row.lease_key is None)
            """The seconds in which tasks did not wait, but processed and wrote records. 0 if a task could not stage
            its records: its time is then not that of all records."""
            if len(said) != len(rows) - len(lists) or set(said) != {range_.lease for range_ in ranges}:
                raise BatchContentChanged(f"{len(ranges)} ranges were fetched and {len(said)} accounted for")
            if len(lists) != len(plan.tasks):
                raise BatchContentChanged(
                    f"{len(plan.tasks)} tasks have fetched, and {len(lists)} accounted for files"
                )
            self.outcome = FetchOutcome.of(ranges, said)
        except BaseException:
            staging.discard_all()  # tasks that succeeded have left files, but their lists did not arrive
            raise
        self._known: Manifest = [file for files in lists if files is not None for file in json.loads(files)]
        self._is_staged = None not in lists

    def files_of(self, leases: Collection[LeaseKey]) -> Manifest | None:
        """The files with the records of these leases. None if files are missing, or if some files also contain
        records of other leases."""
        read = {lease for lease, progress in self.outcome.progress.items() if progress.records}
        return list(self._known) if self._is_staged and read <= set(leases) else None

    def take(self) -> None:
        """Mark the files as files of a batch, so that `release` does not remove them. If the batch becomes void (is
        not decided), its files are removed when its chain is settled."""
        self._is_taken = True

    def read_again(self, leases: Collection[LeaseKey]) -> DataFrame:
        progress = [self.outcome.progress[lease] for lease in leases]
        return self._again(
            [
                replace(found.range, through=found.through, first=found.first)
                for found in progress
                if found.records and found.through is not None
            ]
        )

    def form(self, leases: Collection[LeaseKey]) -> "StagedRecords":
        return StagedRecords({self: tuple(leases)})

    def midpoint(self, lease: LeaseKey) -> Checkpoint | None:
        return midpoint_of(self.read_again([lease])) if self._has_records(lease) else None

    def records(self, lease: LeaseKey) -> list[PoisonRecord]:
        return poison_records_of(self.read_again([lease])) if self._has_records(lease) else []

    def release(self) -> None:
        if not self._is_taken:
            self._staging.discard(self._known)

    def _has_records(self, lease: LeaseKey) -> bool:
        return lease in self.outcome.progress and self.outcome.progress[lease].records > 0


@dataclass(frozen=True, slots=True)
class StagedRecords:
    """The records of some leases of a batch, by the fetch that read and staged them."""

    fetches: Mapping[StagedRanges, tuple[LeaseKey, ...]]

    def union(self, other: "StagedRecords") -> "StagedRecords":
        """Return the records of this object together with those of `other`. The two objects must not contain
        records of the same fetch."""
        return StagedRecords({**self.fetches, **other.fetches})

    def files(self, chain: ChainId) -> list[Manifest] | None:
        """The files of each fetch, which contain these records and no others. None if a fetch has no such files, or
        has staged them for another chain."""
        found = [fetch.files_of(leases) for fetch, leases in self.fetches.items() if fetch.chain == chain]
        whole = [files for files in found if files is not None]
        return whole if len(whole) == len(self.fetches) else None

    def take(self) -> None:
        """Mark the files of all fetches as files of a batch, see `StagedRanges.take`."""
        for one in self.fetches:
            one.take()

    def records(self) -> DataFrame:
        """The records as a DataFrame, for uses that cannot take the files. The records are read from the stream
        again."""
        frames = [fetch.read_again(leases) for fetch, leases in self.fetches.items()]
        if not frames:
            raise BatchError("no record was fetched")
        return reduce(DataFrame.unionAll, frames)
