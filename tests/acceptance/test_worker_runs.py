"""Runs of a real Dagster, launched by its daemon: a backfill beside a live consumer, and the ways a worker ends."""

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from dagster import DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.execution.backfill import BulkActionStatus

from kcl_dagster.emulator import Emulator
from kcl_dagster.operations.pausing import drain, pause
from tests.acceptance.deployment import Deployment, dagster_dev
from tests.acceptance.test_user_project import bodies

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(3600)]

TRIPS, SEEN = "trips", "seen"  # applications, and their streams
HOUR = 3600
RECORDS = 60  # an hour
SLOT = "worker-000"
LIFETIME_SECONDS = 120  # a busy machine needs half of it to start Spark
LEAST_SHARE = 0.02  # of five reads a second
FIRST_READ_RECORDS = 20  # a window of more takes a second read of its shard

PROJECT = f'''\
import os
import time

import dagster as dg

import kcl_dagster as kcl
from kcl_dagster.worker.kclpy import install_stand_in

install_stand_in()
from amazon_kclpy.v3 import processor

timings = kcl.Timings(lease_duration=10, heartbeat=1, handoff_timeout=3)


@kcl.kcl_consumer(
    application="{TRIPS}", stream="{TRIPS}", sink=kcl.parquet(os.environ["LAKE"]), timings=timings, workers=1
)
def trips(records):
    while os.path.exists(os.environ["HANG"]):
        open(os.environ["HANG"] + ".seen", "w").close()
        time.sleep(0.1)
    return records.selectExpr("lease_key", "cast(data as string) as body", "sequence_number")


class Seen(processor.RecordProcessorBase):
    def note(self, *words):
        with open(os.environ["NOTES"], "a") as file:
            print(os.getpid(), *words, file=file, flush=True)

    def initialize(self, given):
        self.shard = given.shard_id

    def process_records(self, given):
        for record in given.records:
            self.note("record", self.shard, record.binary_data.decode())

    def lease_lost(self, given):
        self.note("lease_lost", self.shard)

    def shard_ended(self, given):
        given.checkpointer.checkpoint()

    def shutdown_requested(self, given):
        self.note("shutdown_requested", self.shard)
        given.checkpointer.checkpoint()


fleet = kcl.FleetSettings(min_workers=1, max_workers=1, lifetime={LIFETIME_SECONDS})
seen = kcl.kcl_consumer(
    application="{SEEN}", stream="{SEEN}", fleet=fleet, timings=timings, name="seen", processes=1
)(Seen)

replayed = kcl.build_kcl_replay_asset(
    trips,
    partitions_def=dg.HourlyPartitionsDefinition(os.environ["FIRST_HOUR"], fmt="%Y-%m-%d-%H:%M", end_offset=1),
    sink=kcl.parquet(os.environ["REPLAYED"]),
)
resources = {{"kcl": kcl.KclResource(), "spark": kcl.KclSparkResource(memory="512m", slots=2)}}
defs = dg.Definitions.merge(
    kcl.build_kcl_definitions(trips, seen, resources=resources),
    dg.Definitions(assets=[replayed], executor=dg.in_process_executor),
)
'''

OVER: Final = {
    BulkActionStatus.COMPLETED_SUCCESS,
    BulkActionStatus.COMPLETED_FAILED,
    BulkActionStatus.FAILED,
    BulkActionStatus.CANCELED,
}


class Town:
    """Two streams: trips of two whole hours, and what is to be seen; and where it all goes."""

    def __init__(self, aws: Emulator, folder: Path, this_hour: float) -> None:
        self.aws, self.folder = aws, folder
        self.made = 0
        self.hours: list[str] = []
        self.of_hour: dict[str, list[str]] = {}
        aws.client("kinesis").create_stream(StreamName=TRIPS, ShardCount=2)
        for ago in (2, 1):
            name = datetime.fromtimestamp(this_hour - ago * HOUR, UTC).strftime("%Y-%m-%d-%H:%M")
            self.hours.append(name)
            self.of_hour[name] = self.put(RECORDS)
            aws.clock.advance(HOUR)
        aws.client("kinesis").create_stream(StreamName=SEEN, ShardCount=2)
        self._put(SEEN, _names(0, RECORDS))

    def put(self, count: int) -> list[str]:
        """More trips."""
        bodies = _names(self.made, count)
        self._put(TRIPS, bodies)
        self.made += count
        return bodies

    def _put(self, stream: str, bodies: list[str]) -> None:
        records = [{"Data": body.encode(), "PartitionKey": body} for body in bodies]
        answer = self.aws.client("kinesis").put_records(StreamName=stream, Records=records)
        assert answer["FailedRecordCount"] == 0

    @property
    def expected(self) -> list[str]:
        return _names(0, self.made)

    @property
    def landed(self) -> list[str]:
        return sorted(bodies(self.folder / "lake"))

    @property
    def hang(self) -> Path:
        """While it exists, the code of trips does not return."""
        return self.folder / "hang"

    @property
    def replayed(self) -> Path:
        return self.folder / "replayed"

    def noted(self, what: str) -> list[list[str]]:
        """[pid, what, shard, body] of each note of a record processor."""
        path = self.folder / "notes"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [words for words in lines if words[1] == what]


def _names(first: int, count: int) -> list[str]:
    return [f"{number:05d}" for number in range(first, first + count)]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """With the limits of AWS: the live consumer and the replay share five reads a second of each shard."""
    this_hour = int((time.time() - 60) // HOUR) * HOUR
    behind = time.time() - (this_hour - 2 * HOUR + 600)
    with Emulator(clock=lambda: time.time() - behind) as aws:
        yield Town(aws, tmp_path_factory.mktemp("town"), this_hour)


@pytest.fixture(scope="module")
def dagster(town: Town) -> Iterator[Deployment]:
    places = {
        "LAKE": str(town.folder / "lake"),
        "REPLAYED": str(town.replayed),
        "NOTES": str(town.folder / "notes"),
        "HANG": str(town.hang),
        "FIRST_HOUR": town.hours[0],
    }
    with dagster_dev(town.folder, town.aws, PROJECT, places) as deployment:
        yield deployment


@pytest.mark.nightly
def test_a_backfill_is_run_by_the_daemon_once_beside_the_live_consumer(dagster: Deployment, town: Town) -> None:
    dagster.wait(lambda: town.landed == town.expected, "the live consumer has stored everything")
    before, worker = dagster.leases(TRIPS), dagster.workers(TRIPS)
    config = {"ops": {"trips_trips_replayed": {"config": {"share": LEAST_SHARE}}}}
    backfill = dagster.backfill("trips_replayed", town.hours, config)
    dagster.wait(
        lambda: [run.status for run in dagster.runs_of(backfill)] == [DagsterRunStatus.STARTED],
        "the daemon has launched the backfill's one run",
    )
    town.put(RECORDS)
    dagster.wait(lambda: town.landed == town.expected, "the live consumer stores what comes meanwhile")
    assert dagster.backfill_status(backfill) is BulkActionStatus.REQUESTED, "it goes on still"
    dagster.wait(lambda: dagster.backfill_status(backfill) in OVER, "the backfill is over")
    assert dagster.backfill_status(backfill) is BulkActionStatus.COMPLETED_SUCCESS

    windows = sorted(body for hour in town.hours for body in town.of_hour[hour])
    assert sorted(bodies(town.replayed)) == windows, "each record of the windows once, and no other"
    # The live consumer read on, under leases that nobody else wrote.
    assert dagster.workers(TRIPS) == worker
    after = dagster.leases(TRIPS)
    assert {key: lease.owner for key, lease in after.items()} == {key: lease.owner for key, lease in before.items()}
    assert town.landed == town.expected
    # Two reads of a shard for each window, and between them as long as the share says.
    [run] = dagster.runs_of(backfill)
    [record] = dagster.instance.get_run_records(RunsFilter(run_ids=[run.run_id]))
    assert record.start_time is not None
    assert record.end_time is not None
    assert RECORDS / 2 > FIRST_READ_RECORDS
    assert record.end_time - record.start_time > len(town.hours) / (5 * LEAST_SHARE)


@pytest.mark.nightly
def test_a_worker_lets_go_if_it_is_asked_by_others_than_the_ui(dagster: Deployment, town: Town) -> None:
    end_runs(dagster, town, "drained", "SIGTERM")


def test_a_worker_lets_go_if_its_run_is_terminated_and_if_the_application_is_paused(
    dagster: Deployment, town: Town
) -> None:
    end_runs(dagster, town, "terminated in the UI")
    hung_run_ends(dagster, town)
    pause(dagster.opened(TRIPS))
    dagster.wait(lambda: dagster.workers(TRIPS) == [], "a paused application has no workers")
    assert dagster.owners(TRIPS) == {None}


def end_runs(dagster: Deployment, town: Town, *ways: str) -> None:
    """Each way ends a run. Everything is stored once all the same, and the next run goes on at once."""
    dagster.wait(lambda: town.landed == town.expected, "a worker has stored everything")
    for way in ways:
        run = dagster.runs(TRIPS)[-1]
        [row] = dagster.workers(TRIPS)
        town.put(RECORDS)
        if way == "drained":
            assert drain(dagster.opened(TRIPS), SLOT) == [row]
        elif way == "SIGTERM":
            os.kill(dagster.pid_of(run), signal.SIGTERM)
        else:
            assert dagster.terminate(run) == "TerminateRunSuccess"
        dagster.wait(partial(succeeded, dagster, run), f"{way}: the run ends by itself, and well")
        assert row not in dagster.workers(TRIPS), f"{way}: its row is gone"
        assert row not in dagster.owners(TRIPS), f"{way}: its leases are free"
        town.put(RECORDS)
        dagster.wait(lambda: town.landed == town.expected, f"{way}: another run goes on")
        assert dagster.runs(TRIPS)[-1].run_id != run.run_id


def hung_run_ends(dagster: Deployment, town: Town) -> None:
    """A run whose code does not return is terminated in the UI: its process ends, and another one goes on."""
    dagster.wait(lambda: len(dagster.workers(TRIPS)) == 1, "a worker is there")
    run = dagster.runs(TRIPS)[-1]
    [row] = dagster.workers(TRIPS)
    pid = dagster.pid_of(run)
    town.hang.touch()
    town.put(RECORDS)
    dagster.wait(town.hang.with_suffix(".seen").exists, "a batch has begun")
    assert dagster.terminate(run) == "TerminateRunSuccess"
    dagster.wait(lambda: dagster.status_of(run) is DagsterRunStatus.CANCELED, "the run that hangs is over")
    dagster.wait(lambda: not Path(f"/proc/{pid}").exists(), "and so is its process")
    assert row not in dagster.owners(TRIPS)
    town.hang.unlink()
    dagster.wait(lambda: town.landed == town.expected, "another run stores what came meanwhile")


def succeeded(dagster: Deployment, run: DagsterRun) -> bool:
    return dagster.status_of(run) is DagsterRunStatus.SUCCESS


def test_record_processors_are_asked_at_the_end_of_a_lifetime(dagster: Deployment, town: Town) -> None:
    everything = set(_names(0, RECORDS))
    dagster.wait(lambda: {words[3] for words in town.noted("record")} == everything, "everything has been seen")
    notes = town.noted("record")
    for shard in {words[2] for words in notes}:
        order = list(dict.fromkeys(words[3] for words in notes if words[2] == shard))
        assert order == sorted(order)
    dagster.wait(lambda: succeeded(dagster, dagster.runs(SEEN)[0]), "its life is over")
    assert {words[2] for words in town.noted("shutdown_requested")} == {words[2] for words in notes}
    dagster.wait(lambda: len(dagster.runs(SEEN)) >= 2, "the next is launched")
    in_executors = {int(words[0]) for words in notes}
    assert dagster.pid_of(dagster.runs(SEEN)[0]) not in in_executors, "they live in Spark's Python processes"
