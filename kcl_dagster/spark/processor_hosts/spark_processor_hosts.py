"""The hosts of one worker. This module starts them as Spark tasks, assigns shards to them, and replaces lost
hosts."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kcl_dagster.errors import BatchError, ConfigurationError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.server_socket import bare_host
from kcl_dagster.spark.engine import local_slots
from kcl_dagster.spark.failures import first_line
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.health import SessionHealth
from kcl_dagster.spark.outcome import FetchOutcome
from kcl_dagster.spark.plans import EngineSettings, Plans
from kcl_dagster.spark.processor_hosts import messages
from kcl_dagster.spark.processor_hosts.certificate import Certificate
from kcl_dagster.spark.processor_hosts.host_connection import HostConnection
from kcl_dagster.spark.processor_hosts.host_listener import HostListener
from kcl_dagster.spark.processor_hosts.host_process import HostPlan, HostTask
from kcl_dagster.spark.session_kind import is_classic
from kcl_dagster.worker.batch import Budget, Progress, Range
from kcl_dagster.worker.hosted_processor import HostLost
from kcl_dagster.worker.instance import ProcessorContext
from kcl_dagster.worker.processor import ProcessorFactory

# The number of hosts if the number of cores is not known. Each host occupies a task slot permanently.
CLUSTER_HOSTS: Final = 2
# A JVM takes several seconds to start its first Python process, and launching an executor takes half a minute.
START_SECONDS: Final = 60.0
SECRET_BYTES: Final = 32
CLOSING_SECONDS: Final = 10.0  # an idle host ends at once; after this time, a host that runs user code is canceled

_SPARK_ERRORS: Final = (PySparkException, Py4JError, RuntimeError, OSError)

HOST: Final = "spark.kclDagster.processors.host"
PORT: Final = "spark.kclDagster.processors.port"
"""Spark settings for the address at which executors find the worker. Default: the driver's host and any free
port."""


@dataclass(slots=True)
class HostedRead:
    """The result of a fetch, whose records are in the hosts. Implements `worker.batch.Read`."""

    progress: Mapping[LeaseKey, Progress]
    failures: Mapping[LeaseKey, Exception]
    connections: Iterable[HostConnection]

    def release(self) -> None:
        for connection in self.connections:
            try:
                connection.call(messages.Release())
            except HostLost:
                continue


@dataclass(slots=True)
class _HostedProcessor:
    """Implements `worker.hosted_processor.HostedProcessor`."""

    lease: LeaseKey
    shard_id: str
    connection: HostConnection
    behind: Callable[[LeaseKey], int | None]

    @property
    def is_gone(self) -> bool:
        return self.connection.is_lost

    def initialize(self, start: Checkpoint) -> None:
        self.connection.call(messages.Initialize(self.lease, self.shard_id, start))

    def process(self, context: ProcessorContext, *, one_by_one: bool) -> Checkpoint | None:
        order = messages.ProcessRecords(self.lease, self.behind(self.lease), one_by_one)
        end = self.connection.call(order, context)
        return end.last if isinstance(end, messages.Returned) else None

    def shard_ended(self, context: ProcessorContext) -> None:
        self.connection.call(messages.ShardEnded(self.lease), context)

    def lease_lost(self) -> None:
        self.connection.call(messages.CallLeaseLost(self.lease))

    def shutdown_requested(self, context: ProcessorContext) -> None:
        self.connection.call(messages.ShutdownRequested(self.lease), context)

    def discard(self) -> None:
        try:
            self.connection.call(messages.Discard(self.lease))
        except HostLost:
            return


class SparkProcessorHosts:
    """Implements `hosted_processor.ProcessorHosts`. `close` ends the tasks and threads of this object; the session
    remains open."""

    def __init__(
        self,
        spark: SparkSession,
        connection: Connection,
        new_processor: ProcessorFactory,
        settings: EngineSettings | None = None,
        *,
        runtime: Runtime | None = None,
        patience: float = START_SECONDS,
    ) -> None:
        """Start to listen for hosts; the first fetch starts them. `settings.tasks`: the number of hosts; by default
        one for each core of a local session. `patience`: the seconds for which a fetch waits for hosts.

        Raises ConfigurationError if the session is one of Spark Connect, or if this process cannot listen.
        """
        if not is_classic(spark):
            raise ConfigurationError(
                "record processors need a Spark session whose driver is the worker itself, since executors connect "
                "to it: use mode local, cluster or existing instead of connect, or a transform and a sink"
            )
        settings, self._runtime = settings or EngineSettings(), runtime or system()
        self._spark = spark
        self._count = _fitting_hosts(spark, settings.tasks)
        self._patience = patience
        self._plans = Plans(connection, settings, self._runtime)
        self.health = SessionHealth(spark)
        self._changed = threading.Condition()
        self._connections: dict[int, HostConnection] = {}
        self._running: dict[int, threading.Thread] = {}
        self._why: str | None = None
        self._host_of: dict[LeaseKey, int] = {}
        self._behind: dict[LeaseKey, int | None] = {}
        self._is_closed = False
        self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="kcl-host")
        self._tag = f"kcl-host-{self._runtime.new_id()}"
        secret, certificate = os.urandom(SECRET_BYTES), Certificate.new()
        host, bind = _addresses(spark)
        pickled: Any = cloudpickle.dumps
        self._listener = HostListener(bind, int(spark.conf.get(PORT, None) or 0), certificate, secret, self._add)
        self._secret = spark.sparkContext.broadcast(secret)
        self._host_plan = HostPlan(
            (host, self._listener.port), certificate.certificate, pickled(new_processor), tuple(sys.path)
        )

    # Reading

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> HostedRead:
        """Implements `worker.batch.Reader.fetch`. The records remain in the hosts."""
        try:
            return self._fetch(ranges, budget)
        except Exception as error:
            self.health.failed(error)
            raise

    def _fetch(self, ranges: Sequence[Range], budget: Budget) -> HostedRead:
        connections = self._present(min(self._count, len(ranges)))
        self._place([range_.lease for range_ in ranges], connections)
        numbers = sorted({self._host_of[range_.lease] for range_ in ranges})
        parts = [[range_ for range_ in ranges if self._host_of[range_.lease] == number] for number in numbers]
        plan = self._plans.plan(parts, budget)
        progress: dict[LeaseKey, Progress] = {}
        failures: dict[LeaseKey, Exception] = {}

        def read(task: int) -> FetchOutcome:
            end = connections[numbers[task]].call(messages.Fetch(plan, task))
            assert isinstance(end, messages.WasRead)
            return FetchOutcome.of(parts[task], end.trailers)

        answers = [self._pool.submit(read, task) for task in range(len(parts))]
        if budget.linger is not None and any(_has_records(done) for done in as_completed(answers)):
            # A host has read records, and its fetch has ended. The fetches of all other hosts are ended, too, so
            # that these records are delivered now.
            for number in numbers:
                connections[number].end_read()
        for part, answer in zip(parts, answers, strict=True):
            try:
                outcome = answer.result()
            except Exception as error:
                failures |= {range_.lease: BatchError(f"not read: {error}") for range_ in part}
                continue
            self._plans.remember(part, outcome.trailers)
            progress |= outcome.progress
            failures |= outcome.failures
        self._behind = {lease: found.millis_behind for lease, found in progress.items()}
        return HostedRead(progress, failures, [connections[number] for number in numbers])

    def prefetch(self, ranges: Sequence[Range], budget: Budget) -> None:
        """Do nothing. The position at which reading of a shard continues is known only when its processor has
        returned."""

    # Processors

    def create_processor(self, lease: LeaseKey, shard_id: str) -> _HostedProcessor:
        """Implements `worker.hosted_processor.ProcessorHosts.create_processor`."""
        with self._changed:
            connection = self._connections.get(self._host_of.get(lease, -1))
        if connection is None or connection.is_lost:
            raise HostLost(f"the executor process that read {lease} is gone")
        return _HostedProcessor(lease, shard_id, connection, self._behind.get)

    def run_in_parallel(self, tasks: Mapping[LeaseKey, Callable[[], None]]) -> Mapping[LeaseKey, Exception]:
        """Implements `worker.hosted_processor.ProcessorHosts.run_in_parallel`."""
        failed: dict[LeaseKey, Exception] = {}

        def one_after_another(leases: Sequence[LeaseKey]) -> None:
            for lease in leases:
                try:
                    tasks[lease]()
                except Exception as error:
                    failed[lease] = error

        groups: dict[int, list[LeaseKey]] = {}
        for lease in tasks:
            groups.setdefault(self._host_of[lease], []).append(lease)
        for done in [self._pool.submit(one_after_another, leases) for leases in groups.values()]:
            done.result()
        return failed

    def close(self) -> None:
        """End every host, and cancel the tasks of hosts that have not ended after `CLOSING_SECONDS`."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            connections, threads = list(self._connections.values()), list(self._running.values())
            self._changed.notify_all()
        for connection in connections:
            connection.close()
        self._listener.close()
        for thread in threads:
            thread.join(CLOSING_SECONDS)
        if any(thread.is_alive() for thread in threads):
            self._cancel()
            for thread in threads:
                thread.join(CLOSING_SECONDS)
        self._pool.shutdown(wait=True)
        with suppress(*_SPARK_ERRORS):
            self._secret.destroy()

    # Hosts

    def _present(self, wanted: int) -> dict[int, HostConnection]:
        """Start those of the first `wanted` hosts that are not running. Returns the connections to all hosts that
        are connected.

        The first call waits until `wanted` hosts are connected. Later calls wait only if no host is connected. Each
        call waits for at most `patience` seconds, and stops waiting when the tasks of all hosts have ended. Raises
        HostLost if no host is connected then.
        """
        with self._changed:
            for number, connection in list(self._connections.items()):
                if connection.is_lost:
                    del self._connections[number]
            is_first = not self._host_of
            for number in range(wanted):
                if number not in self._connections and number not in self._running:
                    self._start(number)
            self._changed.wait_for(
                lambda: len(self._connections) >= (wanted if is_first else 1) or not self._running, self._patience
            )
            if not self._connections:
                raise HostLost(
                    f"no executor has a host for the record processors: {self._why or 'no task slot was free'}"
                )
            return dict(self._connections)

    def _place(self, leases: Sequence[LeaseKey], connections: Mapping[int, HostConnection]) -> None:
        """Choose a host for each lease. A lease keeps its host as long as the host is connected."""
        self._host_of = {lease: host for lease, host in self._host_of.items() if host in connections}
        load = Counter(self._host_of.values())
        for lease in leases:
            if lease not in self._host_of:
                host = min(connections, key=lambda number: (load[number], number))
                self._host_of[lease] = host
                load[host] += 1

    def _start(self, number: int) -> None:
        """Run the task of a host, on a thread that waits for the task's end."""
        thread = threading.Thread(target=self._run, args=(number,), name=f"kcl-host-{number}-task", daemon=True)
        self._running[number] = thread
        thread.start()

    def _run(self, number: int) -> None:
        why = None
        try:
            self._spark.sparkContext.addJobTag(self._tag)
            self._spark.sparkContext.setJobDescription(f"record processors, host {number}")
            host = self._spark.range(number, number + 1, 1, 1).mapInArrow(
                HostTask(self._host_plan, self._secret), "id bigint"
            )
            host.collect()
        except _SPARK_ERRORS as error:
            why = first_line(error)
        with self._changed:
            self._why = why or self._why
            self._running.pop(number, None)
            self._changed.notify_all()

    def _add(self, connection: HostConnection) -> None:
        with self._changed:
            former = self._connections.get(connection.host)
            if self._is_closed or (former is not None and not former.is_lost):
                connection.close()  # the connection is of a second attempt of the same task
                return
            self._connections[connection.host] = connection
            self._changed.notify_all()

    def _cancel(self) -> None:
        context: Any = self._spark.sparkContext
        with suppress(*_SPARK_ERRORS):
            context.cancelJobsWithTag(self._tag)


def _has_records(answer: "Future[FetchOutcome]") -> bool:
    return answer.exception() is None and any(found.records for found in answer.result().progress.values())


def _fitting_hosts(spark: SparkSession, wanted: int | None) -> int:
    slots = local_slots(spark)
    if slots is None:
        return wanted or CLUSTER_HOSTS
    return min(slots, wanted or os.cpu_count() or 1)


def _addresses(spark: SparkSession) -> tuple[str, str]:
    """The address at which executors find the driver, and the address at which the driver listens."""
    conf: Any = spark.sparkContext.getConf()
    host = spark.conf.get(HOST, None) or conf.get("spark.driver.host") or "127.0.0.1"
    return bare_host(host), bare_host(conf.get("spark.driver.bindAddress") or host)
