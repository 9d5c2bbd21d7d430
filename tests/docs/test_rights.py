"""The table of rights is complete for what the code can ask, and its policies are valid."""

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.session
import pytest

import kcl_dagster
from docs.make_reference import DEPLOYMENT
from kcl_dagster.application import Application, FleetSettings, StreamSettings
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.operations.doctor import Diagnosis, examine
from kcl_dagster.operations.doctor.diagnosis import DiagnosisSubject
from kcl_dagster.operations.rights import RIGHTS, Component, Deployment, Resource, policy
from tests.unit.operations.conftest import Shop

PACKAGE = Path(kcl_dagster.__file__).parent
# Serve others, or are others' tools: what they ask is not asked of the reader's account.
OURS_ALONE = {"emulator", "testing"}
# AWS's name of a right where it is not the operation's.
NAMES = {
    "s3:CopyObject": {"s3:GetObject", "s3:PutObject"},
    "s3:HeadObject": {"s3:GetObject"},
    "s3:DeleteObjects": {"s3:DeleteObject"},
    "s3:ListObjectsV2": {"s3:ListBucket"},
    "dynamodb:TransactWriteItems": {"dynamodb:PutItem", "dynamodb:UpdateItem"},
    "sts:GetCallerIdentity": set[str](),  # needs none
}
IN_THE_TABLE = {grant.action for grant in RIGHTS}
BARE = Deployment(Application(name="orders", streams="orders", tables={"create": False}), "eu-west-1", "1")


def operations() -> dict[str, str]:
    """Method of a boto3 client -> `service:Operation`."""
    session = botocore.session.get_session()
    found: dict[str, str] = {}
    for service in ("s3", "sts", "cloudwatch", "kinesis", "dynamodb"):
        for operation in session.get_service_model(service).operation_names:
            found[botocore.xform_name(operation)] = f"{service}:{operation}"
    return found


def called() -> Iterator[str]:
    """Every text in the package that is the name of a method: that is how requests are written."""
    known = operations()
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] in OURS_ALONE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in known:
                yield known[node.value]


def needed() -> set[str]:
    return {right for operation in called() for right in NAMES.get(operation, {operation})}


@pytest.mark.audit("D14")
def test_what_the_code_can_ask_is_in_the_table() -> None:
    assert needed() - IN_THE_TABLE == set()


@pytest.mark.audit("D14")
def test_the_table_has_nothing_that_the_code_cannot_ask() -> None:
    named_otherwise = {grant.action for grant in RIGHTS if grant.checked_by}
    assert IN_THE_TABLE - needed() - named_otherwise == set()


def test_a_right_is_checked_by_a_request_of_the_table() -> None:
    outside = {"pyiceberg", "KclResource", "Pipes"}
    assert {by for grant in RIGHTS for by in grant.checked_by} - outside <= IN_THE_TABLE


def test_the_doctor_asks_for_nothing_that_the_operator_may_not() -> None:
    shop = Shop()
    shop.put(b"one")
    shop.serve()
    subject = DiagnosisSubject(shop.application, shop.dynamodb, shop.kinesis, shop.runtime)
    found = Diagnosis(tuple(examine(subject)))
    asked = {finding.check.removeprefix("iam ") for finding in found.findings if finding.check.startswith("iam ")}
    assert len(asked) >= 8
    assert asked - {grant.action for grant in RIGHTS if Component.OPERATOR in grant.to} == set()


@pytest.mark.audit("D14")
@pytest.mark.parametrize("component", Component)
def test_a_policy_names_the_resources_of_its_application_and_no_others(component: Component) -> None:
    made: dict[str, Any] = json.loads(json.dumps(policy(component, DEPLOYMENT)))
    for statement in made["Statement"]:
        assert statement["Sid"].isalnum()
        assert statement["Action"] == sorted(set(statement["Action"]))
        assert all("*" not in action for action in statement["Action"])
        for resource in statement["Resource"]:
            assert resource == "*" or resource.startswith("arn:aws:")
            assert (resource == "*") == (statement["Sid"] == "Metrics")
    assert len({statement["Sid"] for statement in made["Statement"]}) == len(made["Statement"])


def actions(component: Component, deployment: Deployment) -> set[str]:
    return {action for one in policy(component, deployment)["Statement"] for action in one["Action"]}


@pytest.mark.audit("D14")
def test_a_policy_leaves_out_what_the_application_does_not_use() -> None:
    bare = set().union(*(actions(component, BARE) for component in Component))
    services = {action.split(":")[0] for action in bare}
    assert services == {"kinesis", "dynamodb", "cloudwatch"}
    assert not {"dynamodb:CreateTable", "dynamodb:TagResource", "kinesis:SubscribeToShard"} & bare
    assert "cloudwatch:PutMetricData" not in bare
    whole = replace(DEPLOYMENT, lists_applications=True)
    everything = set().union(*(actions(component, whole) for component in Component))
    assert everything == IN_THE_TABLE


@pytest.mark.audit("D14")
def test_no_component_may_do_what_another_is_for() -> None:
    here = replace(DEPLOYMENT, messages=None)  # without a Spark driver elsewhere
    leader, executor = actions(Component.LEADER, here), actions(Component.EXECUTOR, DEPLOYMENT)
    assert not {action for action in leader if action.startswith(("s3:", "glue:"))}
    assert not {action for action in executor if action.startswith("dynamodb:")}
    assert "dynamodb:CreateTable" not in actions(Component.WORKER, DEPLOYMENT)
    assert "kinesis:GetRecords" not in actions(Component.WORKER, DEPLOYMENT) | leader


def test_a_leader_of_a_fleet_at_rest_may_look_at_the_stream() -> None:
    application = DEPLOYMENT.application.model_copy(update={"fleet": FleetSettings(min_workers=0)})
    leader = actions(Component.LEADER, replace(DEPLOYMENT, application=application))
    assert {"kinesis:GetShardIterator", "kinesis:GetRecords"} <= leader
    assert ("kms:Decrypt" in leader) == (DEPLOYMENT.stream_key is not None)


@pytest.mark.parametrize(
    ("lake", "objects"), [("s3://lake", "arn:aws:s3:::lake/*"), ("s3://lake/a/b/", "arn:aws:s3:::lake/a/b/*")]
)
def test_a_lake_is_its_prefix_and_not_the_bucket(lake: str, objects: str) -> None:
    deployment = Deployment(BARE.application, "eu-west-1", "1", lakes=(lake,))
    assert deployment.arns(Resource.OBJECTS) == [objects]
    assert deployment.arns(Resource.BUCKET) == ["arn:aws:s3:::lake"]


@pytest.mark.parametrize(
    ("region", "partition"),
    [
        ("cn-north-1", "aws-cn"),
        ("us-gov-west-1", "aws-us-gov"),
        ("eusc-de-east-1", "aws-eusc"),
        ("us-iso-east-1", "aws-iso"),
        ("us-isob-east-1", "aws-iso-b"),
        ("eu-isoe-west-1", "aws-iso-e"),
        ("us-isof-south-1", "aws-iso-f"),
        ("eu-west-9", "aws"),
        ("no-such-place", "aws"),
    ],
)
def test_other_partitions_have_other_names(region: str, partition: str) -> None:
    deployment = Deployment(BARE.application, region, "1")
    assert deployment.arns(Resource.STREAM) == [f"arn:{partition}:kinesis:{region}:1:stream/orders"]


def test_a_lake_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="s3://bucket/prefix"):
        Deployment(BARE.application, "eu-west-1", "1", lakes=("abfs://lake",)).arns(Resource.BUCKET)


def test_rights_on_a_stream_by_arn_are_on_that_arn() -> None:
    arn = "arn:aws:kinesis:eu-north-1:210987654321:stream/orders"
    deployment = Deployment(Application(name="orders-app", streams=arn), "eu-west-1", "123456789012")
    assert deployment.arns(Resource.STREAM) == [arn]
    assert deployment.arns(Resource.CONSUMER) == [f"{arn}/consumer/orders-app:*"]
    assert deployment.arns(Resource.TABLE)[0] == "arn:aws:dynamodb:eu-west-1:123456789012:table/orders-app"
    given = StreamSettings(name=arn, consumer_arn=f"{arn}/consumer/lake:1700000000")
    deployment = Deployment(Application(name="orders-app", streams=(given,)), "eu-west-1", "123456789012")
    assert deployment.arns(Resource.CONSUMER) == [f"{arn}/consumer/lake:1700000000"]
