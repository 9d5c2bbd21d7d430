"""A worker's intervals and limits, from the application's settings."""

from dataclasses import dataclass

from kcl_dagster.application import Application, Retrieval
from kcl_dagster.worker.batch import Budget

DISCOVERY_SECONDS = 1.0  # an index query costs half a read unit: 43,000 units per day and worker, about one cent
WATCHING_SECONDS = 0.25  # between two looks for leases that another worker is about to hand over
PARENT_POLL_SECONDS = 2.0  # one consistent read per blocked lease; a reshard delays reading by about this long
ROUNDS_TO_WAIT = 5  # writing a batch can take several times as long as fetching it
# How long a draining worker waits for the leader before it releases its leases itself, in handoff timeouts.
DRAIN_PATIENCE = 2.0
# The longest read of a bounded run. Its records are already in the stream, so it does not wait for more.
BOUNDED_SECONDS = 5.0
# How long a batch for a folder on S3 is read by default. On S3 each request is paid for, and a batch makes three or
# more.
S3_BATCH_SECONDS = 6.5
# A record processor gets records about as often as from the KCL. It does not get them more often, because each call
# can cost a checkpoint.
LINGER_OF_PROCESSORS = {Retrieval.FANOUT: 0.05, Retrieval.POLLING: 1.0}
BATCHES_OF_HANDOFF = 3
TASK_BYTES = 2 * 1024 * 1024  # a smaller batch is read by one task, into one file
# A leader replaces workers at the end of their lifetime one after another. If a worker is not replaced within a
# second lifetime, it ends by itself, at a random time within a third lifetime, so that workers do not all end at
# once.
OVERTIME = 2.0
# How long a batch is allowed to take after a stop request, in handoff timeouts. After the first timeout, the batch
# has lost its leases and is interrupted. After the last timeout, the process ends, because the batch could not be
# committed any more.
END_PATIENCE = 2.0
REQUESTS_PER_RENEWAL = 2  # if a request hangs, there is time for another one before the next renewal is due


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The intervals and limits. All are in seconds, except for `budget`."""

    lease_duration: float
    renewal_interval: float
    handoff_timeout: float
    heartbeat: float
    leaderless: float
    lifetime: float
    idle: float
    budget: Budget
    discovery: float = DISCOVERY_SECONDS
    parent_poll: float = PARENT_POLL_SECONDS

    @classmethod
    def of(
        cls, application: Application, *, is_bounded: bool = False, has_processors: bool = False
    ) -> "WorkerSettings":
        timings, batch = application.timings, application.batch
        seconds = min(batch.max_seconds, BOUNDED_SECONDS) if is_bounded else batch.max_seconds
        linger = batch.linger_seconds
        if linger is None and has_processors:
            linger = LINGER_OF_PROCESSORS[batch.retrieval]
        return cls(
            lease_duration=timings.lease_duration,
            renewal_interval=timings.renewal_interval,
            handoff_timeout=timings.handoff_timeout,
            heartbeat=timings.heartbeat,
            leaderless=timings.leaderless,
            lifetime=application.fleet.lifetime,
            idle=batch.idle_seconds,
            budget=Budget(batch.max_records, batch.max_bytes, seconds, linger),
        )

    def longest_life(self, chance: float) -> float:
        """Seconds after which a worker ends if no leader has replaced it. `chance`: from 0 to 1, drawn once."""
        return self.lifetime * (OVERTIME + chance)

    @property
    def reads_on(self) -> float:
        """For how many seconds a lease is read after a handoff of it was noticed: the length of a batch of the next
        owner. 0 if batches are so long that the handoff could then exceed its timeout. A lease that is read on can
        still be in a batch when the time is over, and in another one after it."""
        return self.budget.seconds if BATCHES_OF_HANDOFF * self.budget.seconds <= self.handoff_timeout else 0.0

    def reads_on_beside(self, storing: float) -> float:
        """`reads_on` if it takes `storing` seconds to store a batch. The last batch that is read must be stored
        before the handoff timeout, or its records are read again by the next owner."""
        return max(0.0, min(self.reads_on, self.handoff_timeout - self.budget.seconds - storing))

    @property
    def arrival_patience(self) -> float:
        """For how many seconds a lease in a handoff is expected. Its former owner notices the handoff within a
        renewal interval, and then has the handoff timeout."""
        return self.renewal_interval + self.handoff_timeout

    @property
    def drain_patience(self) -> float:
        return self.handoff_timeout * DRAIN_PATIENCE

    @property
    def round_patience(self) -> float:
        """Seconds within which a healthy shard is read again. After this time, the lag of a shard that was not read
        grows with the clock."""
        return ROUNDS_TO_WAIT * (self.budget.seconds + self.idle)

    @property
    def stop_patience(self) -> float:
        return self.handoff_timeout

    @property
    def end_patience(self) -> float:
        """Seconds to wait after a stop request for the current batch to end. After that, the process ends
        anyway."""
        return self.handoff_timeout * END_PATIENCE

    @property
    def write_deadline(self) -> float:
        return self.renewal_interval / REQUESTS_PER_RENEWAL
