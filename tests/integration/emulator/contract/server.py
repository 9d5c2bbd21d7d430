"""A server under the contract: ours, or a referee that somebody else wrote."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import boto3
from botocore.config import Config
from mypy_boto3_dynamodb import DynamoDBClient
from mypy_boto3_kinesis import KinesisClient

REGION = "us-east-1"
_numbers = itertools.count()


@dataclass(frozen=True)
class Server:
    """`advance` lets the server's time pass at once; None where the server goes by the real clock alone."""

    name: str
    endpoint_url: str
    advance: Callable[[float], None] | None = None
    now: Callable[[], float] = time.time
    _session: boto3.Session = field(default_factory=lambda: boto3.Session("test", "test", region_name=REGION))

    def let_pass(self, seconds: float) -> None:
        """Let time pass on the server, at once if it can."""
        if self.advance is None:
            time.sleep(seconds)
        else:
            self.advance(seconds)

    def _client(self, service: str) -> Any:
        make: Any = self._session.client
        # max_pool_connections: the race tests use 16 threads on one client
        config = Config(retries={"total_max_attempts": 1}, max_pool_connections=32, read_timeout=60)
        return make(service, endpoint_url=self.endpoint_url, config=config)

    def kinesis(self) -> KinesisClient:
        return cast("KinesisClient", self._client("kinesis"))

    def dynamodb(self) -> DynamoDBClient:
        return cast("DynamoDBClient", self._client("dynamodb"))


def unique(prefix: str) -> str:
    """A name that no other test uses: servers live longer than tests."""
    return f"{prefix}-{next(_numbers)}"
