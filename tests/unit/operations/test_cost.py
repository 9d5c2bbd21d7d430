"""The estimate, against what the tables in memory metered."""

import pytest

from kcl_dagster.application import Application, BatchSettings, Timings
from kcl_dagster.operations.cost import COMMIT_PUTS, Cost, Prices, Storing, estimate, estimate_catch_up
from tests.unit.operations.conftest import Shop

APPLICATION = Application(name="orders-app", streams="orders", batch=BatchSettings(max_seconds=5))


def test_renewals_of_idle_shards_cost_what_their_interval_says() -> None:
    cost = estimate(APPLICATION, shards=100, workers=10, busy=0.0)
    assert cost.lines[0].writes == pytest.approx(9.5)  # 100 leases, every 10.5 s
    # 9.5 write units a second are 24.6 million a month.
    assert cost.lines[0].dollars(Prices()) == pytest.approx(15.39)


def test_short_batches_that_are_announced_cost_more_than_renewals_and_long_ones_do_not() -> None:
    announced = Storing("other", announces_batches=True)
    short = estimate(APPLICATION, shards=1, workers=1, storing=announced)
    assert short.lines[0].writes == pytest.approx(0.4)
    long = APPLICATION.model_copy(update={"batch": BatchSettings(max_seconds=60)})
    assert estimate(long, shards=1, workers=1, storing=announced).lines[0].writes == pytest.approx(0.095)


def test_a_longer_lease_duration_is_cheaper() -> None:
    slow = APPLICATION.model_copy(update={"timings": Timings(lease_duration=60)})
    assert estimate(slow, shards=100, workers=10, busy=0).dollars < (
        estimate(APPLICATION, shards=100, workers=10, busy=0).dollars
    )


def of_storing(storing: Storing, workers: int = 4) -> Cost:
    return estimate(APPLICATION, shards=100, workers=workers, storing=storing)


def test_a_busy_shard_costs_its_renewals_and_files_follow_tasks() -> None:
    announced, stored = of_storing(Storing("other", announces_batches=True)), of_storing(Storing())
    assert announced.lines[0].writes == pytest.approx(40.0), "two for each of 100 shards every 5 s"
    assert stored.lines[0].writes == pytest.approx(9.5), "a renewal every 10.5 s"
    assert stored.files_per_hour == pytest.approx(4 * 2 * 720)
    assert stored.lines[-1].puts == pytest.approx(4 * (2 * 2 + 1) / 5)
    assert of_storing(Storing(partition_values=3)).files_per_hour == pytest.approx(4 * 6 * 720)


@pytest.mark.parametrize(
    ("storing", "seconds"), [(Storing("folder"), 6.5), (Storing("table"), 5), (Storing("other"), 5)]
)
def test_batches_are_as_long_as_the_sink_makes_them_unless_they_are_set(storing: Storing, seconds: float) -> None:
    cost = estimate(Application(name="orders-app", streams="orders"), shards=1, workers=1, storing=storing)
    assert cost.assumptions.startswith(f"batches of {seconds:g} s, ")


def test_small_batches_are_in_one_file() -> None:
    small, large = (of_storing(Storing(bytes_per_second=rate)) for rate in (1e6, 2e6))
    assert small.files_per_hour == pytest.approx(4 * 720), "0.25 MB/s of a worker: 1.25 MB in 5 s"
    assert large.files_per_hour == pytest.approx(2 * 4 * 720)
    assert small.lines[-1].puts == pytest.approx(4 * 3 / 5)
    assert "1 MB a second" in small.assumptions
    rarely = estimate_catch_up(APPLICATION, shards=10, every=3600.0, storing=Storing(bytes_per_second=100.0))
    often = estimate_catch_up(APPLICATION, shards=10, every=3600.0, storing=Storing(bytes_per_second=1e6))
    assert rarely.files_per_hour == pytest.approx(often.files_per_hour / 2)


def test_batches_that_are_full_early_are_shorter() -> None:
    paced = APPLICATION.model_copy(update={"batch": BatchSettings(max_seconds=72)})
    cost = estimate(paced, shards=100, workers=4, storing=Storing(bytes_per_second=50e6))
    seconds = 64 * 1024 * 1024 * 4 / 50e6
    assert cost.files_per_hour == pytest.approx(4 * 2 * 3600 / seconds)
    assert cost.assumptions.startswith("batches of 5.37 s, ")


def test_the_commits_of_a_table_do_not_depend_on_the_workers() -> None:
    def commits(workers: int) -> float:
        return of_storing(Storing("table", commit_seconds=60), workers).lines[-1].puts - workers * 3 / 5

    assert commits(1) == pytest.approx(COMMIT_PUTS / 60)
    assert commits(8) == pytest.approx(COMMIT_PUTS / 60)


def test_what_is_not_on_s3_makes_no_requests_there() -> None:
    cost = of_storing(Storing("other", is_compacted=True))
    assert cost.lines[-1].puts == cost.gets_per_hour == cost.s3_dollars == 0


def test_a_compaction_gets_each_file_twice() -> None:
    without, compacted = of_storing(Storing()), of_storing(Storing(is_compacted=True))
    assert compacted.lines[:-1] == without.lines
    assert compacted.gets_per_hour == pytest.approx(2 * compacted.files_per_hour)
    assert compacted.puts_per_hour - without.puts_per_hour == pytest.approx(10)
    gets = 2 * 5760 * 24 * 30 * 0.4 / 1e6
    assert compacted.s3_dollars - without.s3_dollars == pytest.approx(gets + 10 * 24 * 30 * 5 / 1e6)
    assert compacted.table_dollars == pytest.approx(without.table_dollars)
    hourly = estimate_catch_up(APPLICATION, shards=10, every=3600.0, storing=Storing(is_compacted=True))
    assert hourly.gets_per_hour == pytest.approx(2 * hourly.files_per_hour)


def test_prices_are_the_callers() -> None:
    free = estimate(APPLICATION, shards=10, workers=2, prices=Prices(write=0, read=0, put=0, get=0))
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
    cost = estimate_catch_up(paced, shards=10, every=3600.0, run_seconds=300.0, storing=Storing())
    assert cost.files_per_hour == pytest.approx(2 * 75 / 5)
    assert cost.assumptions.startswith("batches of 5 s, 75 s of reading in a run of 300 s, ")


@pytest.mark.parametrize(
    ("storing", "said"),
    [
        (Storing("table", 60), "1 partition value a batch, a table on S3, a commit every 60 s"),
        (Storing("folder"), "1 partition value a batch, a folder on S3"),
        (
            Storing("other", partition_values=3, announces_batches=True),
            "3 partition values a batch, not on S3, batches announced in leases",
        ),
    ],
)
def test_an_estimate_says_what_it_assumes(storing: Storing, said: str) -> None:
    cost = estimate(APPLICATION, shards=10, workers=1, busy=0.2, storing=storing)
    assert cost.assumptions == f"batches of 5 s, shards busy 20% of the time, {said}"
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
