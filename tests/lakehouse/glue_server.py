"""moto's Glue over HTTP, for the clients of two languages.

moto does not look at the version of a table that an update expects, by which Glue refuses the second of two
commits. So this server does.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from moto.core.request import Request as MotoRequest
from moto.glue.models import glue_backends
from moto.glue.responses import GlueResponse

from tests.lakehouse.http_server import Answer, Request, served

_ACCOUNT: Final = "123456789012"
_REGION: Final = "us-east-1"


@dataclass
class Glue:
    uri: str = ""
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Request) -> Answer:
        with self._one_at_a_time:
            if request.headers.get("x-amz-target") == "AWSGlue.UpdateTable":
                refusal = self._refusal(json.loads(request.body))
                if refusal is not None:
                    return refusal
            headers = dict(request.headers)
            asked = MotoRequest.from_primitives(
                request.method, f"{self.uri}{request.target}", headers, request.body
            )
            status, answered, body = GlueResponse.dispatch(asked, asked.url, asked.headers)
        content = body.encode() if isinstance(body, str) else body
        kept = {"Content-Type": "application/x-amz-json-1.1"}
        if "x-amzn-ErrorType" in answered:
            kept["x-amzn-ErrorType"] = str(answered["x-amzn-ErrorType"])
        return Answer(int(status), kept, content)

    def _refusal(self, asked: dict[str, Any]) -> Answer | None:
        expected = asked.get("VersionId")
        table = glue_backends[_ACCOUNT][_REGION].get_table(asked["DatabaseName"], asked["TableInput"]["Name"])
        if expected is None or expected == table.as_dict()["VersionId"]:
            return None
        error = {"__type": "ConcurrentModificationException", "Message": f"not version {expected} any more"}
        return Answer(400, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(error).encode())


@contextmanager
def glue_server() -> Iterator[str]:
    glue = Glue()
    with served(glue.answer) as uri:
        glue.uri = uri
        yield uri
