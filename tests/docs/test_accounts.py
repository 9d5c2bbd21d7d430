"""The page about accounts: its policies are those of the table of rights, its examples reach what they name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import kcl_dagster as kcl
from kcl_dagster.aws import Access
from kcl_dagster.operations.rights import Component, Deployment, Resource, policy, rights_of
from kcl_dagster.orchestration.resources import SECRETS
from kcl_dagster.spark.sinks.delta_log import delta_options
from kcl_dagster.spark.storage import S3Options
from tests.docs.pages import ROOT, blocks
from tests.docs.test_python import run

PAGE = ROOT / "docs/how-to/accounts.md"
ARN = "arn:aws:kinesis:eu-north-1:210987654321:stream/orders"
READERS = (Component.LEADER, Component.WORKER, Component.EXECUTOR)
SERVICES = ("kinesis", "dynamodb", "cloudwatch", "s3")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the Python of the page defines, where nothing else names an AWS."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    keys = "aws_access_key_id = key\naws_secret_access_key = secret\n"
    (tmp_path / "config").write_text(f"[default]\n{keys}[profile analyst]\n{keys}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return dict(run(PAGE))


def statements() -> dict[str, dict[str, Any]]:
    """The statements of the policies on the page, by their names."""
    documents = [json.loads(block.text) for block in blocks(PAGE) if block.language == "json"]
    found = {one["Sid"]: one for document in documents for one in document["Statement"]}
    assert len(found) == sum(len(document["Statement"]) for document in documents)
    return found


def deployment(consumer: kcl.Consumer, **more: Any) -> Deployment:
    return Deployment(consumer.application, "eu-west-1", "123456789012", **more)


def actions(consumer: kcl.Consumer, target: Resource, *components: Component) -> set[str]:
    grants = [grant for one in components for grant in rights_of(one, deployment(consumer))]
    return {grant.action for grant in grants if grant.target is target}


def test_the_owner_allows_what_the_components_ask_of_a_stream(known: dict[str, Any]) -> None:
    stream = statements()["Stream"]
    orders = known["orders_shared"]
    # The operator needs one more for a check of the doctor, which warns without it.
    assert set(stream["Action"]) == actions(orders, Resource.STREAM, *READERS)
    assert [stream["Resource"]] == deployment(orders).arns(Resource.STREAM) == [ARN]


def test_the_owner_allows_what_executors_ask_of_a_consumer(known: dict[str, Any]) -> None:
    consumer = statements()["Consumer"]
    pushed = known["orders_pushed"]
    assert set(consumer["Action"]) == actions(pushed, Resource.CONSUMER, Component.EXECUTOR)
    assert [consumer["Resource"]] == deployment(pushed).arns(Resource.CONSUMER)


def test_the_components_may_assume_the_role_that_trusts_them(known: dict[str, Any]) -> None:
    found, apart = statements(), known["apart"]
    needs = deployment(known["orders_shared"], roles={"kinesis": apart.kinesis_role_arn})
    for component in READERS:
        [printed] = [one for one in policy(component, needs)["Statement"] if one["Sid"] == "StreamRole"]
        assert printed == found["StreamRole"]
    trust = found["Trust"]
    assert trust["Action"] in found["StreamRole"]["Action"]
    assert (
        trust["Condition"]["StringEquals"]["sts:ExternalId"] == apart.external_id == known["elsewhere"].external_id
    )


def test_a_stream_by_its_arn_leaves_the_tables_where_they_are(known: dict[str, Any]) -> None:
    application, resource = known["orders_shared"].application, kcl.KclResource(region_name="eu-west-1")
    assert Access(**resource.connection("kinesis", application)) == Access(region="eu-north-1", stream_arns=ARN)
    assert Access(**resource.connection("dynamodb", application)) == Access(region="eu-west-1")


def roles(resource: kcl.KclResource) -> dict[str, str | None]:
    return {service: resource.connection(service).get("role_arn") for service in SERVICES}


def test_each_service_has_its_role_and_its_region(known: dict[str, Any]) -> None:
    reader, writer = known["elsewhere"].role_arn, known["apart"].s3_role_arn
    assert roles(known["elsewhere"]) == dict.fromkeys(SERVICES, reader) | {"s3": None}
    assert roles(known["apart"]) == dict.fromkeys(SERVICES) | {"kinesis": reader, "s3": writer}
    regions = {service: known["regions"].connection(service)["region"] for service in SERVICES}
    assert regions == dict.fromkeys(SERVICES, "eu-west-1") | {"s3": "eu-central-1", "cloudwatch": "us-east-1"}


def test_endpoints_are_those_of_the_service(known: dict[str, Any]) -> None:
    for service, part in {"kinesis": "kinesis", "dynamodb": "ddb", "s3": "s3"}.items():
        assert f"-{part}." in known["private"].client(service).meta.endpoint_url
    assert "monitoring" in known["private"].client("cloudwatch").meta.endpoint_url
    assert known["fips"].client("s3").meta.endpoint_url == "https://s3-fips.us-east-1.amazonaws.com"
    fips = S3Options(**known["fips"].connection("s3"))
    assert delta_options(fips)["AWS_ENDPOINT_URL"] == "https://s3-fips.us-east-1.amazonaws.com"


def test_keys_and_profiles_are_taken_from_where_the_page_says(
    known: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KEY", "SECRET", "TOKEN"):
        monkeypatch.setenv(f"CLICKS_{name}", name.lower())
    expected = {"access_key": "key", "secret_key": "secret", "session_token": "token"}
    assert known["with_keys"].connection("kinesis") == expected
    assert known["laptop"].client("dynamodb").meta.region_name == "eu-west-1"


def test_keys_of_kms_are_named(known: dict[str, Any]) -> None:
    key = known["lake"].s3_kms_key
    assert S3Options(**known["lake"].connection("s3")).kms_key == key
    assert known["clicks_sealed"].application.tables.kms_key.startswith("arn:aws:kms:")


def test_the_table_names_the_settings_of_each_service_and_no_others() -> None:
    table = PAGE.read_text().partition("| service |")[2].partition("\n\n")[0]
    shared = {"region_name", "endpoint_url", "role_arn", "external_id", "profile_name"}
    named = set(re.findall(r"`(\w+_(?:arn|name|url|id|key))`", table))
    assert named == set(kcl.KclResource.model_fields) - shared - {"aws_access_key_id", *SECRETS}
