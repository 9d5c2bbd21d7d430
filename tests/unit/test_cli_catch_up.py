"""`kcl-dagster catch-up`: a bounded run of a project's consumer, from a terminal."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

import kcl_dagster as kcl
from kcl_dagster import cli
from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.testing import EmulatorResource
from tests.unit.orchestration.test_worker_job import bodies

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(600)]

ROLE = "arn:aws:iam::123456789012:role/reader"
PROJECT = """
    import dagster as dg
    import kcl_dagster as kcl
    from kcl_dagster.testing import EmulatorResource

    @kcl.kcl_consumer(
        application="{name}", stream="{name}", sink=kcl.parquet("{lake}"), batch=kcl.BatchSettings(max_seconds=1),
    )
    def clicks(records):
        return records.selectExpr("lease_key", "cast(data as string) as body")


    @kcl.kcl_consumer(application="{name}-asking", stream="{name}", sink=kcl.parquet("{lake}"))
    def asking(records, colour):
        return records


    app = kcl.Application(name="{name}", streams=("{name}",))
    resource = EmulatorResource(endpoint_url="{endpoint}", region_name="us-east-1")
    spark = kcl.KclSparkResource(mode="existing")
    defs = kcl.build_kcl_definitions(clicks, asking, resources={{"kcl": resource, "spark": spark}})
"""


@pytest.fixture
def project(aws: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `catching`, whose stream has 30 records; where it stores them."""
    name = f"cli-{tmp_path.name[:40]}".replace("_", "-")
    aws.client("kinesis").create_stream(StreamName=name, ShardCount=2)
    records = [{"Data": f"{n}".encode(), "PartitionKey": f"key-{n}"} for n in range(30)]
    aws.client("kinesis").put_records(StreamName=name, Records=records)
    lake = tmp_path / "lake"
    text = textwrap.dedent(PROJECT).format(name=name, lake=lake, endpoint=aws.endpoint_url)
    (tmp_path / "catching.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "catching", raising=False)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return lake


@pytest.mark.slow
@pytest.mark.spark
def test_a_run_from_a_terminal_stores_what_is_there(
    project: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark.version
    assert cli.main(["catch-up", "catching:clicks"]) == cli.WELL
    assert capsys.readouterr().out.endswith("this run stored 30 records\n")
    assert bodies(project) == list(range(30))
    assert cli.main(["catch-up", "catching:clicks", "--through", "2026-01-01T00:00:00Z"]) == cli.WELL
    assert capsys.readouterr().out.endswith("this run had nothing to do\n")


@pytest.mark.usefixtures("project")
def test_a_run_that_reads_not_everything_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lead", "catching:clicks", "--once"]) == cli.WELL
    assert cli.main(["pause", "catching:clicks"]) == cli.WELL
    capsys.readouterr()
    assert cli.main(["catch-up", "catching:clicks"]) == cli.WRONG
    said = capsys.readouterr().out
    assert "is not read through" in said
    assert "shardId-000000000000: paused by" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--application", "clicks", "--stream", "clicks"], "say which consumer, as module:attribute"),
        (["catching:app"], "say which consumer, as module:attribute"),
        (["catching:asking"], "asking asks for the resources colour: name the definitions that have them"),
        (["catching:clicks", "--through", "noon"], "through 'noon' is no moment"),
    ],
)
@pytest.mark.usefixtures("project")
def test_what_cannot_work_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["catch-up", *arguments]) == cli.UNANSWERED
    assert message in capsys.readouterr().err


def test_a_standby_needs_the_consumer_until_the_tables_have_its_start_position(
    aws: Emulator, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, value in aws.environment().items():
        monkeypatch.setenv(variable, value)
    name = f"cli-{project.parent.name[:40]}".replace("_", "-")
    by_name = ["lead", "--once", "--application", name, "--stream", name]
    assert cli.main(by_name) == cli.UNANSWERED
    assert f"here that have the start position of {name}: name the consumer" in capsys.readouterr().err
    assert cli.main(["lead", "catching:clicks", "--once"]) == cli.WELL
    assert cli.main(by_name) == cli.WELL


@pytest.mark.usefixtures("project")
def test_options_say_another_connection() -> None:
    options = cli.parser().parse_args(["catch-up", "catching:clicks", "--region", "eu-west-1"])
    found = cli._found(options)
    assert found.built is not None
    connected = cli._connected(options, found.built, found.built.resources)
    assert isinstance(connected, kcl.KclResource)
    assert connected.region_name == "eu-west-1"
    own = kcl.KclResource(
        region_name="us-east-1",
        kinesis_region_name="us-west-2",
        endpoint_url="http://127.0.0.1:1",
        s3_region_name="eu-central-1",
        s3_kms_key="arn:aws:kms:eu-central-1:123456789012:key/lake",
    )
    connected = cli._connected(options, found.built, {found.built.kcl_key: own})
    assert connected.connection("kinesis")["region"] == "eu-west-1"
    assert connected.connection("dynamodb")["endpoint_url"] == "http://127.0.0.1:1"
    lake = connected.connection("s3")
    assert (lake["region"], lake["kms_key"]) == ("eu-central-1", own.s3_kms_key)
    embedded = cli._connected(options, found.built, {found.built.kcl_key: EmulatorResource()})
    assert embedded.connection("kinesis")["access_key"] == EmulatorResource().connection("kinesis")["access_key"]


class Local(kcl.KclResource):
    endpoint_url: str | None = "http://127.0.0.1:4566"


class OfStage(kcl.KclResource):
    def __init__(self, stage: str = "test", **fields: Any) -> None:
        super().__init__(region_name="eu-central-1", **fields)


@pytest.mark.usefixtures("project")
def test_options_replace_what_belongs_to_them_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def connected(own: object, *given: str) -> Any:
        options = cli.parser().parse_args(["catch-up", "catching:clicks", *given])
        found = cli._found(options)
        assert found.built is not None
        return cli._connected(options, found.built, {found.built.kcl_key: own})

    monkeypatch.setenv("KEY", "a key")
    key = dg.EnvVar("KEY")
    with_keys = kcl.KclResource(aws_access_key_id=key, aws_secret_access_key=key, external_id="x", role_arn=ROLE)
    assert connected(with_keys, "--profile", "mine").connection("kinesis").keys() == {
        *("profile", "role_arn", "external_id")
    }
    assert "external_id" not in connected(with_keys, "--role-arn", ROLE).connection("kinesis")
    assert connected(Local(endpoint_url=None), "--region", "eu-west-1").endpoint_url is None
    assert connected(with_keys, "--region", "") is with_keys
    for own in (OfStage(), OfStage.configure_at_launch(), object()):
        with pytest.raises(ConfigurationError, match="cannot take the connection in the options"):
            connected(own, "--region", "eu-west-1")
