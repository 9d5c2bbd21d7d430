"""What an application's tables and its requests to S3 cost, and for how long its workers run, estimated from its
settings. Pure.

Every write of a row up to 1 KB is one write unit; a consistent read is one read unit for each 4 KB, any other half.
S3 charges a put, a copy and a listing alike, and a deletion not at all.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from kcl_dagster.application import Application
from kcl_dagster.worker.settings import BOUNDED_SECONDS, DISCOVERY_SECONDS

SECONDS_PER_MONTH: Final = 30 * 86_400
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

# A fetch has two tasks, and each closes a file for each partition value.
TASKS: Final = 2
# In a folder in chains, a file is put, and copied to its final name.
PUTS_OF_PUBLISHED: Final = 2
ENTRY_PUTS: Final = 1  # for each batch in chains
# A commit of a table: its plan, the version of its log, and what is listed to find entries and the last version.
COMMIT_PUTS: Final = 6

# us-east-1, on demand, dollars for a million units. Regions differ by up to 60 %.
WRITE_PRICE: Final = 0.625
READ_PRICE: Final = 0.125
PUT_PRICE: Final = 5.0
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


StoredIn = Literal["folder", "table", "other"]
"""What is stored to: a folder of Parquet or a table on S3, or anything that makes no requests to S3."""


@dataclass(frozen=True, slots=True)
class Storing:
    """How batches are stored."""

    target: StoredIn = "folder"
    chained: bool = False
    """Whether batches are decided in chains, else in their leases."""

    commit_seconds: float = 30.0
    """Between two commits of a table in chains. All workers share them."""

    partition_values: int = 1
    """How many a batch has."""

    def files(self, shards: int) -> float:
        """Of one batch of one worker that has so many shards with records."""
        return (min(TASKS, shards) if self.chained else shards) * self.partition_values

    def puts(self, shards: int) -> float:
        """Requests of one batch of one worker, without what all workers share."""
        files, is_table = self.files(shards), self.target == "table"
        if self.target == "other":
            return 0.0
        if not self.chained:
            return files + (COMMIT_PUTS if is_table else 0)
        return files * (1 if is_table else PUTS_OF_PUBLISHED) + ENTRY_PUTS

    def __str__(self) -> str:
        many = "value" if self.partition_values == 1 else "values"
        place = "not on S3" if self.target == "other" else f"a {self.target} on S3"
        decided = "chains" if self.chained else "leases"
        parts = [f"{self.partition_values} partition {many} a batch", f"{place}, decided in {decided}"]
        if self.commits:
            parts.append(f"a commit every {self.commit_seconds:g} s")
        return ", ".join(parts)

    @property
    def commits(self) -> float:
        """Requests a second for the commits that all workers share."""
        return COMMIT_PUTS / self.commit_seconds if self.chained and self.target == "table" else 0.0


@dataclass(frozen=True, slots=True)
class CostLine:
    """Units a second for one purpose. `puts`: requests to S3."""

    purpose: str
    writes: float = 0.0
    reads: float = 0.0
    puts: float = 0.0

    def dollars(self, prices: Prices) -> float:
        """A month."""
        units = self.writes * prices.write + self.reads * prices.read + self.puts * prices.put
        return units * SECONDS_PER_MONTH / 1e6


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
        return sum(line.puts for line in self.lines) * 3600

    @property
    def s3_dollars(self) -> float:
        """A month, of `dollars`."""
        return self.puts_per_hour / 3600 * self.prices.put * SECONDS_PER_MONTH / 1e6

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
            "price_per_million": {"write": self.prices.write, "read": self.prices.read, "put": self.prices.put},
            "lines": [
                {
                    "purpose": line.purpose,
                    "write_units_per_second": round(line.writes, 4),
                    "read_units_per_second": round(line.reads, 4),
                    "s3_puts_per_second": round(line.puts, 4),
                    "dollars_per_month": round(line.dollars(self.prices), 2),
                }
                for line in self.lines
            ],
            "data_files_per_hour": round(self.files_per_hour, 1),
            "s3_puts_per_hour": round(self.puts_per_hour, 1),
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

    Left out: reshards, handoffs, compactions, gets of S3, and what Kinesis itself costs.
    """
    timings, batch, storing = application.timings, application.batch, storing or Storing()
    tick = timings.tick_interval + SENSOR_STEP_SECONDS
    renewals = 1 / timings.renewal_interval
    # A batch that takes longer than a renewal interval is renewed in between. In chains, checkpoints are written
    # with the renewals.
    while_busy = renewals if storing.chained else max(WRITES_PER_BATCH / batch.max_seconds, renewals)
    each = max(1, -(-shards // max(1, workers)))
    batches = workers * busy / batch.max_seconds
    table_units = -(-(shards + workers) * ROW_BYTES // READ_UNIT_BYTES)
    lines = (
        CostLine("leases: batches and renewals", writes=shards * (busy * while_busy + (1 - busy) * renewals)),
        CostLine("workers: heartbeats", writes=workers / timings.heartbeat),
        CostLine("workers: looking for leases", reads=workers * 0.5 / DISCOVERY_SECONDS),
        CostLine(
            "leader: lock, memory, looking at everything",
            writes=WRITES_PER_TICK / tick + 1 / MEMORY_SAVE_SECONDS,
            reads=(table_units + READS_PER_TICK) / tick,
        ),
        CostLine("storage: files, entries and commits", puts=batches * storing.puts(each) + storing.commits * busy),
    )
    hours, files = workers * SECONDS_PER_MONTH / 3600, batches * storing.files(each) * 3600
    assumptions = f"batches of {batch.max_seconds:g} s, shards busy {busy:.0%} of the time, {storing}"
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
    per_lease = LEASE_WRITES_PER_RUN + renewals + (0 if storing.chained else WRITES_PER_BATCH * batches)
    # A table is committed to when everything is read.
    puts = batches * storing.puts(shards) + (COMMIT_PUTS if storing.commits else 0)
    ticks = run_seconds / RUN_TICK_SECONDS
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
    )
    hours = SECONDS_PER_MONTH / every * run_seconds / 3600
    files = batches * storing.files(shards) * 3600 / every
    reading = f"{READING_SHARE * run_seconds:g} s of reading in a run of {run_seconds:g} s"
    assumptions = f"batches of {batch_seconds:g} s, {reading}, {storing}"
    return Cost(shards, 1, run_seconds / every, prices or Prices(), lines, hours, files, assumptions)
