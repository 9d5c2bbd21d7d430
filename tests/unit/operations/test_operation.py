"""An operation is declared once: the options of its verb and the config of the job follow from its settings."""

import argparse
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kcl_dagster import aws, cli
from kcl_dagster.operations.all_operations import OPERATIONS
from kcl_dagster.operations.operation import Operation
from kcl_dagster.orchestration.admin_job import filled_in
from tests.unit.operations.conftest import Shop


def verbs() -> dict[str, argparse.ArgumentParser]:
    [found] = [action for action in cli.parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found.choices)


COMMON = {option for action in verbs()["list"]._actions for option in action.option_strings} | {
    "--application",
    "--stream",
}
ONLY_SHOWN = {"status": {"--watch"}}  # how often to look


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_verb_has_an_option_for_each_setting_and_no_other(operation: type[Operation]) -> None:
    verb = verbs()[operation.name]
    assert verb.description == operation.title
    options = {option for action in verb._actions for option in action.option_strings}
    settings = {f"--{name.replace('_', '-')}" for name in operation.settings("terminal")}
    assert options - COMMON == settings | ONLY_SHOWN.get(operation.name, set())


def test_what_is_required_has_an_example_for_the_launchpad() -> None:
    required = {
        (operation.name, name)
        for operation in OPERATIONS
        for name, setting in operation.model_fields.items()
        if setting.is_required()
    }
    assert required == {("peek", "shard"), ("drain", "worker"), ("reset", "to"), ("import", "file")}
    assert all(name in filled_in(one) for one in OPERATIONS for of, name in required if one.name == of)


def test_a_setting_of_the_terminal_or_of_the_job_alone_is_in_the_other_one_not() -> None:
    apart = {
        (operation.name, name)
        for operation in OPERATIONS
        for name in operation.settings("terminal").keys() ^ operation.settings("job").keys()
    }
    assert apart == {("doctor", "dagster_home"), ("doctor", "fail_when_ill"), ("export", "force")}


@pytest.fixture
def project(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    clients: dict[str, Any] = {"dynamodb": shop.dynamodb, "kinesis": shop.kinesis}
    monkeypatch.setattr(aws, "client", lambda service, **_: clients[service])
    monkeypatch.setattr(cli, "system", lambda: shop.runtime)
    monkeypatch.setitem(sys.modules, "my_project", SimpleNamespace(orders=shop.application))
    shop.serve()
    return shop


def test_every_operation_has_an_answer_for_machines(project: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pause", "my_project:orders", "--shards", "shardId-000000000000", "--dry-run", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["dry run"], answer["shards"]) == (True, 1)
    assert not project.opened.control.load().leases


def test_a_terminal_does_what_it_is_told_without_a_dry_run(
    project: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["drain", "my_project:orders", "--worker", "worker-000"]) == cli.WELL
    assert capsys.readouterr().out == "worker-000:anna is asked to finish\n"
    assert project.opened.workers.list()[0].drain_requested


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cost", "--sink", "lake"], "argument --sink: input should be 'folder', 'table' or 'other', and is lake"),
        (["cost", "--busy", "2"], "argument --busy: input should be less than or equal to 1, and is 2"),
        (["reset"], "the following arguments are required: --to"),
        (["puase"], "invalid choice: 'puase'"),
    ],
)
def test_a_wrong_setting_is_refused_in_plain_words(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main([*arguments, "my_project:orders"])
    assert says in capsys.readouterr().err
