"""A host and its worker, over a real connection and without Spark."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from socket import create_server
from typing import Any

import pytest
from pyspark import cloudpickle

from kcl_dagster.errors import BatchError, Unavailable
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import system
from kcl_dagster.spark import fetch as fetching
from kcl_dagster.spark.fetch import Connection, FetchPlan, ShardPlan
from kcl_dagster.spark.processor_hosts import messages
from kcl_dagster.spark.processor_hosts.certificate import Certificate
from kcl_dagster.spark.processor_hosts.host_connection import HostConnection
from kcl_dagster.spark.processor_hosts.host_listener import HostListener
from kcl_dagster.spark.processor_hosts.host_process import HostPlan, run_host
from kcl_dagster.spark.processor_hosts.line import Line
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.worker.batch import Budget, PoisonRecord, Range
from kcl_dagster.worker.hosted_processor import HostLost, ProcessorFailed
from kcl_dagster.worker.processor import ProcessRecordsInput, RecordProcessorBase, ShardEndedInput
from tests.doubles.clock import FakeClock
from tests.doubles.kinesis import FakeKinesis

LEASE = LeaseKey("shardId-000000000000")
SECRET = b"between us"
CERTIFICATE = Certificate.new()
PATIENCE = 20.0
SHORT, LONG = Budget(99, 9999, 0.1), Budget(99, 9999, PATIENCE, linger=0.05)


class Clicks(RecordProcessorBase):
    """Does what the payload says."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        for record in process_records_input.records:
            match record.binary_data:
                case b"raise":
                    raise ValueError("no number")
                case b"exit":
                    raise SystemExit(3)
                case b"network":
                    raise ConnectionError("my own database is gone")
                case b"away":
                    raise Unavailable("my own database is gone")
        process_records_input.checkpointer.checkpoint()

    def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
        raise RuntimeError("not yet")


@dataclass
class Notes:
    """A context that writes down what it is asked."""

    asked: list[Any] = field(default_factory=list)
    refusal: str | None = None
    takes: bool = True

    def checkpoint(self, at: Checkpoint | None, delivered: Checkpoint | None) -> str | None:
        self.asked.append((at, delivered))
        return self.refusal

    def set_aside(self, record: PoisonRecord, error_type: str, error: str) -> bool:
        self.asked.append((record.data, error_type, error.split(" (")[0]))
        return self.takes


@dataclass
class Room:
    listener: HostListener
    connections: list[HostConnection]
    is_connected: threading.Event

    @property
    def plan(self) -> HostPlan:
        pickled: Any = cloudpickle.dumps
        address = ("127.0.0.1", self.listener.port)
        return HostPlan(address, CERTIFICATE.certificate, pickled(Clicks), ("/nowhere",))

    @contextmanager
    def connection(self) -> Iterator[HostConnection]:
        """A host in a thread of this process, and the worker's end of its connection."""
        self.is_connected.clear()
        host = threading.Thread(target=run_host, args=(self.plan, SECRET, 7), daemon=True)
        host.start()
        assert self.is_connected.wait(PATIENCE)
        connection = self.connections[-1]
        yield connection
        connection.close()
        host.join(PATIENCE)
        assert not host.is_alive()


@pytest.fixture
def room() -> Iterator[Room]:
    connections: list[HostConnection] = []
    is_connected = threading.Event()

    def on_host(connection: HostConnection) -> None:
        connections.append(connection)
        is_connected.set()

    listener = HostListener("127.0.0.1", 0, CERTIFICATE, SECRET, on_host)
    yield Room(listener, connections, is_connected)
    listener.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., messages.Fetch]:
    """An order to read a stream that holds what is given."""

    def make(*data: bytes, budget: Budget = SHORT) -> messages.Fetch:
        kinesis = FakeKinesis(FakeClock())
        kinesis.create_stream(StreamName="clicks", ShardCount=1)
        for one in data:
            kinesis.put_record(StreamName="clicks", Data=one, PartitionKey="key")
        monkeypatch.setattr(fetching, "client_of", lambda _: kinesis)
        range_ = Range(LEASE, StreamIdentifier("clicks"), LEASE, TRIM_HORIZON, 1)
        plan = FetchPlan(Connection(), ((ShardPlan(range_),),), budget, ShardLimits.unlimited())
        return messages.Fetch(plan, 0)

    return make


def lines() -> tuple[Line, Line]:
    """Two ends of one connection: the worker's and a host's."""
    with create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        host = pool.submit(Line.connect, server.getsockname(), CERTIFICATE.certificate, SECRET)
        worker = Line.accept(server.accept()[0], CERTIFICATE.context(), SECRET)
        return worker, host.result()


def begin(connection: HostConnection, order: messages.Fetch) -> None:
    end = connection.call(order)
    assert isinstance(end, messages.WasRead)
    assert list(end.trailers) == [LEASE]
    connection.call(messages.Initialize(LEASE, LEASE, TRIM_HORIZON))


def process(connection: HostConnection, notes: Notes, *, one_by_one: bool = False) -> Checkpoint | None:
    end = connection.call(messages.ProcessRecords(LEASE, 0, one_by_one), notes)
    assert isinstance(end, messages.Returned)
    return end.last


def test_records_are_read_and_handed_on_and_checkpoints_asked_for(room: Room, read: Any) -> None:
    with room.connection() as connection:
        begin(connection, read(b"a", b"b"))
        notes = Notes()
        last = process(connection, notes)
        assert notes.asked == [(None, last)]
        assert connection.host == 7
        assert not connection.is_lost


@pytest.mark.parametrize(
    ("data", "kind"), [(b"raise", "ValueError"), (b"exit", "SystemExit"), (b"network", "ConnectionError")]
)
def test_an_error_of_user_code_is_reported_and_the_host_remains(
    room: Room, read: Any, data: bytes, kind: str
) -> None:
    with room.connection() as connection:
        begin(connection, read(b"a", data, budget=LONG))
        with pytest.raises(ProcessorFailed) as caught:
            process(connection, Notes())
        assert caught.value.kind == kind
        with pytest.raises(HostLost):  # a processor that raised is not used again
            process(connection, Notes())
        begin(connection, read(b"a"))
        assert process(connection, Notes()) is not None


def test_a_processor_may_say_that_what_it_needs_is_away(room: Room, read: Any) -> None:
    with room.connection() as connection:
        begin(connection, read(b"a", b"away"))
        with pytest.raises(Unavailable, match="my own database is gone"):
            process(connection, Notes(takes=False), one_by_one=True)


def test_records_one_by_one_may_be_set_aside(room: Room, read: Any) -> None:
    with room.connection() as connection:
        begin(connection, read(b"a", b"raise", b"b"))
        notes = Notes()
        process(connection, notes, one_by_one=True)
        assert [asked for asked in notes.asked if asked[0]] == [(b"raise", "ValueError", "no number")]
        assert len(notes.asked) == 3
        begin(connection, read(b"raise"))
        with pytest.raises(ProcessorFailed, match="no number"):
            process(connection, Notes(takes=False), one_by_one=True)


def test_a_refused_checkpoint_is_raised_in_the_processor(room: Room, read: Any) -> None:
    with room.connection() as connection:
        begin(connection, read(b"a"))
        with pytest.raises(ProcessorFailed, match="CheckpointError: 'ShutdownException'"):
            process(connection, Notes(refusal="ShutdownException"))


def test_the_end_of_a_shard_may_be_said_again(room: Room, read: Any) -> None:
    with room.connection() as connection:
        begin(connection, read(b"a"))
        for _ in range(2):
            with pytest.raises(ProcessorFailed, match="not yet"):
                connection.call(messages.ShardEnded(LEASE), Notes())
        connection.call(messages.Discard(LEASE))
        with pytest.raises(HostLost):
            connection.call(messages.ShardEnded(LEASE), Notes())


def test_what_was_released_is_not_handed_on(room: Room, read: Any) -> None:
    with room.connection() as connection:
        begin(connection, read(b"a"))
        connection.call(messages.Release())
        with pytest.raises(HostLost):
            process(connection, Notes())


def test_a_context_that_raises_closes_the_connection(room: Room, read: Any) -> None:
    class Broken(Notes):
        def checkpoint(self, at: Checkpoint | None, delivered: Checkpoint | None) -> str | None:
            raise RuntimeError("a defect of ours")

    with room.connection() as connection:
        begin(connection, read(b"a"))
        with pytest.raises(RuntimeError, match="a defect"):
            process(connection, Broken())
        assert connection.is_lost
        with pytest.raises(HostLost):
            connection.call(messages.Release())


def test_a_question_that_nobody_expected_is_a_defect(room: Room, read: Any) -> None:
    with room.connection() as connection:
        begin(connection, read(b"a"))
        with pytest.raises(BatchError, match="during an order that allows no questions"):
            connection.call(messages.ProcessRecords(LEASE, 0, False))


def test_a_host_that_ends_without_a_message_is_lost(room: Room) -> None:
    """Its process ends: the operating system says so at once."""
    line = Line.connect(room.plan.address, CERTIFICATE.certificate, SECRET)
    line.send(messages.Hello(3))
    assert room.is_connected.wait(PATIENCE)
    (connection,) = room.connections

    def is_lost() -> bool:
        return connection.is_lost

    assert not is_lost()
    line.close()
    clock = system().clock
    deadline = clock.monotonic() + PATIENCE
    while not is_lost():
        assert clock.monotonic() < deadline
    with pytest.raises(HostLost, match="host 3 is gone"):
        connection.call(messages.Release())


def test_a_host_with_another_secret_is_refused(room: Room) -> None:
    with pytest.raises((EOFError, OSError)):
        run_host(room.plan, b"just guess", 1)
    assert room.connections == []


def test_a_fetch_ends_when_the_worker_says_so(room: Room, read: Any) -> None:
    """Other hosts have records to deliver. The message may also come when the fetch has ended by itself."""
    with room.connection() as connection:
        began = time.monotonic()
        threading.Timer(0.3, connection.end_read).start()
        end = connection.call(read(budget=LONG))
        assert isinstance(end, messages.WasRead)
        assert time.monotonic() - began < PATIENCE / 2
        connection.end_read()
        begin(connection, read(b"1", budget=LONG))
        assert process(connection, Notes()) is not None
    assert time.monotonic() - began < PATIENCE


def test_a_fetch_is_not_ended_in_the_middle_of_its_order(read: Any) -> None:
    """The plan of a thousand shards takes a while to send, and another host may have records meanwhile."""
    worker, host = lines()
    filler = "x" * (4 << 20)  # more than the operating system takes at once
    order = read()
    order = replace(order, plan=replace(order.plan, connection=replace(order.plan.connection, region=filler)))
    connection = HostConnection(0, worker)
    received: list[Any] = []

    def serve() -> None:
        time.sleep(0.5)  # the order is written as far as there is room
        received.extend([host.recv(), host.recv()])
        host.send(messages.WasRead({}))

    threads = [threading.Thread(target=one, daemon=True) for one in (serve, partial(connection.call, order))]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    connection.end_read()
    for thread in threads:
        thread.join(PATIENCE)
    for line in (worker, host):
        line.close()
    assert received == [order, messages.EndRead()]
