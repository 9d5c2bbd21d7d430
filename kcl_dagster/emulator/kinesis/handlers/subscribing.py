"""SubscribeToShard: opening a subscription and reading events from it."""

from __future__ import annotations

from typing import Any

from kcl_dagster.emulator.kinesis import service_errors
from kcl_dagster.emulator.kinesis.account import Account, stream_name_of
from kcl_dagster.emulator.kinesis.handlers.consumer_requests import consumer_by_arn
from kcl_dagster.emulator.kinesis.handlers.record_reads import (
    ITERATOR_TYPES,
    is_finished,
    millis_behind,
    page,
    starting_position,
)
from kcl_dagster.emulator.kinesis.parameters import Parameters
from kcl_dagster.emulator.kinesis.replies import RecordPage
from kcl_dagster.emulator.kinesis.subscription import (
    EVENT_BYTES,
    EVENT_RECORDS,
    HEARTBEAT_SECONDS,
    Ending,
    Subscription,
)


def subscribe(account: Account, request: Parameters) -> Subscription:
    """Open a subscription. If the same consumer opened a subscription to the shard more than `takeover_seconds`
    ago, the new subscription replaces it."""
    consumer = consumer_by_arn(account, request.text("ConsumerARN"))
    stream = account.stream(stream_name_of(consumer.arn))
    now = account.now()
    if consumer.status(now) != "ACTIVE":
        raise service_errors.in_use(
            f"Consumer {consumer.arn} is not ACTIVE, instead in state {consumer.status(now)}."
        )
    shard = stream.shard(request.name("ShardId"))
    wanted = request.structure("StartingPosition")
    position = starting_position(
        stream,
        shard,
        wanted.choice("Type", ITERATOR_TYPES),
        wanted.optional_text("SequenceNumber"),
        wanted.timestamp("Timestamp"),
        now,
    )
    limits = account.limits
    key = (consumer.arn, shard.id)
    previous = account.subscriptions.get(key)
    if previous is not None and previous.ending is None:
        if limits.takeover_seconds is not None and now < previous.started_at + limits.takeover_seconds:
            raise service_errors.in_use(
                f"Another active subscription exists for this consumer: {consumer.arn} on shard {shard.id}."
            )
        previous.ending = Ending.TAKEN_OVER
    lifetime = limits.subscription_seconds
    subscription = Subscription(
        consumer_arn=consumer.arn,
        stream=stream.name,
        born=stream.created_at,
        shard=shard,
        position=position,
        started_at=now,
        expires_at=None if lifetime is None else now + lifetime,
        rate=limits.read_bytes,
    )
    account.subscriptions[key] = subscription
    return subscription


def poll(account: Account, subscription: Subscription) -> RecordPage | None:
    """Return the next event of a subscription; None if there is none now. Sets `ending` when no event can
    follow."""
    if subscription.ending is not None:
        return None
    now = account.now()
    stream = account.find(subscription.stream)
    if stream is None or stream.created_at != subscription.born:
        subscription.ending = Ending.GONE
        return None
    if subscription.expires_at is not None and now >= subscription.expires_at:
        subscription.ending = Ending.EXPIRED
        return None
    shard = subscription.shard
    start, stop = subscription.position, subscription.position
    if subscription.allowance.has_any(now):
        start, stop = page(account, shard, subscription.position, EVENT_RECORDS, EVENT_BYTES)
    finished = is_finished(shard, stop)
    quiet_since = subscription.spoke_at
    if stop == start and not finished and quiet_since is not None and now < quiet_since + HEARTBEAT_SECONDS:
        return None
    subscription.allowance.charge(shard.log.payload(start, stop), now)
    subscription.position = stop
    subscription.spoke_at = now
    rest: dict[str, Any] = {"MillisBehindLatest": millis_behind(shard, stop, now)}
    if finished:
        # The last event has no continuation number. This shows the KCL that the shard has ended.
        rest["ChildShards"] = shard.describe_children()
        subscription.ending = Ending.SHARD_END
    else:
        rest["ContinuationSequenceNumber"] = shard.continuation(stop, now)
    return RecordPage(shard.log.fragments(start, stop), rest)


def end(account: Account, subscription: Subscription) -> None:
    """End the subscription of a consumer that has disconnected."""
    key = (subscription.consumer_arn, subscription.shard.id)
    if account.subscriptions.get(key) is subscription:
        del account.subscriptions[key]
    subscription.ending = subscription.ending or Ending.GONE
