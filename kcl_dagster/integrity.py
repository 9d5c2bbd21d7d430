"""Checks whether a response of AWS arrived completely.

botocore treats a body that was cut off like an empty body. A Scan would then return no rows, and a GetItem would
report that the row does not exist. Bodies are cut off if a connection ends early, or if a proxy rewrites the
length. So each response is compared with its length and its checksum before botocore parses it, and has to be
complete JSON.
"""

import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from botocore.parsers import ResponseParserError

LENGTH: Final = "content-length"
CHECKSUM: Final = "x-amz-crc32"  # DynamoDB sends it with each response
# This decoder checks each byte, and creates no objects for the values.
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_REFUSED: Final = 300  # the first HTTP status that is no success

# A complete response to the method has at least one of these members.
_MEMBERS: Final[dict[str, tuple[str, ...]]] = {
    "scan": ("Items", "Count"),
    "query": ("Items", "Count"),
    "update_item": ("Attributes",),  # if the request asked for it
    "describe_table": ("Table",),
    "get_records": ("Records",),
    "list_shards": ("Shards",),
}


def lacks(method: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """Return the member that is missing in the response to this request; None if the response is complete.

    This is a second check, for clients for which `verify_answers` was not called. GetItem is not checked, because
    its response is empty if the row does not exist.
    """
    members = _MEMBERS.get(method)
    if members is None or any(member in answer for member in members):
        return None
    if method == "update_item" and request.get("ReturnValues") != "ALL_NEW":
        return None
    return members[0]


def verify_answers(client: Any) -> None:
    """Make this client raise ResponseParserError instead of parsing an incomplete response. Does nothing for
    services without JSON responses, because the length in their headers need not be that of the body. For example,
    S3 responds to HEAD with the length of a body that it does not send."""
    model = client.meta.service_model
    if model.metadata.get("protocol") == "json":
        client.meta.events.register_first(
            f"before-parse.{model.service_id.hyphenize()}", _verify, unique_id="kcl-dagster-whole-answers"
        )


def _verify(
    operation_model: Any,
    response_dict: Mapping[str, Any],
    customized_response_dict: Mapping[str, Any],
    **_context: object,
) -> None:
    """Check a response. botocore calls this when it has received the response, before it parses the body."""
    body = response_dict["body"]
    if not isinstance(body, bytes):  # a stream of events, each with a length and a checksum of its own
        return
    if customized_response_dict:  # a handler of one operation parsed the whole body, and has replaced it
        return
    output = operation_model.output_shape
    may_be_empty = output is None or not output.members
    problem = fault_of(body, response_dict["headers"], response_dict["status_code"], may_be_empty=may_be_empty)
    if problem is not None:
        raise ResponseParserError(f"the answer to {operation_model.name} is not whole: {problem}")


def fault_of(body: bytes, headers: Mapping[str, str], status: int, *, may_be_empty: bool) -> str | None:
    """Return why a body cannot be a complete response; None if no fault is found."""
    length = headers.get(LENGTH)
    if length is not None and length.isdigit() and int(length) != len(body):
        return f"{len(body)} of {length} bytes arrived"
    checksum = headers.get(CHECKSUM)
    if checksum is not None and checksum.isdigit() and int(checksum) != zlib.crc32(body):
        return "its checksum does not match"
    is_refused = status >= _REFUSED
    if not body:
        return None if may_be_empty or is_refused else "its body is empty"
    if is_refused and not body.lstrip().startswith(b"{"):
        return None  # a proxy's page: its text is more useful than an error about JSON
    try:
        _OBJECT.decode(body)
    except msgspec.MsgspecError:
        return f"its {len(body)} bytes are not a complete JSON object"
    return None
