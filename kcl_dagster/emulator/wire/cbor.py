"""The CBOR protocol of Kinesis, which the Java SDK uses: blobs are bytes, timestamps are milliseconds."""

from __future__ import annotations

from typing import Any

import cbor2

from kcl_dagster.emulator.kinesis.replies import RecordPage, Reply
from kcl_dagster.emulator.kinesis.service_errors import KinesisError

CONTENT_TYPE = "application/x-amz-cbor-1.1"

# In RFC 8949, the unit of tag 1 is seconds. In the AWS protocol, it is milliseconds.
EPOCH_TAG = 1
MILLIS = 1000

_TIMESTAMPS = frozenset(
    {"ApproximateArrivalTimestamp", "ConsumerCreationTimestamp", "StreamCreationTimestamp", "Timestamp"}
)


def decode(operation: str, body: bytes) -> dict[str, Any]:  # noqa: ARG001 - the signature of `wire.json.decode`
    """Decode a request. Raises `KinesisError` if the body is not a valid request."""
    if not body:
        return {}
    try:
        parameters = cbor2.loads(body, semantic_decoders={EPOCH_TAG: _seconds})
    except (cbor2.CBORDecodeError, ValueError) as error:
        raise KinesisError("SerializationException", str(error)) from error
    if not isinstance(parameters, dict):
        raise KinesisError("SerializationException", "The request is not a map.")
    return parameters


def encode(reply: Reply) -> bytes:
    return cbor2.dumps(_with_tags(reply.as_dict() if isinstance(reply, RecordPage) else reply))


def encode_error(error: KinesisError) -> bytes:
    return cbor2.dumps({"__type": error.code, "message": error.message})


def _seconds(millis: float, _immutable: bool) -> float:
    return millis / MILLIS


def _with_tags(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: cbor2.CBORTag(EPOCH_TAG, round(entry * MILLIS)) if name in _TIMESTAMPS else _with_tags(entry)
            for name, entry in value.items()
        }
    if isinstance(value, list):
        return [_with_tags(entry) for entry in value]
    return value
