"""Estimates the cost of an application's tables and of its requests to S3, and the hours of its workers, from its
settings. Pure.

- DynamoDB: writing a row of up to 1 KB takes one write unit. A consistent read takes a read unit for each 4 KB, and
  any other read half a unit.
- S3: a put, a copy and a listing cost the same. A get costs a twelfth of that, and a deletion nothing.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from kcl_dagster.application import Application, BatchSettings
from kcl_dagster.model.counting import counted
from kcl_dagster.worker.settings import BOUNDED_SECONDS, DISCOVERY_SECONDS, S3_BATCH_SECONDS, TASK_BYTES

SECONDS_PER_MONTH: Final = 30 * 86_400
SECONDS_PER_HOUR: Final = 3600
ROW_BYTES: Final = 500  # a lease after some batches, or a worker row
READ_UNIT_BYTES: Final = 4096
WRITES_PER_BATCH: Final = 2  # one announces the batch, one writes the checkpoint; both count as renewals
READS_PER_TICK: Final = 2  # the control row, and the row with the protocol; the lock is only written
WRITES_PER_TICK: Final = 1  # the lock
MEMORY_SAVE_SECONDS: Final = 30.0  # between two writes of the leader's memory row while little changes
SENSOR_STEP_SECONDS: Final = 1  # an interval of 4 s means an evaluation every 5 s

# The duration of a bounded run with few records to read. It starts Python and Spark, reads 10 s
# (`timings.arrival_margin`) beyond its bound, and releases its leases. A run with more records takes longer.
RUN_SECONDS: Final = 40.0
RUN_TICK_SECONDS: Final = 1.0  # between two ticks of the run's own leader
READING_SHARE: Final = 0.25  # of a run is for reading; the rest is its start, its wait for the bound, and its end
RUN_LOOKS: Final = 5  # scans of the lease table until everything is read
LEASE_WRITES_PER_RUN: Final = 4  # assigned, acquired, checkpoint written, released

# A fetch has at most two tasks, and each writes one file for each partition value.
TASKS: Final = 2
# In a folder, a file is put, and then copied to its final name.
PUTS_OF_PUBLISHED: Final = 2
ENTRY_PUTS: Final = 1  # the chain's entry, which decides the batch
# A compaction sends two requests for each file: one reads the content, the other one checks whether the file has
# changed.
GETS_OF_COMPACTED: Final = 2
COMPACTIONS_PER_HOUR: Final = 1
# A compaction writes its lock and sends its listings. For each partition value, it also writes a journal and a
# file.
PUTS_OF_COMPACTION: Final = 8
PUTS_OF_MERGE: Final = 2
# A commit of a table writes its plan and a version of the table's log, and lists the entries and the last version.
COMMIT_PUTS: Final = 6

# Us-east-1, on demand, in dollars for a million units. Prices of other regions differ by up to 60 %.
WRITE_PRICE: Final = 0.625
READ_PRICE: Final = 0.125
PUT_PRICE: Final = 5.0
GET_PRICE: Final = 0.4
# A machine with 1 vCPU and 2 GB, in dollars an hour: Fargate in us-east-1.
HOUR_PRICE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in dollars. `write` and `read`: of a million on-demand units."""

    write: float = WRITE_PRICE
    read: float = READ_PRICE
    hour: float = HOUR_PRICE
    """Price of an hour of a worker's machine."""

    put: float = PUT_PRICE
    """Price of a million puts, copies and listings of S3."""

    get: float = GET_PRICE
    """Price of a million gets of S3."""


StoredIn = Literal["folder", "table", "other"]
"""The kind of sink: a folder of Parquet on S3, a table on S3, or one that makes no requests to S3."""


@dataclass(frozen=True, slots=True)
class Storing:
    target: StoredIn = "folder"
    commit_seconds: float = 30.0
    """Seconds between two commits of a table. All workers share the commits."""

    partition_values: int = 1
    """The number of partition values in a batch."""

    outputs: int = 1
    """The number of tables and folders into which each batch is stored."""

    committed: int | None = None
    """How many of the outputs are tables, which get commits. If None: one if `target` is `table`, none
    otherwise."""

    is_compacted: bool = False
    """Whether an operation of the application merges small files every hour."""

    announces_batches: bool = False
    """Whether each batch is written into its leases before and after it is stored, as for `foreach_batch`."""

    bytes_per_second: float | None = None
    """Bytes of records per second, of all workers together. None: every task of each batch has records."""

    def batch_seconds(self, longest: float, most_bytes: int, workers: int) -> float:
        if self.bytes_per_second is None:
            return longest
        return min(longest, most_bytes * max(1, workers) / self.bytes_per_second)

    def files(self, shards: int, batches: float) -> float:
        """The number of files in one batch of one worker, given its number of shards with records. `batches`: how
        many batches all workers together store per second."""
        is_small = self.bytes_per_second is not None and self.bytes_per_second / batches < TASK_BYTES
        return (1 if is_small else min(TASKS, shards)) * self.partition_values * self.outputs

    def puts(self, files: float) -> float:
        """The number of put requests for one batch with this number of files, without the requests that all
        workers share."""
        if self.target == "other":
            return 0.0
        each = files / self.outputs
        return each * (self._folders * PUTS_OF_PUBLISHED + self._tables) + ENTRY_PUTS

    def default_batches(self, batch: BatchSettings) -> float:
        """Return the seconds for which a batch reads records. If the settings do not contain `max_seconds`, a
        folder on S3 has its own default."""
        is_default = "max_seconds" not in batch.model_fields_set
        return S3_BATCH_SECONDS if is_default and self.target == "folder" else batch.max_seconds

    @property
    def _tables(self) -> int:
        return int(self.target == "table") if self.committed is None else self.committed

    @property
    def has_commits(self) -> bool:
        """Whether records become visible by commits of a table."""
        return self.target != "other" and self._tables > 0

    @property
    def _folders(self) -> int:
        return self.outputs - self._tables

    @property
    def commits(self) -> float:
        return self.puts_of_commits / self.commit_seconds

    @property
    def puts_of_commits(self) -> float:
        return 0.0 if self.target == "other" else float(COMMIT_PUTS * self._tables)

    def compaction(self, files: float) -> "CostLine | None":
        """The cost of merging this number of files per second. Before a file is merged, it is read by gets, whose
        number does not depend on the size of the file. Listings of a folder with many thousands of files are not
        included."""
        if not self.is_compacted or self.target == "other":
            return None
        puts = (PUTS_OF_COMPACTION + PUTS_OF_MERGE * self.partition_values) * self.outputs
        return CostLine(
            "storage: hourly compaction",
            puts=puts * COMPACTIONS_PER_HOUR / SECONDS_PER_HOUR,
            gets=files * GETS_OF_COMPACTED,
        )

    def __str__(self) -> str:
        many = "value" if self.partition_values == 1 else "values"
        place = "not on S3" if self.target == "other" else f"a {self.target} on S3"
        if self.outputs > 1 and self.target != "other":
            place = f"{counted(self._folders, 'folder')} and {counted(self._tables, 'table')} on S3"
        parts = [f"{self.partition_values} partition {many} a batch", place]
        if self.bytes_per_second is not None:
            parts.append(f"{self.bytes_per_second / 1e6:g} MB a second")
        if self.announces_batches:
            parts.append("batches announced in leases")
        if self.commits:
            parts.append(f"a commit every {self.commit_seconds:.3g} s")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class CostLine:
    """Units per second for one purpose. `puts` and `gets` are requests to S3."""

    purpose: str
    writes: float = 0.0
    reads: float = 0.0
    puts: float = 0.0
    gets: float = 0.0

    def dollars(self, prices: Prices) -> float:
        """Dollars a month."""
        units = self.writes * prices.write + self.reads * prices.read
        return units * SECONDS_PER_MONTH / 1e6 + self.s3_dollars(prices)

    def s3_dollars(self, prices: Prices) -> float:
        return (self.puts * prices.put + self.gets * prices.get) * SECONDS_PER_MONTH / 1e6


@dataclass(frozen=True, slots=True)
class Cost:
    shards: int
    workers: int
    busy: float
    prices: Prices
    lines: tuple[CostLine, ...]

    machine_hours: float = 0.0
    """Hours a month, of all workers together."""

    files_per_hour: float = 0.0
    """Data files that are written, before a compaction merges them."""

    assumptions: str = ""
    """One line of text that says how batches are read and stored."""

    @property
    def dollars(self) -> float:
        """Dollars a month, for the tables and for requests to S3."""
        return sum(line.dollars(self.prices) for line in self.lines)

    @property
    def puts_per_hour(self) -> float:
        return sum(line.puts for line in self.lines) * SECONDS_PER_HOUR

    @property
    def gets_per_hour(self) -> float:
        return sum(line.gets for line in self.lines) * SECONDS_PER_HOUR

    @property
    def s3_dollars(self) -> float:
        return sum(line.s3_dollars(self.prices) for line in self.lines)

    @property
    def table_dollars(self) -> float:
        return self.dollars - self.s3_dollars

    @property
    def machine_dollars(self) -> float:
        """Dollars a month for the machines of the workers. Not part of `dollars`."""
        return self.machine_hours * self.prices.hour

    def to_document(self) -> dict[str, Any]:
        return {
            "shards": self.shards,
            "workers": self.workers,
            "busy": self.busy,
            "assumptions": self.assumptions,
            "price_per_million": {
                "write": self.prices.write,
                "read": self.prices.read,
                "put": self.prices.put,
                "get": self.prices.get,
            },
            "lines": [
                {
                    "purpose": line.purpose,
                    "write_units_per_second": round(line.writes, 4),
                    "read_units_per_second": round(line.reads, 4),
                    "s3_puts_per_second": round(line.puts, 4),
                    "s3_gets_per_second": round(line.gets, 4),
                    "dollars_per_month": round(line.dollars(self.prices), 2),
                }
                for line in self.lines
            ],
            "data_files_per_hour": round(self.files_per_hour, 1),
            "s3_puts_per_hour": round(self.puts_per_hour, 1),
            "s3_gets_per_hour": round(self.gets_per_hour, 1),
            "dynamodb_dollars_per_month": round(self.table_dollars, 2),
            "s3_dollars_per_month": round(self.s3_dollars, 2),
            "dollars_per_month": round(self.dollars, 2),
            "machine_hours_per_month": round(self.machine_hours, 1),
            "machine_dollars_per_month": round(self.machine_dollars, 2),
        }


def estimate(
    application: Application,
    *,
    shards: int,
    workers: int,
    busy: float = 1.0,
    prices: Prices | None = None,
    storing: Storing | None = None,
) -> Cost:
    """Estimate the cost of a fleet. `busy`: the share of time in which a shard has records, so that one batch
    follows another.

    Not included: resharding, handoffs, and the price of Kinesis itself. Of the gets of S3, only those of
    compactions are included.
    """
    timings, batch, storing = application.timings, application.batch, storing or Storing()
    tick = timings.tick_interval + SENSOR_STEP_SECONDS
    renewals = 1 / timings.renewal_interval
    # Checkpoints are written with the renewals. If an announced batch takes longer than a renewal interval, its
    # leases are renewed during the batch.
    seconds = storing.batch_seconds(storing.default_batches(batch), batch.max_bytes, workers)
    announced = WRITES_PER_BATCH / seconds if storing.announces_batches else 0.0
    while_busy = max(announced, renewals)
    each = max(1, -(-shards // max(1, workers)))
    batches = workers * busy / seconds
    table_units = -(-(shards + workers) * ROW_BYTES // READ_UNIT_BYTES)
    of_batch = storing.files(each, workers / seconds)
    files = batches * of_batch
    compaction = storing.compaction(files)
    lines = (
        CostLine("leases: batches and renewals", writes=shards * (busy * while_busy + (1 - busy) * renewals)),
        CostLine("workers: heartbeats", writes=workers / timings.heartbeat),
        CostLine("workers: looking for leases", reads=workers * 0.5 / DISCOVERY_SECONDS),
        CostLine(
            "leader: lock, memory, looking at everything",
            writes=WRITES_PER_TICK / tick + 1 / MEMORY_SAVE_SECONDS,
            reads=(table_units + READS_PER_TICK) / tick,
        ),
        CostLine(
            "storage: files, entries and commits", puts=batches * storing.puts(of_batch) + storing.commits * busy
        ),
        *(() if compaction is None else (compaction,)),
    )
    hours, files = workers * SECONDS_PER_MONTH / SECONDS_PER_HOUR, files * SECONDS_PER_HOUR
    assumptions = f"batches of {seconds:.3g} s, shards busy {busy:.0%} of the time, {storing}"
    return Cost(shards, workers, busy, prices or Prices(), lines, hours, files, assumptions)


def estimate_catch_up(
    application: Application,
    *,
    shards: int,
    every: float,
    run_seconds: float = RUN_SECONDS,
    prices: Prices | None = None,
    storing: Storing | None = None,
) -> Cost:
    """Estimate the cost of reading `shards` shards by bounded runs. `every`: the seconds from the beginning of one
    run to that of the next. `run_seconds`: the duration of a run. Between two runs there is neither a leader nor a
    worker."""
    timings, storing = application.timings, storing or Storing()
    table_units = -(-(shards + 1) * ROW_BYTES // READ_UNIT_BYTES)
    batch_seconds = min(application.batch.max_seconds, BOUNDED_SECONDS)
    batches = max(1.0, READING_SHARE * run_seconds / batch_seconds)
    renewals = run_seconds / timings.renewal_interval
    per_lease = LEASE_WRITES_PER_RUN + renewals + (WRITES_PER_BATCH * batches if storing.announces_batches else 0)
    # A table is committed once, when everything is read.
    of_batch = storing.files(shards, batches / every)
    puts = batches * storing.puts(of_batch) + storing.puts_of_commits
    ticks, files = run_seconds / RUN_TICK_SECONDS, batches * of_batch / every
    compaction = storing.compaction(files)
    lines = (
        CostLine("leases: batches and renewals", writes=shards * per_lease / every),
        CostLine("workers: heartbeats", writes=(2 + run_seconds / timings.heartbeat) / every),
        CostLine(
            "workers: looking for leases, and for what is left",
            reads=(run_seconds * 0.5 / DISCOVERY_SECONDS + RUN_LOOKS * table_units) / every,
        ),
        CostLine(
            "leader: lock, looking at everything",
            writes=ticks * WRITES_PER_TICK / every,
            reads=ticks * (table_units + READS_PER_TICK) / every,
        ),
        CostLine("storage: files, entries and commits", puts=puts / every),
        *(() if compaction is None else (compaction,)),
    )
    hours = SECONDS_PER_MONTH / every * run_seconds / SECONDS_PER_HOUR
    files *= SECONDS_PER_HOUR
    reading = f"{READING_SHARE * run_seconds:g} s of reading in a run of {run_seconds:g} s"
    assumptions = f"batches of {batch_seconds:.3g} s, {reading}, {storing}"
    return Cost(shards, 1, run_seconds / every, prices or Prices(), lines, hours, files, assumptions)
