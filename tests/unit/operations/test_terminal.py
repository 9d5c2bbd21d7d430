"""What the verbs of the command line print, and with which exit code they end."""

import re
import sys
from types import SimpleNamespace

import pytest

from kcl_dagster import aws, cli
from kcl_dagster.operations import terminal
from kcl_dagster.operations.doctor.finding import fail
from tests.unit.operations.conftest import Shop


@pytest.fixture
def project(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """An application that `my_project:orders` names and that a worker serves."""
    clients = {"dynamodb": shop.dynamodb, "kinesis": shop.kinesis}
    monkeypatch.setattr(aws, "client", lambda service, **_: clients[service])
    for module in (cli, terminal):
        monkeypatch.setattr(module, "system", lambda: shop.runtime)
    monkeypatch.setattr(terminal, "whoami", lambda: "olga@laptop")
    monkeypatch.setitem(sys.modules, "my_project", SimpleNamespace(orders=shop.application))
    shop.serve()
    return shop


@pytest.mark.audit("F9")
def test_the_doctor_prints_square_brackets(
    project: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = fail("java", "found [none]", "pip install 'kcl-dagster[java]'")
    monkeypatch.setattr(terminal, "examine", lambda _: iter((finding,)))
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["doctor", "my_project:orders"]) == cli.WRONG
    out = capsys.readouterr().out
    assert "found [none]" in out
    assert re.search(r"pip install 'kcl-dagster\[java]'", out)
