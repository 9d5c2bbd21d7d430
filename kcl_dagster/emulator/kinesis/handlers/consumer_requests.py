"""Enhanced fan-out consumers: register, describe, list, deregister."""

from __future__ import annotations

from typing import Any

from kcl_dagster.emulator.kinesis import service_errors
from kcl_dagster.emulator.kinesis.account import Account, stream_name_of
from kcl_dagster.emulator.kinesis.iterator import seal, unseal
from kcl_dagster.emulator.kinesis.parameters import Parameters
from kcl_dagster.emulator.kinesis.registered_consumer import RegisteredConsumer
from kcl_dagster.emulator.kinesis.replies import Reply
from kcl_dagster.emulator.kinesis.stream_state import Stream

CONSUMERS_PER_PAGE = 100
LARGEST_PAGE = 10_000


def register(account: Account, request: Parameters) -> Reply:
    stream = _stream(account, request)
    name = request.name("ConsumerName")
    if name in stream.consumers:
        raise service_errors.in_use(
            f"Consumer {name} under stream {stream.name} already exists for account {account.number}."
        )
    if len(stream.consumers) >= account.limits.consumers_per_stream:
        raise service_errors.limit_exceeded(
            f"Stream {stream.name} already has {len(stream.consumers)} registered consumers."
        )
    now = account.now()
    consumer = RegisteredConsumer(
        name=name,
        arn=f"{stream.arn}/consumer/{name}:{int(now)}",
        stream_arn=stream.arn,
        created_at=now,
        active_at=now + account.transition_seconds,
        tags=request.tags("Tags"),
    )
    stream.consumers[name] = consumer
    return {"Consumer": consumer.describe(now)}


def describe(account: Account, request: Parameters) -> Reply:
    _, consumer = _named(account, request)
    return {"ConsumerDescription": {**consumer.describe(account.now()), "StreamARN": consumer.stream_arn}}


def deregister(account: Account, request: Parameters) -> Reply:
    stream, consumer = _named(account, request)
    del stream.consumers[consumer.name]
    account.end_subscriptions(consumer.arn)
    return {}


def list_consumers(account: Account, request: Parameters) -> Reply:
    stream = _stream(account, request)
    limit = request.integer("MaxResults", 1, LARGEST_PAGE, CONSUMERS_PER_PAGE)
    after = ""
    if "NextToken" in request:
        try:
            (after,) = unseal("c", request.text("NextToken"))
        except ValueError as error:
            raise service_errors.invalid_argument("The provided NextToken is invalid.") from error
    names = sorted(name for name in stream.consumers if name > after)
    now = account.now()
    reply: dict[str, Any] = {"Consumers": [stream.consumers[name].describe(now) for name in names[:limit]]}
    if len(names) > limit:
        reply["NextToken"] = seal("c", names[limit - 1])
    return reply


def consumer_by_arn(account: Account, arn: str) -> RegisteredConsumer:
    """Return the consumer with this ARN. Raises ResourceNotFoundException if it was deregistered, even if a
    consumer with the same name was registered since."""
    stream = account.stream(stream_name_of(arn))
    for consumer in stream.consumers.values():
        if consumer.arn == arn:
            return consumer
    raise service_errors.not_found(f"Consumer {arn} not found.")


def _stream(account: Account, request: Parameters) -> Stream:
    request.text("StreamARN")
    return account.named_stream(request)


def _named(account: Account, request: Parameters) -> tuple[Stream, RegisteredConsumer]:
    if "ConsumerARN" in request:
        consumer = consumer_by_arn(account, request.text("ConsumerARN"))
        return account.stream(stream_name_of(consumer.arn)), consumer
    if "StreamARN" not in request or "ConsumerName" not in request:
        raise service_errors.invalid_argument("Either ConsumerARN, or StreamARN and ConsumerName, must be given.")
    stream = _stream(account, request)
    name = request.name("ConsumerName")
    consumer_of_name = stream.consumers.get(name)
    if consumer_of_name is None:
        raise service_errors.not_found(
            f"Consumer {name} under stream {stream.name} not found for account {account.number}."
        )
    return stream, consumer_of_name
