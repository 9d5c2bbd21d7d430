"""What FakeDynamoDB does beyond moto: pages, stale reads, creation, strictness. DynamoDB's documented behaviour."""

from typing import Any

import pytest
from botocore.exceptions import ClientError, ParamValidationError

from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB

TABLE = "leases"


def create(client: FakeDynamoDB, **options: Any) -> FakeDynamoDB:
    client.create_table(
        TableName=TABLE,
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
        **options,
    )
    return client


def put(client: FakeDynamoDB, key: str, **attributes: dict[str, Any]) -> None:
    client.put_item(TableName=TABLE, Item={"leaseKey": {"S": key}, **attributes})


def get(client: FakeDynamoDB, key: str, **options: Any) -> dict[str, Any] | None:
    item: dict[str, Any] | None = client.get_item(TableName=TABLE, Key={"leaseKey": {"S": key}}, **options).get(
        "Item"
    )
    return item


def add_owner_index(client: FakeDynamoDB) -> None:
    client.update_table(
        TableName=TABLE,
        AttributeDefinitions=[
            {"AttributeName": "leaseKey", "AttributeType": "S"},
            {"AttributeName": "leaseOwner", "AttributeType": "S"},
        ],
        GlobalSecondaryIndexUpdates=[
            {
                "Create": {
                    "IndexName": "owner",
                    "KeySchema": [
                        {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                        {"AttributeName": "leaseKey", "KeyType": "RANGE"},
                    ],
                    "Projection": {"ProjectionType": "KEYS_ONLY"},
                }
            }
        ],
    )


def owned(client: FakeDynamoDB, owner: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.query(
        TableName=TABLE,
        IndexName="owner",
        KeyConditionExpression="leaseOwner = :o",
        ExpressionAttributeValues={":o": {"S": owner}},
    )["Items"]
    return items


@pytest.fixture
def client() -> FakeDynamoDB:
    return create(FakeDynamoDB())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("NONE", None),
        ("ALL_OLD", {"leaseKey": {"S": "k"}, "n": {"N": "1"}, "x": {"S": "kept"}}),
        ("ALL_NEW", {"leaseKey": {"S": "k"}, "n": {"N": "2"}, "x": {"S": "kept"}}),
        ("UPDATED_OLD", {"n": {"N": "1"}}),
        ("UPDATED_NEW", {"n": {"N": "2"}}),
    ],
)
def test_an_update_returns_what_was_asked_for(
    client: FakeDynamoDB, kind: str, expected: dict[str, Any] | None
) -> None:
    put(client, "k", n={"N": "1"}, x={"S": "kept"})
    response = client.update_item(
        TableName=TABLE,
        Key={"leaseKey": {"S": "k"}},
        UpdateExpression="ADD n :one",
        ExpressionAttributeValues={":one": {"N": "1"}},
        ReturnValues=kind,
    )
    assert response.get("Attributes") == expected


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("007", "7"), ("1.50", "1.5"), ("1E2", "100"), ("-0.0", "0"), ("85.333333", "85.333333")],
)
def test_numbers_come_back_in_one_spelling(client: FakeDynamoDB, text: str, canonical: str) -> None:
    put(client, "k", n={"N": text})
    assert get(client, "k") == {"leaseKey": {"S": "k"}, "n": {"N": canonical}}


def test_what_a_caller_gets_shares_nothing_with_the_table(client: FakeDynamoDB) -> None:
    put(client, "k", m={"M": {"a": {"L": [{"N": "1"}]}}}, s={"SS": ["x"]})
    item = get(client, "k")
    assert item is not None
    item["m"]["M"]["a"]["L"].append({"N": "2"})
    item["s"]["SS"].append("y")
    assert get(client, "k") == {"leaseKey": {"S": "k"}, "m": {"M": {"a": {"L": [{"N": "1"}]}}}, "s": {"SS": ["x"]}}


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "undefined value": ("SET a = :x", {}),
    "unused value": ("SET a = :x", {":x": {"S": ""}, ":y": {"S": "q"}}),
    "undefined name": ("SET #a = :x", {":x": {"S": "v"}}),
    "reserved word": ("SET state = :x", {":x": {"S": "v"}}),
    "key attribute": ("SET leaseKey = :x", {":x": {"S": "v"}}),
    "overlapping paths": ("SET a = :x REMOVE a", {":x": {"S": "v"}}),
    "clause twice": ("SET a = :x SET b = :x", {":x": {"S": "v"}}),
    "operand does not exist": ("SET a = b", {}),
    "no such document": ("SET m.x.y = :x", {":x": {"S": "v"}}),
    "adding a string": ("ADD a :x", {":x": {"S": "v"}}),
    "empty set": ("SET a = :x", {":x": {"SS": []}}),
    "not a number": ("SET a = :x", {":x": {"N": "ten"}}),
    "39 digits": ("SET a = :x", {":x": {"N": "1" * 39}}),
    "cut-off update": ("SET a =", {}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_dynamodb_refuses_is_refused_and_changes_nothing(client: FakeDynamoDB, case: str) -> None:
    put(client, "k", m={"M": {}}, s={"S": "v"})
    update, values = REFUSED[case]
    given = {"ExpressionAttributeValues": values} if values else {}
    with pytest.raises(ClientError, match="ValidationException"):
        client.update_item(TableName=TABLE, Key={"leaseKey": {"S": "k"}}, UpdateExpression=update, **given)
    assert client.scan(TableName=TABLE)["Items"] == [{"leaseKey": {"S": "k"}, "m": {"M": {}}, "s": {"S": "v"}}]


@pytest.mark.parametrize("condition", ["a =", "present(a, :x)", "a", "(a = b", "a = b b", "a ? b"])
def test_a_malformed_condition_is_refused(client: FakeDynamoDB, condition: str) -> None:
    values = {"ExpressionAttributeValues": {":x": {"S": "v"}}} if ":x" in condition else {}
    with pytest.raises(ClientError, match="ValidationException"):
        client.delete_item(TableName=TABLE, Key={"leaseKey": {"S": "k"}}, ConditionExpression=condition, **values)


@pytest.mark.parametrize(
    "key", [{"leaseKey": {"S": "k"}, "more": {"S": "x"}}, {"leaseKey": {"S": ""}}, {"leaseKey": {"N": "1"}}, {}]
)
def test_a_key_that_does_not_fit_the_schema_is_refused(client: FakeDynamoDB, key: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match="ValidationException"):
        client.get_item(TableName=TABLE, Key=key)


def test_misspelt_parameters_are_refused_as_boto3_does(client: FakeDynamoDB) -> None:
    with pytest.raises(ParamValidationError):
        client.get_item(TableName=TABLE, Key={"leaseKey": {"S": "k"}}, ConsistentReads=True)


def test_a_failed_condition_carries_the_item_only_when_asked(client: FakeDynamoDB) -> None:
    put(client, "k", n={"N": "1"})
    request = {
        "TableName": TABLE,
        "Key": {"leaseKey": {"S": "k"}},
        "ConditionExpression": "n = :two",
        "ExpressionAttributeValues": {":two": {"N": "2"}},
    }
    with pytest.raises(ClientError) as plain:
        client.delete_item(**request)
    with pytest.raises(ClientError) as asked:
        client.delete_item(**request, ReturnValuesOnConditionCheckFailure="ALL_OLD")
    assert "Item" not in plain.value.response
    assert asked.value.response["Item"] == {"leaseKey": {"S": "k"}, "n": {"N": "1"}}  # type: ignore[typeddict-item]


def scan_pages(client: FakeDynamoDB, **options: Any) -> list[list[str]]:
    pages: list[list[str]] = []
    start: dict[str, Any] = {}
    while True:
        response = client.scan(TableName=TABLE, **start, **options)
        pages.append([item["leaseKey"]["S"] for item in response["Items"]])
        if "LastEvaluatedKey" not in response:
            return pages
        start = {"ExclusiveStartKey": response["LastEvaluatedKey"]}


def test_a_scan_is_cut_into_pages_and_a_full_last_page_is_followed_by_an_empty_one() -> None:
    client = create(FakeDynamoDB(page_items=3))
    names = {f"shard-{n}" for n in range(6)}
    for name in names:
        put(client, name)
    pages = scan_pages(client)
    assert [len(page) for page in pages] == [3, 3, 0]
    assert {name for page in pages for name in page} == names


@pytest.mark.parametrize("segments", [1, 2, 7])
def test_the_segments_of_a_scan_share_the_items_without_overlap(segments: int) -> None:
    client = create(FakeDynamoDB(page_items=4))
    names = sorted(f"shard-{n}" for n in range(40))
    for name in names:
        put(client, name)
    found = [
        name
        for segment in range(segments)
        for page in scan_pages(client, Segment=segment, TotalSegments=segments)
        for name in page
    ]
    assert sorted(found) == names


def test_a_page_evaluates_its_items_before_the_filter_drops_them() -> None:
    client = create(FakeDynamoDB(page_items=2))
    for n in range(4):
        put(client, f"shard-{n}", n={"N": str(n)})
    pages = scan_pages(client, FilterExpression="n > :two", ExpressionAttributeValues={":two": {"N": "2"}})
    assert sorted(name for page in pages for name in page) == ["shard-3"]
    assert len(pages) == 3


def test_writes_between_two_pages_are_seen_by_the_second() -> None:
    client = create(FakeDynamoDB(page_items=1))
    put(client, "a")
    put(client, "b")
    first = client.scan(TableName=TABLE)
    seen = first["Items"][0]["leaseKey"]["S"]
    other = "b" if seen == "a" else "a"
    put(client, other, late={"BOOL": True})
    second = client.scan(TableName=TABLE, ExclusiveStartKey=first["LastEvaluatedKey"])
    assert second["Items"] == [{"leaseKey": {"S": other}, "late": {"BOOL": True}}]


def test_only_consistent_reads_see_the_newest_write() -> None:
    clock = FakeClock()
    client = create(FakeDynamoDB(clock, staleness=lambda operation: 2.0))
    put(client, "k", n={"N": "1"})
    put(client, "gone")
    clock.advance(5)
    put(client, "k", n={"N": "2"})
    put(client, "new")
    client.delete_item(TableName=TABLE, Key={"leaseKey": {"S": "gone"}})
    clock.advance(1)
    assert get(client, "k") == {"leaseKey": {"S": "k"}, "n": {"N": "1"}}
    assert get(client, "k", ConsistentRead=True) == {"leaseKey": {"S": "k"}, "n": {"N": "2"}}
    assert get(client, "new") is None
    assert sorted(name for page in scan_pages(client) for name in page) == ["gone", "k"]
    assert sorted(name for page in scan_pages(client, ConsistentRead=True) for name in page) == ["k", "new"]
    clock.advance(2)
    assert sorted(name for page in scan_pages(client) for name in page) == ["k", "new"]


def test_an_index_is_sparse_and_keeps_keys_only(client: FakeDynamoDB) -> None:
    add_owner_index(client)
    put(client, "b", leaseOwner={"S": "me"}, leaseCounter={"N": "1"})
    put(client, "a", leaseOwner={"S": "me"})
    put(client, "c")
    assert owned(client, "me") == [
        {"leaseKey": {"S": "a"}, "leaseOwner": {"S": "me"}},
        {"leaseKey": {"S": "b"}, "leaseOwner": {"S": "me"}},
    ]


def test_an_index_cannot_be_read_consistently(client: FakeDynamoDB) -> None:
    add_owner_index(client)
    with pytest.raises(ClientError, match="not supported on global secondary indexes"):
        client.query(
            TableName=TABLE,
            IndexName="owner",
            ConsistentRead=True,
            KeyConditionExpression="leaseOwner = :o",
            ExpressionAttributeValues={":o": {"S": "me"}},
        )


def test_tables_and_indexes_serve_only_after_their_creation() -> None:
    clock = FakeClock()
    client = create(FakeDynamoDB(clock, creation_seconds=10))
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        put(client, "k")
    assert client.describe_table(TableName=TABLE)["Table"]["TableStatus"] == "CREATING"
    clock.advance(10)
    put(client, "k", leaseOwner={"S": "me"})
    add_owner_index(client)
    with pytest.raises(ClientError, match="backfilling"):
        owned(client, "me")
    clock.advance(10)
    assert len(owned(client, "me")) == 1


def test_creating_a_table_twice_says_it_is_in_use(client: FakeDynamoDB) -> None:
    with pytest.raises(ClientError, match="ResourceInUseException"):
        create(client)


def test_a_protected_table_is_not_deleted() -> None:
    client = create(FakeDynamoDB(), DeletionProtectionEnabled=True)
    with pytest.raises(ClientError, match="protected"):
        client.delete_table(TableName=TABLE)
    client.update_table(TableName=TABLE, DeletionProtectionEnabled=False)
    client.delete_table(TableName=TABLE)
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        client.describe_table(TableName=TABLE)


def test_tags_and_backups_are_kept(client: FakeDynamoDB) -> None:
    arn = client.describe_table(TableName=TABLE)["Table"]["TableArn"]
    client.tag_resource(ResourceArn=arn, Tags=[{"Key": "team", "Value": "data"}])
    assert client.list_tags_of_resource(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "data"}]
    client.update_continuous_backups(
        TableName=TABLE, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
    )
    backups = client.describe_continuous_backups(TableName=TABLE)["ContinuousBackupsDescription"]
    assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"


def test_a_transaction_applies_everything_or_nothing(client: FakeDynamoDB) -> None:
    put(client, "lock", owner={"S": "me"})
    move = {"Put": {"TableName": TABLE, "Item": {"leaseKey": {"S": "moved"}}}}

    def guarded_by(owner: str) -> list[Any]:
        check = {
            "TableName": TABLE,
            "Key": {"leaseKey": {"S": "lock"}},
            "ConditionExpression": "#o = :o",
            "ExpressionAttributeNames": {"#o": "owner"},
            "ExpressionAttributeValues": {":o": {"S": owner}},
        }
        return [move, {"ConditionCheck": check}]

    with pytest.raises(ClientError) as refused:
        client.transact_write_items(TransactItems=guarded_by("you"))
    reasons = refused.value.response["CancellationReasons"]
    assert [reason["Code"] for reason in reasons] == ["None", "ConditionalCheckFailed"]
    assert get(client, "moved") is None
    client.transact_write_items(TransactItems=guarded_by("me"))
    assert get(client, "moved") == {"leaseKey": {"S": "moved"}}


def test_units_are_counted_as_dynamodb_charges_them(client: FakeDynamoDB) -> None:
    table = client.tables[TABLE]
    put(client, "k", blob={"B": b"x" * 1500})
    assert table.write_units == 2
    get(client, "k")
    get(client, "k", ConsistentRead=True)
    assert table.read_units == 1.5


def test_a_projection_answers_only_what_it_names(client: FakeDynamoDB) -> None:
    put(client, "k", m={"M": {"a": {"N": "1"}, "b": {"N": "2"}}}, n={"N": "3"})
    item = get(client, "k", ProjectionExpression="leaseKey, m.a")
    assert item == {"leaseKey": {"S": "k"}, "m": {"M": {"a": {"N": "1"}}}}


def lock_and(key: str) -> list[Any]:
    beat = {
        "TableName": TABLE,
        "Key": {"leaseKey": {"S": "lock"}},
        "UpdateExpression": "SET beat = :b",
        "ExpressionAttributeValues": {":b": {"N": "1"}},
    }
    return [{"Put": {"TableName": TABLE, "Item": {"leaseKey": {"S": key}}}}, {"Update": beat}]


@pytest.mark.audit("C7")
def test_writes_that_meet_a_transaction_are_refused_until_it_is_over(client: FakeDynamoDB) -> None:
    put(client, "lock", owner={"S": "me"})
    with client.under_way({"TransactItems": lock_and("first")}):
        with pytest.raises(ClientError) as refused:
            client.transact_write_items(TransactItems=lock_and("second"))
        reasons = refused.value.response["CancellationReasons"]
        assert [reason["Code"] for reason in reasons] == ["None", "TransactionConflict"]
        for write in (
            lambda: put(client, "lock"),
            lambda: client.delete_item(TableName=TABLE, Key={"leaseKey": {"S": "first"}}),
            lambda: client.update_item(TableName=TABLE, Key={"leaseKey": {"S": "lock"}}),
        ):
            with pytest.raises(ClientError, match="TransactionConflictException"):
                write()
        assert get(client, "lock") == {"leaseKey": {"S": "lock"}, "owner": {"S": "me"}}
        put(client, "elsewhere")
    client.transact_write_items(TransactItems=lock_and("second"))
    assert get(client, "second") == {"leaseKey": {"S": "second"}}
