"""Find out which actions the credentials allow, by requests that change nothing.

Writes have a condition that is never true. DynamoDB checks the right before the condition, so its error shows
whether the right is missing. The rights that are needed are listed in `operations.rights`.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kcl_dagster import aws
from kcl_dagster.application import Application
from kcl_dagster.chains.store import FOLDER, check_store
from kcl_dagster.errors import (
    AccessDenied,
    ConfigurationError,
    CredentialsRefused,
    EndpointUnreachable,
    KclError,
    Throttled,
)
from kcl_dagster.operations.doctor.finding import DoctorFinding, fail, not_looked, ok, warn
from kcl_dagster.operations.rights import RIGHTS, Deployment, Resource, When
from kcl_dagster.spark.storage import LocalStore, Store
from kcl_dagster.tables.attributes import OWNER, OWNER_INDEX
from kcl_dagster.tables.places import Place

CHAINS: Final = "chains"  # the name of the store for chains of entries (logs of committed batches)
SINK: Final = "sink"  # the names of stores for records begin with this
PROBE_KEY: Final = "kdDoctor"  # no row has this key, and none is made with it
_NO_STATISTICS: Final = {"SampleCount": 0.0, "Sum": 0.0, "Minimum": 0.0, "Maximum": 0.0}
_NEVER: Final = "attribute_exists(#key) AND attribute_not_exists(#key)"

PROBED: Final = frozenset(
    {
        *("kinesis:DescribeStreamSummary", "kinesis:ListShards", "kinesis:GetShardIterator", "kinesis:GetRecords"),
        "kinesis:ListStreamConsumers",
        *("dynamodb:DescribeTable", "dynamodb:Scan", "dynamodb:GetItem", "dynamodb:Query", "dynamodb:CreateTable"),
        *("dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"),
        *("cloudwatch:PutMetricData", "s3:PutObject", "s3:DeleteObject"),
    }
)
"""The rights that the doctor checks, if the application needs them."""

# The conditions that can be evaluated with the application's settings alone. The other conditions concern roles,
# keys, lakes and catalogs, which are settings of the deployment.
KNOWN: Final = frozenset(
    {When.ALWAYS, When.FANOUT, When.TABLES_ARE_MADE, When.TAGGED, When.BACKED_UP, When.METRICS}
)

Probe = Callable[[], Any]


def table_rights(client: aws.Client, place: Place) -> Iterator[DoctorFinding]:
    """Check the rights on an existing table of DynamoDB that leader and workers need according to `RIGHTS`."""
    key = {place.key: {"S": PROBE_KEY}}
    never = {"ConditionExpression": _NEVER, "ExpressionAttributeNames": {"#key": place.key}}
    probes: dict[str, dict[str, Any]] = {
        "get_item": {"Key": key},
        "scan": {"Limit": 1},
        "put_item": {"Item": key, **never},
        "update_item": {"Key": key, **never},
        "delete_item": {"Key": key, **never},
        "describe_table": {},
    }
    needed = {g.action for g in RIGHTS if g.target is Resource.TABLE and g.when is When.ALWAYS}
    for method, parameters in probes.items():
        if _right("dynamodb", method) in needed:
            yield probed(client, "dynamodb", method, place.table, TableName=place.table, **parameters)


def creation_right(client: aws.Client, table: str) -> DoctorFinding:
    """Check the right to create a table, without creating one. The request is invalid on purpose: its key names an
    attribute that is not defined. DynamoDB checks the right before it rejects the request."""

    def create() -> None:
        with suppress(aws.RequestRefused):
            aws.call(
                client,
                "create_table",
                TableName=table,
                KeySchema=[{"AttributeName": PROBE_KEY, "KeyType": "HASH"}],
                AttributeDefinitions=[],
                BillingMode="PAY_PER_REQUEST",
            )

    return _judged("dynamodb:CreateTable", table, create)


def sink_right(name: str, store: Store, probe_id: str) -> DoctorFinding:
    """Check the right to write and to delete files, with a small file whose name readers ignore. The file and the
    folders that were made for it are removed again."""
    path = f"_kcl_dagster_doctor.{probe_id}"
    made = _missing_folders(store)
    try:
        store.put(path, b"written by kcl-dagster doctor, and safe to delete")
        store.delete([path])
    except (KclError, OSError) as error:
        do = f"allow this machine to write and delete files below {store.root}; kcl-dagster rights has the policy"
        return fail(name, f"{store.root} cannot be written: {error}", do)
    finally:
        _remove_empty(made)
    if isinstance(store, LocalStore) and store.is_relative:
        return warn(
            name,
            f"{store.root} can be written, and its path is relative: a process that starts in another folder "
            "writes to another place",
            "say an absolute path, or s3://bucket/prefix",
        )
    return ok(name, f"{store.root} can be written")


def chains_right(name: str, store: Store, probe_id: str) -> DoctorFinding:
    """Check whether the chains of entries (logs of committed batches) can be stored beside the data, by creating a
    file twice. The file is removed again."""
    made = _missing_folders(store, FOLDER)
    try:
        check_store(store, probe_id)
    except ConfigurationError as error:
        return fail(name, str(error), "use another store")
    except (KclError, OSError) as error:
        do = f"allow this machine to write and delete files below {store.root}; kcl-dagster rights has the policy"
        return fail(name, f"chains of entries cannot be kept at {store.root}: {error}", do)
    finally:
        _remove_empty(made)
    return ok(name, f"chains of entries can be kept at {store.root}")


def _missing_folders(store: Store, folder: str = "") -> list[Path]:
    """Folders that do not exist and that writing a first file would create, the deepest first."""
    if not isinstance(store, LocalStore):
        return []
    root = Path(store.root, folder)
    return [folder for folder in (root, *root.parents) if not folder.exists()]


def _remove_empty(folders: list[Path]) -> None:
    """Remove these folders if they are empty. A folder is kept if a worker has stored a file in it meanwhile."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def unprobed(application: Application) -> Iterator[DoctorFinding]:
    """Report the rights that the application needs and that the doctor does not check. Most of them cannot be
    checked without a change."""
    deployment = Deployment(application, region="", account="")
    needed = {grant.action for grant in RIGHTS if grant.when in KNOWN and deployment.needs(grant.when)}
    left = sorted(needed - PROBED)
    if left:
        yield not_looked("iam", f"{', '.join(left)} were not asked for")
    yield not_looked(
        "iam",
        "all rights were asked for with the credentials of this machine, not with those of leader, workers and "
        "executors elsewhere; rights of roles, keys and AWS Glue were not asked for",
        "run the doctor there, too; kcl-dagster rights has the policies",
    )


def index_right(client: aws.Client, table: str) -> DoctorFinding:
    finding = probed(
        client,
        "dynamodb",
        "query",
        f"{table}/index/{OWNER_INDEX}",
        TableName=table,
        IndexName=OWNER_INDEX,
        KeyConditionExpression=f"{OWNER} = :owner",
        ExpressionAttributeValues={":owner": {"S": PROBE_KEY}},
        Limit=1,
    )
    if finding.verdict != "fail":
        return finding
    # Workers of this package scan instead, which costs more. Java workers cannot work without the index.
    return warn(finding.check, f"{finding.says}; workers scan for their leases instead", finding.do)


def stream_rights(client: aws.Client, stream: str) -> Iterator[DoctorFinding]:
    shards: list[Any] = []
    iterators: list[str] = []

    def list_shards() -> None:
        shards.extend(aws.call(client, "list_shards", StreamName=stream, MaxResults=1)["Shards"])

    def get_iterator() -> None:
        shard = shards[0]["ShardId"]
        answer = aws.call(
            client, "get_shard_iterator", StreamName=stream, ShardId=shard, ShardIteratorType="LATEST"
        )
        iterators.append(answer["ShardIterator"])

    yield _judged("kinesis:ListShards", stream, list_shards)
    if shards:
        yield _judged("kinesis:GetShardIterator", stream, get_iterator)
    if iterators:
        yield _judged(
            "kinesis:GetRecords",
            stream,
            lambda: aws.call(
                client, "get_records", ShardIterator=iterators[0], Limit=1, **aws.stream_arn(client, stream)
            ),
        )


def metrics_right(client: aws.Client) -> DoctorFinding:
    """Check the right to write metrics, without writing any. The datum contradicts itself on purpose. CloudWatch
    checks the right before it rejects the datum."""
    impossible = {"MetricName": PROBE_KEY, "Value": 0.0, "StatisticValues": _NO_STATISTICS}

    def put() -> None:
        with suppress(aws.RequestRefused):
            aws.call(client, "put_metric_data", Namespace=PROBE_KEY, MetricData=[impossible])

    return _judged("cloudwatch:PutMetricData", "*", put)


def probed(client: aws.Client, service: str, method: str, resource: str, **parameters: Any) -> DoctorFinding:
    """Check the right to one action by one request."""
    return _judged(_right(service, method), resource, lambda: aws.call(client, method, **parameters))


def _right(service: str, method: str) -> str:
    return f"{service}:{''.join(part.capitalize() for part in method.split('_'))}"


def _judged(action: str, resource: str, probe: Probe) -> DoctorFinding:
    check = f"iam {action}"
    try:
        probe()
    except AccessDenied as error:
        if "KMS" in str(error):
            return fail(
                "encryption",
                f"{resource} is encrypted and its key may not be used ({error})",
                "allow kms:Decrypt on the stream's key",
            )
        if "sts:AssumeRole" in str(error):
            return fail(
                "credentials",
                str(error),
                "allow sts:AssumeRole on the role, and name these credentials in its trust policy",
            )
        return fail(check, f"denied on {resource}", f"allow {action} on {resource} in the policy")
    except CredentialsRefused as error:
        return fail("credentials", str(error), "correct the credentials")
    except Throttled:
        return warn(
            check,
            f"{action} on {resource} is throttled: others use up its limit",
            "find out who else reads the stream, or register a fan-out consumer",
        )
    except EndpointUnreachable as error:
        return fail(check, str(error), "check endpoint, region and network")
    except (aws.ConditionFailed, aws.ResourceMissing):
        return ok(check, f"allowed on {resource}")
    except KclError as error:
        return fail(check, str(error), "see the message of AWS")
    return ok(check, f"allowed on {resource}")
