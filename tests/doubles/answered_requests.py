"""boto3 clients whose requests are answered with given bytes, so that botocore's own parsing can be compared."""

from typing import Any

import boto3
from botocore.awsrequest import AWSResponse
from botocore.config import Config


class Body:
    """What botocore reads a response from."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, **_kwargs: object) -> Any:
        yield self._content


def stock_client(service: str) -> Any:
    """A client of boto3 that sends each request once."""
    session = boto3.Session(aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1")
    client: Any = session.client(service, config=Config(retries={"total_max_attempts": 1}))  # type: ignore[call-overload]
    return client


def answered(client: Any, operation: str, body: bytes, status: int = 200) -> Any:
    """The client, whose requests of an operation, such as `kinesis.GetRecords`, are answered with these bytes."""

    def respond(**_kwargs: object) -> AWSResponse:
        headers: Any = {"x-amzn-RequestId": "r-1", "Content-Type": "application/x-amz-json-1.1"}
        return AWSResponse("http://x", status, headers, Body(body))

    client.meta.events.register(f"before-send.{operation}", respond)
    return client
