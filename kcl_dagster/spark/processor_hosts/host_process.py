"""The executor's side of a host: runs record processors as long as the connection to the worker exists."""

import logging
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark import Broadcast, cloudpickle

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import system
from kcl_dagster.spark import fetch as fetching
from kcl_dagster.spark.processor_hosts import messages
from kcl_dagster.spark.processor_hosts.line import Line
from kcl_dagster.spark.processor_hosts.messages import End, Order, Question, Returned
from kcl_dagster.spark.schema import LEASE_KEY, PROGRESS
from kcl_dagster.streams.pacing import ReadDeadline
from kcl_dagster.worker.batch import PoisonRecord
from kcl_dagster.worker.error_text import kind_of
from kcl_dagster.worker.instance import Instance, described
from kcl_dagster.worker.kclpy import checkpoint_error, install_stand_in
from kcl_dagster.worker.processor import ProcessorFactory, Record

log = logging.getLogger(__name__)

LISTENING_SECONDS: Final = 0.05  # within this time a listener detects that the fetch has ended


@dataclass(frozen=True, slots=True)
class HostPlan:
    """How a host connects to the worker and makes processors. The plan is part of the task, and contains no
    secret."""

    address: tuple[str, int]
    certificate: str = field(repr=False)
    """The certificate of the worker, in PEM. The host connects to no other worker."""

    factory: bytes = field(repr=False)
    """The pickled function that makes a processor. It is pickled separately, because it can be unpickled only after
    `path` was added to the import path."""

    path: tuple[str, ...]
    """The driver's import path. Entries that do not exist on the executor are ignored."""


class HostTask:
    """The function for `mapInArrow`. The only input row is the number of the host. The output has no rows.

    `secret`: proves to the worker that a host belongs to this session. The task and Spark's plan do not contain the
    secret, but only the id of its broadcast variable.
    """

    def __init__(self, plan: HostPlan, secret: Broadcast[bytes]) -> None:
        self._plan = plan
        self._secret = secret

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                run_host(self._plan, self._secret.value, number)
            yield batch.slice(0, 0)


def run_host(plan: HostPlan, secret: bytes, number: int) -> None:
    """Connect to the worker as the host `number`, and carry out its orders until it sends `Close` or ends."""
    for place in plan.path:
        if place not in sys.path:
            sys.path.append(place)
    install_stand_in()
    with Line.connect(plan.address, plan.certificate, secret) as line, _uninterrupted():
        line.send(messages.Hello(number))
        ProcessorHost(line, plan.factory).serve()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A context that ignores SIGINT. Ctrl-C in a terminal also reaches local executors, but the worker itself shuts
    its processors down."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _WorkerGone(BaseException):
    """The connection to the worker has ended. This class is no Exception, so that user code that catches Exceptions
    does not catch it."""


@contextmanager
def _to_the_worker() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise _WorkerGone from error


@dataclass(frozen=True, slots=True)
class _RemoteContext:
    """An `instance.ProcessorContext` that sends each call to the worker."""

    line: Line

    def checkpoint(self, at: Checkpoint | None, delivered: Checkpoint | None) -> str | None:
        refused: str | None = self._ask(messages.WantsCheckpoint(at, delivered))
        return refused

    def set_aside(self, record: PoisonRecord, error_type: str, error: str) -> bool:
        return bool(self._ask(messages.WantsSetAside(record, error_type, error)))

    def _ask(self, question: Question) -> Any:
        with _to_the_worker():
            self.line.send(question)
            return self.line.recv()


class ProcessorHost:
    """The processors in one process, and the records that were read for them. Carries out one order at a time, on
    one thread."""

    def __init__(self, line: Line, factory: bytes) -> None:
        self._line = line
        self._pickled = factory
        self._factory: ProcessorFactory | None = None
        self._context = _RemoteContext(line)
        self._instances: dict[LeaseKey, Instance] = {}
        self._read: dict[LeaseKey, list[pa.RecordBatch]] = {}

    def serve(self) -> None:
        """Carry out orders. Returns after `Close`, or when the connection to the worker has ended."""
        try:
            while not isinstance(order := self._next(), messages.Close):
                end = self._carry_out(order)
                with _to_the_worker():
                    self._line.send(end)
        except _WorkerGone:
            log.info("the worker is gone; its processors end here")

    def _next(self) -> Order:
        with _to_the_worker():
            message = self._line.recv()
            while isinstance(message, messages.EndRead):  # it arrived after the fetch had ended
                message = self._line.recv()
            order: Order = message
            return order

    def _carry_out(self, order: Order) -> End:
        try:
            match order:
                case messages.Fetch():
                    return self._fetch(order)
                case messages.Release() | messages.Close():
                    self._read = {}
                case messages.Discard():
                    self._instances.pop(order.lease, None)
                case _:
                    return self._call(order)
        except (Exception, SystemExit) as error:
            if isinstance(order, messages.Initialize | messages.ProcessRecords):
                self._instances.pop(order.lease, None)
            log.exception("%s failed", type(order).__name__)
            return messages.Raised(kind_of(error), described(error))
        return Returned()

    def _call(
        self,
        order: messages.Initialize
        | messages.ProcessRecords
        | messages.ShardEnded
        | messages.CallLeaseLost
        | messages.ShutdownRequested,
    ) -> End:
        if isinstance(order, messages.Initialize):
            instance = Instance(self._new_processor(), order.shard_id, checkpoint_error())
            self._instances[order.lease] = instance
            instance.initialize(order.start)
            return Returned()
        found = self._instances.get(order.lease)
        if found is None:
            return messages.Absent()
        match order:
            case messages.ProcessRecords():
                if order.lease not in self._read:
                    return messages.Absent()
                records = map(records_of, self._read.pop(order.lease))
                last = found.process(records, order.millis_behind, self._context, one_by_one=order.one_by_one)
                return Returned(last)
            case messages.ShardEnded():
                found.shard_ended(self._context)
            case messages.CallLeaseLost():
                del self._instances[order.lease]
                found.lease_lost()
            case messages.ShutdownRequested():
                del self._instances[order.lease]
                found.shutdown_requested(self._context)
        return Returned()

    def _new_processor(self) -> Any:
        if self._factory is None:
            self._factory = cloudpickle.loads(self._pickled)
        return self._factory()

    def _fetch(self, order: messages.Fetch) -> End:
        """Read the shards of one task into memory, up to the task's share of the batch's budget."""
        read: dict[LeaseKey, list[pa.RecordBatch]] = defaultdict(list)
        trailers: dict[LeaseKey, bytes] = {}
        runtime = system()
        deadline = order.plan.deadline(runtime.clock)
        client = fetching.client_of(order.plan.connection)
        for batch in self._until_told(fetching.fetch(order.plan, order.task, client, runtime, deadline), deadline):
            proofs = batch.column(PROGRESS)
            if proofs.null_count < len(proofs):
                for proof in proofs.to_pylist():
                    if proof["trailer"] is not None:
                        trailers[LeaseKey(proof["lease_key"])] = proof["trailer"].encode()
            elif batch.num_rows:
                read[LeaseKey(batch.column(LEASE_KEY)[0].as_py())].append(batch)
        self._read = {lease: read.get(lease, []) for lease in trailers}
        return messages.WasRead(trailers)

    def _until_told(self, read: Iterator[pa.RecordBatch], deadline: ReadDeadline) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a fetch. If the worker sends `EndRead`, the fetch ends early: another thread detects
        the message, and brings the deadline of the fetch forward.

        The worker sends nothing else during a fetch. The other thread only polls, and takes no message from the
        connection. So if the other thread still polls after the fetch and detects the next order, the order is
        not lost.
        """
        over = threading.Event()

        def listen() -> None:
            with suppress(OSError):  # `_next` detects the end of the connection
                while not over.is_set():
                    if self._line.poll(LISTENING_SECONDS):
                        deadline.bring_forward()
                        return

        threading.Thread(target=listen, name="kcl-end-of-read", daemon=True).start()
        try:
            yield from read
        finally:
            over.set()


def records_of(batch: pa.RecordBatch) -> list[Record]:
    """The records of an Arrow batch as processors receive them."""
    arrivals = batch.column("arrival_timestamp").cast(pa.int64())  # microseconds
    columns = (
        batch.column("data").to_pylist(),
        batch.column("partition_key").to_pylist(),
        batch.column("sequence_number").to_pylist(),
        batch.column("sub_sequence_number").to_pylist(),
        [0 if arrival is None else arrival // 1000 for arrival in arrivals.to_pylist()],
        batch.column("explicit_hash_key").to_pylist(),
    )
    return [Record(*values) for values in zip(*columns, strict=True)]
