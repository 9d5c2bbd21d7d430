"""What an application's tables and its requests to S3 cost, and for how long its workers run, estimated from its
settings. Pure.

Every write of a row up to 1 KB is one write unit; a consistent read is one read unit for each 4 KB, any other half.
S3 charges a put, a copy and a listing alike, a get a twelfth of that, and a deletion nothing.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from kcl_dagster.application import Application
from kcl_dagster.model.counting import counted
from kcl_dagster.worker.settings import BOUNDED_SECONDS, DISCOVERY_SECONDS, TASK_BYTES

SECONDS_PER_MONTH: Final = 30 * 86_400
SECONDS_PER_HOUR: Final = 3600
ROW_BYTES: Final = 500  # a lease after some batches, or a worker row
READ_UNIT_BYTES: Final = 4096
WRITES_PER_BATCH: Final = 2  # announced, then checkpointed; either counts as a renewal
READS_PER_TICK: Final = 2  # the control row and the protocol; the lock is written, not read
WRITES_PER_TICK: Final = 1  # the lock
MEMORY_SAVE_SECONDS: Final = 30.0  # the leader's memory is written this often while little changes
SENSOR_STEP_SECONDS: Final = 1  # a tick comes a second after its interval is over: 4 means every 5 s

# A bounded run with little to read: Python and Spark start, it reads ten seconds further than its moment
# (`timings.arrival_margin`), and gives everything back. What there is to read comes on top.
RUN_SECONDS: Final = 40.0
RUN_TICK_SECONDS: Final = 1.0  # it leads meanwhile
READING_SHARE: Final = 0.25  # of a run; in the rest it starts, waits until it may end, and ends
RUN_LOOKS: Final = 5  # at the whole table, while it finds out that everything is read
LEASE_WRITES_PER_RUN: Final = 4  # assigned, acquired, written through when it is stored, released

# A fetch has at most two tasks, and each closes a file for each partition value.
TASKS: Final = 2
# In a folder in chains, a file is put, and copied to its final name.
PUTS_OF_PUBLISHED: Final = 2
ENTRY_PUTS: Final = 1  # for each batch in chains
# A compaction asks for each file twice: for what it holds, and whether it is still as it was.
GETS_OF_COMPACTED: Final = 2
COMPACTIONS_PER_HOUR: Final = 1
# Its lock and the listings, and a journal and a file for each partition value.
PUTS_OF_COMPACTION: Final = 8
PUTS_OF_MERGE: Final = 2
# A commit of a table: its plan, the version of its log, and what is listed to find entries and the last version.
COMMIT_PUTS: Final = 6

# us-east-1, on demand, dollars for a million units. Regions differ by up to 60 %.
WRITE_PRICE: Final = 0.625
READ_PRICE: Final = 0.125
PUT_PRICE: Final = 5.0
GET_PRICE: Final = 0.4
# A machine of 1 vCPU and 2 GB, dollars an hour: Fargate in us-east-1.
HOUR_PRICE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars for a million on-demand units."""

    write: float = WRITE_PRICE
    read: float = READ_PRICE
    hour: float = HOUR_PRICE
    """Of a worker's machine."""

    put: float = PUT_PRICE
    """Of a million puts, copies and listings of S3."""

    get: float = GET_PRICE
    """Of a million gets of S3."""


StoredIn = Literal["folder", "table", "other"]
"""What is stored to: a folder of Parquet or a table on S3, or anything that makes no requests to S3."""


@dataclass(frozen=True, slots=True)
class Storing:
    """How batches are stored."""

    target: StoredIn = "folder"
    commit_seconds: float = 30.0
    """Between two commits of a table. All workers share them."""

    partition_values: int = 1
    """How many a batch has."""

    outputs: int = 1
    """Tables and folders that each batch is stored into."""

    committed: int | None = None
    """Those of them that get commits. None: the only one, if it is a table."""

    is_compacted: bool = False
    """Whether an operation of the application merges small files every hour."""

    announces_batches: bool = False
    """Whether each batch is written into its leases before and after it, as those of `foreach_batch` are."""

    bytes_per_second: float | None = None
    """Of all workers. None: so much that each batch is read by all tasks."""

    def batch_seconds(self, longest: float, most_bytes: int, workers: int) -> float:
        """How long a batch of a worker is read, until it has `most_bytes`."""
        if self.bytes_per_second is None:
            return longest
        return min(longest, most_bytes * max(1, workers) / self.bytes_per_second)

    def files(self, shards: int, batches: float) -> float:
        """Of one batch of one worker that has so many shards with records. `batches`: how many all workers together
        store in a second."""
        is_small = self.bytes_per_second is not None and self.bytes_per_second / batches < TASK_BYTES
        return (1 if is_small else min(TASKS, shards)) * self.partition_values * self.outputs

    def puts(self, files: float) -> float:
        """Requests of one batch of so many files, without what all workers share."""
        if self.target == "other":
            return 0.0
        each = files / self.outputs
        return each * (self._folders * PUTS_OF_PUBLISHED + self._tables) + ENTRY_PUTS

    @property
    def _tables(self) -> int:
        return int(self.target == "table") if self.committed is None else self.committed

    @property
    def _folders(self) -> int:
        return self.outputs - self._tables

    @property
    def commits(self) -> float:
        """Requests a second for the commits that all workers share."""
        return self.puts_of_commits / self.commit_seconds

    @property
    def puts_of_commits(self) -> float:
        """Requests of one commit of all tables."""
        return 0.0 if self.target == "other" else float(COMMIT_PUTS * self._tables)

    def compaction(self, files: float) -> "CostLine | None":
        """What merging so many files a second costs. Gets of their sources come first, so larger files do not cost
        more. Left out: listings of a folder that holds many thousands of files."""
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
    """Units a second for one purpose. `puts` and `gets`: requests to S3."""

    purpose: str
    writes: float = 0.0
    reads: float = 0.0
    puts: float = 0.0
    gets: float = 0.0

    def dollars(self, prices: Prices) -> float:
        """A month."""
        units = self.writes * prices.write + self.reads * prices.read
        return units * SECONDS_PER_MONTH / 1e6 + self.s3_dollars(prices)

    def s3_dollars(self, prices: Prices) -> float:
        """A month, of `dollars`."""
        return (self.puts * prices.put + self.gets * prices.get) * SECONDS_PER_MONTH / 1e6


@dataclass(frozen=True, slots=True)
class Cost:
    shards: int
    workers: int
    busy: float
    prices: Prices
    lines: tuple[CostLine, ...]

    machine_hours: float = 0.0
    """A month, of all workers together."""

    files_per_hour: float = 0.0
    """Data files that are made, before a compaction merges them."""

    assumptions: str = ""
    """A line: how batches are read and stored."""

    @property
    def dollars(self) -> float:
        """A month, for the tables and for requests to S3."""
        return sum(line.dollars(self.prices) for line in self.lines)

    @property
    def puts_per_hour(self) -> float:
        """Puts, copies and listings of S3."""
        return sum(line.puts for line in self.lines) * SECONDS_PER_HOUR

    @property
    def gets_per_hour(self) -> float:
        """Gets of S3."""
        return sum(line.gets for line in self.lines) * SECONDS_PER_HOUR

    @property
    def s3_dollars(self) -> float:
        """A month, of `dollars`."""
        return sum(line.s3_dollars(self.prices) for line in self.lines)

    @property
    def table_dollars(self) -> float:
        """A month, of `dollars`: for DynamoDB."""
        return self.dollars - self.s3_dollars

    @property
    def machine_dollars(self) -> float:
        """A month, for the machines of the workers."""
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
    """`busy`: the part of the time in which a shard has records, so that batch follows batch.

    Left out: reshards, handoffs, gets of S3 but those of compactions, and what Kinesis itself costs.
    """
    timings, batch, storing = application.timings, application.batch, storing or Storing()
    tick = timings.tick_interval + SENSOR_STEP_SECONDS
    renewals = 1 / timings.renewal_interval
    # Checkpoints are written with the renewals. If a batch that is announced takes longer than a renewal interval,
    # its leases are renewed in between.
    seconds = storing.batch_seconds(batch.max_seconds, batch.max_bytes, workers)
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
    """The same shards, read by a bounded run every `every` seconds that takes `run_seconds`. Nothing runs in
    between, the leader included."""
    timings, storing = application.timings, storing or Storing()
    table_units = -(-(shards + 1) * ROW_BYTES // READ_UNIT_BYTES)
    batch_seconds = min(application.batch.max_seconds, BOUNDED_SECONDS)
    batches = max(1.0, READING_SHARE * run_seconds / batch_seconds)
    renewals = run_seconds / timings.renewal_interval
    per_lease = LEASE_WRITES_PER_RUN + renewals + (WRITES_PER_BATCH * batches if storing.announces_batches else 0)
    # A table is committed to when everything is read.
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
