"""What the verbs of the command line print, and with which exit code they end."""

import json
import re
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

import kcl_dagster as kcl
from kcl_dagster import aws, cli
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.operations import inspections
from kcl_dagster.operations.cost import COMMIT_PUTS
from kcl_dagster.operations.doctor.finding import fail
from tests.unit.operations.conftest import STREAM, Shop


@pytest.fixture
def project(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """An application that `my_project:orders` names and that a worker serves."""
    clients = {"dynamodb": shop.dynamodb, "kinesis": shop.kinesis}
    monkeypatch.setattr(aws, "client", lambda service, **_: clients[service])
    monkeypatch.setattr(cli, "system", lambda: shop.runtime)
    monkeypatch.setattr(cli, "whoami", lambda: "olga@laptop")
    monkeypatch.setitem(sys.modules, "my_project", SimpleNamespace(orders=shop.application))
    shop.serve()
    return shop


@pytest.mark.audit("F9")
def test_the_doctor_prints_square_brackets(
    project: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = fail("java", "found [none]", "pip install 'kcl-dagster[java]'")
    monkeypatch.setattr(inspections, "examine", lambda _: iter((finding,)))
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["doctor", "my_project:orders"]) == cli.WRONG
    out, complaints = capsys.readouterr()
    assert not complaints, "what it found is said once"
    assert "found [none]" in out
    assert re.search(r"pip install 'kcl-dagster\[java]'", out)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert cli.main(list(arguments)) == cli.WELL
    return capsys.readouterr().out.splitlines()


@pytest.mark.audit("D10")
def test_a_dry_pause_says_what_would_happen_and_a_real_one_what_happened(
    project: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "pause", "my_project:orders", "--dry-run") == [
        "would pause the application: its workers finish their batch and end",
        "nothing was changed",
    ]
    assert not project.opened.control.load().paused
    assert said(capsys, "pause", "my_project:orders") == [
        "paused the application: its workers finish their batch and end"
    ]
    assert said(capsys, "pause", "my_project:orders") == ["nothing changes", "the application stays paused"]


@pytest.mark.audit("D10")
def test_resume_says_what_it_resumed_and_what_stays_paused(
    project: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = ["shardId-000000000000", "shardId-000000000001"]
    said(capsys, "pause", "my_project:orders", "--shards", *shards)
    assert said(capsys, "resume", "my_project:orders", "--shards", shards[0], "--dry-run") == [
        f"would resume {shards[0]}",
        f"{shards[1]} stays paused",
        "nothing was changed",
    ]
    assert said(capsys, "resume", "my_project:orders", "--shards", shards[0]) == [
        f"resumed {shards[0]}",
        f"{shards[1]} stays paused",
    ]
    assert said(capsys, "resume", "my_project:orders") == [f"resumed {shards[1]}"]
    assert said(capsys, "resume", "my_project:orders") == ["nothing changes"]


@pytest.mark.audit("D10")
def test_a_dry_drain_says_what_would_happen(project: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "drain", "my_project:orders", "--worker", "worker-000", "--dry-run") == [
        "worker-000:anna would be asked to finish",
        "nothing was changed",
    ]


@pytest.mark.audit("F11")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--shards", "shardId-000000000000", "my_project:orders"],
        ["my_project:orders", "--shards", "shardId-000000000000"],
        ["--shards", "shardId-000000000000", "--", "my_project:orders"],
        ["--dry-run", "--shards", "shardId-000000000000", "my_project:orders"],
    ],
)
def test_a_target_may_follow_the_names_of_shards(
    project: Shop, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    [line, *_] = said(capsys, "pause", *arguments)
    assert line.endswith(" shardId-000000000000")


@pytest.mark.audit("F11")
def test_a_worker_or_a_lease_of_several_streams_is_not_taken_for_a_target(project: Shop) -> None:
    names = ["123456789012:orders:7:shardId-000000000000", "worker-000:anna"]
    options = cli.parser().parse_args(["pause", "my_project:orders", "--workers", *names, "--shards", *names])
    assert (list(options.workers), list(options.shards)) == (names, names)
    assert options.target == "my_project:orders"


@pytest.mark.audit("F11")
def test_a_short_watch_of_the_leader_is_no_failure(project: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["doctor", "my_project:orders", "--watch", "1", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    [leader] = [finding for finding in findings if finding["check"] == "leader"]
    assert leader["verdict"] not in {"ok", "fail"}
    assert "too short to judge" in leader["says"]


@pytest.mark.audit("F11")
def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"kcl-dagster {kcl.__version__}\n"


@pytest.mark.audit("F11")
def test_without_a_verb_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == cli.WELL
    out = capsys.readouterr().out
    assert "usage: kcl-dagster" in out
    assert "show workers, leases, progress" in out


@pytest.mark.audit("F11")
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ('import os\nos.environ["ORDERS_REGION"]', "the environment variable ORDERS_REGION is not set"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("{}['KEY']", "KeyError: 'KEY'"),
        ("def broken(:", "SyntaxError"),
        ("import kcl_dagster as kcl\nkcl.Application(name='a', streams=('orders',))", "ValidationError"),
    ],
)
def test_a_project_that_cannot_be_imported_is_one_line(
    code: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = f"project_{abs(hash(code))}"
    (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["status", f"{module}:orders"]) == cli.UNANSWERED
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kcl-dagster: {module}:orders cannot be loaded: {says}")
    assert f"{module}.py" in line


def test_a_module_that_does_not_exist_is_reported_without_a_place_in_the_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["status", "no_such_project:orders"]) == cli.UNANSWERED
    [line] = capsys.readouterr().err.splitlines()
    assert line == "kcl-dagster: no_such_project:orders cannot be loaded: No module named 'no_such_project'"


@pytest.mark.audit("F11")
@pytest.mark.parametrize("arn", ["arn:aws:s3:::orders", "arn:aws:kinesis:eu-west-1:1:stream/orders", "arn:"])
def test_what_is_no_arn_of_a_stream_is_refused_in_plain_words(arn: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the ARN of a Kinesis stream") as refusal:
        kcl.kcl_consumer(application="orders-app", stream=arn, sink=kcl.parquet("unused"), name="orders")
    assert "pydantic" not in str(refusal.value)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which a verb refuses."""
    assert cli.main(list(arguments)) == cli.UNANSWERED
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("verb", ["status", "plan", "pause", "export"])
def test_a_stream_that_the_application_does_not_read_is_refused(
    project: Shop, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    line = refused(capsys, verb, "--application", "orders-app", "--stream", "taps")
    assert line == "kcl-dagster: application orders-app does not read taps: its tables name orders"
    line = refused(capsys, verb, "my_project:orders", "--stream", "taps")
    assert line == "kcl-dagster: application orders-app does not read taps, but orders"
    assert not project.opened.control.load().paused


@pytest.mark.parametrize("verb", ["doctor", "plan"])
def test_a_home_of_dagster_that_does_not_exist_is_refused(
    project: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "gone"))
    line = refused(capsys, verb, "my_project:orders")
    assert line == f"kcl-dagster: DAGSTER_HOME {tmp_path / 'gone'} is not a folder: correct it, or unset it"


def test_a_plan_without_decisions_says_so_before_its_notes(
    project: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = TickReport(notes=("worker-000 starts for 12 s",))
    monkeypatch.setattr(inspections, "plan", lambda *_: report)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    assert said(capsys, "plan", "my_project:orders") == ["nothing to do", "worker-000 starts for 12 s"]


def test_a_cost_before_the_first_tick_says_how_to_estimate_it(
    project: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules, "my_project", SimpleNamespace(new=kcl.Application(name="new-app", streams=("orders",)))
    )
    assert refused(capsys, "cost", "my_project:new").endswith(" add --shards N --workers N")
    lines = said(capsys, "cost", "my_project:new", "--shards", "1", "--workers", "1")
    of_sink = "1 partition value a batch, a folder on S3"
    assert lines[0] == f"assumed: batches of 6.5 s, shards busy 100% of the time, {of_sink}", "the default on S3"
    assert "kcl-dagster cost, with --shards N" in refused(capsys, "plan", "my_project:new")
    assert lines[-3].endswith("a month for 1 shard and 1 worker, on demand")
    assert lines[-1].endswith("a month for 720 hours of workers")


def test_a_cost_and_a_plan_are_those_of_the_sink_of_the_consumer(
    project: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks = {"table": kcl.iceberg("lake.orders", commit_seconds=120), "disk": kcl.parquet("/lake/orders")}
    consumers = {
        name: kcl.kcl_consumer(application=project.application, sink=sink, name="orders")(lambda records: records)
        for name, sink in sinks.items()
    }
    monkeypatch.setitem(sys.modules, "my_project", SimpleNamespace(**consumers))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)

    def puts_per_hour(verb: str, *options: str) -> float:
        found = json.loads("".join(said(capsys, verb, *options, "--json")))
        return float(found.get("cost", found)["s3_puts_per_hour"])

    of_batches, of_commits = 3 * 720, COMMIT_PUTS * 30
    assert puts_per_hour("cost", "my_project:table") == of_batches + of_commits
    assert puts_per_hour("plan", "my_project:table") == of_batches + of_commits
    assert puts_per_hour("cost", "my_project:disk") == 0
    of_folder = round(5 * 3600 / 6.5 + 10, 1)
    assert puts_per_hour("cost", "my_project:disk", "--sink", "folder") == of_folder
    assert puts_per_hour("cost", "my_project:table", "--commit-seconds", "60") == of_batches + 2 * of_commits
    named = ("--application", "orders-app", "--stream", "orders")
    assert puts_per_hour("cost", *named) == of_folder
    within = ("--visible-within", "120")
    assert puts_per_hour("cost", *named, *within) == 5 * 50 + 10, "batches of 72 s"
    assert puts_per_hour("cost", "my_project:table", *within) == 3 * 180 + COMMIT_PUTS * 45, (
        "of 20 s, commits of 80 s"
    )
    often = ("--commit-seconds", "60")
    assert puts_per_hour("cost", "my_project:table", *within, *often) == 3 * 180 + COMMIT_PUTS * 60
    assert "leave it out" in refused(
        capsys, "cost", "my_project:table", *within, "--catch-up", "60", "--shards", "1"
    )


@pytest.mark.parametrize("option", ["--shards", "--workers"])
def test_a_cost_of_nothing_is_refused(capsys: pytest.CaptureFixture[str], option: str) -> None:
    with pytest.raises(SystemExit):
        cli.main(["cost", "my_project:orders", option, "0"])
    assert f"argument {option}: input should be greater than or equal to 1, and is 0" in capsys.readouterr().err


def test_a_name_that_is_too_short_is_refused_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    says = "application ab: name: String should have at least 3 characters, and is 'ab'"
    assert refused(capsys, "status", "--application", "ab", "--stream", "orders") == f"kcl-dagster: {says}"
    with pytest.raises(ConfigurationError) as refusal:
        kcl.kcl_consumer(application="ab", stream="orders", sink=kcl.parquet("unused"), name="orders")
    assert str(refusal.value) == says
    with pytest.raises(ConfigurationError, match=r"orders-app: workers: .* greater than or equal to 1, and is 0"):
        kcl.kcl_consumer(application="orders-app", stream="orders", sink=kcl.parquet("unused"), workers=0)


@pytest.mark.parametrize("option", [["--application", "orders-app"], ["--stream", "orders"], ["my_project:orders"]])
def test_list_takes_no_option_that_it_would_ignore(capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["list", *option])
    assert "unrecognized arguments" in capsys.readouterr().err


def test_the_help_of_the_emulator_says_how_it_was_called(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["emulator", "--help"])
    assert capsys.readouterr().out.startswith("usage: kcl-dagster emulator [")


def test_an_export_replaces_no_file_unless_forced(
    project: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "leases.jsonl"
    assert said(capsys, "export", "my_project:orders", "--file", str(file)) == [f"2 leases in {file}"]
    file.write_text("the copy from before the incident")
    line = refused(capsys, "export", "my_project:orders", "--file", str(file))
    assert line == f"kcl-dagster: {file} exists: --force replaces it"
    assert file.read_text() == "the copy from before the incident"
    assert said(capsys, "export", "my_project:orders", "--file", str(file), "--force") == [f"2 leases in {file}"]
    assert len(file.read_text().splitlines()) == 2


def test_an_export_to_a_folder_that_is_not_there_is_one_line(
    project: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "gone" / "leases.jsonl"
    line = refused(capsys, "export", "my_project:orders", "--file", str(file))
    assert line == f"kcl-dagster: {file} cannot be written: No such file or directory"


def test_the_stream_of_a_named_application_is_taken_from_its_tables(
    project: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert json.loads("".join(said(capsys, "status", "--application", "orders-app", "--json")))["streams"] == [
        STREAM
    ]
    line = refused(capsys, "status", "--application", "another-app")
    assert line.startswith("kcl-dagster: add --stream NAME: there are no tables of application another-app here")


def test_seconds_that_are_no_number_are_refused_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["status", "my_project:orders", "--watch", "abc"])
    assert (
        "argument --watch: input should be a valid number, unable to parse string as a number, and is abc"
        in capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        cli.main(["cost", "my_project:orders", "--shards", "many"])
    assert (
        "argument --shards: input should be a valid integer, unable to parse string as an integer, and is many"
        in capsys.readouterr().err
    )


def test_peek_names_its_fields_as_the_columns_of_the_function(
    project: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    project.put(b"one")
    [line] = said(capsys, "peek", "my_project:orders", "--shard", "shardId-000000000000", "--first")
    fields = json.loads(line)
    named = re.findall(r"^\| `(\w+)`", Path("docs/reference/records.md").read_text(), re.MULTILINE)
    assert set(fields) - {"problem"} <= set(named)
    assert datetime.fromisoformat(fields["arrival_timestamp"]).tzinfo is not None
