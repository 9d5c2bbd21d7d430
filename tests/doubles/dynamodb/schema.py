"""Creating and describing tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.doubles.dynamodb.failures import validation_error
from tests.doubles.dynamodb.table import Index, KeySchema, Table

ACCOUNT = "000000000000"


def table_arn(name: str, region: str) -> str:
    return f"arn:aws:dynamodb:{region}:{ACCOUNT}:table/{name}"


def key_schema(description: Sequence[Mapping[str, str]], definitions: Sequence[Mapping[str, str]]) -> KeySchema:
    types = {d["AttributeName"]: d["AttributeType"] for d in definitions}
    by_kind = {part["KeyType"]: part["AttributeName"] for part in description}
    missing = [name for name in by_kind.values() if name not in types]
    if "HASH" not in by_kind or missing:
        raise validation_error(
            "One or more parameter values were invalid: Some index key attributes are not defined in "
            f"AttributeDefinitions. Keys: {sorted(by_kind.values())}, AttributeDefinitions: {sorted(types)}"
        )
    names = set(by_kind.values())
    return KeySchema(
        hash=by_kind["HASH"], range=by_kind.get("RANGE"), types={n: t for n, t in types.items() if n in names}
    )


def new_index(
    request: Mapping[str, Any], definitions: Sequence[Mapping[str, str]], billing: str, active_at: float
) -> Index:
    throughput = request.get("ProvisionedThroughput", {})
    if billing == "PROVISIONED" and not throughput:
        raise validation_error(
            "One or more parameter values were invalid: ProvisionedThroughput must be specified for index: "
            + request["IndexName"]
        )
    return Index(
        name=request["IndexName"],
        schema=key_schema(request["KeySchema"], definitions),
        projection=request.get("Projection", {"ProjectionType": "ALL"}),
        active_at=active_at,
        throughput=throughput,
    )


def new_table(request: Mapping[str, Any], now: float, active_at: float) -> Table:
    """Raises ValidationException for what DynamoDB refuses."""
    definitions = request["AttributeDefinitions"]
    billing = request.get("BillingMode", "PROVISIONED")
    throughput = request.get("ProvisionedThroughput")
    if billing == "PROVISIONED" and throughput is None:
        raise validation_error("No provisioned throughput specified for the table")
    if billing == "PAY_PER_REQUEST" and throughput is not None:
        raise validation_error(
            "One or more parameter values were invalid: Neither ReadCapacityUnits nor WriteCapacityUnits can be "
            "specified when BillingMode is PAY_PER_REQUEST"
        )
    schema = key_schema(request["KeySchema"], definitions)
    indexes = {
        index["IndexName"]: new_index(index, definitions, billing, active_at)
        for index in request.get("GlobalSecondaryIndexes", ())
    }
    used = {*schema.names, *(name for index in indexes.values() for name in index.schema.names)}
    if {d["AttributeName"] for d in definitions} != used:
        raise validation_error(
            "One or more parameter values were invalid: Number of attributes in KeySchema does not exactly match "
            "number of attributes defined in AttributeDefinitions"
        )
    return Table(
        name=request["TableName"],
        schema=schema,
        active_at=active_at,
        created=now,
        description={
            "BillingMode": billing,
            "ProvisionedThroughput": throughput or {"ReadCapacityUnits": 0, "WriteCapacityUnits": 0},
            "DeletionProtectionEnabled": request.get("DeletionProtectionEnabled", False),
        },
        indexes=indexes,
        tags={tag["Key"]: tag["Value"] for tag in request.get("Tags", ())},
    )


def describe(table: Table, now: float, region: str) -> dict[str, Any]:
    """As DescribeTable does. Sizes are exact here; DynamoDB's are up to six hours old."""
    definitions = dict(table.schema.types)
    for index in table.indexes.values():
        definitions.update(index.schema.types)
    description: dict[str, Any] = {
        "TableName": table.name,
        "TableArn": table_arn(table.name, region),
        "TableStatus": "ACTIVE" if now >= table.active_at else "CREATING",
        "CreationDateTime": table.created,
        "KeySchema": table.schema.description(),
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": kind} for name, kind in sorted(definitions.items())
        ],
        "ItemCount": len(table.items),
        "TableSizeBytes": table.size_bytes,
        "ProvisionedThroughput": dict(table.description["ProvisionedThroughput"]),
        "DeletionProtectionEnabled": table.description["DeletionProtectionEnabled"],
    }
    if table.description["BillingMode"] == "PAY_PER_REQUEST":
        description["BillingModeSummary"] = {"BillingMode": "PAY_PER_REQUEST"}
    if table.indexes:
        description["GlobalSecondaryIndexes"] = [
            {
                "IndexName": index.name,
                "KeySchema": index.schema.description(),
                "Projection": dict(index.projection),
                "IndexStatus": "ACTIVE" if now >= index.active_at else "CREATING",
                "IndexArn": f"{table_arn(table.name, region)}/index/{index.name}",
                "ProvisionedThroughput": dict(index.throughput)
                or {"ReadCapacityUnits": 0, "WriteCapacityUnits": 0},
            }
            for index in table.indexes.values()
        ]
    return description
