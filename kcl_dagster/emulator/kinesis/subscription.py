"""One subscription to a shard (SubscribeToShard). The service pushes the shard's records to a consumer, from a
position on, until the subscription ends.
"""

from __future__ import annotations

from enum import StrEnum

from kcl_dagster.emulator.kinesis.shard_state import ShardState
from kcl_dagster.emulator.kinesis.throttle import Bucket

HEARTBEAT_SECONDS = 5.0  # after this time without records, an event informs the reader of its position
EVENT_BYTES = 1024 * 1024  # per event: the amount that a shard's rate allows in half a second
EVENT_RECORDS = 10_000


class Ending(StrEnum):
    """The reason why a subscription has ended."""

    EXPIRED = "expired"
    TAKEN_OVER = "taken over"
    SHARD_END = "shard end"
    GONE = "stream or consumer gone"


class Subscription:
    """A mutable subscription. The functions in `handlers.subscribing` change it. `ending` is set when no further
    event can follow."""

    __slots__ = (
        "allowance",
        "born",
        "consumer_arn",
        "ending",
        "expires_at",
        "position",
        "shard",
        "spoke_at",
        "started_at",
        "stream",
    )

    def __init__(
        self,
        consumer_arn: str,
        stream: str,
        born: float,
        shard: ShardState,
        position: int,
        started_at: float,
        expires_at: float | None,
        rate: float | None,
    ) -> None:
        self.consumer_arn = consumer_arn
        self.stream = stream
        self.born = born
        self.shard = shard
        self.position = position
        self.started_at = started_at
        self.expires_at = expires_at
        self.allowance = Bucket(rate)  # every consumer gets the full rate of a shard
        self.spoke_at: float | None = None
        self.ending: Ending | None = None
