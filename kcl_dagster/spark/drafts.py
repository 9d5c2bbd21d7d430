"""Drafts: files that a fetch writes while it reads, for a sink that stores records without a transform.

Most of a consumer's work is to move records: from the Python worker that read them into the JVM, where they wait
until the batch is pinned, and on to the Python worker that writes them. If a sink stores records as they were read,
this is not needed: the fetch writes the files, under names that readers skip, and returns to the driver only how
far it came. When the batch is pinned, the sink gives each file a name that readers see.

A draft is written once, by one attempt of one task, and the driver receives the result of the attempt that Spark
counted. So the draft contains exactly what was counted, even if executors are lost meanwhile.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from kcl_dagster.errors import BatchContentChanged, KclError, SinkError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import system
from kcl_dagster.spark.failures import Marks, fetch_failures
from kcl_dagster.spark.fetch import BATCH_ROWS, FetchPlan, Trailer, client_of, fetch
from kcl_dagster.spark.origins import promised
from kcl_dagster.spark.outcome import FetchOutcome
from kcl_dagster.spark.parquet_file import Footer, ParquetFile
from kcl_dagster.spark.schema import COLUMNS, LEASE_KEY, PROGRESS, RECORD_DDL, RECORDS, REPEATING, ddl
from kcl_dagster.spark.settling import settle
from kcl_dagster.spark.storage import Store
from kcl_dagster.worker.batch import PoisonRecord, Range

FOLDER: Final = "_drafts"  # readers pass over names that begin with an underscore
SUFFIX: Final = ".draft"  # and those who look for *.parquet in every folder, over this
# A draft is published or thrown away within a batch's time; what is as old as this was left by a worker that died.
LEFT_BEHIND_SECONDS: Final = 6 * 3600.0

_DRAFTS: Final = pa.schema(
    [
        ("lease_key", pa.string()),
        ("trailer", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("footer", pa.binary()),
    ]
)
DRAFTS_DDL: Final = ddl(_DRAFTS)


@runtime_checkable
class DraftedSink(Protocol):
    """A sink for which fetches may write files."""

    @property
    def drafts_into(self) -> Store | None:
        """The store for drafts. None as long as it is not known that records are stored as they were read."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A file that a fetch wrote. `path` is relative to its store."""

    path: str
    rows: int
    bytes: int
    footer: Footer = field(default=b"", repr=False)


# In the executors


@dataclass(frozen=True, slots=True)
class WriteDrafts:
    """Function for `mapInArrow`: reads the shards of a task, writes a file for each, and yields a row for each.
    `name`: prefix of the names of all files of the fetch."""

    plan: FetchPlan
    store: Store
    name: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client = client_of(self.plan.connection)
        settle()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                records = fetch(self.plan, task, client, system())
                yield pa.RecordBatch.from_pylist(write_drafts(records, self.store, self.name), schema=_DRAFTS)


def write_drafts(fetched: Iterator[pa.RecordBatch], store: Store, name: str) -> list[dict[str, object]]:
    """Store what a fetch yields. Returns a row of `_DRAFTS` for each of its leases. If the file of a shard cannot
    be stored, the shard counts as not read, with that reason."""
    files: dict[str, ParquetFile] = {}
    attempts: dict[str, str] = {}
    said: dict[str, str] = {}
    for batch in fetched:
        proofs = batch.column(PROGRESS)
        if proofs.null_count == 0:
            for proof in proofs.to_pylist():
                attempts[proof["lease_key"]] = proof["attempt"]
                if proof["trailer"] is not None:
                    said[proof["lease_key"]] = proof["trailer"]
        elif batch.num_rows:
            lease = batch.column(LEASE_KEY)[0].as_py()
            if lease not in files:
                files[lease] = ParquetFile(RECORDS, REPEATING)
            files[lease].write(batch.select(COLUMNS))
    written: list[dict[str, object]] = []
    try:
        for lease, trailer in said.items():
            row: dict[str, object] = {"lease_key": lease, "trailer": trailer}
            file = files.pop(lease, None)
            if file is not None and msgspec.json.decode(trailer, type=Trailer).failure is None:
                row |= _stored(file, store, f"{FOLDER}/{name}.{lease.replace(':', '.')}.{attempts[lease]}{SUFFIX}")
            written.append(row)
    except BaseException:
        with suppress(KclError, OSError):  # they are swept one day
            store.delete([str(row["path"]) for row in written if row.get("path")])
        raise
    return written


def _stored(file: ParquetFile, store: Store, path: str) -> dict[str, object]:
    content = file.finish()
    try:
        store.put(path, content)
    except (OSError, KclError) as error:
        failure = Trailer(failure=("SinkError", f"{path} could not be written to {store.root}: {error}"))
        return {"trailer": msgspec.json.encode(failure).decode()}
    return {"path": path, "rows": file.rows, "bytes": len(content), "footer": file.footer}


@dataclass(frozen=True, slots=True)
class ReadDrafts:
    """The records of drafts, for `mapInArrow`. The input names them by their place in `paths`."""

    store: Store
    paths: tuple[str, ...]
    marks: Marks = field(default_factory=Marks)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with self.marks.errors():  # the user's code is what Spark runs this for
                    records = _read(self.store, self.paths[number])
                yield from records.to_batches(BATCH_ROWS)


def _read(store: Store, path: str, columns: Sequence[str] | None = None) -> pa.Table:
    try:
        return pq.read_table(pa.BufferReader(store.get(path)), columns=columns)
    except (OSError, KclError, pa.ArrowException) as error:
        raise SinkError(f"{path} could not be read from {store.root}: {error}") from error


# On the driver


@dataclass(frozen=True, slots=True)
class Drafted:
    """The drafts of some leases of a batch."""

    spark: SparkSession
    store: Store
    drafts: Mapping[LeaseKey, Draft]

    def union(self, other: "Drafted") -> "Drafted":
        """Of no common lease, and of one store."""
        return Drafted(self.spark, self.store, {**self.drafts, **other.drafts})

    def records(self) -> DataFrame:
        """The records as columns; the rows of a lease are in one partition, in order."""
        return promised(self._frame, self)

    def _frame(self) -> DataFrame:
        paths = tuple(draft.path for draft in self.drafts.values())
        numbers = self.spark.range(0, len(paths), 1, max(1, len(paths)))
        return numbers.mapInArrow(ReadDrafts(self.store, paths), RECORD_DDL)


class DraftedRanges:
    """The outcome of one fetch job that wrote drafts."""

    def __init__(
        self, ranges: Sequence[Range], numbers: DataFrame, plan: FetchPlan, store: Store, name: str
    ) -> None:
        """Run the job, with a task for each of `numbers`. No other fetch may have this `name`."""
        self.ranges = tuple(ranges)
        self._spark = numbers.sparkSession
        self._store = store
        try:
            with fetch_failures():
                rows = numbers.mapInArrow(WriteDrafts(plan, store, name), DRAFTS_DDL).collect()
        except BaseException:
            # Tasks that had succeeded have left files that no result names.
            with suppress(KclError, OSError):
                store.delete([file.path for file in store.files(f"{FOLDER}/{name}.", hidden=True)])
            raise
        said = {LeaseKey(row.lease_key): str(row.trailer) for row in rows}
        self._drafts = {
            LeaseKey(row.lease_key): Draft(row.path, row.rows, row.bytes, bytes(row.footer))
            for row in rows
            if row.path is not None
        }
        if len(rows) != len(ranges) or set(said) != {range_.lease for range_ in ranges}:
            self.release()
            raise BatchContentChanged(f"{len(ranges)} ranges were fetched and {len(rows)} accounted for")
        self.outcome = FetchOutcome.of(ranges, said)

    def form(self, leases: Collection[LeaseKey]) -> Drafted:
        mine = {lease: self._drafts[lease] for lease in leases if lease in self._drafts}
        return Drafted(self._spark, self._store, mine)

    def midpoint(self, lease: LeaseKey) -> Checkpoint | None:
        if lease not in self._drafts:
            return None
        places = _read(self._store, self._drafts[lease].path, ["sequence_number", "sub_sequence_number"])
        if places.num_rows < 2:
            return None
        place = places.slice(places.num_rows // 2 - 1, 1).to_pylist()[0]
        return Checkpoint(place["sequence_number"], place["sub_sequence_number"])

    def records(self, lease: LeaseKey) -> list[PoisonRecord]:
        if lease not in self._drafts:
            return []
        rows = _read(self._store, self._drafts[lease].path).to_pylist()
        return [
            PoisonRecord(
                data=row["data"],
                partition_key=row["partition_key"],
                sequence_number=row["sequence_number"],
                sub_sequence_number=row["sub_sequence_number"],
                explicit_hash_key=row["explicit_hash_key"],
                arrival_ms=round(row["arrival_timestamp"].timestamp() * 1000) if row["arrival_timestamp"] else None,
            )
            for row in rows
        ]

    def release(self) -> None:
        """What was published has another name by now."""
        with suppress(KclError, OSError):  # they are swept one day
            self._store.delete([draft.path for draft in self._drafts.values()])


def sweep(store: Store, before: float, *, everywhere: bool = False) -> int:
    """Remove drafts, and files that were never finished, last written until `before`, in epoch seconds; how many.
    A worker that comes back to one of them cannot publish it, and reads its records again.

    `everywhere`: look for unfinished files in all folders of the store, which may be many.
    """
    found = [*store.files(f"{FOLDER}/", hidden=True), *store.unfinished("" if everywhere else f"{FOLDER}/")]
    left = [file.path for file in found if file.modified <= before]
    store.delete(left)
    return len(left)
