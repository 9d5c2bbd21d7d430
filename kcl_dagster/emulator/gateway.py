"""The endpoint of all services. It finds out for which service a request is, and applies the fault rules."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kcl_dagster.emulator.backends import sts
from kcl_dagster.emulator.backends.conflicts import Conflicts
from kcl_dagster.emulator.clock import AdjustableClock
from kcl_dagster.emulator.control_endpoint import ControlEndpoint
from kcl_dagster.emulator.faults import FaultRule, Faults
from kcl_dagster.emulator.http.http_messages import Dropped, HttpRequest, Response
from kcl_dagster.emulator.kinesis import KinesisError, KinesisService
from kcl_dagster.emulator.kinesis_endpoint import TARGET_PREFIX, KinesisEndpoint, codec_of, refusal

if TYPE_CHECKING:
    from kcl_dagster.emulator.backends.dynamodb import DynamoDb
    from kcl_dagster.emulator.backends.s3 import S3

DYNAMODB_PREFIX = "DynamoDB_20120810."
CONTROL_PREFIX = "/_kcl/"

_MIB = 1024 * 1024
LARGEST_CONTROL_BODY = _MIB
# PutRecords takes 10 MiB of data, which JSON makes a third larger. BatchWriteItem takes 16 MB.
LARGEST_API_BODY = 32 * _MIB
LARGEST_S3_BODY = 256 * _MIB  # clients upload larger objects in parts

# moto keeps the buckets of the whole process together, by account. Each emulator therefore uses another account.
_s3_accounts = itertools.count(1)

Answer = Response | Awaitable[Response]


@dataclass(frozen=True, slots=True)
class _Route:
    service: str
    operation: str
    serve: Callable[[], Answer]


def largest_body(target: str, headers: Mapping[str, str]) -> int:
    """Return the size of the largest body that is accepted for a request, in bytes. Bodies are kept in memory."""
    if target.startswith(CONTROL_PREFIX):
        return LARGEST_CONTROL_BODY
    return LARGEST_API_BODY if "x-amz-target" in headers else LARGEST_S3_BODY


class Gateway:
    """The request handler of the server. It is called on the event loop. moto serves requests in separate threads.

    These threads also import moto, so that the start of the server does not wait for the import.
    """

    def __init__(
        self, kinesis: KinesisService, faults: Faults, clock: AdjustableClock, account: str, region: str
    ) -> None:
        self._kinesis = KinesisEndpoint(kinesis)
        self._control = ControlEndpoint(faults, clock, os.getpid())
        self._faults = faults
        self._account = account
        self._region = region
        # Each service has one thread. The thread serves requests in the order in which they arrived.
        self._dynamodb_thread = ThreadPoolExecutor(1, "emulator-dynamodb")
        self._s3_thread = ThreadPoolExecutor(1, "emulator-s3")
        self._dynamodb: DynamoDb | None = None
        self._conflicts = Conflicts(self._key_names)
        self._s3: S3 | None = None
        self._dynamodb_thread.submit(self._load_dynamodb)

    def __call__(self, request: HttpRequest) -> Answer:
        if request.path.startswith(CONTROL_PREFIX):
            return self._control.handle(request)
        route = self._route(request)
        fault = self._faults.draw(route.service, route.operation, request.body)
        if fault is None:
            return route.serve()
        return self._faulty(route, fault, request)

    def close(self) -> None:
        """End the threads when they have finished the requests that they have begun."""
        self._dynamodb_thread.shutdown(cancel_futures=True)
        self._s3_thread.shutdown(cancel_futures=True)
        if self._s3 is not None:
            self._s3.close()

    def _route(self, request: HttpRequest) -> _Route:
        target = request.headers.get("x-amz-target", "")
        if target.startswith(TARGET_PREFIX):
            operation = target[len(TARGET_PREFIX) :]
            return _Route("kinesis", operation, lambda: self._kinesis.handle(operation, request))
        if target.startswith(DYNAMODB_PREFIX):
            operation = target[len(DYNAMODB_PREFIX) :]
            return _Route("dynamodb", operation, lambda: self._in_dynamodb(operation, request))
        if sts.handles(request):
            return _Route(
                "sts", sts.operation(request), lambda: sts.handle(request, self._account, datetime.now(UTC))
            )
        if target:
            return _Route("unknown", target, lambda: _unknown(target))
        return _Route("s3", request.method, lambda: self._in_s3(request))

    async def _in_dynamodb(self, operation: str, request: HttpRequest) -> Response:
        def work() -> Response:
            return self._load_dynamodb().handle(operation, request)

        with self._conflicts.during(operation, request.body) as conflict:
            if conflict is not None:
                headers = [("content-type", "application/x-amz-json-1.0")]
                return Response(400, json.dumps(conflict).encode(), headers)
            return await asyncio.get_running_loop().run_in_executor(self._dynamodb_thread, work)

    def _key_names(self, table: str) -> Sequence[str]:
        return () if self._dynamodb is None else self._dynamodb.key_names(table)

    def _in_s3(self, request: HttpRequest) -> Awaitable[Response]:
        def work() -> Response:
            return self._load_s3().handle(request)

        return asyncio.get_running_loop().run_in_executor(self._s3_thread, work)

    def _load_dynamodb(self) -> DynamoDb:
        if self._dynamodb is None:
            from kcl_dagster.emulator.backends.dynamodb import DynamoDb

            self._dynamodb = DynamoDb(self._account, self._region)
        return self._dynamodb

    def _load_s3(self) -> S3:
        if self._s3 is None:
            from kcl_dagster.emulator.backends.s3 import S3

            self._s3 = S3(f"{next(_s3_accounts):012d}")
        return self._s3

    async def _faulty(self, route: _Route, fault: FaultRule, request: HttpRequest) -> Response:
        if fault.latency_seconds:
            await asyncio.sleep(fault.latency_seconds)
        response: Response | None = None
        if fault.applied or not (fault.error or fault.drop):
            answer = route.serve()
            response = await answer if inspect.isawaitable(answer) else answer
        if fault.drop:
            raise Dropped
        if fault.error:
            return _error(route, fault, request)
        assert response is not None
        return response


def _error(route: _Route, fault: FaultRule, request: HttpRequest) -> Response:
    name, message = fault.error or "", fault.message
    if route.service == "kinesis":
        return refusal(KinesisError(name, message, fault.status), codec_of(request))
    if route.service == "dynamodb":
        body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{name}", "message": message})
        return Response(fault.status, body.encode(), [("content-type", "application/x-amz-json-1.0")])
    body = f"<Error><Code>{name}</Code><Message>{message}</Message></Error>"
    if route.service == "sts":
        body = f"<ErrorResponse>{body}</ErrorResponse>"
    return Response(fault.status, body.encode(), [("content-type", "application/xml")])


def _unknown(target: str) -> Response:
    body = json.dumps({"__type": "UnknownOperationException", "message": f"The emulator does not serve {target}."})
    return Response(400, body.encode(), [("content-type", "application/x-amz-json-1.1")])
