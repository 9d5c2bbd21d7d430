"""Fast parsing of the responses to a Scan.

The leader reads the whole lease table in each tick. botocore's parser would take most of that time, because it
handles each value of each row in Python. msgspec parses the same JSON in C, including base64. The handler below
takes the body before botocore parses it, and returns the parsed response to botocore. If msgspec cannot parse a
body, botocore parses it as usual.
"""

from typing import Any, Final, TypedDict

import msgspec

from kcl_dagster.aws import Client


class _Value(TypedDict, total=False):
    """A value of DynamoDB. It has exactly one of these members, which its reader checks."""

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
_NOTHING_LEFT: Final = b"{}"


def install(client: Client) -> None:
    """Make this client parse the responses to Scan with msgspec. Does nothing for a fake client that has no events.
    Calls after the first one have no effect."""
    events = getattr(getattr(client, "meta", None), "events", None)
    if events is not None:
        events.register("before-parse.dynamodb.Scan", _before_parse, unique_id="kcl-dagster-scan")


def _before_parse(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_context: object
) -> None:
    """Called by botocore between the HTTP response and its parser."""
    if response_dict["status_code"] != 200:
        return
    try:
        page = _DECODER.decode(response_dict["body"])
    except (msgspec.MsgspecError, TypeError):
        return
    customized_response_dict.update(page)
    response_dict["body"] = _NOTHING_LEFT
