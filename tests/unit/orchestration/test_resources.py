"""`KclResource`: whose rights each service is asked with, and where secrets come from."""

import dataclasses
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value

import kcl_dagster as kcl
from kcl_dagster.aws import Access
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.resources import SECRETS
from kcl_dagster.testing import EmulatorResource

SECRET = "never-to-be-stored"
APP = kcl.Application(name="app", streams="clicks")
KEY = "arn:aws:kms:eu-west-1:123456789012:key/lake"
READER, KEEPER, WRITER = (f"arn:aws:iam::123456789012:role/{name}" for name in ("reader", "keeper", "writer"))


def serialised(resource: kcl.KclResource, consumer: Consumer) -> str:
    """The repository as Dagster sends it to the webserver and the daemon."""
    definitions = kcl.build_kcl_definitions(consumer, resources={"kcl": resource})
    repository = definitions.get_repository_def()
    return serialize_value(RepositorySnap.from_def(repository))


@pytest.mark.audit("D2")
@pytest.mark.parametrize("name", ["aws_secret_access_key", "aws_session_token"])
def test_a_literal_secret_is_refused_with_what_to_say_instead(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", SECRET)  # reading it too early makes a literal of it
    with pytest.raises(ConfigurationError, match=r'EnvVar\("AWS_') as refusal:
        kcl.KclResource(**{"aws_access_key_id": "AKIA", name: SECRET})
    assert SECRET not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"region": "eu-west-1"}, "no field region: do you mean region_name"),
        ({"rolearn": READER}, "no field rolearn: do you mean role_arn"),
        ({"external_id": "x"}, "external_id of KclResource has no effect without a role"),
        ({"external_id": "x", "s3_role_arn": WRITER}, "external_id of KclResource has no effect without a role"),
        ({"s3_external_id": "x", "role_arn": READER}, "no effect without s3_role_arn"),
        ({"aws_access_key_id": "AKIA"}, "one of them is missing"),
        ({"aws_session_token": dg.EnvVar("T")}, "belongs to an access key"),
        ({"role_arn": "reader"}, "role_arn of KclResource is 'reader', and not an ARN"),
        ({"s3_role_arn": "arn:aws:iam::1:user/x"}, "and not an ARN"),
        ({"s3_kms_key": "alias/lake"}, "s3_kms_key of KclResource is 'alias/lake', and not the ARN of a key"),
    ],
)
def test_settings_that_would_have_no_effect_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        kcl.KclResource(**settings)


@pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition:DeprecationWarning")  # Dagster's own
@pytest.mark.audit("D2")
def test_the_serialised_repository_holds_no_secret(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", SECRET)
    resource = kcl.KclResource(
        aws_access_key_id="AKIA",
        aws_secret_access_key=dg.EnvVar("MY_SECRET"),
        aws_session_token=dg.EnvVar("MY_SECRET"),
    )
    text = serialised(resource, consumer)
    assert "MY_SECRET" in text
    assert SECRET not in text
    assert '"is_secret": true' in text


@pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition:DeprecationWarning")  # Dagster's own
def test_the_emulators_keys_are_in_no_repository(consumer: Consumer) -> None:
    resource = EmulatorResource(endpoint_url="http://127.0.0.1:9")
    assert resource.connection("s3")["secret_key"] == "emulator"
    assert '"emulator"' not in serialised(resource, consumer)


def test_dagster_looks_the_secret_up_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    @dg.op(required_resource_keys={"kcl"})
    def look(context: dg.OpExecutionContext) -> None:
        seen.append(context.resources.kcl.connection("kinesis"))

    @dg.job
    def looking() -> None:
        look()

    resource = kcl.KclResource(aws_access_key_id="AKIA", aws_secret_access_key=dg.EnvVar("MY_SECRET"))
    monkeypatch.setenv("MY_SECRET", SECRET)
    looking.execute_in_process(resources={"kcl": resource}, instance=dg.DagsterInstance.ephemeral())
    assert seen == [{"access_key": "AKIA", "secret_key": SECRET}]
    assert resource.connection("kinesis") == seen[0]  # and without Dagster
    monkeypatch.delenv("MY_SECRET")
    with pytest.raises(ConfigurationError, match="MY_SECRET of KclResource is not set"):
        resource.connection("kinesis")


def test_a_secret_in_a_runs_configuration_is_refused() -> None:
    @dg.op(required_resource_keys={"kcl"})
    def look(context: dg.OpExecutionContext) -> None:
        context.resources.kcl.connection("kinesis")

    @dg.job(resource_defs={"kcl": kcl.KclResource.configure_at_launch()})
    def looking() -> None:
        look()

    config: dict[str, Any] = {"aws_access_key_id": "AKIA", "aws_secret_access_key": SECRET}
    with pytest.raises(dg.DagsterResourceFunctionError) as failure:
        looking.execute_in_process(
            run_config={"resources": {"kcl": {"config": config}}}, instance=dg.DagsterInstance.ephemeral()
        )
    assert "is a literal" in str(failure.value.__cause__)


@pytest.mark.audit("D1")
@pytest.mark.parametrize(
    ("settings", "service", "expected"),
    [
        ({}, "kinesis", Access()),
        ({"endpoint_url": "http://all"}, "cloudwatch", Access(endpoint_url="http://all")),
        ({"endpoint_url": "http://all", "s3_endpoint_url": "http://s3"}, "s3", Access(endpoint_url="http://s3")),
        ({"role_arn": READER}, "s3", Access()),
        ({"role_arn": READER}, "cloudwatch", Access(role_arn=READER, session_name="kcl-dagster-app")),
        (
            {"role_arn": READER, "dynamodb_role_arn": KEEPER, "external_id": "x"},
            "dynamodb",
            Access(role_arn=KEEPER, session_name="kcl-dagster-app", external_id="x"),
        ),
        (
            {"role_arn": READER, "s3_role_arn": WRITER, "external_id": "x", "s3_external_id": "y"},
            "s3",
            Access(role_arn=WRITER, session_name="kcl-dagster-app", external_id="y"),
        ),
        ({"kinesis_role_arn": READER}, "dynamodb", Access()),
        ({"region_name": "eu-west-1", "s3_region_name": "us-east-1"}, "s3", Access(region="us-east-1")),
        ({"region_name": "eu-west-1", "s3_region_name": "us-east-1"}, "kinesis", Access(region="eu-west-1")),
        ({"kinesis_region_name": "eu-west-1"}, "kinesis", Access(region="eu-west-1")),
        ({"dynamodb_region_name": "eu-west-1"}, "dynamodb", Access(region="eu-west-1")),
        ({"cloudwatch_region_name": "eu-west-1"}, "cloudwatch", Access(region="eu-west-1")),
        ({"s3_kms_key": KEY}, "s3", Access(kms_key=KEY)),
        ({"s3_kms_key": KEY}, "dynamodb", Access()),
        (
            {"role_arn": READER, "endpoint_url": "http://all"},
            "kinesis",
            Access(
                endpoint_url="http://all",
                role_arn=READER,
                session_name="kcl-dagster-app",
                sts_endpoint_url="http://all",
            ),
        ),
        (
            {"role_arn": READER, "endpoint_url": "http://all", "sts_endpoint_url": "http://sts"},
            "kinesis",
            Access(
                endpoint_url="http://all",
                role_arn=READER,
                session_name="kcl-dagster-app",
                sts_endpoint_url="http://sts",
            ),
        ),
    ],
)
def test_each_service_may_have_an_endpoint_and_a_role(
    settings: dict[str, str], service: str, expected: Access
) -> None:
    assert Access(**kcl.KclResource(**settings).connection(service, APP)) == expected


def test_the_region_of_an_arn_comes_first() -> None:
    arn = "arn:aws:kinesis:eu-north-1:210987654321:stream/orders"
    application = kcl.Application(name="app", streams=arn)
    resource = kcl.KclResource(region_name="eu-west-1", kinesis_region_name="us-east-1")
    assert Access(**resource.connection("kinesis", application)) == Access(region="eu-north-1", stream_arns=arn)
    assert Access(**resource.connection("dynamodb", application)) == Access(region="eu-west-1")


def test_the_component_has_the_fields_of_the_resource_but_no_keys() -> None:
    from kcl_dagster.orchestration.component_models import ConnectionModel

    fields = {field.name for field in dataclasses.fields(ConnectionModel)}
    assert fields == set(kcl.KclResource.model_fields) - {"aws_access_key_id", *SECRETS}
