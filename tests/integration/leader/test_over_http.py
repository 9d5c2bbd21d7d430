"""The leader with real clocks, threads and HTTP."""

import itertools
import time
from email.utils import parsedate_to_datetime

import pytest

from kcl_dagster import aws as edge
from kcl_dagster.application import Application, FleetSettings
from kcl_dagster.emulator import Emulator
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.parallel_requests import ThreadPool
from kcl_dagster.leader.run_view import RunView, SlotRun
from kcl_dagster.leader.tick import Leader
from kcl_dagster.model.worker_row import WorkerRow, slot_name, worker_id

pytestmark = pytest.mark.server

STREAMS, SHARDS, WORKERS = 3, 20, 3
_numbers = itertools.count()


@pytest.fixture
def leader(aws: Emulator) -> Leader:
    number = next(_numbers)

    def client(service: str) -> object:
        return edge.client(
            service, region="us-east-1", endpoint_url=aws.endpoint_url, access_key="x", secret_key="x"
        )

    streams = tuple(f"led-{number}-{index}" for index in range(STREAMS))
    for stream in streams:
        aws.client("kinesis").create_stream(StreamName=stream, ShardCount=SHARDS)
    fleet = FleetSettings(min_workers=WORKERS, max_workers=WORKERS)
    application = Application(name=f"led-{number}", streams=streams, multi_stream=True, fleet=fleet)
    return open_leader(application, dynamodb=client("dynamodb"), kinesis=client("kinesis"), identity="http")


def test_streams_are_synced_and_leases_served_side_by_side(leader: Leader) -> None:
    first = leader.tick(RunView())
    assert first.ok, first.stages
    assert len(first.leases) == STREAMS * SHARDS
    assert [launch.slot for launch in first.launches] == [slot_name(index) for index in range(WORKERS)]
    runs = {}
    for index in range(WORKERS):
        slot, run = slot_name(index), f"{index:08d}-run"
        row = WorkerRow(worker_id(slot, run), int(time.time()), {}, {}, slot=slot, run_id=run, beat=1)
        leader.tables.workers.put(row)
        runs[slot] = SlotRun(run, row.id, "running", time.time())
    second = leader.tick(RunView(runs))
    assert second.ok, second.stages
    assert second.unserved == {}
    owners = [lease.owner for lease in leader.tables.leases.scan().leases]
    assert {owner: owners.count(owner) for owner in set(owners)} == {
        run.worker_id: STREAMS * SHARDS // WORKERS for run in runs.values()
    }
    assert leader.tick(RunView(runs)).moves == ()
    leader.resign()


def test_work_within_work_does_not_wait_for_itself() -> None:
    threads = ThreadPool(2)

    def outer(number: int) -> list[int]:
        return list(threads(lambda inner: number * 10 + inner, range(3)))

    assert list(threads(outer, range(4))) == [[0, 1, 2], [10, 11, 12], [20, 21, 22], [30, 31, 32]]
    assert list(threads(str, [1])) == ["1"]


def test_what_goes_wrong_in_a_thread_is_raised_and_the_next_call_works() -> None:
    threads = ThreadPool(2)
    with pytest.raises(ZeroDivisionError):
        list(threads(lambda number: 1 // number, [1, 0, 2]))
    assert list(threads(abs, [-1, -2])) == [1, 2]


def test_a_stream_is_begun_by_the_clock_of_the_service(leader: Leader, aws: Emulator) -> None:
    """Ours may be wrong, and Kinesis refuses to read from the future."""
    answer = aws.client("kinesis").describe_stream_summary(StreamName=leader.application.streams[0].name)
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    assert abs(parsedate_to_datetime(headers["date"]).timestamp() - time.time()) < 5.0
