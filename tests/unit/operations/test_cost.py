"""The estimate, against what the tables in memory metered."""

import pytest

from kcl_dagster.application import Application, BatchSettings, Timings
from kcl_dagster.operations.cost import COMMIT_PUTS, Cost, Prices, Storing, estimate, estimate_catch_up
from tests.unit.operations.conftest import Shop

APPLICATION = Application(name="orders-app", streams="orders")


def test_renewals_of_idle_shards_cost_what_their_interval_says() -> None:
    cost = estimate(APPLICATION, shards=100, workers=10, busy=0.0)
    assert cost.lines[0].writes == pytest.approx(9.5)  # 100 leases, every 10.5 s
    # 9.5 write units a second are 24.6 million a month.
    assert cost.lines[0].dollars(Prices()) == pytest.approx(15.39)


def test_short_batches_cost_more_than_renewals_and_long_ones_do_not() -> None:
    short = estimate(APPLICATION, shards=1, workers=1)
    assert short.lines[0].writes == pytest.approx(0.4)
    long = APPLICATION.model_copy(update={"batch": BatchSettings(max_seconds=60)})
    assert estimate(long, shards=1, workers=1).lines[0].writes == pytest.approx(0.095)


def test_a_longer_lease_duration_is_cheaper() -> None:
    slow = APPLICATION.model_copy(update={"timings": Timings(lease_duration=60)})
    assert estimate(slow, shards=100, workers=10, busy=0).dollars < (
        estimate(APPLICATION, shards=100, workers=10, busy=0).dollars
    )


def of_storing(storing: Storing, workers: int = 4) -> Cost:
    return estimate(APPLICATION, shards=100, workers=workers, storing=storing)


def test_in_chains_a_busy_shard_costs_its_renewals_and_files_follow_tasks() -> None:
    leases, chains = of_storing(Storing()), of_storing(Storing(chained=True))
    assert leases.lines[0].writes == pytest.approx(40.0), "two for each of 100 shards every 5 s"
    assert chains.lines[0].writes == pytest.approx(9.5), "a renewal every 10.5 s"
    assert leases.files_per_hour == pytest.approx(100 * 720)
    assert chains.files_per_hour == pytest.approx(4 * 2 * 720)
    assert leases.lines[-1].puts == pytest.approx(20.0)
    assert chains.lines[-1].puts == pytest.approx(4 * (2 * 2 + 1) / 5)
    assert of_storing(Storing(chained=True, partition_values=3)).files_per_hour == pytest.approx(4 * 6 * 720)


def test_the_commits_of_a_table_in_chains_do_not_depend_on_the_workers() -> None:
    def commits(workers: int, *, chained: bool) -> float:
        table = of_storing(Storing("table", chained, commit_seconds=60), workers).lines[-1].puts
        files = of_storing(Storing("folder"), workers).files_per_hour / 3600
        return table - ((workers * 3 / 5) if chained else files)

    assert commits(1, chained=True) == pytest.approx(COMMIT_PUTS / 60)
    assert commits(8, chained=True) == pytest.approx(COMMIT_PUTS / 60)
    assert commits(8, chained=False) == pytest.approx(8 * COMMIT_PUTS / 5)


def test_what_is_not_on_s3_makes_no_requests_there() -> None:
    for chained in (False, True):
        assert of_storing(Storing("other", chained)).lines[-1].puts == 0


def test_prices_are_the_callers() -> None:
    free = estimate(APPLICATION, shards=10, workers=2, prices=Prices(write=0, read=0, put=0))
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


def test_a_bounded_run_reads_for_five_seconds_at_a_time_whatever_a_fleet_does() -> None:
    paced = APPLICATION.model_copy(update={"batch": BatchSettings(max_seconds=72)})
    cost = estimate_catch_up(paced, shards=10, every=3600.0, run_seconds=300.0, storing=Storing(chained=True))
    assert cost.files_per_hour == pytest.approx(2 * 75 / 5)
    assert cost.assumptions.startswith("batches of 5 s, 75 s of reading in a run of 300 s, ")


@pytest.mark.parametrize(
    ("storing", "said"),
    [
        (Storing("table", True, 60), "1 partition value a batch, {}, decided in chains, a commit every 60 s"),
        (Storing("table", False), "1 partition value a batch, {}, decided in leases"),
        (Storing("other", True, partition_values=3), "3 partition values a batch, not on S3, decided in chains"),
    ],
)
def test_an_estimate_says_what_it_assumes(storing: Storing, said: str) -> None:
    cost = estimate(APPLICATION, shards=10, workers=1, busy=0.2, storing=storing)
    assert cost.assumptions == f"batches of 5 s, shards busy 20% of the time, {said.format('a table on S3')}"
    assert cost.to_document()["assumptions"] == cost.assumptions


def test_an_idle_application_costs_what_was_estimated(shop: Shop) -> None:
    """Metered over ten minutes. Looking for leases is left out: the worker here has them."""
    shop.serve()
    table = shop.dynamodb.client.tables[shop.application.lease_table]
    held = [shop.opened.leases.renew(lease) for lease in shop.leases().values()]
    reads, writes = table.read_units, table.write_units
    for step in range(120):
        shop.beat(beat=step)
        if step % 2 == 0:
            held = [shop.leader.tables.leases.renew(lease) for lease in held]
        shop.tick()
    renewals, heartbeats, _, leader, storage = estimate(shop.application, shards=2, workers=1, busy=0).lines
    assert storage.puts == 0, "nothing is stored"
    assert (table.read_units - reads) / 600 == pytest.approx(leader.reads, rel=0.25)
    written = renewals.writes + heartbeats.writes + leader.writes
    assert (table.write_units - writes) / 600 == pytest.approx(written, rel=0.25)
