"""What an application's tables cost, estimated from its settings. Pure.

Every write of a row up to 1 KB is one write unit; a consistent read is one read unit for each 4 KB, any other half.
"""

from dataclasses import dataclass
from typing import Any, Final

from kcl_dagster.application import Application
from kcl_dagster.worker.settings import DISCOVERY_SECONDS

SECONDS_PER_MONTH: Final = 30 * 86_400
ROW_BYTES: Final = 500  # a lease after some batches, or a worker row
READ_UNIT_BYTES: Final = 4096
WRITES_PER_BATCH: Final = 2  # announced, then checkpointed; either counts as a renewal
READS_PER_TICK: Final = 2  # the control row and the protocol; the lock is written, not read
WRITES_PER_TICK: Final = 1  # the lock
MEMORY_SAVE_SECONDS: Final = 30.0  # the leader's memory is written this often while little changes
SENSOR_STEP_SECONDS: Final = 1  # a tick comes a second after its interval is over: 4 means every 5 s

# us-east-1, on demand, dollars for a million units. Regions differ by up to 60 %.
WRITE_PRICE: Final = 0.625
READ_PRICE: Final = 0.125


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars for a million on-demand units."""

    write: float = WRITE_PRICE
    read: float = READ_PRICE


@dataclass(frozen=True, slots=True)
class CostLine:
    """Units a second for one purpose."""

    purpose: str
    writes: float = 0.0
    reads: float = 0.0

    def dollars(self, prices: Prices) -> float:
        """A month."""
        return (self.writes * prices.write + self.reads * prices.read) * SECONDS_PER_MONTH / 1e6


@dataclass(frozen=True, slots=True)
class Cost:
    shards: int
    workers: int
    busy: float
    prices: Prices
    lines: tuple[CostLine, ...]

    @property
    def dollars(self) -> float:
        """A month."""
        return sum(line.dollars(self.prices) for line in self.lines)

    def to_document(self) -> dict[str, Any]:
        return {
            "shards": self.shards,
            "workers": self.workers,
            "busy": self.busy,
            "price_per_million": {"write": self.prices.write, "read": self.prices.read},
            "lines": [
                {
                    "purpose": line.purpose,
                    "write_units_per_second": round(line.writes, 4),
                    "read_units_per_second": round(line.reads, 4),
                    "dollars_per_month": round(line.dollars(self.prices), 2),
                }
                for line in self.lines
            ],
            "dollars_per_month": round(self.dollars, 2),
        }


def estimate(
    application: Application, *, shards: int, workers: int, busy: float = 1.0, prices: Prices | None = None
) -> Cost:
    """`busy`: the part of the time in which a shard has records, so that batch follows batch.

    Left out: reshards, handoffs, and what Kinesis itself costs.
    """
    timings, batch = application.timings, application.batch
    tick = timings.tick_interval + SENSOR_STEP_SECONDS
    renewals = 1 / timings.renewal_interval
    # A batch that takes longer than a renewal interval is renewed in between.
    while_busy = max(WRITES_PER_BATCH / batch.max_seconds, renewals)
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
    )
    return Cost(shards, workers, busy, prices or Prices(), lines)
