"""`FakeKinesis`: boto3's low-level Kinesis client over the embedded Kinesis, in this process."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, Final

from botocore.exceptions import ClientError

from kcl_dagster.emulator.kinesis import KinesisError, KinesisService, Limits
from kcl_dagster.runtime import Clock, SystemClock
from tests.doubles.strictness import check_requests, operations

Response = dict[str, Any]

# How often an open subscription looks for records; the service pushes within a fraction of a second.
PUSH_SECONDS: Final = 0.2

_TIMES: Final = frozenset({"StreamCreationTimestamp", "ConsumerCreationTimestamp", "ApproximateArrivalTimestamp"})
_SCALARS: Final = frozenset({str, int, bytes, float, bool})


class FakeKinesis:
    """One account's streams behind the method names of `boto3.client("kinesis")`.

    The streams live in `service`; several clients may share one. Time is the clock's. Raises botocore's ClientError
    with the service's codes. Thread-safe as far as the clock is.

    limits: `Limits.aws()` when left out; `Limits.none()` for tests that are not about throttling.
    transition_seconds: how long streams stay CREATING, UPDATING and DELETING.
    strict: check parameters against the service's own model, as boto3 does.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        service: KinesisService | None = None,
        limits: Limits | None = None,
        transition_seconds: float = 0.0,
        strict: bool = True,
    ) -> None:
        self.clock = clock or SystemClock()
        self.service = service or KinesisService(
            self.clock.now, limits or Limits.aws(), transition_seconds=transition_seconds
        )
        self._strict = strict
        if strict:
            check_requests(self, "kinesis")

    def __getattr__(self, name: str) -> Callable[..., Response]:
        operation = operations("kinesis").get(name)
        if operation is None:
            raise AttributeError(f"Kinesis has no operation {name!r}")

        def call(**request: Any) -> Response:
            return self.call(operation.name, request)

        return call

    def call(self, operation: str, request: Mapping[str, Any]) -> Response:
        """One request by its name on the wire."""
        try:
            answer = self.service.call(operation, request)
        except KinesisError as error:
            raise _client_error(error, operation) from None
        return self._finished(answer)

    def subscribe_to_shard(self, **request: Any) -> Response:
        """The events come as they are iterated over; the iteration ends when the subscription does."""
        try:
            subscription = self.service.subscribe(request)
        except KinesisError as error:
            raise _client_error(error, "SubscribeToShard") from None
        return self._finished({"EventStream": _Events(self, subscription)})

    def close(self) -> None:
        """Clients have it; there is nothing to close."""

    def _finished(self, answer: Response) -> Response:
        dated = self._strict or "StreamDescriptionSummary" in answer
        headers = {"date": formatdate(self.service.now(), usegmt=True)} if dated else {}
        metadata = {"HTTPStatusCode": 200, "HTTPHeaders": headers, "RetryAttempts": 0}
        return {**_with_datetimes(answer), "ResponseMetadata": metadata}


class _Events:
    """The event stream of one subscription. Waits on the client's clock."""

    def __init__(self, client: FakeKinesis, subscription: Any) -> None:
        self._client = client
        self._subscription = subscription

    def __iter__(self) -> Iterator[Response]:
        service = self._client.service
        while True:
            page = service.poll(self._subscription)
            if page is not None:
                yield {"SubscribeToShardEvent": _with_datetimes(page.as_dict())}
            elif self._subscription.ending is not None:
                return
            else:
                self._client.clock.sleep(PUSH_SECONDS)

    def close(self) -> None:
        self._client.service.unsubscribe(self._subscription)


def _with_datetimes(value: Any) -> Any:
    """Times as botocore's parser gives them."""
    if isinstance(value, dict):
        found = {}
        for name, member in value.items():
            if name in _TIMES:
                found[name] = datetime.fromtimestamp(member, UTC)
            elif type(member) in _SCALARS:  # nearly all: nothing to look into
                found[name] = member
            else:
                found[name] = _with_datetimes(member)
        return found
    if isinstance(value, list):
        return [_with_datetimes(member) for member in value]
    return value


def _client_error(error: KinesisError, operation: str) -> ClientError:
    return ClientError(
        {
            "Error": {"Code": error.code, "Message": error.message},
            "ResponseMetadata": {
                "HTTPStatusCode": error.status,
                "RetryAttempts": 0,
                "RequestId": "",
                "HostId": "",
                "HTTPHeaders": {},
            },
        },
        operation,
    )
