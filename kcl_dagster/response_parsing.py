"""Fast parsing of the responses to requests that return many records or rows.

botocore's parser handles each value of a response in Python, which would take most of the CPU time of a worker or a
leader. msgspec parses the same JSON in C, including base64. The parser of this module runs before botocore's own,
and botocore then returns the result of this parser. If msgspec cannot parse a body, botocore parses the body as
usual.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from kcl_dagster.aws import Client

_NOTHING_LEFT: Final = b"{}"


def install(client: Client, operation: str, parse: Callable[[bytes], Mapping[str, Any]]) -> None:
    """Make this client parse the responses to an operation, such as `kinesis.GetRecords`, with `parse`. `parse`
    raises msgspec.MsgspecError for a body that it cannot parse. Does nothing for a fake client that has no events.
    Calls after the first one have no effect."""

    def before_parse(
        response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_context: object
    ) -> None:
        """Parse a body. botocore calls this when it has received the response, before its own parser."""
        if response_dict["status_code"] != 200:
            return
        try:
            parsed = parse(response_dict["body"])
        except (msgspec.MsgspecError, TypeError):
            return
        customized_response_dict.update(parsed)
        response_dict["body"] = _NOTHING_LEFT

    events = getattr(getattr(client, "meta", None), "events", None)
    if events is not None:
        events.register(f"before-parse.{operation}", before_parse, unique_id=f"kcl-dagster-{operation}")
