"""Record processors in the executors: unchanged, in order, with their state, replaced when their process ends."""

import os
import signal
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kcl_dagster.application import Application
from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.model.checkpoint import TRIM_HORIZON
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import system
from kcl_dagster.spark.engine import EngineSettings
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.processor_hosts.host_process import HostTask
from kcl_dagster.spark.processor_hosts.line import Line as HostLine
from kcl_dagster.spark.processor_hosts.spark_processor_hosts import SECRET_BYTES, SparkProcessorHosts
from kcl_dagster.streams.listing import list_shards
from kcl_dagster.streams.pacing import ShardLimits
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import create_tables, detect_layout
from kcl_dagster.worker.batch import Budget, Range
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.heartbeat import Identity
from kcl_dagster.worker.hosted_processor import HostLost
from kcl_dagster.worker.kclpy import install_stand_in
from kcl_dagster.worker.loop import Worker
from kcl_dagster.worker.opening import open_surroundings
from kcl_dagster.worker.surroundings import Surroundings
from tests.integration.spark.conftest import Stream
from tests.integration.spark.test_credentials import plans_in_the_ui
from tests.unit.worker.kit import MemoryDeadLetters, in_nobodys_background

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

THEIRS = Path(__file__).with_name("their_processor.py")
ME, OTHER = WorkerId("w1"), WorkerId("w2")


@dataclass
class Line:
    """What a processor noted."""

    pid: int
    instance: str
    shard: str
    what: str
    words: list[str]


@dataclass
class Place:
    """A worker of record processors, stepped by hand, and what they noted."""

    stream: Stream
    leases: LeaseTable
    worker: Worker[Any]
    hosts: SparkProcessorHosts
    journal: Path
    letters: MemoryDeadLetters
    events: list[WorkerEvent] = field(default_factory=list)

    def lines(self, *what: str) -> list[Line]:
        found = []
        for line in self.journal.read_text().splitlines() if self.journal.exists() else []:
            pid, instance, shard, told, *words = line.split()
            if told in what or not what:
                found.append(Line(int(pid), instance, shard, told, words))
        return found

    def records(self) -> list[str]:
        return [line.words[0] for line in self.lines("record")]

    def work_until(self, done: Callable[[], bool], rounds: int = 150) -> None:
        for _ in range(rounds):
            self.worker.step_discovery()
            self.worker.step_renewal()
            self.worker.step_batch()
            if done():
                return
            time.sleep(0.05)
        raise AssertionError(f"not done after {rounds} rounds: {self.events[-3:]}, {self.lines()[-3:]}")

    def put(self, *texts: str) -> None:
        for text in texts:
            self.stream.kinesis.put_record(StreamName=self.stream.name, Data=text.encode(), PartitionKey=text)

    def tell(self, what: str) -> Path:
        told = self.journal.with_name(f"{self.journal.name}.{what}")
        told.touch()
        return told

    def checkpoint(self, shard: str) -> str:
        lease = self.leases.get(LeaseKey(shard))
        assert lease is not None
        return str(lease.checkpoint)

    def lease(self, shard: str) -> Lease:
        lease = self.leases.get(LeaseKey(shard))
        assert lease is not None
        return lease


@dataclass
class Town:
    """Makes places."""

    aws: Emulator
    spark: SparkSession
    connection: Connection
    stream: Stream
    folder: Path

    @contextmanager
    def place(self, hosts: int = 2, **settings: Any) -> Iterator[Place]:
        journal = self.folder / "journal"
        application = Application(name=f"app-{self.stream.name}", streams=(self.stream.name,), **settings)
        dynamodb, runtime = self.aws.client("dynamodb"), system()
        layout = detect_layout(dynamodb, application, runtime)
        create_tables(dynamodb, application, layout, runtime)
        leases = LeaseTable(dynamodb, application, layout, runtime)
        for shard in list_shards(self.stream.kinesis, self.stream.name, runtime=runtime):
            leases.create(
                Lease(
                    key=LeaseKey(shard.id),
                    shard_id=shard.id,
                    checkpoint=TRIM_HORIZON,
                    owner=ME,
                    hash_range=shard.hash_range,
                )
            )
        events: list[WorkerEvent] = []
        letters = MemoryDeadLetters()
        on = SparkProcessorHosts(
            self.spark,
            self.connection,
            self._theirs(journal),
            EngineSettings(tasks=hosts, limits=ShardLimits.unlimited()),
        )
        try:
            around: Surroundings[Any] = open_surroundings(
                application,
                dynamodb=dynamodb,
                kinesis=self.stream.kinesis,
                processors=on,
                runtime=runtime,
                dead_letters=letters,
                on_event=events.append,
            )
            worker = Worker(around, Identity(ME, "w1", "run"), runtime, in_nobodys_background)
            yield Place(self.stream, leases, worker, on, journal, letters, events)
        finally:
            on.close()

    def _theirs(self, journal: Path) -> Any:
        """The class as its users have it: in a module that only the driver's path finds."""
        install_stand_in()
        text = THEIRS.read_text().replace('"JOURNAL"', repr(str(journal)))
        (self.folder / f"theirs_{self.stream.name.replace('-', '_')}.py").write_text(text)
        return import_module(f"theirs_{self.stream.name.replace('-', '_')}").Journal


@pytest.fixture
def town(
    aws: Emulator,
    spark: SparkSession,
    connection: Connection,
    stream: Stream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Town:
    monkeypatch.syspath_prepend(tmp_path)
    return Town(aws, spark, connection, stream, tmp_path)


QUICK = {"max_seconds": 0.3}


def test_processors_of_the_kcl_run_unchanged_in_the_executors(town: Town) -> None:
    texts = [f"r{number}" for number in range(60)]
    with town.place(batch=QUICK) as place:
        place.put(*texts[:30])
        place.work_until(lambda: len(place.records()) >= 30)
        place.put(*texts[30:])
        place.work_until(lambda: len(place.records()) >= 60)
        assert Counter(place.records()) == Counter(texts)
        pids = {line.pid for line in place.lines()}
        assert os.getpid() not in pids
        assert len(pids) == 2
        shards = town.stream.shards()
        # One instance for each shard, which kept its process.
        assert len({(line.shard, line.instance, line.pid) for line in place.lines()}) == len(shards) == 3
        for shard in shards:
            seen = [line for line in place.lines("record") if line.shard == shard]
            assert [int(line.words[2]) for line in seen] == list(range(1, len(seen) + 1))
            sequences = [int(line.words[1]) for line in seen]
            assert sequences == sorted(sequences)
            assert place.checkpoint(shard) == str(sequences[-1])
        place.worker.protocol.close()
        assert len(place.lines("shutdown_requested")) == 3
        assert town.spark.sparkContext.statusTracker().getActiveJobsIds() == []  # their task slots are free again


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_killed_python_worker_costs_repetition_and_no_record(town: Town, checkpoints: bool) -> None:
    texts = [f"r{number}" for number in range(40)]
    with town.place(hosts=1, batch=QUICK) as place:
        if not checkpoints:
            place.tell("no-checkpoints")
        place.put(*texts[:20])
        place.work_until(lambda: len(place.records()) >= 20)
        (first,) = {line.pid for line in place.lines()}
        os.kill(first, signal.SIGKILL)
        place.put(*texts[20:])
        place.work_until(lambda: set(place.records()) == set(texts) and len(place.records()) >= 40)
        (second,) = {line.pid for line in place.lines()} - {first}
        again = [line.words[0] for line in place.lines("record") if line.pid == second]
        assert Counter(again) == Counter(texts[20:] if checkpoints else texts)
        started = [line.words[0] for line in place.lines("initialize") if line.pid == second]
        assert ("TRIM_HORIZON" in started) == (not checkpoints)
        assert EventKind.SHARD_STOPPED not in {event.kind for event in place.events}


def test_a_task_that_user_code_ends_is_retried_and_no_record_is_blamed(town: Town) -> None:
    with town.place(hosts=2, batch=QUICK | {"failure": {"action": "skip", "attempts": 1}}) as place:
        place.tell("deadly")
        place.put("a", "b", "deadly", "c")
        place.work_until(lambda: set(place.records()) == {"a", "b", "deadly", "c"})
        kinds = [event.kind for event in place.events]
        assert EventKind.RECORD_SKIPPED not in kinds
        assert len({line.pid for line in place.lines()}) >= 2


@pytest.mark.parametrize("action", ["skip", "dead_letter"])
def test_a_record_that_cannot_be_processed_meets_the_failure_policy(town: Town, action: str) -> None:
    path = "/letters" if action == "dead_letter" else None
    failure = {"action": action, "attempts": 2, "dead_letter_path": path}
    with town.place(batch=QUICK | {"failure": failure}) as place:
        place.put("a", "poison", "b", "c")
        place.work_until(lambda: set(place.records()) == {"a", "b", "c"})
        kind = EventKind.RECORD_SKIPPED if action == "skip" else EventKind.RECORD_DEAD_LETTERED
        place.work_until(lambda: kind in [event.kind for event in place.events])
        if action == "dead_letter":
            (letter,) = place.letters.letters.values()
            assert (letter.error_type, letter.partition_key, letter.data) == ("ValueError", "poison", "cG9pc29u")
            assert "cannot be processed" in letter.error
            assert "theirs" in letter.error  # where in user code


def test_a_shard_ends_with_its_processor_and_its_children_follow(town: Town) -> None:
    with town.place(batch=QUICK) as place:
        shard = town.stream.shards()[0]
        place.put(*[f"r{number}" for number in range(20)])
        hash_range = place.lease(shard).hash_range
        assert hash_range is not None
        town.stream.kinesis.split_shard(
            StreamName=town.stream.name, ShardToSplit=shard, NewStartingHashKey=str(hash_range.start + 1000)
        )
        place.work_until(lambda: place.checkpoint(shard) == "SHARD_END")
        children = place.lease(shard).children
        assert len(children) == 2
        assert [line.shard for line in place.lines("shard_ended")] == [shard]
        for child in children:
            assert place.leases.assign(place.lease(child), ME) is not None
        place.put(*[f"s{number}" for number in range(40)])
        place.work_until(lambda: len(set(place.records())) == 60)
        assert len(place.records()) == 60
        assert children <= {line.shard for line in place.lines("initialize")}


def test_processors_hear_of_a_handoff_and_of_a_loss(town: Town) -> None:
    with town.place(batch=QUICK) as place:
        place.tell("no-checkpoints")
        place.put(*[f"r{number}" for number in range(20)])
        place.work_until(lambda: len(place.records()) >= 20)
        handed, lost, kept = town.stream.shards()
        assert place.leases.initiate_handoff(place.lease(handed), OTHER) is not None
        assert place.leases.assign(place.lease(lost), OTHER) is not None
        for lease in (handed, lost):
            with pytest.raises(Exception, match="no longer ours") if lease == lost else _nothing():
                place.worker.holdings.renew(LeaseKey(lease))
        place.work_until(lambda: len(place.lines("lease_lost", "shutdown_requested")) == 2)
        assert [line.shard for line in place.lines("lease_lost")] == [lost]
        assert [line.shard for line in place.lines("shutdown_requested")] == [handed]
        assert place.checkpoint(handed) != "TRIM_HORIZON"
        assert place.checkpoint(lost) == "TRIM_HORIZON"
        # The other worker has no row, so the lease is given up instead of handed over.
        place.work_until(lambda: place.lease(handed).actual_owner != ME)
        assert place.lease(kept).owner == ME


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def test_a_checkpoint_that_comes_too_late_is_refused_in_the_executor(town: Town) -> None:
    with town.place(batch=QUICK) as place:
        place.put("a")
        place.work_until(lambda: len(place.records()) == 1)
        for shard in town.stream.shards():
            assert place.leases.assign(place.lease(shard), OTHER) is not None
        place.put(*[f"r{number}" for number in range(9)])
        place.work_until(lambda: bool(place.lines("refused")))
        assert {line.words[0] for line in place.lines("refused")} == {"ShutdownException"}


def test_without_a_free_slot_there_is_no_host_and_no_hanging(
    town: Town, spark: SparkSession, connection: Connection
) -> None:
    elsewhere = SparkProcessorHosts(spark, connection, object, EngineSettings(tasks=1), patience=0.0)  # type: ignore[arg-type]  # never made
    shard = town.stream.shards()[0]
    with pytest.raises(HostLost, match="no executor has a host"):
        elsewhere.fetch(
            [Range(LeaseKey(shard), StreamIdentifier(town.stream.name), shard, TRIM_HORIZON, 1)], Budget(1, 1, 1.0)
        )
    elsewhere.close()
    elsewhere.close()


def test_spark_connect_is_refused_at_start(connection: Connection) -> None:
    class Remote:
        __module__ = "pyspark.sql.connect.session"

    remote: Any = Remote()
    with pytest.raises(ConfigurationError, match="driver is the worker itself"):
        SparkProcessorHosts(remote, connection, object)  # type: ignore[arg-type]  # never made


def test_a_client_without_the_secret_is_refused(town: Town) -> None:
    with town.place() as place:
        plan = place.hosts._host_plan
        with pytest.raises((EOFError, OSError)):
            HostLine.connect(plan.address, plan.certificate, b"guess".ljust(SECRET_BYTES))
        assert place.hosts._connections == {}


def test_the_task_of_a_host_has_no_secret(town: Town, spark: SparkSession) -> None:
    """Neither the plan that Spark shows, nor the pickled function in it, which other software may store or send."""
    with town.place(hosts=1, batch=QUICK) as place:
        secret = place.hosts._secret.value
        frame = spark.range(1).mapInArrow(HostTask(place.hosts._host_plan, place.hosts._secret), "id bigint")
        java: Any = frame
        plan = java._jdf.queryExecution().analyzed()
        command = bytes(plan.functionExpr().func().command().unsafeArray())
        assert place.hosts._host_plan.certificate.encode() in command
        place.put("a")
        place.work_until(lambda: place.records() == ["a"])
        shown = plan.toString() + plans_in_the_ui(spark) + repr(spark.sparkContext.getConf().getAll())
    assert "record processors, host 0" in shown
    assert secret not in command
    assert not any(form in shown for form in (secret.hex(), b64encode(secret).decode(), repr(secret)))
