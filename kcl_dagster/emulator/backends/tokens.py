"""Request tokens of transactions. If a request repeats the token of an earlier request, it gets the earlier
response, and is not carried out again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from moto.core.exceptions import JsonRESTError

REMEMBERED = 1_000  # DynamoDB remembers a token for ten minutes; a limit by number needs no clock


class RequestTokens:
    """The responses to recent transactions, by token. The caller must hold the lock of `DynamoDb`."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, tuple[dict[str, Any], dict[str, Any]]] = OrderedDict()

    def reply(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the earlier response to this request; None if its token is new. Raises JsonRESTError if the token
        was used with other parameters."""
        token = request.get("ClientRequestToken")
        known = None if token is None else self._answers.get(token)
        if known is None:
            return None
        earlier, answer = known
        if earlier != request:
            raise JsonRESTError(
                "com.amazonaws.dynamodb.v20120810#IdempotentParameterMismatchException",
                f"ClientRequestToken {token} was used with other parameters.",
            )
        return answer

    def remember(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
        token = request.get("ClientRequestToken")
        if token is None:
            return
        self._answers[token] = (request, answer)
        if len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
