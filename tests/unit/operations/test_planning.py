"""What `plan` proposes."""

from typing import Any

import pytest

from kcl_dagster import aws, cli
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
    shop.desk.workers.delete(shop.desk.workers.list()[0])
    assert cli.main(COMMAND) == cli.WELL
    assert "launch worker-000" in capsys.readouterr().out
