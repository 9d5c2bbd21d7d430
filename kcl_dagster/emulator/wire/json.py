"""The JSON protocol of Kinesis: blobs are base64, timestamps are seconds."""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64
from typing import Any

import msgspec

from kcl_dagster.emulator.kinesis.replies import RecordPage, Reply
from kcl_dagster.emulator.kinesis.service_errors import KinesisError

CONTENT_TYPE = "application/x-amz-json-1.1"

_decoder = msgspec.json.Decoder(dict[str, Any])
_encode = msgspec.json.Encoder().encode


def decode(operation: str, body: bytes) -> dict[str, Any]:
    """Decode a request. Raises `KinesisError` if the body is not a valid request."""
    try:
        parameters = _decoder.decode(body or b"{}")
        if operation == "PutRecord":
            _decode_data(parameters)
        elif operation == "PutRecords":
            for record in parameters.get("Records") or ():
                _decode_data(record)
    except (msgspec.MsgspecError, Base64Error, TypeError, ValueError, AttributeError) as error:
        raise KinesisError("SerializationException", str(error)) from error
    return parameters


def encode(reply: Reply) -> bytes:
    return reply.as_json() if isinstance(reply, RecordPage) else _encode(reply)


def encode_error(error: KinesisError) -> bytes:
    return _encode({"__type": error.code, "message": error.message})


def _decode_data(record: dict[str, Any]) -> None:
    data = record.get("Data")
    if data is not None:
        record["Data"] = a2b_base64(data, strict_mode=True)
