"""Fast parsing of GetRecords responses.

botocore's parser would take most of a consumer's CPU time: it handles the response record by record in Python.
msgspec parses the same JSON in C, including base64. The handler below takes the body before botocore parses it, and
returns the parsed response to botocore. If msgspec cannot parse a body, botocore parses it as usual. One difference
is intended: arrival times are epoch seconds, not datetimes.
"""

from typing import Any, Final, NotRequired, TypedDict

import msgspec

from kcl_dagster.aws import Client


class _Record(TypedDict):
    SequenceNumber: str
    Data: bytes
    PartitionKey: str
    ApproximateArrivalTimestamp: NotRequired[float]
    EncryptionType: NotRequired[str]


class _Answer(TypedDict):
    Records: list[_Record]
    NextShardIterator: NotRequired[str | None]
    MillisBehindLatest: NotRequired[int]
    ChildShards: NotRequired[list[dict[str, Any]]]


_DECODER: Final = msgspec.json.Decoder(_Answer)
_NOTHING_LEFT: Final = b"{}"


def parse_get_records(body: bytes) -> _Answer:
    """Parse the response as botocore would, except for the times. Raises msgspec.MsgspecError."""
    answer = _DECODER.decode(body)
    # botocore omits values that are null.
    for name in ("NextShardIterator", "ChildShards"):
        if answer.get(name, ...) is None:
            del answer[name]  # type: ignore[misc]
    return answer


def install(client: Client) -> None:
    """Make this client parse GetRecords with msgspec. Does nothing for a fake client that has no events."""
    events = getattr(getattr(client, "meta", None), "events", None)
    if events is not None:
        events.register("before-parse.kinesis.GetRecords", _before_parse, unique_id="kcl-dagster-get-records")


def _before_parse(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_context: object
) -> None:
    """Called by botocore between the HTTP response and its parser."""
    if response_dict["status_code"] != 200:
        return
    try:
        answer = parse_get_records(response_dict["body"])
    except (msgspec.MsgspecError, TypeError):
        return
    customized_response_dict.update(answer)
    response_dict["body"] = _NOTHING_LEFT
