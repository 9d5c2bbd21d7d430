"""Helpers for tests of a consumer: a DataFrame of records as a consumer's function gets it, an embedded AWS, and a
function that runs a consumer until all records are stored.

>>> from kcl_dagster.testing import embedded_aws
>>> with embedded_aws(streams={"clicks": 2}) as aws:
...     aws.put("clicks", [b"/", b"/cart"])
"""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from dagster import AssetKey
from pyspark.sql import DataFrame, SparkSession

from kcl_dagster.errors import BatchError
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.tick import Leader
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.worker_run import WorkerRun
from kcl_dagster.runtime import system
from kcl_dagster.spark.row_types import RECORD_TYPE
from kcl_dagster.spark.schema import COLUMNS
from kcl_dagster.streams.listing import refuse_missing
from kcl_dagster.testing.resource import EmulatorResource
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.report import BatchReport, Outcome
from kcl_dagster.worker.stop import StopReason, StopSignal

if TYPE_CHECKING:
    from kcl_dagster.emulator import Emulator

TICK_SECONDS: Final = 0.5  # a tenth of the sensor's interval: requests to the embedded tables cost nothing
_STORED: Final = frozenset({Outcome.COMMITTED, Outcome.DELIVERED})
SLOT: Final = "worker-000"
SHARD: Final = "shardId-000000000000"
ARRIVED: Final = datetime(2026, 1, 1, tzinfo=UTC)
PUT_AT_ONCE: Final = 500  # the maximum of PutRecords


def records(spark: SparkSession, payloads: Sequence[bytes], *, stream: str = "stream") -> DataFrame:
    """Return a DataFrame as a consumer's function gets it. It has one row for each payload, in order, all of one
    shard.

    Example:
        .. code-block:: python

            assert clicks(records(spark, [b"/", b"/cart"])).count() == 2
    """
    rows = [
        {
            "data": bytearray(payload),
            "partition_key": f"key-{number}",
            "explicit_hash_key": None,
            "sequence_number": str(number + 1),
            "sub_sequence_number": 0,
            "arrival_timestamp": ARRIVED,
            "stream": stream,
            "shard_id": SHARD,
            "lease_key": SHARD,
            "aggregate_problem": None,
        }
        for number, payload in enumerate(payloads)
    ]
    return spark.createDataFrame([tuple(row[name] for name in COLUMNS) for row in rows], RECORD_TYPE)


@dataclass(frozen=True, slots=True)
class EmbeddedAws:
    """An embedded AWS with streams into which a test puts records. `emulator` gives access to clients, faults
    and the clock."""

    emulator: "Emulator"

    def put(self, stream: str, payloads: Sequence[bytes]) -> None:
        """Put records, distributed over the shards. Raises the errors of boto3."""
        kinesis = self.emulator.client("kinesis")
        for start in range(0, len(payloads), PUT_AT_ONCE):
            some = payloads[start : start + PUT_AT_ONCE]
            kinesis.put_records(
                StreamName=stream,
                Records=[{"Data": data, "PartitionKey": f"key-{start + n}"} for n, data in enumerate(some)],
            )

    def resource(self) -> KclResource:
        """Return the resource with which a consumer uses this embedded AWS."""
        return EmulatorResource(
            endpoint_url=self.emulator.endpoint_url, region_name=self.emulator.environment()["AWS_DEFAULT_REGION"]
        )


@contextmanager
def embedded_aws(streams: Mapping[str, int]) -> Iterator[EmbeddedAws]:
    """Run an embedded AWS in this process, without limits, with these streams (name -> number of shards).

    Needs the extra `emulator` of the package. All data of the embedded AWS is deleted at the end of the block.
    """
    from kcl_dagster.emulator import Emulator, Limits

    with Emulator(limits=Limits.none()) as emulator:
        for name, shards in streams.items():
            emulator.client("kinesis").create_stream(StreamName=name, ShardCount=shards)
        yield EmbeddedAws(emulator)


def consume(
    consumer: Consumer,
    kcl: KclResource,
    spark: SparkSession,
    *,
    within: float = 180.0,
    context: Any = None,
    resources: Mapping[str, Any] | None = None,
) -> int:
    """Let `consumer` process the records in its streams, and return how many records it has stored.

    The function returns when every shard has been read to its tip. Records that are put while it runs are possibly
    not read. Checkpoints are kept in the lease table, so another call continues after them. `kcl` should be the
    resource of an embedded AWS.

    `context` and `resources` are passed to the consumer's code if it has parameters for them.

    Raises ConfigurationError if the settings cannot work, StreamNotFound if none of the consumer's streams exists,
    BatchError with the error of the consumer's code or of its sink, and TimeoutError after `within` seconds. A
    request that fails is sent again, so an error of AWS or of a catalog ends the test only with the TimeoutError,
    whose message contains the last error.

    Example:
        .. code-block:: python

            with embedded_aws(streams={"clicks": 2}) as aws:
                aws.put("clicks", [b"/", b"/cart"])
                assert consume(clicks, aws.resource(), spark) == 2
    """
    runtime = system()
    ours, application = consumer.bound(context, SimpleNamespace(**(resources or {}))), consumer.application
    kinesis = kcl.client("kinesis", application if application.kinesis_access else None)
    refuse_missing(kinesis, [stream.name for stream in application.streams], runtime)
    leader = open_leader(
        application,
        dynamodb=kcl.client("dynamodb"),
        kinesis=kinesis,
        identity="test",
        runtime=runtime,
    )
    stop = StopSignal()
    witness = _Witness(
        AssetKey([*consumer.key_prefix, consumer.name]),
        SLOT,
        write=lambda _: None,
        log=logging.getLogger(__name__),
        alarm=lambda *_: None,
        stop=stop,
        deadline=runtime.clock.monotonic() + within,
    )
    with _Leading(leader, witness):
        WorkerRun(ours, kcl, lambda: spark, SLOT, runtime.new_id(), witness).work(stop)
    if witness.error is not None:
        raise BatchError(witness.error)
    if not witness.is_done:
        raise TimeoutError(
            f"{application.name} has stored {witness.stored} records in {within:g} s and is not at the tip"
            f"{witness.cause}"
        )
    return witness.stored


@dataclass
class _Witness(RunEventLog):
    """Receives the worker's reports. Stops the worker when all records are read, when a batch has failed, or when
    the time is over."""

    stop: StopSignal = field(default_factory=StopSignal)
    deadline: float = float("inf")
    open_leases: int | None = None
    """The number of open leases in the leader's last tick."""

    stored: int = 0
    error: str | None = None
    trouble: str | None = None
    """The last problem that the worker reported after it had last stored records; None if there is none."""

    trouble_of_leader: str | None = None
    """The stages that failed in the last tick; None if all have succeeded."""

    is_done: bool = False
    _at_tip: set[LeaseKey] = field(default_factory=set)
    """Leases whose last batch reached the tip of the shard. They are collected over several rounds, because a round
    need not read all leases."""

    @property
    def cause(self) -> str:
        """The end of the message of a TimeoutError: the last problem that the worker or else the leader reported,
        if there was one."""
        trouble = self.trouble or self.trouble_of_leader
        return "" if trouble is None else f". The last problem: {trouble}"

    def batch(self, report: BatchReport) -> None:
        self.stored += report.records
        if report.records:
            self.trouble = None
        self.trouble = next((f"{one.lease}: {one.error}" for one in report.leases if one.error), self.trouble)
        failed = [lease for lease in report.leases if lease.outcome is Outcome.FAILED]
        self.error = self.error or next((f"{lease.lease}: {lease.error}" for lease in failed), None)
        for lease in report.leases:
            is_piece = lease.lease in report.failing  # part of a narrowed batch, whose other records follow
            is_stored_to_tip = lease.outcome in _STORED and lease.millis_behind == 0 and not is_piece
            # A batch can be full before it has read a record of this lease, which is then idle, but behind.
            is_read_to_tip = lease.outcome is Outcome.IDLE and not lease.millis_behind
            if is_read_to_tip or is_stored_to_tip:
                self._at_tip.add(lease.lease)
            else:
                self._at_tip.discard(lease.lease)
        is_all = not report.blocked and report.held == self.open_leases
        self.is_done = is_all and 0 < report.held <= len(self._at_tip)
        if self.is_done or self.error is not None:
            self.stop.request(StopReason.ASKED, "the test has seen enough")

    def event(self, event: WorkerEvent) -> None:
        """Record the event. If a batch fails while the run ends, this is an error, because the batch was decided
        and is not stored."""
        super().event(event)
        if event.is_trouble:
            self.trouble = f"{event.kind.value}: {event.message}"
        if self.is_done and event.kind is EventKind.BATCH_FAILED:
            self.error = self.error or event.message

    def look_at_the_clock(self) -> None:
        if self.monotonic() > self.deadline:
            self.stop.request(StopReason.ASKED, "time is up")


class _Leading:
    """A leader that ticks on its own thread until the block ends."""

    def __init__(self, leader: Leader, witness: _Witness) -> None:
        self._leader = leader
        self._witness = witness
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._lead, name="kcl-test-leader", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._leader.resign()

    def _lead(self) -> None:
        while not self._over.is_set():
            report = self._leader.tick(RunView(launches=False))
            self._witness.open_leases = sum(not lease.is_finished for lease in report.leases)
            self._witness.trouble_of_leader = "; ".join(report.problems) or None
            self._witness.look_at_the_clock()
            self._over.wait(TICK_SECONDS)
