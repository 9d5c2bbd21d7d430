"""A Kinesis record as GetRecords and SubscribeToShard give it."""

from typing import Any, TypedDict


class StreamRecord(TypedDict):
    """The time of arrival is epoch seconds, or a datetime where the stock botocore parser made it."""

    SequenceNumber: str
    Data: bytes
    PartitionKey: str
    ApproximateArrivalTimestamp: Any


def arrival_millis(record: StreamRecord) -> int | None:
    """When the record arrived, in epoch milliseconds; None when the stream did not say."""
    arrival = record.get("ApproximateArrivalTimestamp")
    if arrival is None:
        return None
    seconds = arrival if isinstance(arrival, (int, float)) else arrival.timestamp()
    return round(seconds * 1000)
