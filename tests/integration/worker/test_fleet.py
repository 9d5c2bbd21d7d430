"""Leader and workers together, in real time: launches, reshards, kills, stops, lost answers."""

import pytest

from kcl_dagster.emulator import Emulator
from kcl_dagster.emulator.faults import FaultRule
from kcl_dagster.model.lease import LeaseKey
from tests.integration.worker.fleet import PATIENCE_SECONDS, Fleet, eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_a_stream_is_consumed_through_a_split_and_a_merge(aws: Emulator) -> None:
    with Fleet(aws, "reshards", shards=2, workers=2) as fleet:
        fleet.produce(400)
        fleet.wait_until_everything_is_stored()
        fleet.split()
        fleet.produce(400)
        fleet.wait_until_everything_is_stored()
        fleet.merge()
        fleet.produce(400)
        fleet.wait_until_everything_is_stored()
        fleet.check_exactly_once()
        finished = [lease for lease in fleet.leader.tables.leases.scan().leases if lease.is_finished]
        assert all(lease.children for lease in finished)


# A killed process has no last words; here it dies thread by thread.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_killed_worker_is_replaced_and_nothing_is_lost_or_doubled(aws: Emulator) -> None:
    with Fleet(aws, "kills", shards=4, workers=2) as fleet:
        for _ in range(2):
            fleet.produce(300)
            eventually(lambda: len(fleet.processes) == 2)
            victim = min(fleet.processes.values(), key=lambda process: process.started)
            eventually(lambda v=victim: bool(v.worker.holdings.keys()) or v.is_over)  # type: ignore[misc]
            fleet.produce(300)
            victim.kill()
            fleet.wait_until_everything_is_stored()
        fleet.check_exactly_once()


def test_a_worker_that_stops_leaves_its_leases_to_the_others_at_once(aws: Emulator) -> None:
    with Fleet(aws, "stops", shards=4, workers=2) as fleet:
        fleet.produce(200)
        fleet.wait_until_everything_is_stored()
        eventually(lambda: all(process.worker.holdings.keys() for process in fleet.processes.values()))
        leaver = next(iter(fleet.processes.values()))
        held = leaver.worker.holdings.keys()
        leaver.stop.request()
        leaver.thread.join(PATIENCE_SECONDS)
        assert leaver.is_over
        for key in held:
            lease = fleet.leader.tables.leases.get(LeaseKey(key))
            assert lease is not None
            assert lease.owner != leaver.worker.identity.worker
        assert leaver.worker.identity.worker not in {row.id for row in fleet.leader.tables.workers.list()}
        fleet.produce(200)
        fleet.wait_until_everything_is_stored()
        fleet.check_exactly_once()


def test_writes_whose_answers_are_lost_change_nothing(aws: Emulator) -> None:
    lost = FaultRule(service="dynamodb", operation="UpdateItem", drop=True, applied=True, probability=0.2)
    never_sent = FaultRule(service="dynamodb", operation="UpdateItem", drop=True, probability=0.1)
    throttled = FaultRule(service="dynamodb", error="ProvisionedThroughputExceededException", probability=0.1)
    with Fleet(aws, "answers", shards=2, workers=2) as fleet:
        fleet.produce(200)
        aws.faults.add(lost, never_sent, throttled)
        try:
            for _ in range(4):
                fleet.produce(200)
                fleet.wait_until_everything_is_stored()
            fleet.split()
            fleet.produce(200)
            fleet.wait_until_everything_is_stored()
        finally:
            aws.faults.clear()
        fleet.check_exactly_once()
