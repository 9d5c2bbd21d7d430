"""aws.yaml: a valid template, whose policies are the table of rights, and whose alarms watch metrics that exist."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import boto3
import botocore.session
import pytest
import yaml
from moto import mock_aws

from docs.make_reference import DEPLOYMENT
from kcl_dagster import cli
from kcl_dagster.application import Application, BatchSettings, Billing, Retrieval, TableSettings, TelemetrySettings
from kcl_dagster.emulator import Emulator, Limits
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.tick_report import StageOutcome, TickReport
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.operations.cloudformation import (
    ACCOUNT,
    EC2,
    REGION,
    SERVICES,
    alarms,
    service_account,
    template,
    to_yaml,
)
from kcl_dagster.operations.rights import LARGEST_POLICY, Component, Deployment, driver_policy, policy
from kcl_dagster.runtime import system
from kcl_dagster.telemetry import kcl_names
from kcl_dagster.telemetry.datum import Datum
from kcl_dagster.worker.report import BatchReport, LeaseReport, Outcome
from tests.deploy import files
from tests.deploy.files import APPLICATION, DEPLOY, filled, manifests

ACCOUNT_NUMBER = files.ACCOUNT
# Of services whose metrics are not ours. From the documentation of Kinesis and DynamoDB.
OF_AWS = {
    ("AWS/Kinesis", "GetRecords.IteratorAgeMilliseconds", ("StreamName",)),
    ("AWS/DynamoDB", "ReadThrottleEvents", ("TableName",)),
    ("AWS/DynamoDB", "WriteThrottleEvents", ("TableName",)),
}
EVERYTHING = replace(DEPLOYMENT, region=REGION, account=ACCOUNT)
SEVERAL = Deployment(
    Application(
        name="Shop.to_lake",
        streams=("orders", "pay-ments"),
        multi_stream=True,
        tables=TableSettings(lease_table="leases-of-shop", billing=Billing.PROVISIONED, owner_index=False),
    ),
    REGION,
    ACCOUNT,
)


def of_streams(*names: str, **batch: Any) -> Deployment:
    application = Application(name="many-streams", streams=names, multi_stream=True, batch=BatchSettings(**batch))
    return Deployment(application, REGION, ACCOUNT, lakes=("s3://lake/many",))


LONG_NAMES = [f"{number:03}-{'x' * 124}" for number in range(140)]
ALIKE = of_streams("a-b", "a.b", "a_b", "A-B", "orders")
DEPLOYMENTS = {
    "all rights": EVERYTHING,
    "two streams": SEVERAL,
    "names that are alike": ALIKE,
    "35 streams by fan-out": of_streams(*(f"stream-{number}" for number in range(35)), retrieval="fanout"),
    "100 streams by polling": of_streams(*(f"stream-{number}" for number in range(100))),
    "long names": of_streams(*LONG_NAMES[:60]),
}


def resources() -> dict[str, Any]:
    found: dict[str, Any] = files.document("aws.yaml")["Resources"]
    return found


def of_type(kind: str, found: dict[str, Any]) -> dict[str, Any]:
    return {name: one["Properties"] for name, one in found.items() if one["Type"] == kind}


def linted(*paths: Any) -> None:
    lint = "import sys; from cfnlint.runner import main; sys.exit(main())"
    command = [sys.executable, "-W", "ignore", "-c", lint, "--regions", files.REGION, "--", *map(str, paths)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.slow
def test_cloudformation_accepts_the_template_of_deploy() -> None:
    linted(DEPLOY / "aws.yaml")


@pytest.mark.nightly
def test_cloudformation_accepts_the_template_of_any_application(tmp_path: Any) -> None:
    paths = []
    for name, deployment in DEPLOYMENTS.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(to_yaml(deployment, "test"))
        paths.append(path)
    linted(*paths)


@pytest.mark.parametrize("component", Component)
def test_a_policy_is_that_of_the_table_of_rights(component: Component) -> None:
    tables = APPLICATION.tables.model_copy(update={"create": False})  # the stack makes the table
    application = APPLICATION.model_copy(update={"tables": tables})
    here = Deployment(application, files.REGION, files.ACCOUNT, lakes=("s3://orders-lake/orders",))
    made = of_type("AWS::IAM::ManagedPolicy", resources())[f"{component.value.capitalize()}Policy"]
    assert filled(made["PolicyDocument"]) == policy(component, here)


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
def test_no_role_may_create_a_table_and_each_policy_fits(deployment: Deployment) -> None:
    found = of_type("AWS::IAM::ManagedPolicy", template(deployment)["Resources"])
    for name, one in found.items():
        document = filled(one["PolicyDocument"])
        assert len(json.dumps(document, separators=(",", ":"))) <= LARGEST_POLICY, name
        assert "dynamodb:CreateTable" not in {action for part in document["Statement"] for action in part["Action"]}


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
@pytest.mark.parametrize("component", Component)
def test_the_policies_of_a_component_grant_together_what_one_would(
    component: Component, deployment: Deployment
) -> None:
    tables = deployment.application.tables.model_copy(update={"create": False})
    application = deployment.application.model_copy(update={"tables": tables})
    here = replace(deployment, application=application, region=files.REGION, account=files.ACCOUNT)
    found = of_type("AWS::IAM::ManagedPolicy", template(deployment)["Resources"])
    own = [one for name, one in found.items() if re.fullmatch(rf"{component.value.capitalize()}Policy\d*", name)]
    assert grants(*(filled(one["PolicyDocument"]) for one in own)) == grants(policy(component, here))
    for one in own:
        sids = [statement["Sid"] for statement in one["PolicyDocument"]["Statement"]]
        assert len(sids) == len(set(sids)), "IAM rejects a document with one name twice"


def grants(*documents: dict[str, Any]) -> list[tuple[str, str]]:
    """Each action with each resource, as often as it is granted."""
    return sorted(
        (action, resource)
        for document in documents
        for statement in document["Statement"]
        for action in statement["Action"]
        for resource in statement["Resource"]
    )


def test_every_policy_is_attached_to_the_role_of_its_component() -> None:
    made = template(DEPLOYMENTS["100 streams by polling"])["Resources"]
    roles = of_type("AWS::IAM::Role", made)
    assert len(of_type("AWS::IAM::ManagedPolicy", made)) > len(Component)
    for component in Component:
        own = {name for name in made if name.startswith(f"{component.value.capitalize()}Policy")}
        attached = roles[f"{component.value.capitalize()}Role"]["ManagedPolicyArns"]
        assert own == {one["Ref"] for one in attached if "Ref" in one}
        if component is Component.EXECUTOR:
            worker = roles["WorkerRole"]["ManagedPolicyArns"]
            assert own == {one["Fn::If"][2]["Ref"] for one in worker if "Fn::If" in one}


def test_a_role_that_would_have_too_many_policies_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"the rights of the \w+ fill \d\d policies"):
        template(of_streams(*LONG_NAMES, retrieval="fanout"))


def test_a_driver_that_would_have_too_many_policies_is_refused() -> None:
    fits = of_streams(*LONG_NAMES[:100])
    template(fits)
    with pytest.raises(ConfigurationError, match=r"the rights of the drivers elsewhere fill \d\d policies"):
        template(replace(fits, messages="s3://messages"))


def test_one_machine_has_no_role_if_that_would_have_too_many_policies() -> None:
    made = template(of_streams(*LONG_NAMES[:100]))
    assert {"WorkerRole", "WorkerProfile"} <= made["Resources"].keys()
    assert not {"MachineRole", "MachineProfile"} & made["Resources"].keys()
    assert "MachineProfileName" not in made["Outputs"]


def test_the_command_says_that_a_policy_is_too_large(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    arguments = ["--application", "many-streams", "--component", "executor", "--account", ACCOUNT_NUMBER]
    for count, is_too_large in ((2, False), (200, True)):
        streams = [word for number in range(count) for word in ("--stream", f"stream-{number}")]
        assert cli.main(["rights", *arguments, *streams]) == 0
        printed = capsys.readouterr()
        assert len(json.loads(printed.out)["Statement"][0]["Resource"]) == count
        assert ("prints it as several policies" in printed.err) == is_too_large


@pytest.fixture
def iam(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield boto3.client("iam", region_name=files.REGION)


def test_iam_accepts_every_policy_and_every_role(iam: Any) -> None:
    for name, one in of_type("AWS::IAM::ManagedPolicy", resources()).items():
        iam.create_policy(PolicyName=name, PolicyDocument=json.dumps(filled(one["PolicyDocument"])))
    for name, one in of_type("AWS::IAM::Role", resources()).items():
        trusted = filled(one["AssumeRolePolicyDocument"])
        [statement] = trusted["Statement"]
        if name == "OperatorRole":
            _, _, statement["Principal"]["AWS"] = statement["Principal"]["AWS"]["Fn::If"]
        else:
            statement["Principal"]["Service"] = "pods.eks.amazonaws.com"
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trusted))
    assert {role["RoleName"] for role in iam.list_roles()["Roles"]} == {
        "MachineRole",
        *(f"{component.value.capitalize()}Role" for component in Component),
    }


def test_a_worker_reads_the_stream_by_itself_unless_executors_are_apart() -> None:
    roles = of_type("AWS::IAM::Role", resources())
    apart = {"Fn::If": ["AreExecutorsApart", {"Ref": "AWS::NoValue"}, {"Ref": "ExecutorPolicy"}]}
    assert roles["WorkerRole"]["ManagedPolicyArns"] == [{"Ref": "WorkerPolicy"}, apart]
    for component in (Component.LEADER, Component.EXECUTOR, Component.OPERATOR):
        name = component.value.capitalize()
        assert roles[f"{name}Role"]["ManagedPolicyArns"] == [{"Ref": f"{name}Policy"}]


def test_a_spark_driver_elsewhere_has_the_rights_of_all_that_it_does() -> None:
    """IAM adds up the policies of a role."""
    made = template(EVERYTHING)
    role = of_type("AWS::IAM::Role", made["Resources"])["DriverRole"]
    policies = of_type("AWS::IAM::ManagedPolicy", made["Resources"])

    def granted(document: dict[str, Any]) -> set[tuple[str, str]]:
        return {
            (action, resource)
            for statement in filled(document)["Statement"]
            for action in statement["Action"]
            for resource in statement["Resource"]
        }

    given = set[tuple[str, str]]()
    for one in role["ManagedPolicyArns"]:
        given |= granted(policies[one["Ref"]]["PolicyDocument"])
    tables = EVERYTHING.application.tables.model_copy(update={"create": False})
    here = replace(
        EVERYTHING,
        application=EVERYTHING.application.model_copy(update={"tables": tables}),
        region=files.REGION,
        account=files.ACCOUNT,
    )
    assert given == granted(driver_policy(here))
    [statement] = role["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": {"Ref": "DriverService"}}
    assert made["Parameters"]["DriverService"]["Default"] == "emr-serverless.amazonaws.com"
    assert made["Outputs"]["DriverRoleArn"] == {"Value": {"Fn::GetAtt": ["DriverRole", "Arn"]}}


def test_without_messages_of_drivers_elsewhere_there_is_no_role_for_them() -> None:
    made = template(replace(EVERYTHING, messages=None))
    assert "DriverRole" not in made["Resources"]
    assert "DriverService" not in made["Parameters"]


def test_the_pods_of_kubernetes_yaml_have_the_roles() -> None:
    accounts = {
        (one["metadata"]["namespace"], one["metadata"]["name"])
        for one in manifests()
        if one["kind"] == "ServiceAccount"
    }
    namespace = files.document("aws.yaml")["Parameters"]["Namespace"]["Default"]
    given = of_type("AWS::EKS::PodIdentityAssociation", resources())
    executor = given.pop("ExecutorServiceAccount")  # Spark makes its pods, and no file here
    assert {(namespace, one["ServiceAccount"]) for one in given.values()} <= accounts
    assert {one["RoleArn"]["Fn::GetAtt"][0] for one in given.values()} == {"LeaderRole", "WorkerRole"}
    assert executor["ServiceAccount"] == service_account(APPLICATION.name, Component.EXECUTOR)
    assert executor["RoleArn"] == {"Fn::GetAtt": ["ExecutorRole", "Arn"]}


PARAMETERS = [(service, apart) for service in SERVICES for apart in ("true", "false")]


@pytest.mark.parametrize(("service", "apart"), PARAMETERS)
def test_what_runs_a_component_can_have_its_role(service: str, apart: str) -> None:
    """Pods of EKS have roles by their service accounts, and machines of EC2 by an instance profile."""
    found = present(Service=service, ExecutorsApart=apart, EksCluster="cluster" if service == SERVICES[0] else "")
    roles = {name for name, one in found.items() if one["Type"] == "AWS::IAM::Role"} - {"OperatorRole"}
    assert ("ExecutorRole" in roles) == (apart == "true")
    assert ("MachineRole" in roles) == (service == EC2)
    pods = {one["RoleArn"]["Fn::GetAtt"][0] for one in of_type("AWS::EKS::PodIdentityAssociation", found).values()}
    machines = {one["Roles"][0]["Ref"] for one in of_type("AWS::IAM::InstanceProfile", found).values()}
    assert pods == (roles if service == SERVICES[0] else set())
    assert machines == (roles if service == EC2 else set())


def test_a_machine_that_runs_everything_may_do_what_code_location_and_workers_may() -> None:
    roles = of_type("AWS::IAM::Role", resources())
    together = [*roles["LeaderRole"]["ManagedPolicyArns"], *roles["WorkerRole"]["ManagedPolicyArns"]]
    assert roles["MachineRole"]["ManagedPolicyArns"] == together


def present(**parameters: str) -> dict[str, Any]:
    """The resources that CloudFormation makes with these parameters."""
    document = files.document("aws.yaml")
    given = {name: one["Default"] for name, one in document["Parameters"].items()} | parameters

    def holds(condition: Any) -> bool:
        match condition:
            case {"Condition": str(name)}:
                return holds(document["Conditions"][name])
            case {"Fn::And": list(parts)}:
                return all(map(holds, parts))
            case {"Fn::Not": [part]}:
                return not holds(part)
            case {"Fn::Equals": [{"Ref": str(name)}, str(value)]}:
                return bool(given[name] == value)
        raise AssertionError(condition)

    made: dict[str, Any] = document["Resources"]
    return {
        name: one for name, one in made.items() if "Condition" not in one or holds({"Condition": one["Condition"]})
    }


def test_the_name_of_a_service_account_is_a_dns_label() -> None:
    assert service_account("shop-to-lake", Component.LEADER) == "shop-to-lake-leader"
    assert re.fullmatch("shop-to-lake-[0-9a-f]{8}-leader", service_account("Shop.to_lake", Component.LEADER))
    for name in ("a_" * 100, "a" * 200, "a" * 53 + "-b"):
        longest = service_account(name, Component.EXECUTOR)
        assert re.fullmatch("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", longest)
        assert longest.endswith("-executor")


def test_two_applications_have_two_service_accounts() -> None:
    names = ["a_b", "a.b", "a-b", "A-b", "a--b", *("a" * length for length in range(50, 60))]
    assert len({service_account(name, Component.LEADER) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["___", "-.-"])
def test_an_application_without_a_letter_has_no_service_account(name: str) -> None:
    with pytest.raises(ConfigurationError, match="no letter or digit"):
        service_account(name, Component.LEADER)


# --- the table


@pytest.fixture
def aws() -> Iterator[Emulator]:
    """One for each test: the streams have the same names."""
    with Emulator(limits=Limits.none()) as emulator:
        yield emulator


@pytest.mark.parametrize("deployment", [files.PROJECT.deployment, SEVERAL], ids=["one stream", "two streams"])
def test_the_table_is_the_one_that_the_leader_would_make(aws: Emulator, deployment: Deployment) -> None:
    application = deployment.application
    for stream in application.streams:
        aws.client("kinesis").create_stream(StreamName=stream.name, ShardCount=1)
    lead(aws, application)
    dynamodb = aws.client("dynamodb")
    made = dynamodb.describe_table(TableName=application.lease_table)["Table"]
    properties = dict(template(deployment)["Resources"]["LeaseTable"]["Properties"])
    assert properties["KeySchema"] == made["KeySchema"]
    assert sorted(properties["AttributeDefinitions"], key=str) == sorted(made["AttributeDefinitions"], key=str)
    index = ("IndexName", "KeySchema", "Projection")
    ours = properties.get("GlobalSecondaryIndexes", [])
    theirs = made.get("GlobalSecondaryIndexes", [])
    assert [[one[key] for key in index] for one in ours] == [[one[key] for key in index] for one in theirs]


def test_a_leader_works_on_the_table_of_the_template(aws: Emulator) -> None:
    aws.client("kinesis").create_stream(StreamName="orders", ShardCount=2)
    dynamodb, properties = aws.client("dynamodb"), dict(resources()["LeaseTable"]["Properties"])
    backups = properties.pop("PointInTimeRecoverySpecification")
    dynamodb.create_table(**properties)
    assert backups == {"PointInTimeRecoveryEnabled": True}
    lead(aws, APPLICATION.model_copy(update={"tables": TableSettings(create=False)}))
    rows = dynamodb.scan(TableName=APPLICATION.lease_table)["Items"]
    assert {row["leaseKey"]["S"] for row in rows} >= {"shardId-000000000000", "shardId-000000000001"}


def lead(aws: Emulator, application: Application) -> None:
    dynamodb, kinesis = aws.client("dynamodb"), aws.client("kinesis")
    leader = open_leader(application, dynamodb=dynamodb, kinesis=kinesis, identity="test", runtime=system())
    report = leader.tick(RunView(launches=False))
    assert report.ok, report
    leader.resign()


def test_nothing_deletes_the_checkpoints() -> None:
    table = resources()["LeaseTable"]
    assert (table["DeletionPolicy"], table["UpdateReplacePolicy"]) == ("Retain", "Retain")
    assert table["Properties"]["DeletionProtectionEnabled"] is True


# --- alarms


def published() -> Iterator[Datum]:
    """What a leader and a worker send to CloudWatch, details left out."""
    stages = (StageOutcome("sync", True, 0.1), StageOutcome("assign", True, 0.1))
    yield from kcl_names.of_tick(TickReport(leading=True, stages=stages))
    lease = LeaseReport(
        LeaseKey("shardId-000000000000"),
        StreamIdentifier("orders"),
        "shardId-000000000000",
        Outcome.COMMITTED,
        1,
        Checkpoint("1"),
        millis_behind=0,
    )
    yield from kcl_names.of_batch(BatchReport((lease,)))


def test_every_alarm_watches_a_metric_that_is_published() -> None:
    ours = {(datum.name, datum.dimensions) for datum in published() if not datum.is_detail}
    for name, alarm in of_type("AWS::CloudWatch::Alarm", resources()).items():
        dimensions = tuple((one["Name"], one["Value"]) for one in alarm["Dimensions"])
        if alarm["Namespace"] == APPLICATION.name:
            assert (alarm["MetricName"], dimensions) in ours, name
        else:
            assert (alarm["Namespace"], alarm["MetricName"], tuple(key for key, _ in dimensions)) in OF_AWS, name


def test_a_leader_that_is_gone_is_seen_although_it_sends_nothing() -> None:
    alarm = resources()["NobodyLeads"]["Properties"]
    assert alarm["TreatMissingData"] == "breaching"
    others = [one for one in of_type("AWS::CloudWatch::Alarm", resources()).values() if one != alarm]
    assert {one["TreatMissingData"] for one in others} == {"notBreaching"}


def test_bounded_runs_have_no_alarms_on_what_only_a_lasting_leader_publishes() -> None:
    """Between two runs there is no leader, and the leader within a run publishes nothing."""
    continuous = {alarm.name for alarm in alarms(files.PROJECT.deployment)}
    bounded = {alarm.name for alarm in alarms(replace(files.PROJECT.deployment, is_bounded=True))}
    assert continuous - bounded == {"NobodyLeads", "LeasesUnserved", "LeaseRowsUnreadable"}
    assert "FarBehind" in bounded <= continuous


def test_without_our_metrics_there_are_the_alarms_of_aws() -> None:
    silent = APPLICATION.model_copy(update={"telemetry": TelemetrySettings()})
    found = alarms(replace(files.PROJECT.deployment, application=silent))
    assert {alarm.namespace for alarm in found} == {"AWS/Kinesis", "AWS/DynamoDB"}


def test_each_stream_has_an_alarm() -> None:
    names = [alarm.name for alarm in alarms(SEVERAL)]
    assert {"OldestRecordReadOrders", "OldestRecordReadPayMents"} < set(names)
    assert len(names) == len(set(names))


def test_streams_whose_names_are_alike_have_an_alarm_each() -> None:
    found = of_type("AWS::CloudWatch::Alarm", template(ALIKE)["Resources"])
    watched = [one["Dimensions"][0]["Value"] for one in found.values() if one["Namespace"] == "AWS/Kinesis"]
    assert sorted(watched) == sorted(stream.name for stream in ALIKE.application.streams)
    assert len({one["AlarmName"] for one in found.values()}) == len(found)
    assert "OldestRecordReadOrders" in found


def test_a_stream_of_another_account_has_its_metrics_there() -> None:
    arn = "arn:aws:kinesis:eu-north-1:210987654321:stream/orders"
    found = alarms(replace(files.PROJECT.deployment, application=Application(name="orders-app", streams=arn)))
    assert {alarm.namespace for alarm in found} == {"AWS/DynamoDB"}


def test_alarms_are_accepted_by_cloudwatch() -> None:
    """As far as the service's own model goes: names of parameters and types."""
    model = botocore.session.get_session().get_service_model("cloudwatch").operation_model("PutMetricAlarm")
    known: dict[str, Any] = dict(getattr(model.input_shape, "members", {}))
    for alarm in of_type("AWS::CloudWatch::Alarm", resources()).values():
        assert alarm.keys() <= known.keys()
        assert alarm["Statistic"] in known["Statistic"].enum
        assert alarm["ComparisonOperator"] in known["ComparisonOperator"].enum


def test_a_fanout_application_may_subscribe_and_a_polling_one_may_not() -> None:
    def actions(retrieval: Retrieval) -> set[str]:
        application = APPLICATION.model_copy(update={"batch": BatchSettings(retrieval=retrieval)})
        made = template(replace(files.PROJECT.deployment, application=application))["Resources"]
        statements = made["ExecutorPolicy"]["Properties"]["PolicyDocument"]["Statement"]
        return {action for statement in statements for action in statement["Action"]}

    assert "kinesis:SubscribeToShard" in actions(Retrieval.FANOUT) - actions(Retrieval.POLLING)


def test_the_file_is_read_without_references() -> None:
    """CloudFormation refuses anchors."""
    events = yaml.parse(files.text("aws.yaml"), Loader=yaml.SafeLoader)
    assert not [event for event in events if isinstance(event, yaml.AliasEvent)]
