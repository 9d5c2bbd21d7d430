"""The seats of one worker: started as Spark tasks, filled with shards, replaced when they are lost."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from kcl_dagster.spark.engine import local_slots
from kcl_dagster.spark.failures import first_line
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.health import SessionHealth
from kcl_dagster.spark.outcome import FetchOutcome
from kcl_dagster.spark.plans import EngineSettings, Plans
from kcl_dagster.spark.seats import messages
from kcl_dagster.spark.seats.seat import Invitation, SeatTask
from kcl_dagster.spark.seats.station import Reception, Station
from kcl_dagster.spark.session import is_classic
from kcl_dagster.worker.batch import Budget, Progress, Range
from kcl_dagster.worker.instance import Attendant
from kcl_dagster.worker.processor import ProcessorFactory
from kcl_dagster.worker.seating import SeatLost

CLUSTER_SEATS: Final = 2  # where the number of cores is not ours to know; each keeps a task slot for good
# A JVM that starts its first Python process takes several seconds, an executor that is launched half a minute.
SEATING_SECONDS: Final = 60.0
SECRET_BYTES: Final = 32
CLOSING_SECONDS: Final = 10.0  # a task that was told to end does so at once; one that runs user code is canceled

HOST: Final = "spark.kclDagster.seats.host"
PORT: Final = "spark.kclDagster.seats.port"
"""Where executors find the worker; left out, the driver's host and any free port."""


@dataclass(slots=True)
class Read:
    """What was read into the seats. Implements `worker.batch.Read`."""

    progress: Mapping[LeaseKey, Progress]
    failures: Mapping[LeaseKey, Exception]
    stations: Iterable[Station]

    def release(self) -> None:
        for station in self.stations:
            try:
                station.call(messages.Release())
            except SeatLost:
                continue


@dataclass(slots=True)
class _Seated:
    """Implements `worker.seating.SeatedProcessor`."""

    lease: LeaseKey
    shard_id: str
    station: Station
    behind: Callable[[LeaseKey], int | None]

    @property
    def is_gone(self) -> bool:
        return self.station.is_lost

    def initialize(self, start: Checkpoint) -> None:
        self.station.call(messages.Initialize(self.lease, self.shard_id, start))

    def process(self, attendant: Attendant, *, one_by_one: bool) -> Checkpoint | None:
        order = messages.Process(self.lease, self.behind(self.lease), one_by_one)
        end = self.station.call(order, attendant)
        return end.last if isinstance(end, messages.Returned) else None

    def shard_ended(self, attendant: Attendant) -> None:
        self.station.call(messages.ShardEnded(self.lease), attendant)

    def lease_lost(self) -> None:
        self.station.call(messages.LeaseLost(self.lease))

    def shutdown_requested(self, attendant: Attendant) -> None:
        self.station.call(messages.ShutdownRequested(self.lease), attendant)

    def leave(self) -> None:
        try:
            self.station.call(messages.Leave(self.lease))
        except SeatLost:
            return


class SparkSeats:
    """Implements `worker.seating.Seats`. `close` ends its tasks and threads; the session stays."""

    def __init__(
        self,
        spark: SparkSession,
        connection: Connection,
        new_processor: ProcessorFactory,
        settings: EngineSettings | None = None,
        *,
        runtime: Runtime | None = None,
        patience: float = SEATING_SECONDS,
    ) -> None:
        """`settings.tasks` is the number of seats: one for each core of a local session when left out.
        `patience`: seconds to wait for the first seat.

        Raises ConfigurationError where executors cannot reach this process.
        """
        if not is_classic(spark):
            raise ConfigurationError(
                "record processors need a Spark session whose driver is the worker itself, since executors connect "
                "to it: use mode local, cluster or existing instead of connect, or a transform and a sink"
            )
        settings, self._runtime = settings or EngineSettings(), runtime or system()
        self._spark = spark
        self._count = _fitting_seats(spark, settings.tasks)
        self._patience = patience
        self._plans = Plans(connection, settings, self._runtime)
        self.health = SessionHealth(spark)
        self._changed = threading.Condition()
        self._stations: dict[int, Station] = {}
        self._running: dict[int, threading.Thread] = {}
        self._why: str | None = None
        self._seat_of: dict[LeaseKey, int] = {}
        self._behind: dict[LeaseKey, int | None] = {}
        self._is_closed = False
        self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="kcl-seat")
        self._tag = f"kcl-seats-{self._runtime.new_id()}"
        secret = os.urandom(SECRET_BYTES)
        host, bind = _addresses(spark)
        pickled: Any = cloudpickle.dumps
        self._reception = Reception(bind, int(spark.conf.get(PORT, None) or 0), secret, self._welcome)
        self._invitation = Invitation((host, self._reception.port), secret, pickled(new_processor), tuple(sys.path))

    # Reading

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> Read:
        """See `worker.batch.Reader.fetch`. The records stay in the seats."""
        try:
            return self._fetch(ranges, budget)
        except Exception as error:
            self.health.failed(error)
            raise

    def _fetch(self, ranges: Sequence[Range], budget: Budget) -> Read:
        stations = self._present(min(self._count, len(ranges)))
        self._place([range_.lease for range_ in ranges], stations)
        numbers = sorted({self._seat_of[range_.lease] for range_ in ranges})
        parts = [[range_ for range_ in ranges if self._seat_of[range_.lease] == number] for number in numbers]
        plan = self._plans.plan(parts, budget)
        progress: dict[LeaseKey, Progress] = {}
        failures: dict[LeaseKey, Exception] = {}

        def read(task: int) -> FetchOutcome:
            end = stations[numbers[task]].call(messages.Fetch(plan, task))
            assert isinstance(end, messages.WasRead)
            return FetchOutcome.of(parts[task], end.trailers)

        answers = [self._pool.submit(read, task) for task in range(len(parts))]
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
        return Read(progress, failures, [stations[number] for number in numbers])

    def prefetch(self, ranges: Sequence[Range], budget: Budget) -> None:
        """Nothing is read ahead: where a shard goes on is known when its processor has returned."""

    # Processors

    def seat(self, lease: LeaseKey, shard_id: str) -> _Seated:
        """See `worker.seating.Seats.seat`."""
        with self._changed:
            station = self._stations.get(self._seat_of.get(lease, -1))
        if station is None or station.is_lost:
            raise SeatLost(f"the executor process that read {lease} is gone")
        return _Seated(lease, shard_id, station, self._behind.get)

    def side_by_side(self, tasks: Mapping[LeaseKey, Callable[[], None]]) -> Mapping[LeaseKey, Exception]:
        """See `worker.seating.Seats.side_by_side`."""
        failed: dict[LeaseKey, Exception] = {}

        def one_after_another(leases: Sequence[LeaseKey]) -> None:
            for lease in leases:
                try:
                    tasks[lease]()
                except Exception as error:
                    failed[lease] = error

        groups: dict[int, list[LeaseKey]] = {}
        for lease in tasks:
            groups.setdefault(self._seat_of[lease], []).append(lease)
        for done in [self._pool.submit(one_after_another, leases) for leases in groups.values()]:
            done.result()
        return failed

    def close(self) -> None:
        """Every seat is told to end, and its task canceled if it does not."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            stations, threads = list(self._stations.values()), list(self._running.values())
            self._changed.notify_all()
        for station in stations:
            station.close()
        self._reception.close()
        for thread in threads:
            thread.join(CLOSING_SECONDS)
        if any(thread.is_alive() for thread in threads):
            self._cancel()
            for thread in threads:
                thread.join(CLOSING_SECONDS)
        self._pool.shutdown(wait=True)

    # Seats

    def _present(self, wanted: int) -> dict[int, Station]:
        """The seats that are there, of `wanted`; those that are missing are started. Waits for all of them at
        first, and later only while there is none."""
        with self._changed:
            for number, station in list(self._stations.items()):
                if station.is_lost:
                    del self._stations[number]
            is_first = not self._seat_of
            for number in range(wanted):
                if number not in self._stations and number not in self._running:
                    self._start(number)
            self._changed.wait_for(
                lambda: len(self._stations) >= (wanted if is_first else 1) or not self._running, self._patience
            )
            if not self._stations:
                raise SeatLost(
                    f"no executor has a seat for the record processors: {self._why or 'no task slot was free'}"
                )
            return dict(self._stations)

    def _place(self, leases: Sequence[LeaseKey], stations: Mapping[int, Station]) -> None:
        """Every lease gets a seat, and keeps it while that lives."""
        self._seat_of = {lease: seat for lease, seat in self._seat_of.items() if seat in stations}
        load = Counter(self._seat_of.values())
        for lease in leases:
            if lease not in self._seat_of:
                seat = min(stations, key=lambda number: (load[number], number))
                self._seat_of[lease] = seat
                load[seat] += 1

    def _start(self, number: int) -> None:
        """Run the task of a seat, on a thread that waits for its end."""
        thread = threading.Thread(target=self._run, args=(number,), name=f"kcl-seat-{number}-task", daemon=True)
        self._running[number] = thread
        thread.start()

    def _run(self, number: int) -> None:
        why = None
        try:
            self._spark.sparkContext.addJobTag(self._tag)
            self._spark.sparkContext.setJobDescription(f"record processors, seat {number}")
            seat = self._spark.range(number, number + 1, 1, 1).mapInArrow(SeatTask(self._invitation), "id bigint")
            seat.collect()
        except (PySparkException, Py4JError, RuntimeError, OSError) as error:
            why = first_line(error)
        with self._changed:
            self._why = why or self._why
            self._running.pop(number, None)
            self._changed.notify_all()

    def _welcome(self, station: Station) -> None:
        with self._changed:
            former = self._stations.get(station.seat)
            if self._is_closed or (former is not None and not former.is_lost):
                station.close()  # a twin of a task
                return
            self._stations[station.seat] = station
            self._changed.notify_all()

    def _cancel(self) -> None:
        context: Any = self._spark.sparkContext
        try:
            context.cancelJobsWithTag(self._tag)
        except (PySparkException, Py4JError, RuntimeError, OSError):
            return


def _fitting_seats(spark: SparkSession, wanted: int | None) -> int:
    slots = local_slots(spark)
    if slots is None:
        return wanted or CLUSTER_SEATS
    return min(slots, wanted or os.cpu_count() or 1)


def _addresses(spark: SparkSession) -> tuple[str, str]:
    """Where executors find the driver, and what it listens on."""
    conf: Any = spark.sparkContext.getConf()
    host = spark.conf.get(HOST, None) or conf.get("spark.driver.host") or "127.0.0.1"
    return host, conf.get("spark.driver.bindAddress") or host
