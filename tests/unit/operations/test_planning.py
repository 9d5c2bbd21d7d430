"""What `plan` proposes."""

import json
from dataclasses import replace
from typing import Any

import pytest

import kcl_dagster as kcl
from kcl_dagster import aws, cli
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.operations.cost import Storing, estimate
from kcl_dagster.operations.planning import about_cost, cost_of_plan
from kcl_dagster.orchestration.stores import storing_of
from tests.unit.operations.conftest import STREAM, Shop

COMMAND = ["plan", "--application", "orders-app", "--stream", STREAM]


@pytest.mark.audit("F7")
def test_without_dagster_a_plan_launches_nothing_where_a_worker_runs(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def client(service: str, **_: Any) -> Any:
        return {"dynamodb": shop.dynamodb, "kinesis": shop.kinesis}[service]

    monkeypatch.setattr(aws, "client", client)
    monkeypatch.setattr(cli, "system", lambda: shop.runtime)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    shop.serve()
    assert cli.main(COMMAND) == cli.WELL
    says = capsys.readouterr().out
    assert "launch" not in says
    assert "DAGSTER_HOME is not set, so Dagster's runs are unknown" in says
    shop.opened.workers.delete(shop.opened.workers.list()[0])
    assert cli.main(COMMAND) == cli.WELL
    says = capsys.readouterr().out
    assert "launch worker-000" in says
    assert "cost of 2 shards and 1 worker, always busy: " in says
    assert "the sink is not known" in says
    assert cli.main([*COMMAND, "--json"]) == cli.WELL
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert (cost["shards"], cost["workers"]) == (2, 1)


def test_a_plan_says_what_its_fleet_costs_as_the_estimate_does(shop: Shop) -> None:
    shop.serve()
    report = replace(shop.tick(), target_workers=3)
    storing = Storing("table", commit_seconds=60.0)
    cost = cost_of_plan(report, shop.application, storing)
    assert cost == estimate(shop.application, shards=2, workers=3, storing=storing)
    assert cost.table_dollars + cost.s3_dollars == pytest.approx(cost.dollars)
    assert cost.s3_dollars == pytest.approx(cost.lines[-1].dollars(cost.prices))
    line = about_cost(cost, storing)
    for said in (
        "2 shards and 3 workers",
        f"{cost.table_dollars:.2f} $ a month for DynamoDB",
        f"{cost.s3_dollars:.2f} $ for {cost.puts_per_hour:.0f} puts",
        f"{cost.files_per_hour:.0f} data files an hour",
    ):
        assert said in line
    assert "S3" not in about_cost(cost, Storing("other")).replace("not on S3", "")


def test_without_leases_no_cost_is_known(shop: Shop) -> None:
    assert cost_of_plan(TickReport(), shop.application, None) is None


@pytest.mark.parametrize(
    ("sink", "storing"),
    [
        (kcl.parquet("s3://lake/clicks"), Storing("folder", is_compacted=True)),
        (kcl.foreach_batch(print), Storing("other", announces_batches=True)),
        (kcl.delta("s3://lake/clicks", commit_seconds=60), Storing("table", 60, is_compacted=True)),
        (kcl.iceberg("lake.clicks"), Storing("table")),
    ],
)
def test_an_estimate_knows_how_a_sink_stores(sink: kcl.SinkChoice, storing: Storing) -> None:
    assert storing_of(sink) == storing
