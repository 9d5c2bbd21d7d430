"""Kinesis over HTTP: decodes requests from JSON or CBOR for the engine, and encodes its replies and event
streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from functools import lru_cache
from types import ModuleType
from typing import Protocol, cast

from kcl_dagster.emulator.http.http_messages import HttpRequest, Response
from kcl_dagster.emulator.kinesis import Ending, KinesisError, KinesisService, Subscription
from kcl_dagster.emulator.kinesis.replies import Reply
from kcl_dagster.emulator.kinesis.service_errors import in_use, not_found
from kcl_dagster.emulator.wire import cbor, eventstream, json

TARGET_PREFIX = "Kinesis_20131202."
POLL_SECONDS = 0.05  # a subscriber gets a new record after this time at the latest


class Codec(Protocol):
    """One encoding of requests and replies: the module `wire.json` or `wire.cbor`."""

    CONTENT_TYPE: str
    decode: Callable[[str, bytes], dict[str, object]]
    encode: Callable[[Reply], bytes]
    encode_error: Callable[[KinesisError], bytes]


class KinesisEndpoint:
    def __init__(self, service: KinesisService) -> None:
        self._service = service

    def handle(self, operation: str, request: HttpRequest) -> Response:
        codec = codec_of(request)
        try:
            parameters = codec.decode(operation, request.body)
            if operation == "SubscribeToShard":
                return self._subscribe(parameters, codec)
            reply = self._service.execute(operation, parameters)
        except KinesisError as error:
            return refusal(error, codec)
        headers = [("content-type", codec.CONTENT_TYPE), ("date", _date(int(self._service.now())))]
        return Response(200, codec.encode(reply), headers)

    def _subscribe(self, parameters: dict[str, object], codec: Codec) -> Response:
        subscription = self._service.subscribe(parameters)
        return Response(200, self._events(subscription, codec), [("content-type", eventstream.CONTENT_TYPE)])

    async def _events(self, subscription: Subscription, codec: Codec) -> AsyncIterator[bytes]:
        try:
            yield eventstream.event("initial-response", codec.CONTENT_TYPE, codec.encode({}))
            while True:
                page = self._service.poll(subscription)
                if page is not None:
                    yield eventstream.event("SubscribeToShardEvent", codec.CONTENT_TYPE, codec.encode(page))
                elif subscription.ending is None:
                    await asyncio.sleep(POLL_SECONDS)
                else:
                    break
            error = _farewell(subscription)
            if error is not None:
                yield eventstream.exception(error.code, codec.CONTENT_TYPE, codec.encode_error(error))
        finally:
            self._service.unsubscribe(subscription)


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    """The `Date` header, by the service's clock. Clients use it to correct a wrong clock of their own."""
    return formatdate(second, usegmt=True)


def codec_of(request: HttpRequest) -> Codec:
    module: ModuleType = cbor if request.headers.get("content-type") == cbor.CONTENT_TYPE else json
    return cast("Codec", module)


def refusal(error: KinesisError, codec: Codec) -> Response:
    headers = [("content-type", codec.CONTENT_TYPE), ("x-amzn-errortype", error.code)]
    return Response(error.status, codec.encode_error(error), headers)


def _farewell(subscription: Subscription) -> KinesisError | None:
    """Return the error with which an event stream ends. None if the shard has ended or the subscription has
    expired."""
    if subscription.ending is Ending.TAKEN_OVER:
        return in_use(f"Another subscription of {subscription.consumer_arn} took over {subscription.shard.id}.")
    if subscription.ending is Ending.GONE:
        return not_found(f"The stream or the consumer {subscription.consumer_arn} was deleted.")
    return None
