"""The AWS rights of each component in one table, and the IAM policies that are made from it.

The doctor checks the rights of this table, the command `rights` prints it as policies, and the reference shows it.
Tests compare the table with the requests that the code can send, and with those that the emulator receives while
every component works. The tests fail for a request without a grant, and for a grant without a request.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from kcl_dagster import aws
from kcl_dagster.application import Application, MetricsLevel, Retrieval
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.tables.attributes import OWNER_INDEX

LARGEST_POLICY: Final = 6144
"""The most characters of a managed policy that IAM accepts. White space does not count."""


class Component(StrEnum):
    """The components that send requests. Each can have its own IAM role."""

    LEADER = "leader"  # the sensor, in the code location; also `kcl-dagster lead`
    WORKER = "worker"  # the driver of a worker run; also compactions, replays and dead letter runs
    EXECUTOR = "executor"  # Spark's executors; in a local session they run in the worker
    OPERATOR = "operator"  # the command line, and the jobs that do the same


class Resource(StrEnum):
    """The kinds of resources on which rights are granted."""

    STREAM = "stream"
    CONSUMER = "consumer"
    TABLE = "table"
    INDEX = "index"
    ALL_TABLES = "all tables"
    TABLE_NAMES = "table names"
    METRICS = "metrics"
    BUCKET = "bucket"
    OBJECTS = "objects"
    CATALOG = "catalog"
    STREAM_KEY = "stream key"
    TABLE_KEY = "table key"
    LAKE_KEY = "lake key"
    EXPORTS = "exports"
    MESSAGES = "messages"
    STREAM_ROLE = "stream role"
    TABLE_ROLE = "table role"
    METRICS_ROLE = "metrics role"
    LAKE_ROLE = "lake role"


class When(StrEnum):
    """The condition under which a deployment needs a right."""

    ALWAYS = "always"
    FANOUT = "retrieval by fan-out"
    AT_REST = "fleet.min_workers of 0"
    TABLES_ARE_MADE = "tables.create"
    TAGGED = "tables.tags"
    BACKED_UP = "tables.point_in_time_recovery"
    METRICS = "telemetry.cloudwatch"
    LAKE_ON_S3 = "a lake on S3"
    GLUE = "an Iceberg table in AWS Glue"
    STREAM_KEY = "a stream that is encrypted with a key of yours"
    AT_REST_ENCRYPTED = "fleet.min_workers of 0, and a stream that is encrypted with a key of yours"
    TABLE_KEY = "tables that are encrypted with a key of yours"
    TABLE_KEY_AND_MADE = "tables.create, and a key of yours for the tables"
    LAKE_KEY = "a lake that is encrypted with a key of yours"
    EXPORTS = "a folder of exports on S3"
    MESSAGES = "Spark drivers elsewhere, whose messages to Dagster go through S3"
    STREAM_ROLE = "a role for Kinesis in the KclResource"
    TABLE_ROLE = "a role for DynamoDB in the KclResource"
    METRICS_ROLE = "a role for CloudWatch in the KclResource"
    METRICS_AND_ROLE = "telemetry.cloudwatch, and a role for CloudWatch in the KclResource"
    LAKE_ROLE = "a role for S3 in the KclResource, and a lake or a folder of exports on S3"
    LISTED = "kcl-dagster list"


@dataclass(frozen=True, slots=True)
class Grant:
    """An action that components are allowed to perform on a target. `checked_by`: requests that need this right
    although their names differ from the action. For example, a read of an encrypted stream needs the right to
    decrypt."""

    action: str
    target: Resource
    to: frozenset[Component]
    when: When = When.ALWAYS
    checked_by: tuple[str, ...] = ()


# A Spark driver that Dagster Pipes runs on another platform executes bounded runs. It is leader, worker and
# executor.
DRIVER: Final = "driver"
OF_DRIVER: Final = frozenset({Component.LEADER, Component.WORKER, Component.EXECUTOR})
# The resources for which a role is assumed, by service. The role for S3 is not used for catalogs in AWS Glue and
# messages of Dagster Pipes.
_BY_ROLE: Final = {
    "kinesis": (Resource.STREAM, Resource.CONSUMER, Resource.STREAM_KEY),
    "dynamodb": (Resource.TABLE, Resource.INDEX, Resource.ALL_TABLES, Resource.TABLE_NAMES, Resource.TABLE_KEY),
    "cloudwatch": (Resource.METRICS,),
    "s3": (Resource.BUCKET, Resource.OBJECTS, Resource.LAKE_KEY, Resource.EXPORTS),
}

_L, _W, _E, _O = Component.LEADER, Component.WORKER, Component.EXECUTOR, Component.OPERATOR


def _grants(
    target: Resource, when: When, actions: Iterable[str], *to: Component, checked_by: tuple[str, ...] = ()
) -> list[Grant]:
    return [Grant(action, target, frozenset(to), when, checked_by) for action in actions]


RIGHTS: Final[tuple[Grant, ...]] = (
    *_grants(Resource.STREAM, When.ALWAYS, ["kinesis:DescribeStreamSummary"], _L, _W, _E, _O),
    *_grants(Resource.STREAM, When.ALWAYS, ["kinesis:ListShards"], _L, _W, _O),
    *_grants(Resource.STREAM, When.ALWAYS, ["kinesis:GetShardIterator", "kinesis:GetRecords"], _E, _O),
    *_grants(Resource.STREAM, When.AT_REST, ["kinesis:GetShardIterator", "kinesis:GetRecords"], _L),
    *_grants(Resource.STREAM, When.ALWAYS, ["kinesis:ListStreamConsumers"], _O),
    *_grants(Resource.STREAM, When.FANOUT, ["kinesis:DescribeStreamConsumer"], _W, _O),
    *_grants(Resource.STREAM, When.FANOUT, ["kinesis:RegisterStreamConsumer"], _W),
    *_grants(Resource.STREAM, When.FANOUT, ["kinesis:DeregisterStreamConsumer"], _O),
    *_grants(Resource.CONSUMER, When.FANOUT, ["kinesis:SubscribeToShard", "kinesis:DescribeStreamConsumer"], _E),
    # If a request names a consumer by stream and name, AWS may also check the ARN of the consumer.
    *_grants(
        Resource.CONSUMER,
        When.FANOUT,
        ["kinesis:DescribeStreamConsumer"],
        _W,
        _O,
        checked_by=("kinesis:DescribeStreamConsumer",),
    ),
    *_grants(
        Resource.CONSUMER,
        When.FANOUT,
        ["kinesis:DeregisterStreamConsumer"],
        _O,
        checked_by=("kinesis:DeregisterStreamConsumer",),
    ),
    *_grants(
        Resource.TABLE,
        When.ALWAYS,
        [
            "dynamodb:DescribeTable",
            "dynamodb:Scan",
            "dynamodb:GetItem",
            "dynamodb:PutItem",
            "dynamodb:UpdateItem",
            "dynamodb:DeleteItem",
        ],
        _L,
        _W,
        _O,
    ),
    *_grants(Resource.INDEX, When.ALWAYS, ["dynamodb:Query"], _W, _O),
    *_grants(Resource.TABLE, When.TABLES_ARE_MADE, ["dynamodb:CreateTable"], _L, _O),
    *_grants(Resource.TABLE, When.TAGGED, ["dynamodb:TagResource"], _L, _O, checked_by=("dynamodb:CreateTable",)),
    *_grants(Resource.TABLE, When.BACKED_UP, ["dynamodb:UpdateContinuousBackups"], _L, _O),
    *_grants(Resource.TABLE_NAMES, When.LISTED, ["dynamodb:ListTables"], _O),
    *_grants(Resource.ALL_TABLES, When.LISTED, ["dynamodb:DescribeTable", "dynamodb:Scan", "dynamodb:GetItem"], _O),
    *_grants(Resource.METRICS, When.METRICS, ["cloudwatch:PutMetricData"], _L, _W, _O),
    *_grants(Resource.METRICS, When.ALWAYS, ["cloudwatch:GetMetricStatistics"], _O),
    *_grants(Resource.BUCKET, When.LAKE_ON_S3, ["s3:ListBucket"], _W),
    *_grants(Resource.OBJECTS, When.LAKE_ON_S3, ["s3:GetObject"], _W),
    *_grants(Resource.OBJECTS, When.LAKE_ON_S3, ["s3:DeleteObject"], _W, _E, _O),
    *_grants(Resource.OBJECTS, When.LAKE_ON_S3, ["s3:PutObject"], _W, _E, _O),
    *_grants(
        Resource.CATALOG,
        When.GLUE,
        ["glue:GetDatabase", "glue:CreateDatabase", "glue:GetTable", "glue:CreateTable", "glue:UpdateTable"],
        _W,
        checked_by=("pyiceberg",),
    ),
    *_grants(
        Resource.STREAM_KEY,
        When.STREAM_KEY,
        ["kms:Decrypt"],
        _E,
        _O,
        checked_by=("kinesis:GetRecords", "kinesis:SubscribeToShard"),
    ),
    *_grants(Resource.STREAM_KEY, When.AT_REST_ENCRYPTED, ["kms:Decrypt"], _L, checked_by=("kinesis:GetRecords",)),
    *_grants(
        Resource.TABLE_KEY,
        When.TABLE_KEY,
        ["kms:Decrypt", "kms:DescribeKey"],
        _L,
        _W,
        _O,
        checked_by=("dynamodb:GetItem",),
    ),
    # The component that creates a table passes rights on the key of the table to DynamoDB, so it must have them.
    *_grants(
        Resource.TABLE_KEY,
        When.TABLE_KEY_AND_MADE,
        ["kms:CreateGrant", "kms:Encrypt", "kms:GenerateDataKey", "kms:ReEncryptFrom", "kms:ReEncryptTo"],
        _L,
        _O,
        checked_by=("dynamodb:CreateTable",),
    ),
    *_grants(Resource.LAKE_KEY, When.LAKE_KEY, ["kms:GenerateDataKey"], _W, _E, _O, checked_by=("s3:PutObject",)),
    *_grants(Resource.LAKE_KEY, When.LAKE_KEY, ["kms:Decrypt"], _W, checked_by=("s3:GetObject",)),
    *_grants(Resource.EXPORTS, When.EXPORTS, ["s3:GetObject", "s3:PutObject"], _O),
    *_grants(Resource.MESSAGES, When.MESSAGES, ["s3:PutObject"], _W, checked_by=("Pipes",)),
    *_grants(Resource.MESSAGES, When.MESSAGES, ["s3:GetObject"], _L, checked_by=("Pipes",)),
    # A component can assume the role for a service if it has a right on that service.
    *_grants(
        Resource.STREAM_ROLE, When.STREAM_ROLE, ["sts:AssumeRole"], _L, _W, _E, _O, checked_by=("KclResource",)
    ),
    *_grants(Resource.TABLE_ROLE, When.TABLE_ROLE, ["sts:AssumeRole"], _L, _W, _O, checked_by=("KclResource",)),
    *_grants(Resource.METRICS_ROLE, When.METRICS_AND_ROLE, ["sts:AssumeRole"], _L, _W, checked_by=("KclResource",)),
    *_grants(Resource.METRICS_ROLE, When.METRICS_ROLE, ["sts:AssumeRole"], _O, checked_by=("KclResource",)),
    *_grants(Resource.LAKE_ROLE, When.LAKE_ROLE, ["sts:AssumeRole"], _W, _E, _O, checked_by=("KclResource",)),
)


@dataclass(frozen=True, slots=True)
class Catalogs:
    """Iceberg tables of a sink, as `database.table`: those in catalogs that check rights of AWS."""

    in_glue: tuple[str, ...] = ()
    """Tables that pyiceberg reaches by the API of Glue."""

    signed: tuple[str, ...] = ()
    """Tables in REST catalogs with signed requests, such as S3 Tables. Their rights are not in `RIGHTS`."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """An application and its place of deployment: all that policies need to name its resources."""

    application: Application
    region: str
    account: str
    lakes: tuple[str, ...] = ()
    """`s3://bucket/prefix` of the sink and of the dead letters."""

    glue_tables: tuple[str, ...] = ()
    """`database.table` of each Iceberg table in AWS Glue."""

    stream_key: str | None = None
    table_key: str | None = None
    lake_key: str | None = None
    exports: str | None = None
    """`s3://bucket/prefix` for the operations `export` and `import`."""

    messages: str | None = None
    """`s3://bucket` for the messages of Dagster Pipes. Each driver uses its own prefix in it."""

    roles: Mapping[str, str] = field(default_factory=dict)
    """The ARNs of the roles that the KclResource assumes, by service: `kinesis`, `dynamodb`, `cloudwatch`, `s3`."""

    lists_applications: bool = False
    """Whether the operator looks for applications among all tables of the account and region."""

    is_bounded: bool = False
    """Whether a schedule of bounded runs reads the streams. There is then no leader between two runs."""

    def needs(self, when: When) -> bool:
        application = self.application
        match when:
            case When.ALWAYS:
                return True
            case When.FANOUT:
                return application.batch.retrieval is Retrieval.FANOUT
            case When.AT_REST:
                return application.fleet.min_workers == 0
            case When.AT_REST_ENCRYPTED:
                return application.fleet.min_workers == 0 and self.stream_key is not None
            case When.TABLES_ARE_MADE:
                return application.tables.create
            case When.TAGGED:
                return application.tables.create and bool(application.tables.tags)
            case When.BACKED_UP:
                return application.tables.create and application.tables.point_in_time_recovery
            case When.METRICS:
                return application.telemetry.cloudwatch is not MetricsLevel.NONE
            case When.LAKE_ON_S3:
                return bool(self.lakes)
            case When.GLUE:
                return bool(self.glue_tables)
            case When.STREAM_KEY:
                return self.stream_key is not None
            case When.TABLE_KEY:
                return self.table_key is not None
            case When.TABLE_KEY_AND_MADE:
                return application.tables.create and self.table_key is not None
            case When.LAKE_KEY:
                return self.lake_key is not None
            case When.EXPORTS:
                return self.exports is not None
            case When.MESSAGES:
                return self.messages is not None
            case When.STREAM_ROLE:
                return "kinesis" in self.roles
            case When.TABLE_ROLE:
                return "dynamodb" in self.roles
            case When.METRICS_ROLE:
                return "cloudwatch" in self.roles
            case When.METRICS_AND_ROLE:
                return "cloudwatch" in self.roles and self.needs(When.METRICS)
            case When.LAKE_ROLE:
                return "s3" in self.roles and (bool(self.lakes) or self.exports is not None)
            case When.LISTED:
                return self.lists_applications

    def arns(self, target: Resource) -> list[str]:
        """The ARNs of all resources of the kind `target`."""
        named = self.application.streams
        streams = [stream.arn or self._arn("kinesis", f"stream/{stream.name}") for stream in named]
        match target:
            case Resource.STREAM:
                return streams
            case Resource.CONSUMER:
                name = self.application.batch.consumer_name or self.application.name
                found = zip(named, streams, strict=True)
                return [one.consumer_arn or f"{stream}/consumer/{name}:*" for one, stream in found]
            case Resource.TABLE:
                application = self.application
                names = (application.lease_table, application.coordinator_table, application.metrics_table)
                return [self._arn("dynamodb", f"table/{name}") for name in names]
            case Resource.INDEX:
                return [self._arn("dynamodb", f"table/{self.application.lease_table}/index/{OWNER_INDEX}")]
            case Resource.ALL_TABLES:
                return [self._arn("dynamodb", "table/*")]
            case Resource.TABLE_NAMES:
                return ["*"]  # the action supports no resource-level permissions
            case Resource.METRICS:
                return ["*"]  # the action supports no resource-level permissions
            case Resource.BUCKET:
                return list(dict.fromkeys(f"arn:{self._partition}:s3:::{bucket}" for bucket, _ in self._places))
            case Resource.OBJECTS:
                return [self._objects(bucket, prefix) for bucket, prefix in self._places]
            case Resource.CATALOG:
                tables = [one.split(".") for one in self.glue_tables]
                databases = [f"database/{database}" for database, _ in tables]
                parts = ("catalog", *databases, *(f"table/{database}/{table}" for database, table in tables))
                return [self._arn("glue", part) for part in dict.fromkeys(parts)]
            case Resource.STREAM_KEY:
                return [self.stream_key or ""]
            case Resource.TABLE_KEY:
                return [self.table_key or ""]
            case Resource.LAKE_KEY:
                return [self.lake_key or ""]
            case Resource.EXPORTS:
                return [self._objects(*_place(self.exports or ""))]
            case Resource.MESSAGES:
                return [self._objects(*_place(self.messages or ""))]
            case Resource.STREAM_ROLE:
                return [self.roles["kinesis"]]
            case Resource.TABLE_ROLE:
                return [self.roles["dynamodb"]]
            case Resource.METRICS_ROLE:
                return [self.roles["cloudwatch"]]
            case Resource.LAKE_ROLE:
                return [self.roles["s3"]]

    @property
    def _places(self) -> list[tuple[str, str]]:
        """Buckets and prefixes. A prefix that is not empty ends with a slash."""
        return [_place(lake) for lake in self.lakes]

    def _objects(self, bucket: str, prefix: str) -> str:
        return f"arn:{self._partition}:s3:::{bucket}/{prefix}*".replace("//", "/")

    @property
    def _partition(self) -> str:
        return aws.partition_of(self.region)

    def _arn(self, service: str, name: str) -> str:
        return f"arn:{self._partition}:{service}:{self.region}:{self.account}:{name}"


def _place(folder: str) -> tuple[str, str]:
    parts = urlsplit(folder)
    if parts.scheme not in ("s3", "s3a", "s3n") or not parts.netloc:
        raise ConfigurationError(f"{folder!r} is not of the form s3://bucket/prefix")
    prefix = parts.path.strip("/")
    return parts.netloc, f"{prefix}/" if prefix else ""


def rights_of(component: Component, deployment: Deployment) -> list[Grant]:
    return [grant for grant in RIGHTS if component in grant.to and deployment.needs(grant.when)]


def policy(component: Component, deployment: Deployment) -> dict[str, Any]:
    """The minimal IAM policy of a component, with a statement for each kind of resource."""
    return _policy(rights_of(component, deployment), deployment)


def driver_policy(deployment: Deployment) -> dict[str, Any]:
    """The minimal IAM policy of a Spark driver on another platform. It has the rights of a leader, a worker and an
    executor."""
    return _policy([grant for grant in RIGHTS if grant.to & OF_DRIVER and deployment.needs(grant.when)], deployment)


def of_assumed_roles(document: Mapping[str, Any], deployment: Deployment) -> dict[str, list[str]]:
    """For the ARN of each role that the component assumes: the ids of those statements of the policy that have to
    be attached to this role, and not to the component's own role."""
    found: dict[str, list[str]] = {}
    for service, targets in _BY_ROLE.items():
        if service in deployment.roles:
            sids = [statement["Sid"] for statement in document["Statement"]]
            found.setdefault(deployment.roles[service], []).extend(sid for sid in sids if sid in map(_sid, targets))
    return {role: sids for role, sids in found.items() if sids}


def _policy(grants: Sequence[Grant], deployment: Deployment) -> dict[str, Any]:
    targets = dict.fromkeys(grant.target for grant in grants)
    statements: list[dict[str, Any]] = []
    for target in targets:
        made = _statement(target, [grant.action for grant in grants if grant.target is target], deployment)
        # If several services use the same role, one statement allows the component to assume it.
        if not any(all(made[key] == other[key] for key in ("Action", "Resource")) for other in statements):
            statements.append(made)
    return {"Version": "2012-10-17", "Statement": statements}


def divided(document: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
    """Divide the policy into policies of at most `limit` characters each, which together grant the same."""
    parts: list[list[dict[str, Any]]] = []
    for statement in document["Statement"]:
        for resource in statement["Resource"]:
            longer = _with(parts[-1] if parts else [], statement, resource)
            if parts and size({**document, "Statement": longer}) <= limit:
                parts[-1] = longer
            else:
                parts.append(_with([], statement, resource))
    return [{**document, "Statement": part} for part in parts]


def _with(part: list[dict[str, Any]], statement: Mapping[str, Any], resource: str) -> list[dict[str, Any]]:
    """`part` with one more resource of `statement`. If the last statement of `part` comes from `statement`, it gets
    the resource. Otherwise, a new statement with this resource is appended."""
    if part and part[-1]["Sid"] == statement["Sid"]:
        return [*part[:-1], {**part[-1], "Resource": [*part[-1]["Resource"], resource]}]
    return [*part, {**statement, "Resource": [resource]}]


def size(document: Mapping[str, Any]) -> int:
    """The length of a policy as IAM counts it: the number of characters except white space."""
    return len(json.dumps(document, separators=(",", ":")))


def _statement(target: Resource, actions: Sequence[str], deployment: Deployment) -> dict[str, Any]:
    return {
        "Sid": _sid(target),
        "Effect": "Allow",
        "Action": sorted(set(actions)),
        "Resource": deployment.arns(target),
    }


def _sid(target: Resource) -> str:
    return "".join(word.capitalize() for word in target.value.split())
