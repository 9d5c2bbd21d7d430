"""A CloudFormation template with the lease table, the roles and the alarms of an application.

The policies are made from the table of rights, so the template follows the settings of the application. The
template itself creates the lease table, so none of its roles gets the right to create tables.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from kcl_dagster.application import Billing, MetricsLevel
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.operations.rights import OF_DRIVER, Component, Deployment, divided, policy
from kcl_dagster.tables.attributes import LEASE_KEY, OWNER, OWNER_INDEX

MINUTE: Final = 60  # seconds
BEHIND_SECONDS: Final = 6 * 60 * MINUTE  # a quarter of the retention that a stream has by default
DRIVER_SERVICES: Final = ("emr-serverless.amazonaws.com", "pods.eks.amazonaws.com")
EC2: Final = "ec2.amazonaws.com"
SERVICES: Final = ("pods.eks.amazonaws.com", "ecs-tasks.amazonaws.com", EC2)
# The most characters of a managed policy here. IAM accepts 6144. The rest is a reserve for long names of regions
# and partitions.
POLICY_LIMIT: Final = 5500
POLICIES_OF_A_ROLE: Final = 10  # the quota that an account has by default
LONGEST_LABEL: Final = 63  # characters of a DNS label
# Placeholders for the region and the account, which CloudFormation fills in.
REGION: Final = "${AWS::Region}"
ACCOUNT: Final = "${AWS::AccountId}"
_ROLE_NAMES: Final = {
    Component.LEADER: "the code location, which evaluates the leader's sensor",
    Component.WORKER: "runs of workers, compactions, replays and dead letters",
    Component.EXECUTOR: "Spark's executors on other machines",
    Component.OPERATOR: "the command line",
}
_ON_MACHINES: Final = (Component.LEADER, Component.WORKER, Component.EXECUTOR)
_MACHINE_PROFILE_OUTPUT: Final = {"Condition": "IsOnEc2", "Value": {"Ref": "MachineProfile"}}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A CloudWatch alarm. It is raised if the statistic of the metric crosses the threshold in each of `minutes`
    consecutive minutes."""

    name: str
    why: str
    namespace: str
    metric: str
    dimensions: tuple[tuple[str, str], ...]
    statistic: str
    comparison: str
    threshold: float
    minutes: int
    is_missing_bad: bool = False
    """Whether missing data raise the alarm. True for a metric that is published as long as the application
    works."""


def alarms(deployment: Deployment) -> list[Alarm]:
    """The alarms of an application. If the application publishes no metrics to CloudWatch, only alarms on AWS's own
    metrics are returned."""
    application = deployment.application
    found: list[Alarm] = []
    if application.telemetry.cloudwatch is not MetricsLevel.NONE:
        namespace = application.telemetry.cloudwatch_namespace or application.name
        assigning = (("Operation", "LeaseAssignmentManager"),)
        found += [
            Alarm(
                "NobodyLeads",
                "No leader has ticked for five minutes. Workers read on, but none is replaced when it ends. "
                "Look at the sensor and the daemon.",
                namespace,
                "TotalLeases",
                assigning,
                "SampleCount",
                "LessThanThreshold",
                1,
                5,
                is_missing_bad=True,
            ),
            Alarm(
                "LeasesUnserved",
                "Shards are read by no worker for five minutes. `kcl-dagster plan` says why.",
                namespace,
                "LeaseSpillover",
                assigning,
                "Minimum",
                "GreaterThanThreshold",
                0,
                5,
            ),
            Alarm(
                "FarBehind",
                "A shard is six hours behind the tip of its stream. At the end of the retention records are lost.",
                namespace,
                "MillisBehindLatest",
                (("Operation", "ApplicationTracker"),),
                "Maximum",
                "GreaterThanThreshold",
                BEHIND_SECONDS * 1000,
                5,
            ),
            Alarm(
                "LeaseRowsUnreadable",
                "Rows of the lease table cannot be read: another program writes into it.",
                namespace,
                "LeaseDeserializationFailureCount",
                assigning,
                "Maximum",
                "GreaterThanThreshold",
                0,
                5,
            ),
        ]
        if deployment.is_bounded:  # leaders of bounded runs publish no metrics
            found = [alarm for alarm in found if alarm.dimensions != assigning]
    # A stream with an ARN gets no alarm here, because its metrics are in the CloudWatch of its own account and
    # region.
    streams = [stream.name for stream in application.streams if stream.arn is None]
    suffixes = _identifiers(streams) if len(application.streams) > 1 else [""] * len(streams)
    for stream, suffix in zip(streams, suffixes, strict=True):
        found.append(
            Alarm(
                f"OldestRecordRead{suffix}",
                f"A reader of {stream} is six hours behind. AWS measures reads by polling only.",
                "AWS/Kinesis",
                "GetRecords.IteratorAgeMilliseconds",
                (("StreamName", stream),),
                "Maximum",
                "GreaterThanThreshold",
                BEHIND_SECONDS * 1000,
                5,
            )
        )
    for kind in ("Read", "Write"):
        found.append(
            Alarm(
                f"Table{kind}sThrottled",
                f"DynamoDB refuses {kind.lower()}s of the lease table. Leases that are not renewed are lost.",
                "AWS/DynamoDB",
                f"{kind}ThrottleEvents",
                (("TableName", application.lease_table),),
                "Sum",
                "GreaterThanThreshold",
                0,
                5,
            )
        )
    return found


def service_account(application: str, component: Component) -> str:
    """The Kubernetes service account of a component: the application's name as a DNS label.

    A name that had to be changed gets a digest, so that no other application has the same account."""
    stem = re.sub(r"[^a-z0-9]+", "-", application.lower()).strip("-")
    if not stem:
        raise ConfigurationError(f"{application!r} has no letter or digit for the name of a service account")
    longest = LONGEST_LABEL - len(f"-{component}")
    if stem != application or len(stem) > longest:
        digest = _digest(application)
        stem = f"{stem[: longest - len(digest) - 1].strip('-')}-{digest}"
    return f"{stem}-{component}"


def template(deployment: Deployment) -> Json:
    """Return the template of a deployment. The deployment's region and account can be the placeholders `REGION` and
    `ACCOUNT`, which CloudFormation fills in."""
    application = deployment.application
    tables = application.tables.model_copy(update={"create": False})
    made = replace(deployment, application=application.model_copy(update={"tables": tables}))
    resources: Json = {"LeaseTable": _table(deployment)}
    policies = {component: _policies(component, made) for component in Component}
    for component in Component:
        resources |= policies[component]
        resources |= _role(component, application.name, policies)
    drivers = _driver(made, policies)
    resources |= drivers
    has_machine = len(_machine_policies(policies)) <= POLICIES_OF_A_ROLE
    if has_machine:
        resources |= _machine(application.name, policies)
    for alarm in alarms(made):
        resources[alarm.name] = _alarm(application.name, alarm)
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"kcl_dagster: lease table, roles and alarms of {application.name}",
        "Parameters": _parameters() | (_DRIVER_PARAMETERS if drivers else {}),
        "Conditions": {
            "IsOnEks": {"Fn::Not": [{"Fn::Equals": [{"Ref": "EksCluster"}, ""]}]},
            "IsOnEc2": {"Fn::Equals": [{"Ref": "Service"}, EC2]},
            "AreExecutorsApart": {"Fn::Equals": [{"Ref": "ExecutorsApart"}, "true"]},
            "AreExecutorsApartOnEks": {"Fn::And": [{"Condition": "IsOnEks"}, {"Condition": "AreExecutorsApart"}]},
            "AreExecutorsApartOnEc2": {"Fn::And": [{"Condition": "IsOnEc2"}, {"Condition": "AreExecutorsApart"}]},
            "AreOperatorsNamed": {"Fn::Not": [{"Fn::Equals": [{"Ref": "Operators"}, ""]}]},
            "IsSomebodyTold": {"Fn::Not": [{"Fn::Equals": [{"Ref": "AlarmTopic"}, ""]}]},
        },
        "Resources": resources,
        "Outputs": {
            **{f"{_role_id(one)}Arn": _output(one) for one in Component},
            **{f"{role}Arn": {"Value": {"Fn::GetAtt": [role, "Arn"]}} for role in drivers},
            **{f"{_profile_id(one)}Name": _profile_output(one) for one in _ON_MACHINES},
            **({"MachineProfileName": _MACHINE_PROFILE_OUTPUT} if has_machine else {}),
            "LeaseTableName": {"Value": {"Ref": "LeaseTable"}},
        },
    }


def to_yaml(deployment: Deployment, command: str) -> str:
    """The template as the text of a file, whose first line names the command that renews it."""
    text = yaml.dump(template(deployment), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return (
        f"# Made by `{command}`: do not edit. After a change of the application's settings, make it again.\n{text}"
    )


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _: Any) -> bool:
        return True


def _parameters() -> Json:
    return {
        "Service": {
            "Type": "String",
            "Default": SERVICES[0],
            "AllowedValues": list(SERVICES),
            "Description": "What runs code location and workers, and assumes their roles.",
        },
        "EksCluster": {
            "Type": "String",
            "Default": "",
            "Description": "With EKS: the cluster, whose pods get the roles by their service accounts.",
        },
        "Namespace": {"Type": "String", "Default": "dagster", "Description": "With EKS: of those pods."},
        "ExecutorsApart": {
            "Type": "String",
            "Default": "false",
            "AllowedValues": ["true", "false"],
            "Description": "Whether Spark's executors run on other machines, with a role of their own.",
        },
        "Operators": {
            "Type": "String",
            "Default": "",
            "Description": "ARN of the principal that assumes the operator's role; empty: of this account.",
        },
        "AlarmTopic": {"Type": "String", "Default": "", "Description": "ARN of the SNS topic that alarms notify."},
    }


def _table(deployment: Deployment) -> Json:
    application = deployment.application
    settings, attributes = application.tables, [LEASE_KEY]
    capacity: Json = {}
    if settings.billing is Billing.PROVISIONED:
        capacity["ProvisionedThroughput"] = {
            "ReadCapacityUnits": settings.read_capacity,
            "WriteCapacityUnits": settings.write_capacity,
        }
    properties: Json = {
        "TableName": application.lease_table,
        "BillingMode": str(settings.billing),
        **capacity,
        "KeySchema": [{"AttributeName": LEASE_KEY, "KeyType": "HASH"}],
        # The checkpoints are stored only in this table.
        "DeletionProtectionEnabled": True,
        "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
    }
    if settings.owner_index:
        attributes.append(OWNER)
        properties["GlobalSecondaryIndexes"] = [
            {
                "IndexName": OWNER_INDEX,
                "KeySchema": [
                    {"AttributeName": OWNER, "KeyType": "HASH"},
                    {"AttributeName": LEASE_KEY, "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
                **capacity,
            }
        ]
    if deployment.table_key is not None:
        properties["SSESpecification"] = {
            "SSEEnabled": True,
            "SSEType": "KMS",
            "KMSMasterKeyId": deployment.table_key,
        }
    if settings.tags:
        properties["Tags"] = [{"Key": key, "Value": value} for key, value in sorted(settings.tags.items())]
    properties["AttributeDefinitions"] = [{"AttributeName": one, "AttributeType": "S"} for one in attributes]
    return {
        "Type": "AWS::DynamoDB::Table",
        "DeletionPolicy": "Retain",
        "UpdateReplacePolicy": "Retain",
        "Properties": properties,
    }


def _policies(component: Component, deployment: Deployment) -> Json:
    """The managed policies of a component. IAM's limit of characters determines their number."""
    documents = divided(_in_any_partition(policy(component, deployment)), POLICY_LIMIT)
    return {
        f"{component.value.capitalize()}Policy{number if number > 1 else ''}": {
            "Type": "AWS::IAM::ManagedPolicy",
            "Properties": {
                "Description": f"{deployment.application.name}: {_ROLE_NAMES[component]}",
                "PolicyDocument": _substituted(document),
            },
        }
        for number, document in enumerate(documents, 1)
    }


def _role(component: Component, name: str, policies: Mapping[Component, Json]) -> Json:
    """The role of a component, with the resources that give it to pods of EKS and to machines of EC2."""
    role = _role_id(component)
    condition = {"Condition": "AreExecutorsApart"} if component is Component.EXECUTOR else {}
    attached: list[Any] = [{"Ref": one} for one in policies[component]]
    if component is Component.WORKER:
        attached += _unless_apart(policies)
    _refuse_too_many(attached, str(component))
    made: Json = {
        role: {
            "Type": "AWS::IAM::Role",
            **condition,
            "Properties": {
                "Description": f"{name}: {_ROLE_NAMES[component]}",
                "AssumeRolePolicyDocument": _trust(component),
                "ManagedPolicyArns": attached,
            },
        },
    }
    if component in _ON_MACHINES:
        made[_profile_id(component)] = {
            "Type": "AWS::IAM::InstanceProfile",
            "Condition": _on_ec2(component),
            "Properties": {"Roles": [{"Ref": role}]},
        }
        made[f"{component.value.capitalize()}ServiceAccount"] = {
            "Type": "AWS::EKS::PodIdentityAssociation",
            "Condition": "AreExecutorsApartOnEks" if component is Component.EXECUTOR else "IsOnEks",
            "Properties": {
                "ClusterName": {"Ref": "EksCluster"},
                "Namespace": {"Ref": "Namespace"},
                "ServiceAccount": service_account(name, component),
                "RoleArn": {"Fn::GetAtt": [role, "Arn"]},
            },
        }
    return made


def _refuse_too_many(policies: Sequence[Json], holder: str) -> None:
    if len(policies) > POLICIES_OF_A_ROLE:
        raise ConfigurationError(
            f"the rights of the {holder} fill {len(policies)} policies, because they name every stream, and a role "
            f"has {POLICIES_OF_A_ROLE} at most: divide the streams among several applications"
        )


_DRIVER_PARAMETERS: Final[Json] = {
    "DriverService": {
        "Type": "String",
        "Default": DRIVER_SERVICES[0],
        "AllowedValues": list(DRIVER_SERVICES),
        "Description": "What runs Spark drivers elsewhere (Dagster Pipes), and assumes their role.",
    }
}


def _driver(deployment: Deployment, policies: Mapping[Component, Json]) -> Json:
    """The role of Spark drivers that Dagster Pipes runs on another platform, with the policies of leader, worker
    and executor. Empty if the deployment has no bucket for their messages."""
    if deployment.messages is None:
        return {}
    held = [{"Ref": one} for part in Component if part in OF_DRIVER for one in policies[part]]
    _refuse_too_many(held, "drivers elsewhere")
    trust = _trust(Component.WORKER)
    trust["Statement"][0]["Principal"] = {"Service": {"Ref": "DriverService"}}
    return {
        "DriverRole": {
            "Type": "AWS::IAM::Role",
            "Properties": {
                "Description": f"{deployment.application.name}: Spark drivers elsewhere, for bounded runs",
                "AssumeRolePolicyDocument": trust,
                "ManagedPolicyArns": held,
            },
        }
    }


def _unless_apart(policies: Mapping[Component, Json]) -> list[Json]:
    """The policies of executors, for a role of another component. If no executors run on other machines, the
    process of the worker reads the streams, as in a local Spark session, and needs these policies. CloudFormation
    leaves them out if the parameters of the stack give executors a role of their own."""
    no_value = {"Ref": "AWS::NoValue"}
    return [{"Fn::If": ["AreExecutorsApart", no_value, {"Ref": one}]} for one in policies[Component.EXECUTOR]]


def _machine_policies(policies: Mapping[Component, Json]) -> list[Json]:
    own = [{"Ref": one} for component in (Component.LEADER, Component.WORKER) for one in policies[component]]
    return [*own, *_unless_apart(policies)]


def _machine(name: str, policies: Mapping[Component, Json]) -> Json:
    """The role of an EC2 machine that runs both the code location and the workers. It has the rights of both,
    because a machine has only one role."""
    return {
        "MachineRole": {
            "Type": "AWS::IAM::Role",
            "Condition": "IsOnEc2",
            "Properties": {
                "Description": f"{name}: one machine for code location and workers, as with compose.yaml",
                "AssumeRolePolicyDocument": _trust(Component.WORKER),
                "ManagedPolicyArns": _machine_policies(policies),
            },
        },
        "MachineProfile": {
            "Type": "AWS::IAM::InstanceProfile",
            "Condition": "IsOnEc2",
            "Properties": {"Roles": [{"Ref": "MachineRole"}]},
        },
    }


def _trust(component: Component) -> Json:
    principal: Json = {"Service": {"Ref": "Service"}}
    # EKS identifies pods by session tags, which need their own action.
    actions: Any = ["sts:AssumeRole", "sts:TagSession"]
    if component is Component.OPERATOR:
        account = {"Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:root"}
        principal = {"AWS": {"Fn::If": ["AreOperatorsNamed", {"Ref": "Operators"}, account]}}
        actions = ["sts:AssumeRole"]
    return {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": principal, "Action": actions}],
    }


def _in_any_partition(document: Json) -> Json:
    """The policy with a placeholder for the partition, in addition to those for region and account."""

    def anywhere(arn: str) -> str:
        return re.sub(r"^arn:aws[^:]*:", "arn:${AWS::Partition}:", arn)

    statements = [{**one, "Resource": [anywhere(arn) for arn in one["Resource"]]} for one in document["Statement"]]
    return {**document, "Statement": statements}


def _substituted(document: Json) -> Json:
    """The policy with a mark (`Fn::Sub`) at each ARN that has placeholders. CloudFormation then fills them in."""
    statements = [
        {**one, "Resource": [{"Fn::Sub": arn} if "${" in arn else arn for arn in one["Resource"]]}
        for one in document["Statement"]
    ]
    return {**document, "Statement": statements}


def _alarm(application: str, alarm: Alarm) -> Json:
    told = {"Fn::If": ["IsSomebodyTold", [{"Ref": "AlarmTopic"}], {"Ref": "AWS::NoValue"}]}
    return {
        "Type": "AWS::CloudWatch::Alarm",
        "Properties": {
            "AlarmName": f"{application}-{alarm.name}",
            "AlarmDescription": alarm.why,
            "Namespace": alarm.namespace,
            "MetricName": alarm.metric,
            "Dimensions": [{"Name": name, "Value": value} for name, value in alarm.dimensions],
            "Statistic": alarm.statistic,
            "Period": MINUTE,
            "EvaluationPeriods": alarm.minutes,
            "Threshold": alarm.threshold,
            "ComparisonOperator": alarm.comparison,
            "TreatMissingData": "breaching" if alarm.is_missing_bad else "notBreaching",
            "AlarmActions": told,
            "OKActions": told,
        },
    }


def _output(component: Component) -> Json:
    condition = {"Condition": "AreExecutorsApart"} if component is Component.EXECUTOR else {}
    return {**condition, "Value": {"Fn::GetAtt": [_role_id(component), "Arn"]}}


def _role_id(component: Component) -> str:
    return f"{component.value.capitalize()}Role"


def _profile_id(component: Component) -> str:
    return f"{component.value.capitalize()}Profile"


def _profile_output(component: Component) -> Json:
    return {"Condition": _on_ec2(component), "Value": {"Ref": _profile_id(component)}}


def _on_ec2(component: Component) -> str:
    return "AreExecutorsApartOnEc2" if component is Component.EXECUTOR else "IsOnEc2"


def _identifiers(names: Sequence[str]) -> list[str]:
    """For each name, a text for the logical ids of its resources. Names that differ only in punctuation or capitals
    get a digest."""
    plain = ["".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", name)) for name in names]
    count = Counter(plain)
    return [one if count[one] == 1 else f"{one}{_digest(name)}" for name, one in zip(names, plain, strict=True)]


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]
