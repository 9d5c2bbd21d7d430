"""The types with which msgspec parses the responses to GetRecords; see `kcl_dagster.response_parsing`.

One difference from botocore's parser is intended: arrival times are epoch seconds, not datetimes.
"""

from typing import Any, Final, NotRequired, TypedDict

import msgspec

from kcl_dagster import response_parsing
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


def parse_get_records(body: bytes) -> _Answer:
    """Parse the response as botocore would, except for the times. Raises msgspec.MsgspecError."""
    answer = _DECODER.decode(body)
    # botocore omits values that are null.
    for name in ("NextShardIterator", "ChildShards"):
        if answer.get(name, ...) is None:
            del answer[name]  # type: ignore[misc]
    return answer


def install(client: Client) -> None:
    """Make this client parse GetRecords with msgspec."""
    response_parsing.install(client, "kinesis.GetRecords", parse_get_records)
