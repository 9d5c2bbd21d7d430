"""The types with which `kcl_dagster.response_parsing` parses the response to a Scan. This is faster than botocore's
parser, and the leader often scans the whole lease table."""

from typing import Any, Final, TypedDict

import msgspec

from kcl_dagster import response_parsing
from kcl_dagster.aws import Client


class _Value(TypedDict, total=False):
    """A value of DynamoDB. `ItemReader` checks that it has exactly one of these members."""

    S: str
    N: str
    B: bytes
    BOOL: bool
    NULL: bool
    SS: list[str]
    NS: list[str]
    BS: list[bytes]
    L: list["_Value"]
    M: dict[str, "_Value"]


class _Scanned(TypedDict):
    Items: list[dict[str, _Value]]


class _Page(_Scanned, total=False):
    Count: int
    ScannedCount: int
    LastEvaluatedKey: dict[str, _Value]
    ConsumedCapacity: dict[str, Any]


_DECODER: Final = msgspec.json.Decoder(_Page)


def install(client: Client) -> None:
    """Make this client parse the responses to Scan with msgspec."""
    response_parsing.install(client, "dynamodb.Scan", _DECODER.decode)
