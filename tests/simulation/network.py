"""The way between a process and a service: slow, and sometimes lossy in one direction only.

Every call of a client waits twice, on its way there and on its way back. Whatever the other strands do meanwhile
happens in between, which is where the bugs live.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, Literal

from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError
from botocore.parsers import ResponseParserError

from kcl_dagster import aws
from kcl_dagster.integrity import lacks
from tests.simulation.kernel import Process

Service = Literal["dynamodb", "kinesis", "s3"]
Sdk = Literal["botocore", "java"]

# What `kcl_dagster.aws` configures.
READ_TIMEOUT_SECONDS: Final = 5.0
CONNECT_TIMEOUT_SECONDS: Final = 2.0
JAVA_TOTAL_SECONDS: Final = 7.0

# Round trips within one region; the tail is what makes two calls overtake each other.
USUAL_LATENCY: Final = (0.001, 0.010)
TAIL_LATENCY: Final = (0.05, 1.5)
TAIL_SHARE: Final = 0.02

THROTTLING: Final[dict[Service, str]] = {
    "dynamodb": "ProvisionedThroughputExceededException",
    "kinesis": "ProvisionedThroughputExceededException",
    "s3": "SlowDown",
}


# Writes several rows, all or none. DynamoDB refuses it while another request writes one of them, and the reverse.
TRANSACTION: Final = "transact_write_items"
WRITES: Final = frozenset({TRANSACTION, "put_item", "update_item", "delete_item"})


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one call. `late` seconds pass between the caller giving up and the request taking effect; or
    while a slow request, a slow answer or one that drips is under way."""

    kind: Literal[
        "served",
        "throttled",
        "denied",
        "broken",
        "unreachable",
        "conflict",
        "request lost",
        "answer lost",
        "late",
        "slow request",
        "slow answer",
        "cut off",
        "drips",
    ]
    late: float = 0.0


LOST: Final = frozenset({"answer lost", "cut off", "drips"})
SERVED: Final = Fate("served")
GetFate = Callable[[Process, Service, str, dict[str, Any]], Fate]
OnCall = Callable[[Process, Service, str, dict[str, Any], Any], None]


class Line:
    """A client of one service as one process sees it: an object with boto3's method names.

    on_call: told of every request that took effect or was refused by the service, with its answer or ClientError.
    page_seconds: how much longer a page of a scan takes.
    sdk: whose client this is. Java's compares the checksum of each answer and raises. Of ours, the check that
    `aws.call` makes is simulated, and `integrity.verify_answers` only where an empty answer would be a valid one.
    """

    def __init__(
        self,
        process: Process,
        service: Service,
        backend: object,
        random: Random,
        fate: GetFate,
        on_call: OnCall,
        sdk: Sdk = "botocore",
        page_seconds: float = 0.0,
    ) -> None:
        self._process = process
        self._service = service
        self._backend = backend
        self._draw = random.random
        self._fate = fate
        self._on_call = on_call
        self._sdk = sdk
        self._page_seconds = page_seconds
        self._under_way: Callable[[dict[str, Any]], AbstractContextManager[Any]] = getattr(
            backend, "under_way", lambda _: nullcontext()
        )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Once a method; it is an attribute from then on."""
        if name.startswith("_") or name == "meta":
            raise AttributeError(name)
        method = self._method(name)
        setattr(self, name, method)
        return method

    def close(self) -> None:
        """Clients have it; there is nothing to close."""

    def _method(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name, getattr(self._backend, name))

    def _call(self, name: str, perform: Callable[..., Any], /, **request: Any) -> Any:
        process = self._process
        kernel = process.kernel
        fate = self._fate(process, self._service, name, request)
        if fate is SERVED:
            kernel.sleep(self._latency())
        else:
            if fate.kind == "drips" and fate.late <= self._limit():
                fate = Fate("slow answer", fate.late)
            self._lose_or_refuse(fate, name, perform, request)
        kernel.acting = process
        try:
            answer = perform(**request)
        except ClientError as error:
            self._on_call(process, self._service, name, request, error)
            if fate.kind in LOST:
                raise self._lost(fate) from None
            kernel.sleep(self._latency())
            raise
        self._on_call(process, self._service, name, request, answer)
        if fate is not SERVED and fate.kind in LOST:
            if fate.kind == "cut off" and self._sdk == "botocore" and lacks(name, request, {}) is not None:
                kernel.sleep(self._latency())
                return {"ResponseMetadata": {}}  # what botocore makes of half a body
            raise self._lost(fate)
        if fate is not SERVED and fate.kind == "slow answer":
            kernel.sleep(fate.late)
        if name == TRANSACTION:
            with self._under_way(request):
                kernel.sleep(self._latency())
        else:
            kernel.sleep(self._latency() + (self._page_seconds if name == "scan" else 0.0))
        return answer

    def _lose_or_refuse(self, fate: Fate, name: str, perform: Callable[..., Any], request: dict[str, Any]) -> None:
        """Raises what the caller learns of a request that the service does not get now. Returns if it gets it."""
        kernel = self._process.kernel
        if fate.kind == "unreachable":
            kernel.sleep(CONNECT_TIMEOUT_SECONDS)
            raise ConnectTimeoutError(endpoint_url=self._service)
        kernel.sleep(fate.late if fate.kind == "slow request" else self._latency())
        if fate.kind == "throttled":
            raise self._refused(THROTTLING[self._service], "Rate exceeded", name)
        if fate.kind == "denied":
            raise self._refused("AccessDeniedException", f"not authorized to perform {name}", name)
        if fate.kind == "conflict":
            raise self._refused(
                "TransactionCanceledException" if name == TRANSACTION else "TransactionConflictException",
                "Transaction is ongoing for the item",
                name,
                CancellationReasons=[{"Code": "TransactionConflict"}, {"Code": "None"}],
            )
        if fate.kind == "broken":
            raise self._refused("InternalServerError", "injected", name, status=500)
        if fate.kind == "request lost":
            raise self._timeout()
        if fate.kind == "late":
            kernel.call_at(
                kernel.now + READ_TIMEOUT_SECONDS + fate.late, lambda: self._perform_alone(name, perform, request)
            )
            raise self._timeout()

    def _perform_alone(self, name: str, perform: Callable[..., Any], request: dict[str, Any]) -> None:
        """A request that outlived its sender's patience, perhaps its sender."""
        self._process.kernel.acting = self._process
        try:
            answer = perform(**request)
        except ClientError as error:
            answer = error
        self._on_call(self._process, self._service, name, request, answer)

    def _lost(self, fate: Fate) -> Exception:
        """What the caller learns of an answer that does not arrive, or not whole."""
        if fate.kind == "cut off":
            self._process.kernel.sleep(self._latency())
            return ResponseParserError("the answer is not whole")
        if fate.kind == "drips":
            self._process.kernel.sleep(self._limit())
            return ReadTimeoutError(endpoint_url=self._service)
        return self._timeout()

    def _limit(self) -> float:
        """Seconds of a whole call. No other limit ends one whose answer drips: no read of its socket takes long."""
        return aws.TOTAL_SECONDS if self._sdk == "botocore" else JAVA_TOTAL_SECONDS

    def _timeout(self) -> ReadTimeoutError:
        self._process.kernel.sleep(READ_TIMEOUT_SECONDS)
        return ReadTimeoutError(endpoint_url=self._service)

    def _latency(self) -> float:
        draw = self._draw
        low, high = TAIL_LATENCY if draw() < TAIL_SHARE else USUAL_LATENCY
        return low + (high - low) * draw()

    def _refused(self, code: str, message: str, operation: str, status: int = 400, **extra: Any) -> ClientError:
        answer: Any = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {
                "HTTPStatusCode": status,
                "RetryAttempts": 0,
                "RequestId": "",
                "HostId": "",
                "HTTPHeaders": {},
            },
            **extra,
        }
        return ClientError(answer, "".join(part.capitalize() for part in operation.split("_")))
