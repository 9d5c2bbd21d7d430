"""Every command of docs/operations.md runs, block by block, as it stands there."""

import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcl_dagster import aws, cli
from kcl_dagster.operations.pausing import pause
from kcl_dagster.operations.terminal import instance_settings
from tests.unit.operations.conftest import ANNA, Shop

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
RECORD = re.compile(r"\b\d{50,}\b")  # the page's example of a sequence number

SECONDS_WATCHED = 30.0  # then somebody presses Ctrl-C


class Counts:
    """Stands for CloudWatch, of a table that is in use."""

    def get_metric_statistics(self, **_: Any) -> dict[str, Any]:
        return {"Datapoints": [{"Sum": 3600.0}]}


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


NEEDS_A_PAUSE = {"reset", "import", "export", "resume", "deregister", "forget"}


def prepared(verb: str, text: str) -> Shop:
    """The application as the page says that it should be when the command is given."""
    shop = Shop()
    shop.put(b"one")
    shop.serve()
    if verb in NEEDS_A_PAUSE and "--wait-for-dead" not in text:
        pause(shop.opened)
        for lease in shop.leases().values():
            shop.opened.leases.release(lease)
        worker = shop.opened.workers.get(ANNA)
        assert worker is not None
        shop.opened.workers.delete(worker)
    elif verb == "take-over-2x":
        shop.dynamodb.delete_item(TableName=shop.application.lease_table, Key={"leaseKey": {"S": "Migration3.0"}})
    elif verb == "doctor":
        for seconds in range(1, 120, 5):
            shop.tick_in(seconds)
    return shop


@pytest.fixture
def at_the_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def sit_down(shop: Shop) -> None:
        def client(service: str, **_: Any) -> Any:
            return {"dynamodb": shop.dynamodb, "kinesis": shop.kinesis, "cloudwatch": Counts()}[service]

        monkeypatch.setattr(aws, "client", client)
        monkeypatch.setattr(cli, "system", lambda: shop.runtime)
        monkeypatch.setitem(sys.modules, "my_project", SimpleNamespace(orders=shop.application))
        monkeypatch.delenv("DAGSTER_HOME", raising=False)
        monkeypatch.chdir(tmp_path)

    return sit_down


def test_the_page_has_commands() -> None:
    verbs = {line.split()[1] for block in BLOCKS for line in block.splitlines()}
    assert verbs >= {
        "doctor",
        "pause",
        "resume",
        "drain",
        "reset",
        "export",
        "import",
        "cost",
        "peek",
        "deregister",
    }


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: " ".join(block.split()[1:6:2]))
def test_a_block_of_commands_runs(
    block: str, at_the_terminal: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = block.splitlines()
    shop = prepared(lines[0].split()[1], block)
    at_the_terminal(shop)
    [sequence] = shop.put(b"two")
    if "import" in block and "export" not in block:
        cli.main(["export", "my_project:orders", "--file", str(tmp_path / "leases.jsonl")])
    for line in lines:
        program, *arguments = shlex.split(RECORD.sub(sequence, line))
        assert program == "kcl-dagster"
        if arguments[0] == "status" and "--watch" in arguments:
            shop.clock.call_in(SECONDS_WATCHED, press_ctrl_c)
        assert cli.main(arguments) == cli.WELL, capsys.readouterr()
        assert capsys.readouterr().out


def test_a_refusal_is_one_line_and_changes_nothing(
    at_the_terminal: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = prepared("drain", "")
    at_the_terminal(shop)
    before = shop.leases()
    assert cli.main(["reset", "my_project:orders", "--to", "trim_horizon"]) == cli.UNANSWERED
    captured = capsys.readouterr()
    assert captured.err.startswith("kcl-dagster: shardId-000000000000 is owned by worker-000:anna")
    assert captured.err.count("\n") == 1
    assert shop.leases() == before


def test_a_doctor_who_finds_something_wrong_ends_with_one(at_the_terminal: Any) -> None:
    shop = prepared("drain", "")  # its leader does not tick
    at_the_terminal(shop)
    assert cli.main(["doctor", "my_project:orders", "--json"]) == cli.WRONG


@pytest.mark.parametrize(
    ("text", "settings"),
    [(None, {}), ("", {}), ("run_monitoring: {enabled: true}", {"run_monitoring": {"enabled": True}})],
)
def test_the_instance_is_what_its_file_says(tmp_path: Path, text: str | None, settings: dict[str, Any]) -> None:
    if text is not None:
        (tmp_path / "dagster.yaml").write_text(text)
    assert instance_settings(str(tmp_path)) == settings
    assert instance_settings(None) is None
