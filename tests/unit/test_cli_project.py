"""The command line reaches AWS as the project does that it is pointed at."""

import json
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import pytest

from kcl_dagster import cli
from kcl_dagster.emulator import Emulator, FaultRule

pytestmark = pytest.mark.slow

PROJECT = """
    import dagster as dg
    import kcl_dagster as kcl
    from kcl_dagster.testing import EmulatorResource


    @kcl.kcl_consumer(application="cli-orders", stream="orders", sink=kcl.parquet("s3://lake/orders"))
    def orders(records):
        return records


    @kcl.kcl_consumer(application="cli-payments", stream="payments", sink=kcl.parquet("/lake/payments"))
    def payments(records):
        return records


    def here(region):
        return EmulatorResource(endpoint_url="{endpoint}", region_name=region)


    defs = kcl.build_kcl_definitions(orders, resources={{"kcl": here("eu-north-1")}})
    elsewhere = kcl.build_kcl_definitions(payments, resources={{"far": here("ap-south-1")}}, kcl_key="far")
    merged = dg.Definitions.merge(defs, elsewhere)
    nothing = dg.Definitions()


    def made():
        return defs
"""
BESIDE = """
    import kcl_dagster as kcl
    from kcl_dagster.testing import EmulatorResource


    @kcl.kcl_consumer(application="cli-beside", stream="orders", sink=kcl.parquet("s3://lake/orders"))
    def orders(records):
        return records


    connection = EmulatorResource(endpoint_url="{endpoint}", region_name="eu-south-2")
"""
TWICE = """
    import warnings

    import kcl_dagster as kcl
    from kcl_dagster.testing import EmulatorResource


    def consumer(lake, application="cli-twice", **more):
        tables = kcl.TableSettings(kms_key="arn:aws:kms:us-east-1:123456789012:key/tables")
        @kcl.kcl_consumer(application=application, stream="orders", tables=tables, sink=kcl.parquet(lake), **more)
        def orders(records):
            return records

        return orders


    def here(region):
        return {{"kcl": EmulatorResource(endpoint_url="{endpoint}", region_name=region)}}


    shared = consumer("s3://shared/orders")
    staging = kcl.build_kcl_definitions(consumer("s3://staging/orders"), resources=here("eu-north-1"))
    production = kcl.build_kcl_definitions(consumer("s3://production/orders"), resources=here("us-east-2"))
    one = kcl.build_kcl_definitions(shared, resources=here("eu-north-1"))
    other = kcl.build_kcl_definitions(shared, resources=here("us-east-2"))
    again = kcl.build_kcl_definitions(shared, resources=other.resources)
    roles = kcl.build_kcl_definitions(
        consumer("s3://staging/orders"),
        exports="s3://ops/leases",
        resources={{
            "kcl": EmulatorResource(
                endpoint_url="{endpoint}",
                role_arn="arn:aws:iam::123456789012:role/reader",
                kinesis_role_arn="arn:aws:iam::123456789012:role/kinesis",
                s3_role_arn="arn:aws:iam::123456789012:role/lake",
                s3_kms_key="arn:aws:kms:us-east-1:123456789012:key/lake",
            )
        }},
    )
    watched = consumer("s3://hourly/orders", telemetry=kcl.TelemetrySettings(cloudwatch="SUMMARY"))
    lasting = kcl.build_kcl_definitions(watched, resources=here("eu-north-1"))
    hourly = kcl.build_kcl_definitions(watched, resources=here("eu-north-1"), catch_up="0 * * * *")
    alone = kcl.build_kcl_definitions(consumer("s3://alone/orders", "{unique}"), resources=here("eu-west-3"))


    def copied(definitions):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return definitions.with_definition_metadata_update(lambda metadata: metadata)


    def copy_of_staging():
        return copied(staging)


    def copy_of_alone():
        return copied(alone)
"""


TABLES = """
    import kcl_dagster as kcl

    SIGNED = {{"type": "rest", "uri": "http://127.0.0.1:1", "rest.sigv4-enabled": "true"}}
    SINKS = {{
        "orders": kcl.iceberg("lake.orders", {{"type": "glue"}}, chains_path="s3://chains/orders"),
        "letters": kcl.iceberg("lake.letters", {{"type": "glue"}}, chains_path="s3://chains/letters"),
        "events": kcl.iceberg("lake.events", SIGNED, chains_path="s3://chains/events"),
    }}


    @kcl.kcl_consumer(application="cli-tables", stream="orders", sink=SINKS)
    def several(records):
        return records


    @kcl.kcl_consumer(application="cli-placeless", stream="orders", sink=kcl.iceberg("lake.orders", SIGNED))
    def placeless(records):
        return records


    @kcl.kcl_consumer(application="cli-one", stream="orders", sink=SINKS["orders"])
    def one(records):
        return records
"""


@pytest.fixture
def project(aws: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Modules whose AWS is the embedded one, in a shell where nothing names any AWS."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    unique = f"cli-{uuid.uuid4().hex[:8]}"
    for name, text in (
        ("cli_project", PROJECT),
        ("cli_beside", BESIDE),
        ("cli_twice", TWICE),
        ("cli_tables", TABLES),
    ):
        Path(f"{name}.py").write_text(textwrap.dedent(text).format(endpoint=aws.endpoint_url, unique=unique))
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "cli_project"


def streams(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The streams of the printed policy: they name region, account and application's stream."""
    assert cli.main(["rights", *arguments, "--component", "leader"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    (found,) = [one["Resource"] for one in printed["Statement"] if one["Sid"] == "Stream"]
    return list(found)


@pytest.mark.audit("F6")
@pytest.mark.parametrize(
    ("arguments", "region", "stream"),
    [
        (["cli_project:orders"], "eu-north-1", "orders"),
        (["cli_project:payments"], "ap-south-1", "payments"),
        (["cli_project:defs"], "eu-north-1", "orders"),
        (["cli_project:elsewhere"], "ap-south-1", "payments"),
        (["cli_project:made"], "eu-north-1", "orders"),
        (["cli_project:merged", "--application", "cli-payments"], "ap-south-1", "payments"),
        (["cli_beside:orders"], "eu-south-2", "orders"),
        (["cli_project:orders", "--region", "us-west-2"], "us-west-2", "orders"),
        (["cli_twice:staging"], "eu-north-1", "orders"),
        (["cli_twice:production"], "us-east-2", "orders"),
        (["cli_twice:one"], "eu-north-1", "orders"),
        (["cli_twice:copy_of_alone"], "eu-west-3", "orders"),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_verb_uses_the_connection_of_the_project(
    capsys: pytest.CaptureFixture[str], arguments: list[str], region: str, stream: str
) -> None:
    assert streams(capsys, *arguments) == [f"arn:aws:kinesis:{region}:123456789012:stream/{stream}"]


@pytest.mark.usefixtures("project")
def test_a_verb_uses_the_sink_of_the_definitions_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rights", "cli_twice:staging", "--component", "executor"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    (objects,) = [one["Resource"] for one in printed["Statement"] if one["Sid"] == "Objects"]
    assert objects == ["arn:aws:s3:::staging/orders/*"]


@pytest.mark.audit("F6")
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cli_project:merged", "cli-orders, cli-payments: say which with --application"),
        ("cli_project:nothing", "has the applications none"),
        ("cli_twice:shared", "the consumer of 3 definitions, whose resources differ: name one"),
        ("cli_twice:copy_of_staging", "was built several times, of consumers that differ"),
        ("cli_project:PROJECT", "cannot be loaded"),
        ("cli_project:kcl", "neither a consumer nor an Application nor Definitions"),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_target_that_names_no_application_says_so(
    capsys: pytest.CaptureFixture[str], target: str, message: str
) -> None:
    assert cli.main(["rights", target, "--component", "leader"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.audit("F5")
def test_the_doctor_opens_the_sink_of_the_project(
    project: str, capsys: pytest.CaptureFixture[str], aws: Emulator
) -> None:
    assert cli.main(["doctor", f"{project}:orders", "--json"]) == 1
    findings = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["sink"]["verdict"] == "fail"
    assert "s3://lake/orders" in findings["sink"]["says"]  # there is no such bucket


def statements(capsys: pytest.CaptureFixture[str], component: str) -> dict[str, list[str]]:
    """The resources of the printed policy, by the name of the statement."""
    account = ["--account", "123456789012"]
    assert cli.main(["rights", "cli_twice:roles", "--component", component, *account]) == 0
    return {one["Sid"]: one["Resource"] for one in json.loads(capsys.readouterr().out)["Statement"]}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("component", "roles"),
    [
        ("leader", {"kinesis", "reader"}),
        ("worker", {"kinesis", "reader", "lake"}),
        ("executor", {"kinesis", "lake"}),
        ("operator", {"kinesis", "reader", "lake"}),
    ],
)
def test_a_component_may_assume_the_roles_that_it_uses(
    capsys: pytest.CaptureFixture[str], component: str, roles: set[str]
) -> None:
    found = statements(capsys, component)
    assumed = {arn.rpartition("/")[2] for sid, arns in found.items() if sid.endswith("Role") for arn in arns}
    assert assumed == roles


@pytest.mark.usefixtures("project")
def test_a_driver_elsewhere_is_a_leader_a_worker_and_an_executor(capsys: pytest.CaptureFixture[str]) -> None:
    def actions(component: str) -> set[str]:
        account = ["--account", "123456789012", "--messages", "s3://messages"]
        assert cli.main(["rights", "cli_twice:staging", "--component", component, *account]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert len({one["Sid"] for one in printed["Statement"]}) == len(printed["Statement"])
        return {f"{action} {one['Sid']}" for one in printed["Statement"] for action in one["Action"]}

    assert actions("driver") == actions("leader") | actions("worker") | actions("executor")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("component", "told"),
    [
        ("leader", {"kinesis": "Stream", "reader": "Table, TableKey"}),
        ("executor", {"kinesis": "Stream", "lake": "Objects, LakeKey"}),
        ("worker", {"kinesis": "Stream", "reader": "Table, Index, TableKey", "lake": "Bucket, Objects, LakeKey"}),
    ],
)
def test_statements_for_a_role_that_is_assumed_are_named(
    capsys: pytest.CaptureFixture[str], component: str, told: dict[str, str]
) -> None:
    arguments = ["rights", "cli_twice:roles", "--account", "123456789012", "--component", component]
    assert cli.main(arguments) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"kcl-dagster: the statements {sids} of the {component} are for the role "
        f"arn:aws:iam::123456789012:role/{role}, which it assumes: attach them to that role"
        for role, sids in told.items()
    ]
    assert cli.main(["cloudformation", "cli_twice:roles"]) == 0
    said = capsys.readouterr().err
    for role, sids in told.items():
        policy = f"{component.capitalize()}Policy"
        assert f"statements {sids} of {policy} are for the role arn:aws:iam::123456789012:role/{role}," in said
    assert cli.main(["rights", "cli_twice:staging", "--account", "123456789012", "--component", component]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(("target", "is_led"), [("cli_twice:lasting", True), ("cli_twice:hourly", False)])
def test_the_alarms_are_those_of_how_the_definitions_read(
    capsys: pytest.CaptureFixture[str], target: str, is_led: bool
) -> None:
    assert cli.main(["cloudformation", target]) == 0
    assert ("NobodyLeads" in capsys.readouterr().out) == is_led


@pytest.mark.usefixtures("project")
def test_the_operator_may_read_and_write_the_folder_of_exports(capsys: pytest.CaptureFixture[str]) -> None:
    assert statements(capsys, "operator")["Exports"] == ["arn:aws:s3:::ops/leases/*"]
    assert "Exports" not in statements(capsys, "worker")


@pytest.mark.usefixtures("project")
def test_components_may_use_the_keys_that_the_project_names(capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"LakeKey": ["arn:aws:kms:us-east-1:123456789012:key/lake"]}
    table = {"TableKey": ["arn:aws:kms:us-east-1:123456789012:key/tables"]}
    for component, expected in {"leader": table, "worker": keys | table, "executor": keys}.items():
        found = statements(capsys, component)
        assert {sid: arns for sid, arns in found.items() if sid.endswith("Key")} == expected


@pytest.mark.usefixtures("project")
def test_a_role_can_be_assumed_at_the_emulator(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rights", "cli_twice:roles", "--component", "leader"]) == 0
    assert "stream/orders" in capsys.readouterr().out


@pytest.mark.usefixtures("project")
def test_rights_without_an_account_say_how_to_name_it(capsys: pytest.CaptureFixture[str], aws: Emulator) -> None:
    aws.faults.add(FaultRule(service="sts", error="AccessDenied", status=403))
    try:
        assert cli.main(["rights", "cli_twice:staging", "--component", "leader"]) == 2
    finally:
        aws.faults.clear()
    assert "say --account NUMBER" in capsys.readouterr().err


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--account", "abc"], "--account abc is not the number"),
        (["--stream-key", "notanarn"], "--stream-key notanarn is not the ARN of a key"),
        (["--lake-key", "arn:aws:s3:::lake"], "--lake-key arn:aws:s3:::lake is not the ARN of a key"),
        (["--glue-table", "orders"], "--glue-table orders is not of the form database.table"),
    ],
)
def test_rights_check_their_arguments(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["rights", "cli_twice:staging", "--component", "worker", *arguments]) == 2
    assert message in capsys.readouterr().err


def tables_in_the_policy(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[str], str]:
    where = ("--account", "123456789012", "--region", "eu-west-1")
    assert cli.main(["rights", *arguments, *where]) == 0
    out, err = capsys.readouterr()
    resources = [arn for one in json.loads(out)["Statement"] if one["Sid"] == "Catalog" for arn in one["Resource"]]
    return [arn.partition("123456789012:")[2] for arn in resources], err


@pytest.mark.usefixtures("project")
def test_the_worker_may_commit_to_the_tables_in_glue_of_its_sink(capsys: pytest.CaptureFixture[str]) -> None:
    worker = ("cli_tables:several", "--component", "worker")
    both = ["catalog", "database/lake", "table/lake/orders", "table/lake/letters"]
    found, complaints = tables_in_the_policy(capsys, *worker)
    assert found == both
    assert "rights on the REST catalog of lake.events, which are not in the policy" in complaints
    assert tables_in_the_policy(capsys, "cli_tables:one", "--component", "worker") == (both[:3], "")
    named, _ = tables_in_the_policy(capsys, *worker, "--glue-table", "other.table")
    assert named == ["catalog", "database/other", "table/other/table"]
    assert tables_in_the_policy(capsys, "cli_tables:several", "--component", "leader") == ([], "")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "verb", [["rights", "--component", "worker", "--account", "123456789012"], ["cloudformation"]]
)
def test_a_place_that_only_a_catalog_knows_can_be_named_without_credentials(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: list[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    asked = [*verb, "cli_tables:placeless", "--region", "eu-west-1"]
    assert cli.main(asked) == 2
    said = capsys.readouterr().err
    assert "the place of the chains is not known: say --lake s3://bucket/prefix" in said
    assert "there are no AWS credentials" in said
    assert cli.main([*asked, "--lake", "s3://lake/orders"]) == 0
    assert "s3:::lake/orders/*" in capsys.readouterr().out
