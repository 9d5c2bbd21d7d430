"""The estimate, against what the tables in memory metered."""

import pytest

from kcl_dagster.application import Application, BatchSettings, Timings
from kcl_dagster.operations.cost import Prices, estimate, estimate_catch_up
from tests.unit.operations.conftest import Shop

APPLICATION = Application(name="orders-app", streams="orders")


def test_renewals_of_idle_shards_cost_what_their_interval_says() -> None:
    cost = estimate(APPLICATION, shards=100, workers=10, busy=0.0)
    assert cost.lines[0].writes == pytest.approx(10.0)  # 100 leases, every 10 s
    # 10 write units a second are 25.92 million a month.
    assert cost.lines[0].dollars(Prices()) == pytest.approx(16.2)


def test_short_batches_cost_more_than_renewals_and_long_ones_do_not() -> None:
    short = estimate(APPLICATION, shards=1, workers=1)
    assert short.lines[0].writes == pytest.approx(0.4)
    long = APPLICATION.model_copy(update={"batch": BatchSettings(max_seconds=60)})
    assert estimate(long, shards=1, workers=1).lines[0].writes == pytest.approx(0.1)


def test_a_longer_lease_duration_is_cheaper() -> None:
    slow = APPLICATION.model_copy(update={"timings": Timings(lease_duration=60)})
    assert estimate(slow, shards=100, workers=10, busy=0).dollars < (
        estimate(APPLICATION, shards=100, workers=10, busy=0).dollars
    )


def test_prices_are_the_callers() -> None:
    free = estimate(APPLICATION, shards=10, workers=2, prices=Prices(write=0, read=0))
    assert free.dollars == 0
    assert free.to_document()["dollars_per_month"] == 0


def test_a_catch_up_costs_what_its_runs_last() -> None:
    always = estimate(APPLICATION, shards=10, workers=1, busy=0.2)
    hourly = estimate_catch_up(APPLICATION, shards=10, every=3600.0, run_seconds=60.0)
    assert always.machine_hours == pytest.approx(720)
    assert hourly.machine_hours == pytest.approx(12)
    assert hourly.machine_dollars == pytest.approx(12 * Prices().hour)
    assert hourly.dollars < always.dollars / 20
    twice = estimate_catch_up(APPLICATION, shards=10, every=1800.0, run_seconds=60.0)
    assert twice.dollars == pytest.approx(2 * hourly.dollars)
    assert hourly.to_document()["machine_hours_per_month"] == 12


def test_an_idle_application_costs_what_was_estimated(shop: Shop) -> None:
    """Metered over ten minutes. Looking for leases is left out: the worker here has them."""
    shop.serve()
    table = shop.dynamodb.client.tables[shop.application.lease_table]
    held = [shop.desk.leases.renew(lease) for lease in shop.leases().values()]
    reads, writes = table.read_units, table.write_units
    for step in range(120):
        shop.beat(beat=step)
        if step % 2 == 0:
            held = [shop.leader.tables.leases.renew(lease) for lease in held]
        shop.tick()
    renewals, heartbeats, _, leader = estimate(shop.application, shards=2, workers=1, busy=0).lines
    assert (table.read_units - reads) / 600 == pytest.approx(leader.reads, rel=0.25)
    written = renewals.writes + heartbeats.writes + leader.writes
    assert (table.write_units - writes) / 600 == pytest.approx(written, rel=0.25)
