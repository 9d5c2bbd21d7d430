"""Kinesis as a state machine: it takes requests and returns replies, without I/O, threads or a clock of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from kcl_dagster.emulator.kinesis import service_errors
from kcl_dagster.emulator.kinesis.account import Account
from kcl_dagster.emulator.kinesis.handlers import OPERATIONS, subscribing
from kcl_dagster.emulator.kinesis.limits import Limits
from kcl_dagster.emulator.kinesis.parameters import Parameters
from kcl_dagster.emulator.kinesis.replies import RecordPage, Reply
from kcl_dagster.emulator.kinesis.subscription import Subscription

Clock = Callable[[], float]

DEFAULT_ACCOUNT = "123456789012"
DEFAULT_REGION = "us-east-1"


class KinesisService:
    """All streams of one account in one region.

    `clock` returns seconds since the epoch, and a test can control it. Any thread can call the service. Calls are
    served one at a time. Two services share no data.

    >>> kinesis = KinesisService(clock=lambda: 1_700_000_000.0)
    >>> kinesis.call("CreateStream", {"StreamName": "clicks", "ShardCount": 2})
    {}
    >>> [shard["ShardId"] for shard in kinesis.call("ListShards", {"StreamName": "clicks"})["Shards"]]
    ['shardId-000000000000', 'shardId-000000000001']
    """

    def __init__(
        self,
        clock: Clock,
        limits: Limits | None = None,
        *,
        account: str = DEFAULT_ACCOUNT,
        region: str = DEFAULT_REGION,
        transition_seconds: float = 0.0,
    ) -> None:
        self._lock = threading.RLock()
        self._account = Account(clock, limits or Limits.aws(), account, region, transition_seconds)

    @property
    def limits(self) -> Limits:
        return self._account.limits

    def now(self) -> float:
        return self._account.now()

    def call(self, operation: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Serve one request. In the request and the reply, blobs are bytes and timestamps are seconds. Raises
        `KinesisError`."""
        reply = self.execute(operation, parameters or {})
        return reply.as_dict() if isinstance(reply, RecordPage) else reply

    def execute(self, operation: str, parameters: Mapping[str, Any]) -> Reply:
        """Serve one request like `call`, but leave a page of records encoded, so that a server can send it
        without copying."""
        serve = OPERATIONS.get(operation)
        if serve is None:
            raise service_errors.unknown_operation(operation)
        with self._lock:
            return serve(self._account, Parameters(parameters))

    def subscribe(self, parameters: Mapping[str, Any]) -> Subscription:
        """Open a subscription (SubscribeToShard). The caller gets its events by `poll`."""
        with self._lock:
            return subscribing.subscribe(self._account, Parameters(parameters))

    def poll(self, subscription: Subscription) -> RecordPage | None:
        """Return the next event of a subscription; None if there is none yet, or if the subscription has ended."""
        with self._lock:
            return subscribing.poll(self._account, subscription)

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription, because the consumer has disconnected."""
        with self._lock:
            subscribing.end(self._account, subscription)
