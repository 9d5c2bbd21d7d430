"""What an application of a former version has left: its stream, its tables and its files. See `former_state`.

In a folder of its kind: `state.json`, and what is stored below `stored/`.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from kcl_dagster.emulator import Emulator, Limits

FIXTURES: Final = Path(__file__).parent / "states"
STREAM: Final = "clicks"
APPLICATION: Final = "clicks-app"
TABLE: Final = "lake.clicks"  # of Iceberg
BUCKET: Final = "former-lake"
# The time at which records arrive. Sequence numbers contain it.
ARRIVED: Final = 1_780_000_000.0


@dataclass(frozen=True)
class SavedState:
    """`records`: of each, its shard's number and its payload, in order. `pinned`: the leases that are pinned, and
    the point at which their worker was killed."""

    shards: int
    records: list[tuple[int, str]]
    tables: list[dict[str, Any]]
    pinned: dict[str, str]
    metadata_location: str | None = None
    """Of an Iceberg table."""


def emulator() -> Emulator:
    """One in which records have the same sequence numbers whenever they are put, shard by shard in order."""
    return Emulator(limits=Limits.none(), clock=lambda: ARRIVED)


def put(kinesis: Any, records: Sequence[tuple[int, str]]) -> None:
    shards = kinesis.list_shards(StreamName=STREAM)["Shards"]
    starts = [shard["HashKeyRange"]["StartingHashKey"] for shard in shards]
    some = [
        {"Data": payload.encode(), "PartitionKey": "key", "ExplicitHashKey": starts[shard]}
        for shard, payload in records
    ]
    assert kinesis.put_records(StreamName=STREAM, Records=some)["FailedRecordCount"] == 0


def tables_of(dynamodb: Any) -> list[dict[str, Any]]:
    """All tables with their rows."""
    found = []
    for name in dynamodb.list_tables()["TableNames"]:
        described = dynamodb.describe_table(TableName=name)["Table"]
        items = dynamodb.scan(TableName=name)["Items"]
        found.append(
            {
                "TableName": name,
                "KeySchema": described["KeySchema"],
                "AttributeDefinitions": described["AttributeDefinitions"],
                "GlobalSecondaryIndexes": [
                    {key: index[key] for key in ("IndexName", "KeySchema", "Projection")}
                    for index in described.get("GlobalSecondaryIndexes", [])
                ],
                "Items": sorted((_as_text(item) for item in items), key=json.dumps),
            }
        )
    return found


def restore_tables(dynamodb: Any, tables: Sequence[dict[str, Any]]) -> None:
    for table in tables:
        made = {name: value for name, value in table.items() if name != "Items" and value}
        dynamodb.create_table(BillingMode="PAY_PER_REQUEST", **made)
        for item in table["Items"]:
            dynamodb.put_item(TableName=table["TableName"], Item=_as_bytes(item))


def save(state: SavedState, folder: Path) -> None:
    (folder / "state.json").write_text(json.dumps(asdict(state), indent=1, sort_keys=True) + "\n")


def load(kind: str) -> SavedState:
    found = json.loads((FIXTURES / kind / "state.json").read_text())
    return SavedState(**found | {"records": [(shard, payload) for shard, payload in found["records"]]})


def _as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_text(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_as_text(one) for one in value]
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _as_bytes(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"base64"}:
            return base64.b64decode(value["base64"])
        return {key: _as_bytes(one) for key, one in value.items()}
    return [_as_bytes(one) for one in value] if isinstance(value, list) else value
